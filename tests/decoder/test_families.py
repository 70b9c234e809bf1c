"""What cannot work is refused by name; what is unknown is tried; facts about a model."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from ladecli.decoder.errors import UnsupportedModelError
from ladecli.decoder.families import FAMILIES, examine, refusal
from ladecli.decoder.load import load_decoder
from ladecli.decoder.stock_model import StockModel

from ..decoding import ids_of, run, transformers_ids
from ..families import OWN, SLIDING, STOCK, VOCABULARY, model_of, new_model, prompt_for

REFUSED = {
    "mamba": "recurrent state",
    "mamba2": "recurrent state",
    "jamba": "recurrent state",
    "recurrent_gemma": "recurrent state",
    "qwen3_next": "recurrent state",
    "lfm2": "recurrent state",
    "falcon_h1": "recurrent state",
    "minimax": "recurrent state",
    "gpt_oss": "attention sinks",
    "llama4_text": "chunks",
    "stablelm": "does not pass keywords",
    "nemotron": "does not pass keywords",
    "bloom": "attention interface",
    "mpt": "attention interface",
    "gptj": "attention interface",
    "doge": "by their content",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "whisper": "encoder-decoder",
}


@pytest.mark.parametrize(("family", "why"), REFUSED.items())
def test_refused_by_name_before_any_weights_are_read(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{family}' are not supported.*{why}"):
        examine(CONFIG_MAPPING[family]())


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


def test_an_unknown_family_that_hides_its_sliding_window_is_refused() -> None:
    """It would pass a trial that is shorter than its window, and be wrong beyond it."""
    with pytest.raises(UnsupportedModelError, match="never asked for its sliding window of 20"):
        load_decoder(new_model("phimoe", sliding_window=20, num_local_experts=2))


def test_an_unknown_family_that_differs_is_refused() -> None:
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
    with pytest.raises(UnsupportedModelError, match="'olmo' are not supported: a trial step"):
        load_decoder(model)
    assert model.config._attn_implementation == before, "a refused model is left as it was"


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
