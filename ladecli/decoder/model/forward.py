"""The interface of a model's forward: the inputs of a step, and the operations that compute it."""

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
"""The drafts that a model can verify in one pass."""
RunLayers = Callable[[Tensor, Mapping[str, Rotary], StepMask, StepCache], bool]
"""Runs the residual stream of a step, [T, n], through all layers, in place; returns False without
having changed it if it cannot run this step."""


@dataclass(frozen=True, slots=True)
class Operations:
    """All that is computed between the products with weights, by PyTorch or by a backend."""

    name: str = "sdpa"  # the attention's name, for messages
    attend: Attend = sdpa_attention
    reads_length: bool = False
    """True if attention reads the length of the text on the device and skips the slots after it, so
    that a captured step can pass all slots at no cost."""
    ops: TorchOps = field(default_factory=TorchOps)  # norms, rotary embedding, gates
    layers: Callable[[Sequence[Layer], Sequence[str], float], RunLayers | None] | None = None
    """Makes a `RunLayers` from the layers, the kinds of rotary embeddings and the factor of each
    branch; None for the loop in Python."""
    rank: MostProbable = most_probable  # see `sampling.most_probable`
    simpler: Operations | None = None
    """The operations to use after a kernel has failed; None if there are no others."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a forward of T tokens, on the device of the model."""

    tokens: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    mask: StepMask  # which keys each token sees
    outputs: Tensor | None  # int64, indices of the tokens whose logits are computed; None for all
    length: int  # committed tokens before the step
    last_position: int  # the largest position
    pending: int = 1  # committed tokens in it, which come first


class Forward(Protocol):
    """A model's forward: `transformer.Transformer`, or one of `backends`."""

    operations: Operations
    device: torch.device  # the device of the model's input
    dtype: torch.dtype  # the type of its activations
    drafts: Drafts  # what a step may hold beside the pending tokens

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """The shapes of what each layer writes to the cache."""

    def context(self) -> AbstractContextManager[object]:
        """Return the context manager that steps run in, such as `torch.inference_mode()`."""

    def use(self, operations: Operations) -> None:
        """Use other operations from now on."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; return the logits of its outputs, [outputs, vocabulary]."""
