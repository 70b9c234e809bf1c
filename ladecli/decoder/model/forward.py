"""What a forward is: the inputs of a step, where its keys go, and what a model can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ..kv_cache import LayerShape, Target
from .mask import StepMask

Drafts: TypeAlias = Literal["trees", "chains", "none"]
"""What a model can verify in one pass: several continuations of a text, one of them, or none."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a forward of T tokens, on the device of the model."""

    tokens: Tensor
    positions: Tensor
    """`tokens`, `positions`: int64 [T]."""
    mask: StepMask  # which keys each token sees
    outputs: Tensor | None  # int64, rows whose logits are wanted; None for all
    length: int  # committed tokens before the step
    last_position: int  # the largest position


class StepCache(Protocol):
    """Where a step's keys and values go."""

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [heads, T, size] each; return all slots to attend to."""

    def target(self, index: int, count: int) -> Target:
        """Where a step of `count` tokens goes, for a kernel that writes it there itself."""


class Forward(Protocol):
    """A model's forward: ours (`transformer`) or transformers' (`stock`, `own_cache`)."""

    attention: str  # name of the backend
    device: torch.device
    dtype: torch.dtype
    """`device`, `dtype`: of the model's input, and of its activations."""
    keeps_weights: bool  # whether the model's own weights lie as transformers loaded them
    kernels: bool  # whether Triton kernels compute the operations between products
    drafts: Drafts  # what a step may hold beside the tokens that its cache lacks
    foreign: bool  # whether modules of libraries compute in a step, which may warn

    @property
    def rounding(self) -> torch.dtype:
        """The coarsest type that activations are rounded to."""

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """What each layer writes to the cache."""

    def use(self, attention: str, ops: Any = None) -> None:
        """Take another attention backend, and operations between products: None for torch's."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""
