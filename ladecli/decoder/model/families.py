"""Model families: what sets one apart from Llama, and what the decoder must know about a model.

A family with a row in `FAMILIES` runs on our own forward (`transformer`); any other one runs on
transformers' forward, or, if that verifies no trees of drafts, with its own cache (`backends`).  To
add a family, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

DEFAULT_CONTEXT = 4096
"""Context length of a model whose configuration does not state one."""


class NormNames(NamedTuple):
    """Names of a layer's normalisations; "" where the family has none."""

    before_attention: str
    after_attention: str
    before_mlp: str
    after_mlp: str


_INPUT, _ATTENTION, _MLP = (
    "input_layernorm",
    "post_attention_layernorm",
    "post_feedforward_layernorm",
)
_PRE = NormNames(_INPUT, "", _ATTENTION, "")
_POST = NormNames("", _ATTENTION, "", _MLP)
_SANDWICH = NormNames(_INPUT, _ATTENTION, "pre_feedforward_layernorm", _MLP)
_GLM4 = NormNames(_INPUT, "post_self_attn_layernorm", _ATTENTION, "post_mlp_layernorm")


@dataclass(frozen=True, slots=True)
class Family:
    """The settings that set a family apart from Llama.

    Biases, QK-norm and its width, head sizes, scales of embeddings, residuals and logits, partial
    rotary and one rotary base per kind of layer are read from the model and its configuration.
    """

    norms: NormNames = _PRE  # where a layer normalises
    unit_offset: bool = False  # norms multiply by 1 + weight, in float32 (Gemma)
    interleaved: bool = False  # rotary turns neighbouring numbers, not the two halves of a head
    window_in_config: bool = False  # a sliding window of all layers, which none of them has
    attention_softcap: bool = False  # scores are capped by `attn_logit_softcapping`
    query_scale: bool = False  # queries grow with their position (Llama 4, Ministral 3)


FAMILIES = {
    "llama": Family(),
    "mistral": Family(window_in_config=True),
    "ministral": Family(),
    "ministral3": Family(window_in_config=True, query_scale=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "phi3": Family(window_in_config=True),
    "gemma": Family(unit_offset=True),
    "gemma2": Family(_SANDWICH, unit_offset=True, attention_softcap=True),
    "gemma3_text": Family(_SANDWICH, unit_offset=True),
    "granite": Family(),
    "olmo2": Family(_POST),
    "olmo3": Family(_POST),
    "smollm3": Family(),
    "glm": Family(interleaved=True),
    "glm4": Family(_GLM4, interleaved=True),
    "seed_oss": Family(),
    "cwm": Family(),
    "internlm3": Family(),
    "helium": Family(interleaved=True),
    "ernie4_5": Family(interleaved=True),
    "iquestcoder": Family(),
    "qwen3_vl_text": Family(),
    "qwen2_vl_text": Family(),
    "qwen2_5_vl_text": Family(),
    "qwen2_5_omni_text": Family(),
    "granite_docling_text": Family(),
}

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
"""Activations of a gated MLP by transformers' name; a model with another one is not ours."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that the decoder needs."""

    family: str  # transformers' model type
    layers: int  # each with keys and values of its own
    vocabulary: int  # token ids that the model can read
    max_positions: int | None  # the context that the model was made for; None if it does not say
    rope_boundary: int | None  # longer texts have other rotary frequencies; None if none have
    sliding_window: int | None  # how many positions some layers look back, or None
    no_trees: str | None = None
    """Why trees of drafts cannot be verified, as far as the configuration tells."""
    ours: bool = False  # whether our own forward is for it, as far as the configuration tells
    most_positions: int = 0  # the longest context, if scaled rotary frequencies allow a longer one
    rope_grows: bool = False  # whether every length beyond the boundary has its own frequencies
    tested: bool = False  # whether the tests decode models of the family
    rereads: bool = False
    """Whether the model's class reads a text anew where it grows beyond the boundary; others keep
    the keys, which stay turned as they are."""

    @property
    def context(self) -> int:
        """The most tokens of a text, unless more are asked for."""
        return self.max_positions or DEFAULT_CONTEXT

    @property
    def most_context(self) -> int:
        """The most tokens of a text that may be asked for."""
        return max(self.context, self.most_positions)


def activation(text: Any) -> str | None:
    """Return the name that `ACTIVATIONS` has for a model's activation; None for another one."""
    name = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None)
    return ACTIVATIONS.get(str(name))


def is_ours(text: Any) -> bool:
    """Return whether our own forward has all that the configuration of a text model asks for."""
    return text.model_type in FAMILIES and activation(text) is not None
