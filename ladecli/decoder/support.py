"""Which models can be decoded here, and the facts about a model that the loop must know.

A step holds several continuations of the text at once.  That works where attention is the
only thing that connects tokens, and where the model lets a caller say who sees whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedModelError

DEFAULT_CONTEXT = 4096
"""Context of a model whose configuration does not say how long its texts may be."""
TESTED = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text"}
    | {"phi", "phi3", "olmo2", "gpt_neox", "gpt2", "opt", "starcoder2", "granite", "cohere"}
    | {"glm4"}
)
"""Families whose every step is tested against their own forward.  Others are tried first."""

_RECURRENT = "keeps a recurrent state, which cannot hold several continuations of a text"
_DROPS = "does not pass keywords on to its attention, so a step cannot say who sees whom"
_NO_INTERFACE = "does not use transformers' attention interface"
_SINKS = "has attention sinks, which this attention does not compute"
_CHUNKS = "attends in chunks, which this attention does not compute"
_REFUSED = {
    "llama4": _CHUNKS,
    "llama4_text": _CHUNKS,
    "stablelm": _DROPS,
    "nemotron": _DROPS,
    "gpt_oss": _SINKS,
    "bloom": _NO_INTERFACE,
    "mpt": _NO_INTERFACE,
    "doge": "drops keys by their content, which this attention does not compute",
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "falcon_mamba": _RECURRENT,
    "jamba": _RECURRENT,
    "bamba": _RECURRENT,
    "zamba": _RECURRENT,
    "zamba2": _RECURRENT,
    "rwkv": _RECURRENT,
    "recurrent_gemma": _RECURRENT,
    "qwen3_next": _RECURRENT,
    "granitemoehybrid": _RECURRENT,
    "falcon_h1": _RECURRENT,
    "lfm2": _RECURRENT,
    "xlstm": _RECURRENT,
}
# What a layer may be called in a configuration's `layer_types`; anything else is a state.
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the loop must know of a model.

    Attributes:
        family: transformers' model type.
        tested: whether the family is among `TESTED`.
        layers: hidden layers, each with keys and values of its own.
        vocabulary: number of token ids that the model can read.
        max_positions: the context that the model was made for, or None if it does not say.
        rope_boundary: the position from which on rotary frequencies change, or None.
        sliding_window: how far back some layers see, or None.
    """

    family: str
    tested: bool
    layers: int
    vocabulary: int
    max_positions: int | None
    rope_boundary: int | None
    sliding_window: int | None

    @property
    def context(self) -> int:
        """The most tokens of a text."""
        return self.max_positions or DEFAULT_CONTEXT


def refusal(config: Any) -> str | None:
    """Why a model with this configuration cannot be decoded here, or None."""
    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder-decoder"
    text = config.get_text_config(decoder=True)
    for family in (config.model_type, text.model_type):
        if family in _REFUSED:
            return _REFUSED[family]
    kinds = set(getattr(text, "layer_types", None) or ())
    if "chunked_attention" in kinds:
        return _CHUNKS
    if kinds - _ATTENTION_LAYERS:
        return _RECURRENT
    return None


def examine(config: Any) -> ModelFacts:
    """The facts about a model, from its configuration.

    Raises:
        UnsupportedModelError: naming the family and the reason, or what makes no sense.
    """
    if why := refusal(config):
        raise UnsupportedModelError(
            f"models of the family {config.model_type!r} are not supported: it {why}"
        )
    text = config.get_text_config(decoder=True)
    if text.num_hidden_layers < 1:
        raise UnsupportedModelError(
            f"a model of {text.num_hidden_layers} layers says nothing: its config.json is damaged"
        )
    boundary, longest = _rope_limits(text)
    limits = [n for n in (getattr(text, "max_position_embeddings", None), longest) if n]
    return ModelFacts(
        family=text.model_type,
        tested=text.model_type in TESTED,
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
        max_positions=min(limits, default=None),
        rope_boundary=boundary,
        sliding_window=_sliding_window(text),
    )


def _sliding_window(text: Any) -> int | None:
    kinds = getattr(text, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(text, "sliding_window", None)


def _rope_limits(text: Any) -> tuple[int | None, int | None]:
    """Where rotary frequencies change, and how far they can be told from the text alone.

    `longrope` has one set of frequencies for short texts and one for long ones, and reads the
    largest position of the whole step: a draft beyond the boundary would change the logits of
    the tokens before it.  `dynamic` changes them with every position beyond the original
    length, and remembers the longest text it ever saw: there is no text that plain decoding
    would be sure to give, so texts end at that length.
    """
    parameters = getattr(text, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer.
    nested = [p for p in parameters.values() if isinstance(p, dict)]
    for rope in nested or [parameters]:
        original = rope.get("original_max_position_embeddings") or text.max_position_embeddings
        if rope.get("rope_type") == "longrope":
            return original, None
        if rope.get("rope_type") == "dynamic":
            return None, original
    return None, None
