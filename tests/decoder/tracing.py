"""What stands for CUDA graphs where there is no GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from ladecli.decoder.capture import Captured, Work


@dataclass
class Trace:
    """Tensor operations that were written down, to be done again without the Python around them."""

    outputs: tuple[Tensor, ...]
    operations: fx.GraphModule

    @torch.inference_mode()
    def replay(self) -> None:
        for output, new in zip(self.outputs, self.operations(), strict=True):
            output.copy_(new)


class Tracing:
    """Captures work as a graph does: what Python decided is decided for good, tensors from outside
    are taken by their addresses, and to ask for a number on the device is an error.

    Attributes:
        captures: how many there were.
    """

    def __init__(self) -> None:
        self.captures = 0

    def capture(self, work: Work) -> Captured:
        self.captures += 1
        work()
        operations = make_fx(lambda: work())()
        return Trace(tuple(each.clone() for each in operations()), operations)

    def wait(self) -> None:
        """Nothing runs by itself here."""


class Again:
    """Does the work again, Python and all: for models whose Python sees through what they are fed.

    Attributes:
        replays: how often.
        fails: raised by the next captures, first things first.
    """

    def __init__(self, *fails: Exception) -> None:
        self.replays = 0
        self.fails = list(fails)

    def capture(self, work: Work) -> Captured:
        if self.fails:
            raise self.fails.pop(0)
        return Repeated(self, work, work())

    def wait(self) -> None:
        """Nothing runs by itself here."""


@dataclass
class Repeated:
    """Work to be done again."""

    of: Again
    work: Work
    outputs: tuple[Tensor, ...]

    @torch.inference_mode()
    def replay(self) -> None:
        self.of.replays += 1
        for output, new in zip(self.outputs, self.work(), strict=True):
            output.copy_(new)
