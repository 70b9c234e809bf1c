"""What captured steps use that is not torch's own, given up bit by bit where it cannot be captured.

A kernel may work by itself and fail at a size, or within a CUDA graph, that nobody has tried.
Steps without it are slower; steps without graphs are slower by far.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from .lean import fused
from .places import device_of

PLAIN = "sdpa"
"""The attention backend that consists of torch's own operations."""


class Way(NamedTuple):
    """How the steps of a model are computed.

    Attributes:
        attention: name of the attention backend.
        kernels: whether small Triton kernels stand for what lies between products (see `lean`).
    """

    attention: str
    kernels: bool


class Ladder:
    """Ways to compute steps, the best one first, and on which of them we are.

    The trial of a model and its steps share one: what has failed once is not tried again.

    Args:
        attention: name of the attention backend that was asked for.
        kernels: whether there are such kernels here.

    Attributes:
        way: the one to take.
    """

    def __init__(self, attention: str, kernels: bool) -> None:
        self.way = self._best = Way(PLAIN if attention == "auto" else attention, kernels)
        # The kernels are many, and each is tried at sizes of its own: they are the most doubtful.
        ways = [(name, on) for name in (self.way.attention, PLAIN) for on in (kernels, False)]
        self._left = [way for way in map(Way._make, dict.fromkeys(ways)) if way != self._best]
        self._why = ""
        self._stood = self.way, self._why

    def stand(self) -> None:
        """Steps were captured on this way: it counts again if something fails on all others."""
        self._stood = self.way, self._why

    def step_down(self, why: str) -> bool:
        """Take the next way.

        Args:
            why: what went wrong on this one, in one line.

        Returns:
            Whether there is one.  If not, ours were not to blame, and that way counts again on
            which steps were captured last, or else the first one.
        """
        if not self._left:
            self.way, self._why = self._stood
            return False
        self.way, self._why = self._left.pop(0), why
        return True

    @property
    def given_up(self) -> str | None:
        """What steps do without, and why, in one line; None for nothing."""
        without = []
        if self.way.kernels != self._best.kernels:
            without.append("without lade's small kernels")
        if self.way.attention != self._best.attention:
            without.append(f"with attention {self.way.attention}, not {self._best.attention}")
        return f"{' and '.join(without)}: {self._why}" if without else None


def ladder_for(model: nn.Module, attention: str) -> Ladder:
    """The ladder for a model where it is, with the attention backend that was asked for."""
    return Ladder(attention, fused.available(device_of(model)))
