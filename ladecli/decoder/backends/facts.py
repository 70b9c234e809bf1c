"""Facts about a model from its configuration: its context, and which drafts it can verify."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import UnsupportedModelError
from ..model.families import FAMILIES, ModelFacts, is_ours

MOST_FACTOR = 10_000
"""A configuration that stretches a context further is wrong."""
TESTED_STOCK = {
    *("mixtral", "phi", "gpt_neox", "gpt2", "opt", "starcoder2", "cohere", "cohere2", "olmo"),
    *("hunyuan_v1_dense", "exaone4", "gemma4_text", "gpt_oss", "qwen3_moe", "glm4_moe"),
    *("ernie4_5_moe", "deepseek_v3"),
}
"""Families on transformers' forward that the tests decode; others are tried at load alone."""

_RECURRENT = "it keeps a recurrent state, which cannot hold several continuations of a text"
_NO_KEYWORDS = "it does not pass keywords on to its attention, so a step cannot set the mask"
_NO_INTERFACE = "it does not use transformers' attention interface"
_CHUNKS = "it attends in chunks"
_SPARSE = "it drops keys by their content"
_BY_REASON = {
    _CHUNKS: "llama4 llama4_text",
    _NO_KEYWORDS: "stablelm nemotron",
    _SPARSE: "doge",
    _NO_INTERFACE: "bloom mpt falcon gptj codegen gpt_neo gpt_neox_japanese openai-gpt xglm",
    _RECURRENT: "mamba mamba2 falcon_mamba jamba bamba zamba zamba2 rwkv recurrent_gemma"
    " qwen3_next granitemoehybrid falcon_h1 lfm2 xlstm",
}
_NO_TREES = {family: why for why, families in _BY_REASON.items() for family in families.split()}
_MULTI_TOKEN = {
    *("rwkv", "lfm2", "lfm3", "nemotron_h", "falcon_h1", "olmo_hybrid", "minimax", "qwen3_next"),
    *("qwen3_5_text", "granitemoehybrid"),
}
"""Recurrent families whose state takes several tokens at once like one after the other: tried in
float32, where it shows.  Others take several tokens for the beginning of a text."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "attention"}
_RECURRENT_LAYERS = {"linear_attention", "mamba", "conv", "recurrent"}
"""Kinds of layers in a configuration's `layer_types`; no others are known here."""
_SELECTIONS = ("index_topk", "index_topk_blocks", "indexer_budget")
"""Settings of how many keys an index chooses; texts shorter than that do not show it."""


def refusal(config: Any) -> str | None:
    """Why a model with this configuration cannot be decoded here, or None."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if config.get_text_config(decoder=True).model_type == "moshi":
        return "its own forward does not continue a text"
    return None


def no_trees(config: Any) -> str | None:
    """Why trees of drafts cannot be verified by a model with this configuration, or None."""
    text = config.get_text_config(decoder=True)
    for family in (config.model_type, text.model_type):
        if family in _NO_TREES:
            return _NO_TREES[family]
    kinds = set(getattr(text, "layer_types", None) or ())
    if "chunked_attention" in kinds:
        return _CHUNKS
    if any(getattr(text, name, None) for name in _SELECTIONS):
        return _SPARSE
    if kinds & _RECURRENT_LAYERS:
        return _RECURRENT
    if others := kinds - _ATTENTION_LAYERS:
        return f"it has layers of the kind {min(others)!r}"
    return None


def accepts_multi_token_steps(config: Any) -> bool:
    """Whether a model with this configuration may be fed several tokens after a text at once."""
    text = config.get_text_config(decoder=True)
    return no_trees(config) != _RECURRENT or text.model_type in _MULTI_TOKEN


def may_verify_chains(config: Any) -> bool:
    """Whether a chain of drafts leaves the logits before it as they are; a trial finds out more."""
    # Which keys are dropped may depend on those that follow.
    return accepts_multi_token_steps(config) and no_trees(config) != _SPARSE


def model_facts(config: Any) -> ModelFacts:
    """Return the facts about a model, from its configuration.

    Raises:
        UnsupportedModelError: naming the family and the reason, or what is wrong.
    """
    if why := refusal(config):
        raise UnsupportedModelError(
            f"models of the family {config.model_type!r} are not supported: {why}"
        )
    text = config.get_text_config(decoder=True)
    if text.num_hidden_layers < 1:
        raise UnsupportedModelError(
            f"config.json has {text.num_hidden_layers} layers: it is damaged; download it again"
        )
    made_for = [getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    most = min((n for n in made_for if n and n > 0), default=None)
    ropes = [] if most is None else _ropes(text, most)
    changing = [rope for rope in ropes if rope.kind in ("longrope", "dynamic")]
    # Where scaling is linear, files differ in whether the length that they state is that before it.
    sure = [rope.scaled for rope in ropes if rope.kind != "linear"]
    why_no_trees = no_trees(config)
    kinds = getattr(text, "layer_types", None)
    slides = kinds is None or "sliding_attention" in kinds
    return ModelFacts(
        family=text.model_type,
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
        max_positions=None if most is None else max(most, *sure, 0),
        rope_boundary=min((rope.original for rope in changing), default=None),
        sliding_window=getattr(text, "sliding_window", None) if slides else None,
        no_trees=why_no_trees,
        ours=why_no_trees is None and is_ours(text),
        tested=text.model_type in FAMILIES or text.model_type in TESTED_STOCK,
        most_positions=max((rope.scaled for rope in ropes), default=0),
        rope_grows=len({*changing}) > 1 or any(rope.kind == "dynamic" for rope in changing),
    )


class _Rope(NamedTuple):
    """Rotary frequencies as a configuration states them.

    Those of `longrope` are one set for texts up to the original length and one for longer texts;
    `dynamic` has others for every length beyond it.  transformers takes those of the largest
    position of a forward.
    """

    kind: str
    original: int  # the length from which on they are scaled
    scaled: int  # the length that they are scaled for


def _ropes(text: Any, most: int) -> list[_Rope]:
    """The rotary frequencies of a text model that is made for a length: one set, or one for each
    kind of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    ropes = []
    for rope in [p for p in parameters.values() if isinstance(p, dict)] or [parameters]:
        kind, original = rope.get("rope_type", "default"), most
        if kind != "dynamic":  # of which transformers does not read it
            original = rope.get("original_max_position_embeddings") or most
        scaled, factor = original, rope.get("factor")
        if isinstance(factor, int | float) and 1 <= factor < MOST_FACTOR:
            scaled = int(original * factor)
        ropes.append(_Rope(kind, original, scaled))
    return ropes
