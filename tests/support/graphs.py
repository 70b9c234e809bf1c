"""What stands for CUDA graphs where there is no GPU."""

from __future__ import annotations

import torch

from ladecli.decoder.backends.cuda_graphs import Work


class Again:
    """Captures work by doing it again, Python and all.

    Args:
        errors: raised by the next captures; None for none.
        fails: whether no work can be captured.

    Attributes:
        captures, replays: how many.
    """

    def __init__(self, *errors: Exception | None, fails: bool = False) -> None:
        self.errors = list(errors)
        self.fails = fails
        self.captures = self.replays = 0

    def __call__(self, work: Work) -> Work:
        self.captures += 1
        if self.fails:
            raise RuntimeError("no way")
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        work()

        @torch.inference_mode()
        def replay() -> None:
            self.replays += 1
            work()

        return replay
