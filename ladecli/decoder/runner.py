"""Runs the forward of a step; `cuda_graphs` has a runner whose steps are captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention import StepMask
from .errors import DeviceLostError
from .kv_cache import KVCache, LayerShape, Target
from .layout import StepLayout
from .memory import is_out_of_memory
from .quiet import quiet

SDPA = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of PyTorch's attention but cuDNN's, which plans anew for every length of the text."""


Drafts: TypeAlias = Literal["trees", "chains", "none"]
"""What a model can verify in one pass: several continuations of a text, one of them, or none."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a forward of T tokens, on the device of the model.

    Attributes:
        tokens, positions: int64 [T].
        mask: which keys each token sees.
        outputs: int64, rows whose logits are wanted; None for all.
        length: committed tokens before the step.
        last_position: the largest position.
    """

    tokens: Tensor
    positions: Tensor
    mask: StepMask
    outputs: Tensor | None
    length: int
    last_position: int


class StepCache(Protocol):
    """Where a step's keys and values go."""

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [heads, T, size] each; return all slots to attend to."""

    def target(self, index: int, count: int) -> Target:
        """Where a step of `count` tokens goes, for a kernel that writes it there itself."""


class Forward(Protocol):
    """A model's forward: ours (`transformer`) or transformers' (`stock_model`, `own_cache_model`).

    Attributes:
        attention: name of the backend.
        device, dtype: of the model's input, and of its weights.
        keeps_weights: whether the model's own weights lie as transformers loaded them.
        kernels: whether Triton kernels compute the operations between products.
        drafts: what a step may hold beside the tokens that its cache lacks.
        foreign: whether modules of libraries compute in a step, which may warn.
    """

    attention: str
    device: torch.device
    dtype: torch.dtype
    keeps_weights: bool
    kernels: bool
    drafts: Drafts
    foreign: bool

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """What each layer writes to the cache."""

    def use(self, attention: str, ops: Any = None) -> None:
        """Take another attention backend, and operations between products: None for torch's."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""


Pending = Callable[[], Tensor]
"""A step that was started: call it for the logits of its outputs, [outputs, vocabulary]."""


class Runner:
    """Runs steps one operation after the other.

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
        return partial(self.run, layout)

    @torch.inference_mode()
    def run(self, layout: StepLayout) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""
        model, cache = self.model, self.cache
        cache.reserve(cache.length + len(layout.tokens))
        outputs: Tensor | None = None
        if layout.outputs != [*range(len(layout.tokens))]:
            outputs = torch.tensor(layout.outputs, dtype=torch.int64, device=model.device)
        step = StepInputs(
            tokens=torch.tensor(layout.tokens, device=model.device),
            positions=torch.tensor(layout.positions, device=model.device),
            mask=StepMask(layout.rows, layout.positions, cache.length),
            outputs=outputs,
            length=cache.length,
            last_position=max(layout.positions),
        )
        try:
            with (
                quiet() if model.foreign else nullcontext(),
                sdpa_kernel(SDPA) if model.device.type == "cuda" else nullcontext(),
            ):
                return model.forward(step, cache)
        except Exception as error:
            if is_out_of_memory(error) or not uses_triton(model):
                raise
            check_device(model.device, error)
            why = reason_of(error)
        # A kernel can fail at a size that nothing has tried before.
        model.use("sdpa")
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
