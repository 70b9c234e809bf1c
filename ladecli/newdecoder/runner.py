"""Runs the forward of a step; `cuda_graphs` has a runner whose steps are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from .kv_cache import KVCache, LayerShape
from .layout import StepLayout
from .step_inputs import StepInputs, step_inputs
from .transformer import StepCache


class Forward(Protocol):
    """A model's forward: ours (`transformer`) or transformers' (`stock_model`)."""

    attention: str
    device: torch.device

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """What each layer writes to the cache."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""


Pending = Callable[[], Tensor]
"""A step that was started: call it for the logits of its outputs, [outputs, vocabulary]."""


class Runner:
    """Runs steps one operation after the other.

    Args:
        model: what runs.
        cache: where its keys and values go.

    Attributes:
        overlaps: whether a step runs on the device after `start` has returned, so that time
            until its result is asked for is not lost.
        captured: CUDA graphs captured so far.
        notices: lines for the user about what steps do without.
    """

    overlaps = False

    def __init__(self, model: Forward, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self.captured = 0
        self.notices: list[str] = []

    @property
    def device(self) -> torch.device:
        """Of the model's input and of logits."""
        return self.model.device

    def widths(self, limit: int) -> Sequence[int]:
        """The only widths that steps should have, up to a limit, which is one of them; () where
        any width does."""
        return ()

    def start(self, layout: StepLayout) -> Pending:
        """Start one step, whose keys and values go after the committed ones.

        Here nothing happens before the result is asked for.
        """
        return lambda: self.run(layout)

    @torch.inference_mode()
    def run(self, layout: StepLayout) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""
        self.cache.reserve(self.cache.length + len(layout.tokens))
        step = step_inputs(layout, self.cache.length, self.device)
        with without_cudnn(self.device):
            return self.model.forward(step, self.cache)

    def forget(self) -> None:
        """Let go of what is kept for further steps."""


@contextmanager
def without_cudnn(device: torch.device) -> Iterator[None]:
    """Keep torch from cuDNN's attention, which plans anew for every length of the text."""
    if device.type != "cuda":
        yield
        return
    before: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
