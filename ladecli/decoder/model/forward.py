"""The interface of a forward: the inputs of a step and the operations that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ..kv_cache import LayerShape, StepCache
from ..sampling import MostProbable, most_probable
from .attention import Attend, sdpa_attention
from .layer import Layer, TorchOps
from .mask import StepMask
from .rotary import Rotary

Drafts: TypeAlias = Literal["trees", "chains", "none"]
"""The drafts that a model can verify in one pass: rival continuations, one of them, or none."""
RunLayers = Callable[[Tensor, Mapping[str, Rotary], StepMask, StepCache], bool]
"""Runs a step [T, n] through all layers, which add to it in place; false where Python has to."""


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations between the products with weights: plain PyTorch's, or a backend's."""

    name: str = "sdpa"  # of the attention, as the user reads it
    attend: Attend = sdpa_attention
    reads_length: bool = False
    """Whether attention reads the length of the text on the device and nothing after it: a captured
    step can hand it all slots there are, at no cost."""
    ops: TorchOps = field(default_factory=TorchOps)
    layers: Callable[[Sequence[Layer], Sequence[str], float], RunLayers | None] | None = None
    """Makes a function that runs all layers, from the layers, the kinds of rotary embeddings and
    the scale of branches; None for the loop in Python."""
    rank: MostProbable = most_probable
    simpler: Operations | None = None
    """The operations to go on with after a kernel has failed; None if there are no others."""


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


class Forward(Protocol):
    """A model's forward: `transformer`, or one of `backends`."""

    operations: Operations
    device: torch.device
    dtype: torch.dtype
    """`device`, `dtype`: of the model's input, and of its activations."""
    drafts: Drafts  # what a step may hold beside the tokens that its cache lacks

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """The shapes of what each layer writes to the cache."""

    def context(self) -> AbstractContextManager[object]:
        """Return what a step runs in, such as `torch.inference_mode()`."""

    def use(self, operations: Operations) -> None:
        """Take other operations."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""
