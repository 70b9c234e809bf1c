"""How a step attends: one function registered with transformers, several backends behind it.

transformers looks an attention function up by name and passes it any keyword given to
`model.forward`.  So nothing is patched: `bind` sets the name in the model's configuration,
and each forward carries a `StepAttention` in the keyword `lade_step`, which says who sees
whom.  The name must stay out of transformers' *mask* registry: for a name unknown there, no
mask is built, and ours is the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from ..errors import ConfigError, UnsupportedModelError
from .flash import flash_attention
from .fused import triton_attention
from .reference import reference_attention
from .sdpa import sdpa_attention
from .step import StepAttention

__all__ = [
    "AUTO",
    "BACKENDS",
    "READS_LENGTH",
    "STEP_KEYWORD",
    "StepAttention",
    "bind",
    "bound",
    "choose_backend",
    "release",
]

Backend = Callable[..., Tensor]
"""(query [1, H, T, D], key and value [1, K, S, D], step, scaling, sliding_window, softcap)
-> [1, H, T, D], where each of the K key heads serves H / K query heads."""

BACKENDS: dict[str, Backend] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "flash": flash_attention,
    "triton": triton_attention,
}
READS_LENGTH = frozenset({"triton"})
"""Backends that read on the device, in all they do, how long the text is: a step of fixed shapes
can hand them all slots there are.  Others see windows, say, by a mask over what they are handed."""
AUTO = "sdpa"
"""What "auto" stands for: the fastest one that is exact everywhere."""
NAME = "lade"
STEP_KEYWORD = "lade_step"

# Keywords that change nothing when a model runs for inference, or that the step replaces.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position"}
    | {"return_dict", "output_hidden_states", "output_router_logits", "layer_idx", "target_dtype"}
    | {"position_embeddings", "logits_to_keep", "past_key_values", "deterministic"}
)


def choose_backend(name: str) -> Backend:
    """The backend called `name`; "auto" stands for `AUTO`.

    Raises:
        ConfigError: there is no such backend.
    """
    if name not in ("auto", *BACKENDS):
        raise ConfigError(f"unknown attention {name!r}; use one of auto, {', '.join(BACKENDS)}")
    return BACKENDS[AUTO if name == "auto" else name]


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    lade_step: StepAttention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in the shape that transformers expects.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D], what the cache returned: all slots up to the step's last.

    Returns:
        [1, T, H, D], and None for the attention weights.

    Raises:
        UnsupportedModelError: the layer asks for something no backend does.
    """
    name = type(module).__name__
    if lade_step is None:
        raise UnsupportedModelError(f"{name} does not pass the step on to its attention")
    for keyword, given in kwargs.items():
        if given is not None and keyword not in _HARMLESS:
            raise UnsupportedModelError(f"{name} needs {keyword!r} in its attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = lade_step.backend(query, key, value, lade_step, scale, sliding_window, softcap)
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, attention_forward)


def _configurations(model: nn.Module) -> list[Any]:
    """Every distinct configuration object in the model that names an attention function."""
    found = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [c for c in found.values() if hasattr(c, "_attn_implementation")]


def bind(model: nn.Module) -> list[tuple[Any, str | None]]:
    """Make `model` use the step attention; return what each configuration said before."""
    before = [(config, config._attn_implementation) for config in _configurations(model)]
    for config, _ in before:
        config._attn_implementation = NAME
    return before


def release(before: list[tuple[Any, str | None]]) -> None:
    """Let configurations say again what they said before `bind`."""
    for config, name in before:
        config._attn_implementation = name


@contextmanager
def bound(model: nn.Module) -> Iterator[None]:
    """Make `model` use the step attention, and give it its own back afterwards."""
    before = bind(model)
    try:
        yield
    finally:
        release(before)
