"""What stands for CUDA graphs where there is no GPU."""

from __future__ import annotations

import torch

from ladecli.decoder.cuda_graphs import Work


class Again:
    """Captures work by doing it again, Python and all.

    Attributes:
        fails: whether work cannot be captured.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def __call__(self, work: Work) -> Work:
        if self.fails:
            raise RuntimeError("no way")
        work()
        return torch.inference_mode()(work)
