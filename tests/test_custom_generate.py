"""`model.generate(..., custom_generate=ladecli.lookahead)`: the same ids, and clear refusals."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from transformers import DynamicCache

import ladecli
from ladecli import custom_generate
from ladecli.decoder.compat import cache_argument, returned_cache
from ladecli.decoder.strategies import make_strategy
from ladecli.profiles import Rates, user
from ladecli.specs.device import Device

from .families import model_of, new_model, prompt_for

pytestmark = pytest.mark.slow

CONFIG = ladecli.LookaheadConfig(4, 4, 4)


def both(family: str, **options: Any) -> tuple[list[int], list[int]]:
    """Ids by transformers and by lookahead inside transformers."""
    model, ids = model_of(family), torch.tensor([prompt_for(family)])
    settings = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, **options}
    own = model.generate(ids, **settings)[0].tolist()
    mine = model.generate(ids, custom_generate=ladecli.lookahead, lade_config=CONFIG, **settings)
    return own, mine[0].tolist()


@pytest.fixture(autouse=True)
def _own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are shared between tests, and others bind them."""
    for family in ("llama", "mistral", "gpt2"):
        monkeypatch.setattr(model_of(family).config, "_attn_implementation", "sdpa")
    monkeypatch.setattr(custom_generate, "_MODELS", WeakKeyDictionary())


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 40},
        {"max_length": 40},
        {"max_new_tokens": 40, "repetition_penalty": 1.4},
        {"max_new_tokens": 40, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 40, "bad_words_ids": [[5], [7, 8]], "min_new_tokens": 20},
        {"max_new_tokens": 1},
    ],
)
def test_greedy_equals_generate(family: str, options: dict[str, Any]) -> None:
    own, mine = both(family, do_sample=False, **options)
    assert own == mine


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_a_cache_must_be_empty(family: str) -> None:
    """transformers makes one of its own, too; a recurrent state has no length."""
    model, ids = new_model(family), torch.tensor([prompt_for(family)])
    given: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}
    name = cache_argument(model.forward)
    own = model.generate(ids, **given).tolist()
    given |= {"custom_generate": ladecli.lookahead, name: DynamicCache(config=model.config)}
    assert model.generate(ids, **given).tolist() == own
    filled = returned_cache(model(ids, use_cache=True))
    with pytest.raises(ValueError, match="a cache that holds tokens"):
        model.generate(ids, **given | {name: filled})


@pytest.mark.parametrize("at", [1, 2, 3, 9])
def test_every_end_token_counts(at: int) -> None:
    own, _ = both("llama", do_sample=False, max_new_tokens=40)
    new = own[len(prompt_for("llama")) :]
    own, mine = both("llama", do_sample=False, max_new_tokens=40, eos_token_id=[96, new[at]])
    assert own == mine


def test_sampling_depends_on_the_seed() -> None:
    model, ids = model_of("llama"), torch.tensor([prompt_for("llama")])
    settings = {"do_sample": True, "top_k": 10, "temperature": 0.9, "max_new_tokens": 30}

    def text(**options: Any) -> list[int]:
        out = model.generate(ids, custom_generate=ladecli.lookahead, **settings, **options)
        return out[0].tolist()

    assert text(lade_seed=3) == text(lade_seed=3, lade_config=CONFIG)
    assert text(lade_seed=3) != text(lade_seed=4)
    torch.manual_seed(0)
    first = text()
    torch.manual_seed(0)
    assert first == text()


def test_the_streamer_gets_every_token_in_order() -> None:
    class Streamer:
        def __init__(self) -> None:
            self.got: list[int] = []
            self.ended = False

        def put(self, ids: torch.Tensor) -> None:
            self.got += ids.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer = Streamer()
    model, ids = model_of("llama"), torch.tensor([prompt_for("llama")])
    options = {"lade_streamer": streamer, "max_new_tokens": 20, "do_sample": False}
    out = model.generate(ids, custom_generate=ladecli.lookahead, lade_config=CONFIG, **options)
    assert streamer.got == out[0].tolist()
    assert streamer.ended


