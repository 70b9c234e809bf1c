"""Families that are tried, those without drafts, and those that are refused; facts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.engine import Limits
from ladecli.decoder.errors import ConfigError, UnsupportedModelError
from ladecli.decoder.families import FAMILIES, examine, refusal
from ladecli.decoder.load import load_decoder
from ladecli.decoder.parallel.groups import Group
from ladecli.decoder.stock_model import StockModel
from ladecli.decoder.strategy import Strategy

from ..decoding import ids_of, run, steps_of, transformers_ids
from ..families import OWN, SLIDING, STOCK, VOCABULARY, model_of, new_model, prompt_for

WITHOUT_DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("recurrent state", {"state_size": 8}),
    "rwkv": ("recurrent state", {"attention_hidden_size": 32}),
    "recurrent_gemma": ("recurrent state", {"num_hidden_layers": 3, "head_dim": 8}),
    "jamba": ("recurrent state", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "lfm2": ("recurrent state", {"layer_types": ["conv", "full_attention"]}),
    "gpt_oss": ("attention sinks", {"head_dim": 8, "num_local_experts": 4}),
    "llama4_text": ("chunks", {"head_dim": 8, "attention_chunk_size": SLIDING}),
    "stablelm": ("does not pass keywords", {}),
    "bloom": ("attention interface", {}),
    "openai-gpt": ("attention interface", {"n_positions": 128}),
    "doge": ("by their content", {}),
    "granite_swa": ("a trial step failed: .* needs 's_aux'", {}),
}
"""Why drafts cannot be verified, and settings of a small model."""
REFUSED = {
    "t5": "encoder-decoder",
    "whisper": "encoder-decoder",
    "moshi": "does not continue a text",
}


@pytest.mark.parametrize(("family", "why"), REFUSED.items())
def test_refused_by_name_before_any_weights_are_read(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{family}' are not supported.*{why}"):
        examine(CONFIG_MAPPING[family]())


def generated(model: Any, prompt: list[int], new: int, *, use_cache: bool = True) -> list[int]:
    """What transformers' own generate yields, with the attention that the model has."""
    ids = torch.tensor([prompt])
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        use_cache=use_cache,
        **settings,
    )
    return [int(i) for i in out[0, len(prompt) :]]


@pytest.mark.parametrize("family", WITHOUT_DRAFTS)
def test_where_drafts_cannot_be_verified_the_text_is_still_that_of_generate(family: str) -> None:
    """Also where the prompt comes in chunks, goes on from an earlier one, or forks from it."""
    why, settings = WITHOUT_DRAFTS[family]
    model, prompt = new_model(family, **settings), prompt_for(family)
    decoder = load_decoder(model, prefill_chunk=9)
    (notice,) = decoder.runner.notices
    assert re.search(f"one token at a time, without drafts: .*{why}", notice)
    expected = generated(model, prompt, 20)
    for ids, wanted in (
        (prompt, expected),
        (prompt + expected[:9], expected[9:]),
        (prompt[:-1], generated(model, prompt[:-1], 20)),
    ):
        events = run(decoder, ids, "lookahead", LookaheadConfig(), limits=Limits(len(wanted)))
        assert ids_of(events) == wanted
        assert {step.proposed for step in steps_of(events)} == {0}


def test_an_answer_that_is_broken_off_leaves_a_cache_that_can_be_used() -> None:
    model, prompt = new_model("jamba", **WITHOUT_DRAFTS["jamba"][1]), prompt_for("jamba")
    decoder, expected = load_decoder(model), generated(model, prompt, 20)

    def stop(token: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(decoder.generate(prompt, Strategy(), limits=Limits(20, should_stop=stop)))
    assert ids_of(run(decoder, prompt, limits=Limits(20))) == expected


def test_ranks_cannot_share_what_has_no_drafts() -> None:
    decoder = load_decoder(new_model("lfm2", **WITHOUT_DRAFTS["lfm2"][1]))
    group = Group()
    group.size = 2
    with pytest.raises(ConfigError, match="'lfm2' are decoded one token at a time"):
        decoder.generate([5, 6], Strategy(), group=group)


def test_every_row_has_a_test() -> None:
    assert {model_type for model_type, _ in OWN.values()} == {*FAMILIES}
    assert not {model_type for model_type, _ in STOCK.values()} & {*FAMILIES}
    assert not any(refusal(model_of(family).config) for family in OWN | STOCK)


@pytest.mark.parametrize("family", ["granitemoe", "olmoe", "arcee"])
def test_families_that_no_row_names_are_tried(family: str) -> None:
    model = new_model(family)
    decoder = load_decoder(model)
    assert isinstance(decoder.runner.model, StockModel)
    expected = transformers_ids(model, prompt_for(family), 20)
    assert ids_of(run(decoder, prompt_for(family), "lookahead"))[:20] == expected


def test_an_unknown_family_that_hides_its_sliding_window_gets_no_drafts() -> None:
    """It would pass a trial that is shorter than its window, and be wrong beyond it."""
    decoder = load_decoder(new_model("phimoe", sliding_window=20, num_local_experts=2))
    assert "never asked for its sliding window of 20" in decoder.runner.notices[0]


def test_an_unknown_family_that_differs_gets_no_drafts() -> None:
    """Here one whose attention does not look at what is cached."""
    model = new_model("olmo")
    attention = type(model.model.layers[0].self_attn)

    # Its base is known when this runs only.
    class Forgetful(attention):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
            return super().forward(*args, past_key_values=None, **kwargs)

    for layer in model.model.layers:
        layer.self_attn.__class__ = Forgetful
    before = model.config._attn_implementation
    decoder = load_decoder(model)
    assert "without drafts: a trial step" in decoder.runner.notices[0]
    assert model.config._attn_implementation == before, "the model is left as it was"
    prompt = prompt_for("olmo")
    expected = generated(model, prompt, 9, use_cache=False)
    assert ids_of(run(decoder, prompt, "lookahead", limits=Limits(9))) == expected


# Facts.


@pytest.mark.parametrize(
    ("family", "name", "values"),
    [
        ("mistral", "mistral", (2, VOCABULARY, 256, SLIDING, None, 256)),
        ("llama", "llama", (2, VOCABULARY, 256, None, None, 256)),
        ("llama3", "llama", (2, VOCABULARY, 256, None, None, 256)),
        ("gemma2", "gemma2", (2, VOCABULARY, 256, SLIDING, None, 256)),
        ("gemma3", "gemma3_text", (2, VOCABULARY, 256, SLIDING, None, 256)),
        ("phi3_long", "phi3", (2, VOCABULARY, 160, None, 40, 160)),
        ("llama_dynamic", "llama", (2, VOCABULARY, 40, None, None, 40)),
    ],
)
def test_facts(family: str, name: str, values: tuple[int | None, ...]) -> None:
    """Layers, vocabulary, context, sliding window, and the limits of rotary embedding."""
    facts = examine(model_of(family).config)
    limits = facts.rope_boundary, facts.max_positions
    found = (facts.layers, facts.vocabulary, facts.context, facts.sliding_window, *limits)
    assert (facts.family, found) == (name, values)


def test_a_damaged_configuration_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="0 layers: it is damaged"):
        examine(CONFIG_MAPPING["llama"](num_hidden_layers=0))
