"""Who sees whom in one step, in the forms that backends ask for: masks, bits, two parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WORD = 32
"""Tokens of a step whose visibility is packed into one integer."""


class Parts(NamedTuple):
    """The keys and values of one layer: those before the step, and the step's own.

    Attributes:
        key, value: [1, K, S', D]; the first `length` slots count, and no others.
        own_key, own_value: [1, K, T, D].
    """

    key: Tensor
    value: Tensor
    own_key: Tensor
    own_value: Tensor


class StepAttention:
    """Visibility of one step of T tokens behind `prefix` cached ones; S = prefix + T.

    The cached tokens stand in the slots 0 to prefix - 1, slot i at position i.

    Args:
        backend: computes the attention.
        visible: bool [T, T], who sees whom within the step; None when T is 1.
        positions: int64 [T].
        prefix: cached tokens, which everyone sees as far as a sliding window lets them.
        last_position: the largest of `positions`, known without asking the device.

    Attributes:
        backend, positions: as above.
        sliding_windows: those that some layer asked for.
    """

    def __init__(
        self,
        backend: Callable[..., Tensor],
        visible: Tensor | None,
        positions: Tensor,
        prefix: int,
        last_position: int,
    ) -> None:
        self.backend = backend
        self._visible = visible
        self.positions = positions
        self._prefix = prefix
        self._last_position = last_position
        # Layers of one kind share a mask, so each is made once a step.
        self.sliding_windows: set[int] = set()
        self._bool: dict[int | None, Tensor | None] = {}
        self._added: dict[tuple[int | None, int, torch.dtype, torch.device], Tensor] = {}
        self._bits: Tensor | None = None
        self._length: Tensor | None = None

    @property
    def visible(self) -> Tensor | None:
        """Bool [T, T], who sees whom within the step; None where there is nothing to hide."""
        return self._visible

    @property
    def prefix(self) -> int | None:
        """Cached tokens; None where only the device knows how many there are."""
        return self._prefix

    @property
    def length(self) -> Tensor:
        """Cached tokens, int32 [1] on the device, for kernels that read it there."""
        if self._length is None:
            device = self.positions.device
            self._length = torch.tensor([self._prefix], dtype=torch.int32, device=device)
        return self._length

    @property
    def bits(self) -> Tensor:
        """`visible` as int32 [T, ceil(T / 32)]: bit j % 32 of word j // 32 in row i says that
        token i of the step sees token j of it."""
        if self._bits is None:
            count = len(self.positions)
            visible = self.visible
            if visible is None:
                visible = torch.ones((1, 1), dtype=torch.bool, device=self.positions.device)
            words = -(-count // WORD)
            padded = torch.nn.functional.pad(visible, (0, words * WORD - count))
            weights = 2 ** torch.arange(WORD, device=visible.device)
            packed = (padded.view(count, words, WORD) * weights).sum(dim=2)
            # As an unsigned number it may not fit: the highest bit is the sign.
            self._bits = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
        return self._bits

    def split(self, key: Tensor, value: Tensor) -> Parts:
        """What a backend was handed, told apart: before the step, and the step's own.

        Args:
            key, value: [1, K, S, D], as a backend gets them.
        """
        before = self._prefix
        return Parts(
            key[:, :, :before], value[:, :, :before], key[:, :, before:], value[:, :, before:]
        )

    def bool_mask(self, sliding_window: int | None) -> Tensor | None:
        """Bool [T, S], true where a query sees a slot; None where every query sees all.

        A sliding window hides keys by token position, not by slot: a query sees the keys at
        `position > query position - sliding_window`.  The mask is on the device of `positions`.
        """
        reach = self.reach(sliding_window)
        if reach not in self._bool:
            self._bool[reach] = self._make(reach)
        return self._bool[reach]

    def added_mask(
        self,
        sliding_window: int | None,
        groups: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Tensor | None:
        """The mask as a term to add to scores, [groups * T, S]: 0 or minus infinity.

        The T rows are repeated for each of `groups` query heads that share a key head.  Layers
        may be on several devices: the mask is on `device`, that of `positions` if None.
        """
        device = device or self.positions.device
        wanted = (self.reach(sliding_window), groups, dtype, device)
        if wanted not in self._added:
            mask = self.bool_mask(sliding_window)
            if mask is None:
                return None
            mask = mask.to(device)
            added = torch.zeros(mask.shape, dtype=dtype, device=device)
            self._added[wanted] = added.masked_fill_(~mask, float("-inf")).repeat(groups, 1)
        return self._added[wanted]

    def reach(self, sliding_window: int | None) -> int | None:
        """The window, or None where it reaches back to the first token and hides nothing.

        Whoever does not ask for a mask asks this, so that it is known which layers have windows.
        """
        if sliding_window is not None:
            self.sliding_windows.add(sliding_window)
        if sliding_window is None or sliding_window > self._last_position:
            return None
        return sliding_window

    def _make(self, sliding_window: int | None) -> Tensor | None:
        if self.visible is None and sliding_window is None:
            return None
        count = len(self.positions)
        mask = torch.ones((count, self._prefix + count), dtype=torch.bool)
        mask = mask.to(self.positions.device)
        if self.visible is not None:
            mask[:, self._prefix :] = self.visible
        if sliding_window is not None:
            slots = torch.arange(self._prefix, device=self.positions.device)
            keys = torch.cat([slots, self.positions])
            mask &= keys[None, :] > self.positions[:, None] - sliding_window
        return mask