def test_the_model_gets_its_attention_back() -> None:
    model = model_of("llama")
    before = model.config._attn_implementation
    both("llama", do_sample=False, max_new_tokens=3)
    assert model.config._attn_implementation == before


def test_a_context_that_is_too_short_is_said() -> None:
    model, ids = model_of("gpt2"), torch.tensor([prompt_for("gpt2")])
    with pytest.warns(UserWarning, match="ends at the model's context of 128 tokens"):
        out = model.generate(
            ids, custom_generate=ladecli.lookahead, max_length=200, eos_token_id=None
        )
    assert out.shape[1] == 128


def short_answer(model: Any = None) -> None:
    model, ids = model or model_of("llama"), torch.tensor([prompt_for("llama")])
    model.generate(ids, custom_generate=ladecli.lookahead, max_new_tokens=3, do_sample=False)


def test_the_weights_of_the_caller_count_as_they_are_now() -> None:
    model, ids = copy.deepcopy(model_of("llama")), torch.tensor([prompt_for("llama")])
    short_answer(model)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    settings = {"do_sample": False, "max_new_tokens": 20}
    mine = model.generate(ids, custom_generate=ladecli.lookahead, **settings)
    assert torch.equal(mine, model.generate(ids, **settings))


def test_what_there_is_to_say_of_the_settings_is_a_warning() -> None:
    user.folder().mkdir(parents=True)
    user.path_of("cpu").write_text("[", encoding="utf-8")
    with pytest.warns(UserWarning, match="profile cpu is no valid TOML.*; left out"):
        short_answer()
    short_answer()  # said once; the tests take a second warning for an error


def test_a_gpu_that_no_profile_knows_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cuda", "cuda:0", "ACME Accelerator 9000", int(16e9))
    monkeypatch.setattr(custom_generate, "detect", lambda name: device)
    configs: list[ladecli.LookaheadConfig] = []

    def strategy(name: str, config: ladecli.LookaheadConfig) -> Any:
        configs.append(config)
        return make_strategy(name, config)

    monkeypatch.setattr(custom_generate, "make_strategy", strategy)
    for arithmetic in (1e8, 1e14):
        rates = Rates(1e12, arithmetic, "measured here")
        monkeypatch.setattr("ladecli.specs.device.measure_rates", lambda *args, rates=rates: rates)
        monkeypatch.setattr(custom_generate, "_MODELS", WeakKeyDictionary())
        with pytest.warns(UserWarning, match="9000: settings come from a quick measurement"):
            short_answer()
    slow, fast = (config.step_cost.at(16, 64) for config in configs)
    assert slow > 2 * fast, "what was measured decides"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "beam search .num_beams=2."),
        ({"num_return_sequences": 2, "do_sample": True}, "several sequences"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"attention_mask": torch.tensor([[0] + [1] * 23])}, "padding in the attention mask"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"position_ids": torch.arange(24)[None] + 3}, "position_ids that do not count from 0"),
    ],
)
def test_what_it_does_not_do_is_refused(options: dict[str, Any], message: str) -> None:
    model, ids = model_of("llama"), torch.tensor([prompt_for("llama")])
    with pytest.raises(ValueError, match=message):
        model.generate(ids, custom_generate=ladecli.lookahead, max_new_tokens=5, **options)


def test_inputs_beside_the_ids_are_refused() -> None:
    """A model that reads pictures would be asked without them."""
    config = SimpleNamespace(
        num_beams=1, num_return_sequences=1, return_dict_in_generate=False, guidance_scale=None
    )
    for name in ("pixel_values", "inputs_embeds", "token_type_ids"):
        with pytest.raises(ValueError, match=f"does not support {name}"):
            ladecli.lookahead(
                model_of("llama"),
                torch.tensor([[1, 2]]),
                generation_config=config,
                **{name: torch.zeros(1)},
            )


def test_batches_are_refused() -> None:
    ids = torch.tensor([prompt_for("llama")] * 2)
    with pytest.raises(ValueError, match="a batch of 2 prompts"):
        model_of("llama").generate(ids, custom_generate=ladecli.lookahead, max_new_tokens=5)
