"""What cannot work is refused by name; what is unknown is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from ladecli.decoder.engine import Decoder
from ladecli.decoder.errors import UnsupportedModelError
from ladecli.decoder.support import TESTED, examine

from ..families import FAMILIES, model_of

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
    "doge": "by their content",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "whisper": "encoder-decoder",
}


@pytest.mark.parametrize(("family", "why"), REFUSED.items())
def test_refused_by_name_before_any_weights_are_read(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{family}' are not supported.*{why}"):
        examine(CONFIG_MAPPING[family]())


def test_every_tested_family_has_a_test() -> None:
    covered = {model_of(family).config.model_type for family in FAMILIES}
    assert covered - {"gemma3_text"} == TESTED - {"gemma3", "gemma3_text"}


def small(family: str, **extra: Any) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        **extra,
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", ["olmo", "olmo3", "cohere2", "smollm3", "granitemoe", "glm"])
def test_unknown_families_that_work_pass_the_trial(family: str) -> None:
    decoder = Decoder(small(family))
    assert not decoder.facts.tested


def test_an_unknown_family_that_hides_its_sliding_window_is_refused() -> None:
    """It would pass a trial that is shorter than its window, and be wrong behind it."""
    with pytest.raises(UnsupportedModelError, match="never asked for its sliding window of 20"):
        Decoder(small("phimoe", sliding_window=20, num_local_experts=2))


def test_an_unknown_family_that_differs_is_refused() -> None:
    config = CONFIG_MAPPING["gptj"](vocab_size=97, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="'gptj' are not supported: a trial step"):
        Decoder(model)
    assert model.config._attn_implementation == before, "a refused model is left as it was"


def test_rope_boundaries() -> None:
    assert examine(model_of("llama").config).rope_boundary is None
    long = examine(model_of("phi3_long").config)
    assert (long.rope_boundary, long.max_positions) == (40, 160)
    dynamic = examine(model_of("llama_dynamic").config)
    assert (dynamic.rope_boundary, dynamic.max_positions) == (None, 40)
