"""Facts about a model from its configuration: its context, and which drafts it can verify."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import UnsupportedModelError
from ..model.families import FAMILIES, ModelFacts, is_ours

MOST_FACTOR = 10_000
"""A configuration that stretches a context further is wrong."""
STOCK = """
afmoe apertus apertus1p5_text arcee aria_text axk1 beam biogpt bitnet chameleon cohere cohere2
cohere2_moe cohere_compass_text cosmos3_edge_text ctrl deepseek_ocr2_text deepseek_v2
deepseek_v3 diffllama dots1 ernie4_5_moe ernie4_5_vl_moe_text exaone exaone4 exaone_moe
flex_olmo flint gemma3n_text gemma4_text gemma4_unified_text glm4_moe glm4_moe_lite
glm4v_moe_text glm4v_text glm_ocr_text gpt2 gpt_bigcode gpt_neox gpt_oss granite_swa granitemoe
granitemoe_swa granitemoeshared hrm_text hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hy_v3
hyperclovax jais2 jetmoe kolibri1 laguna longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2
mistral4 mixtral modernbert-decoder molmo2_text muse_glimmer_text nanochat olmo olmoe opt
paddleocr_vl_text persimmon phi phi4_multimodal phimoe qwen2_moe qwen3_moe qwen3_omni_moe_text
qwen3_vl_moe_text sarvam_mla sarvam_moe solar_open starcoder2 step3p5 vaultgemma youtu
"""
"""Families that verify trees on transformers' forward."""
HYBRIDS = """
bamba falcon_h1 granitemoehybrid lara_mini lfm2 lfm2_moe lfm3 mamba2 nemotron_h olmo_hybrid
qwen3_5_moe_text qwen3_5_text qwen3_next zamba2
"""
"""Families that verify trees there although some of their layers are recurrent."""
_OTHERS = """
axk2 bailing_hybrid deepseek_v32 deepseek_v4 dory git
glm_moe_dsa hy_v4 hy_v4_vl_text inkling2_loop_text inkling2_text inkling_text kimi_linear
minimax minimax_m3_vl_text mistral_large4_text mllama_text_model qwen4_exp_text trocr zaya
"""
"""Families without trees, by what their configurations or the trial at load tell, beside those of
`_BY_REASON`."""
UNTRIED = """
dbrx dots3_note_text emu3_text_model evolla glm5_next_text granite4_vision_text muse_spark_text
xlstm
"""
"""Families of which transformers runs no small model: they are tried at load alone."""
_BOTH_WAYS = "its tokens see those after them"
_REFUSED = {
    "its own forward does not continue a text": "moshi musicgen_decoder musicgen_melody_decoder",
    "it cannot read text without pictures or sound": "blip_text_model idefics kosmos_2_text_model"
    " kosmos_2_5_text_model kyutai_speech_to_text pi0 unlimited_ocr_text voxtral_realtime_text",
    "it drafts for another model": "gemma4_assistant gemma4_unified_assistant",
    "it writes by diffusion": "diffusion_gemma_text",
    _BOTH_WAYS: "bert bert-generation big_bird camembert data2vec-text"
    " electra ernie megatron-bert paligemma rembert roberta roberta-prelayernorm roc_bert roformer"
    " xlm-roberta xlm-roberta-xl xmod",
    "it cannot continue a text from its tokens alone": "blt cpmant reformer xlm xlnet",
}

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
    _RECURRENT: "mamba falcon_mamba jamba zamba rwkv recurrent_gemma xlstm",
}
_NO_TREES = {family: why for why, families in _BY_REASON.items() for family in families.split()}
_MULTI_TOKEN = {"rwkv", "minimax"}
"""Recurrent families whose state takes several tokens at once like one after the other: tried in
float32, where it shows.  Others take several tokens for the beginning of a text."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "attention"}
_RECURRENT_LAYERS = {"linear_attention", "mamba", "conv", "recurrent"}
"""Kinds of layers in a configuration's `layer_types`; no others are known here."""
_SELECTIONS = ("index_topk", "index_topk_blocks", "indexer_budget")
"""Settings of how many keys an index chooses; texts shorter than that do not show it."""


def known_families() -> set[str]:
    """Return the families that are known to work; the tests decode them."""
    named = f"{STOCK} {HYBRIDS} {_OTHERS}".split()
    return {*FAMILIES, *named, *_NO_TREES} - {*UNTRIED.split()}


def refusal(config: Any) -> str | None:
    """Return why a model with this configuration cannot be decoded here, or None."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    text = config.get_text_config(decoder=True)
    for why, families in _REFUSED.items():
        if {config.model_type, text.model_type} & {*families.split()}:
            return None if why == _BOTH_WAYS and getattr(text, "is_decoder", False) else why
    return None


def no_trees(config: Any) -> str | None:
    """Return why a model with this configuration cannot verify trees of drafts, or None."""
    text = config.get_text_config(decoder=True)
    for family in (config.model_type, text.model_type):
        if family in _NO_TREES:
            return _NO_TREES[family]
    kinds = set(getattr(text, "layer_types", None) or ())
    if "chunked_attention" in kinds:
        return _CHUNKS
    if any(getattr(text, name, None) for name in _SELECTIONS):
        return _SPARSE
    if text.model_type in HYBRIDS.split():
        return None
    if kinds & _RECURRENT_LAYERS:
        return _RECURRENT
    if others := kinds - _ATTENTION_LAYERS:
        return f"it has layers of the kind {min(others)!r}"
    return None


def accepts_multi_token_steps(config: Any) -> bool:
    """Return True if a model with this configuration can be fed several tokens after a text."""
    text = config.get_text_config(decoder=True)
    return no_trees(config) != _RECURRENT or text.model_type in _MULTI_TOKEN


def may_verify_chains(config: Any) -> bool:
    """Return True if logits may not depend on a chain of drafts after them; a trial decides."""
    # In sparse attention, the choice of keys may depend on later ones.
    return accepts_multi_token_steps(config) and no_trees(config) != _SPARSE


def model_facts(config: Any) -> ModelFacts:
    """Return the facts about a model, from its configuration.

    Raises:
        UnsupportedModelError: names the family and the reason, or a fault of the configuration.
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
    # For linear scaling, some files state the length before scaling, and others that after it.
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
        tested=text.model_type in known_families(),
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
