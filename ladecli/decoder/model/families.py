"""Model families: how each differs from Llama, and the facts about a model that the decoder needs.

A family with a row in `FAMILIES` runs on our own forward (`transformer`).  Any other family runs on
transformers' layers with our mask, or, if these cannot verify trees of drafts, on transformers'
whole forward with its own cache (`backends`).  To add a family, add a row (docs/extending.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

DEFAULT_CONTEXT = 4096
"""Context length of a model whose configuration does not state one."""


class NormNames(NamedTuple):
    """Names of a layer's modules for normalisation; "" if the family has none there."""

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
    """The differences between a family and Llama.

    Biases, QK-norm and its width, head sizes, scales of embeddings, residuals and logits, partial
    rotary and one rotary base per kind of layer are read from the model and its configuration.
    """

    norms: NormNames = _PRE  # the norms of a layer
    unit_offset: bool = False  # norms multiply by 1 + weight, in float32 (Gemma)
    interleaved: bool = False  # rotary embedding pairs neighbours, not the halves of a head
    window_in_config: bool = False  # all layers have the window that the configuration states
    attention_softcap: bool = False  # scores are capped by `attn_logit_softcapping`
    query_scale: bool = False  # queries are scaled by their position (Llama 4, Ministral 3)


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
"""Our names of a gated MLP's activations, by transformers' names.  A model with another activation
does not run on our own forward."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that the decoder needs."""

    family: str  # transformers' model type
    layers: int  # each with keys and values of its own
    vocabulary: int  # the number of token ids that the model can read
    max_positions: int | None  # the context by the configuration; None if it has none
    rope_boundary: int | None  # longer texts have other rotary frequencies, if not None
    sliding_window: int | None  # how many positions some layers look back, or None
    no_trees: str | None = None
    """Why trees of drafts cannot be verified, judging by the configuration; None if they can."""
    ours: bool = False  # True if our own forward can run it, judging by the configuration
    most_positions: int = 0  # the longest context that rotary frequencies are scaled for
    rope_grows: bool = False  # True if every length beyond the boundary has its own frequencies
    tested: bool = False  # True if the tests decode models of the family
    rereads: bool = False
    """True if the model's class reads the whole text again when it grows beyond the boundary; other
    classes keep the cached keys, with the old frequencies."""

    @property
    def context(self) -> int:
        """The context length by default, in tokens."""
        return self.max_positions or DEFAULT_CONTEXT

    @property
    def most_context(self) -> int:
        """The largest context length that may be asked for, in tokens."""
        return max(self.context, self.most_positions)


def activation(text: Any) -> str | None:
    """Return our name of a text model's activation; None if `ACTIVATIONS` does not have it."""
    name = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None)
    return ACTIVATIONS.get(str(name))


def is_ours(text: Any) -> bool:
    """Return whether our own forward has the family and activation that a configuration states."""
    return text.model_type in FAMILIES and activation(text) is not None
