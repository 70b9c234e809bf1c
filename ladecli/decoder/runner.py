"""Runs the forward of a step; `cuda_graphs` has a runner whose steps are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from .errors import DeviceLostError
from .kv_cache import KVCache, LayerShape
from .layout import StepLayout
from .memory import is_out_of_memory
from .step_inputs import StepInputs, step_inputs
from .transformer import StepCache, TorchOps


class Forward(Protocol):
    """A model's forward: ours (`transformer`) or transformers' (`stock_model`)."""

    attention: str
    device: torch.device
    dtype: torch.dtype
    keeps_weights: bool
    kernels: bool

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """What each layer writes to the cache."""

    def use(self, attention: str, ops: TorchOps | None = None) -> None:
        """Take another attention backend, and operations: those given, or torch's."""

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
        captures: whether steps are captured as CUDA graphs, which run on the device after
            `start` has returned, so that time until their result is asked for is not lost.
        compiles: whether they are compiled first.
        captured: CUDA graphs captured so far.
        notices: lines for the user about what steps do without.
    """

    captures = False
    compiles = False

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
        try:
            with without_cudnn(self.device):
                return self.model.forward(step, self.cache)
        except Exception as error:
            if is_out_of_memory(error) or not uses_triton(self.model):
                raise
            check_device(self.device, error)
            why = reason_of(error)
        # A kernel can fail at a size that nothing has tried before.
        self.model.use("sdpa")
        self.notices.append(f"steps run without Triton kernels, and slower: {why}")
        return self.run(layout)

    def forget(self) -> None:
        """Let go of what is kept for further steps."""


def uses_triton(model: Forward) -> bool:
    """Whether Triton kernels compute anything in a forward."""
    return model.kernels or model.attention == "triton"


def check_device(device: torch.device, error: BaseException) -> None:
    """Tell an error from a fault that the process cannot recover from, such as a kernel that
    wrote where it must not.

    Raises:
        DeviceLostError: the device answers nothing any more.
    """
    if device.type != "cuda" or not isinstance(error, RuntimeError):
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        why = reason_of(fault)
        # A capture that is still under way is no fault.
        if "captur" in why:
            return
        raise DeviceLostError(
            f"the GPU met a fault that ends this process ({why}); start again, and if it comes"
            " back, with --no-kernels or --no-cuda-graphs"
        ) from error


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
