"""A model's generation config: every field has the same meaning as in transformers' `generate`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    GenerationConfig,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

import ladecli
from ladecli.decoder.backends.rescoring import scored
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.sampling import restricted
from ladecli.decoder.strategy import Strategy
from ladecli.events import Ended, TextEvent
from ladecli.generation_config import ENDS, OTHER_METHODS, PROCESSORS, REFUSED, SAMPLING
from ladecli.session.session import Session, Settings
from tests.support.decoding import text_ids
from tests.support.hub import stating

CONFIG = LookaheadConfig(4, 4, 4)
TEXT = "the cat sat on the"
NEW = 20
SAMPLES = {"do_sample": True}
SYNTH_ID = SynthIDTextWatermarkingConfig(keys=[3, 7, 11], ngram_len=3)
# Each value changes the greedy text or the distribution, except for three of one row.
CONFIGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"min_new_tokens": 17},
    {"encoder_repetition_penalty": 1.5, "sequence_bias": [[[112], 1.0], [[213, 216], -9.0]]},
    {"encoder_no_repeat_ngram_size": 1, "exponential_decay_length_penalty": [4, 1.4]},
    {"begin_suppress_tokens": [53], "no_repeat_ngram_size": 1},
    {"bad_words_ids": [[216], [189, 112], [3, 4, 5]], "min_length": 40},
    {"suppress_tokens": [216, 28], "repetition_penalty": 1.2, "forced_eos_token_id": 7},
    {"forced_bos_token_id": 3, "remove_invalid_values": True, "renormalize_logits": True},
    SAMPLES,
    SAMPLES | {"temperature": 0.6, "top_k": 7},
    SAMPLES | {"top_p": 0.8, "top_k": 0, "epsilon_cutoff": 0.02},
    SAMPLES | {"min_p": 0.2, "repetition_penalty": 1.2},
    SAMPLES | {"typical_p": 0.4, "watermarking_config": WatermarkingConfig(bias=3.0)},
    SAMPLES | {"eta_cutoff": 0.05, "top_k": 0},
    SAMPLES | {"top_h": 0.5, "renormalize_logits": True},
    SAMPLES | {"watermarking_config": SYNTH_ID, "temperature": 1.3},
]
FEW = [CONFIGS[0], CONFIGS[1], CONFIGS[6], CONFIGS[10]]
SLOW = [pytest.param(fields, marks=pytest.mark.slow) for fields in CONFIGS if fields not in FEW]
for_configs = pytest.mark.parametrize(
    "fields", FEW + SLOW, ids=lambda fields: ",".join(fields) or "nothing"
)


@pytest.fixture
def generating(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that gives the model a generation config with a probable end token."""
    model = session.loaded.model

    def give(**fields: Any) -> GenerationConfig:
        config = GenerationConfig(**{"eos_token_id": [0, 278], "pad_token_id": 0} | fields)
        monkeypatch.setattr(model, "generation_config", config)
        return config

    yield give
    session.start_over()


def stream(
    session: Session, strategy: str = "lookahead", new: int | None = NEW, **options: Any
) -> list[TextEvent]:
    sampling = options.pop("sampling", session.loaded.defaults.without_samples)
    settings = Settings(strategy, CONFIG, sampling, new, **options)
    return list(session.stream(session.encode(TEXT), settings))


def reason_of(events: Sequence[TextEvent]) -> str:
    assert isinstance(events[-1], Ended)
    return events[-1].reason


def generate(session: Session, **options: Any) -> Any:
    ids = torch.tensor([session.encode(TEXT)])
    options = {"max_new_tokens": NEW, "attention_mask": torch.ones_like(ids)} | options
    return session.loaded.model.generate(ids, **options)


def new_ids(session: Session, *, ours: bool = False, **options: Any) -> list[int]:
    """Return new ids of transformers' `generate`, or of lookahead inside of it."""
    if ours:
        options |= {"custom_generate": ladecli.lookahead, "lade_config": CONFIG}
    return [int(i) for i in generate(session, **options)[0, len(session.encode(TEXT)) :]]


def test_every_field_of_transformers_has_a_meaning() -> None:
    """A new field of transformers needs a row in the table of the docs, and a test."""
    known = {name for fields in CONFIGS for name in fields}
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    documented = {*re.findall(r"`(\w+)`", page.partition("## The generation config")[2])}
    used = {*SAMPLING, *PROCESSORS, *ENDS, *OTHER_METHODS, *REFUSED}
    public = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert public | used <= documented
    assert {*SAMPLING, *PROCESSORS} <= known
    assert OTHER_METHODS.keys() | REFUSED.keys() == OTHER.keys()
    assert {"eos_token_id", *ENDS} == ENDING.keys()


OTHER: dict[str, Any] = {
    "num_beams": 3,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "constraints": [3],
    "force_words_ids": [[3]],
    "guidance_scale": 1.5,
    "token_healing": True,
    "num_return_sequences": 2,
    "return_dict_in_generate": True,
    "max_time": 0.0,
}


@pytest.mark.parametrize("name", OTHER)
def test_other_decoding_methods_are_refused(name: str, session: Session, generating: Any) -> None:
    # Otherwise `generate` refuses several sequences itself.
    config = generating(do_sample=name == "num_return_sequences")
    setattr(config, name, OTHER[name])
    lines = [name in line for line in session.notices if "not applied" in line]
    assert lines == [True] * (name in OTHER_METHODS)
    if name not in REFUSED:
        return
    with pytest.raises(ValueError, match=f"{name}=.* of the model's generation config; pass"):
        generate(session, custom_generate=ladecli.lookahead)


SAME: dict[str, Any] = {
    "use_cache": False,
    "cache_implementation": "static",
    "prompt_lookup_num_tokens": 3,
    "prefill_chunk_size": 2,
    "length_penalty": 3.0,
    "early_stopping": True,
    "output_scores": True,
    "bos_token_id": 5,
}


@pytest.mark.parametrize("name", SAME)
def test_fields_that_change_no_text(name: str, session: Session, generating: Any) -> None:
    generating()
    plain = new_ids(session)
    generating(**{name: SAME[name]})
    assert new_ids(session) == plain
    assert text_ids(stream(session)) == new_ids(session, ours=True) == plain


def test_contrastive_search_is_ignored_if_it_samples(session: Session, generating: Any) -> None:
    generating(penalty_alpha=0.6, do_sample=True)
    assert not [line for line in session.notices if "not applied" in line]
    assert generate(session, custom_generate=ladecli.lookahead).shape[1] > 0


ENDING: dict[str, Any] = {
    "eos_token_id": 112,
    "stop_strings": "\x00",  # see the test
    "max_length": 12,
    "max_new_tokens": 5,
}


@pytest.mark.parametrize("name", ENDING)
def test_ends_of_a_text(name: str, session: Session, generating: Any) -> None:
    generating()
    text = "".join(piece.text for e in stream(session) for piece in getattr(e, "pieces", ()))
    value = text[5:8] if name == "stop_strings" else ENDING[name]
    generating(**{name: value})
    events = stream(session, "autoregressive", None if name.startswith("max_") else NEW)
    options: dict[str, Any] = {"tokenizer": session.loaded.tokenizer}
    if name.startswith("max_"):
        options["max_new_tokens"] = ENDING[name] if name == "max_new_tokens" else None
    theirs = new_ids(session, **options)
    assert text_ids(events) == theirs
    assert len(theirs) < NEW
    known = {"eos_token_id": "eos", "stop_strings": "stop"}
    assert reason_of(events) == known.get(name, "length")
    if name == "stop_strings":  # transformers passes no tokenizer to functions
        generating()
        criterion = StopStringCriteria(options.pop("tokenizer"), value)
        options["stopping_criteria"] = [criterion]
    assert new_ids(session, ours=True, **options) == theirs


def test_limits_of_the_user_come_first(session: Session, generating: Any) -> None:
    # The prompt is longer than 3 tokens: `generate` refuses that.
    for limit in ({"max_new_tokens": 5}, {"max_length": 3}):
        generating(**limit)
        assert len(text_ids(stream(session, new=9))) == 9


@for_configs
def test_greedy_text_is_that_of_generate(fields: Any, session: Session, generating: Any) -> None:
    generating(**fields)
    theirs = new_ids(session, do_sample=False)
    for strategy in ("lookahead", "autoregressive"):
        assert text_ids(stream(session, strategy)) == theirs, strategy
    assert new_ids(session, ours=True, do_sample=False) == theirs


def next_logits(session: Session, text: Sequence[int]) -> Tensor:
    """The model's logits after a text, float32 [vocabulary]."""
    rows: list[Tensor] = []

    def keep(ids: Tensor, scores: Tensor) -> Tensor:
        rows.append(scores[0].clone())
        return scores

    deque(session.decoder.generate(text, Strategy(), None, Limits(1), [keep]), 0)
    return rows[0]


@for_configs
def test_tokens_are_drawn_as_generate_does(fields: Any, session: Session, generating: Any) -> None:
    """The same tokens with the same probabilities, and one text per seed at every entry point."""
    generating(**fields | SAMPLES)
    torch.manual_seed(0)
    out = generate(session, output_scores=True, return_dict_in_generate=True)
    prompt = session.encode(TEXT)
    text = [int(i) for i in out.sequences[0]]
    sampling = replace(session.loaded.defaults.sampling, seed=5)
    settings = Settings(sampling=sampling, max_new_tokens=NEW)
    chosen = session.choosing(prompt, settings)
    stride = 1 if fields.get("watermarking_config") is SYNTH_ID else 5  # it counts its calls
    for place, scores in [*enumerate(out.scores)][::stride]:
        before = text[: len(prompt) + place]
        ours = scored(next_logits(session, before), before, *chosen)
        shares = restricted(ours[None], chosen[0])[0].double().softmax(-1)
        assert torch.allclose(shares, scores[0].double().softmax(-1), atol=1e-4), place
    texts = [
        text_ids(stream(session, s, sampling=sampling)) for s in ("lookahead", "autoregressive")
    ]
    assert texts[0] == texts[1] == new_ids(session, ours=True, lade_seed=5)


def test_flags_come_before_the_config(session: Session, generating: Any) -> None:
    """A flag changes its own field, and logits processors stay."""
    generating(do_sample=True, top_k=1, typical_p=0.9, no_repeat_ngram_size=2)
    config = session.loaded.defaults.sampling
    for changes, options in (
        ({"temperature": 0.0}, {"do_sample": False}),
        ({"top_k": 1, "seed": 3}, {"top_k": 1}),
    ):
        events = stream(session, sampling=replace(config, **changes))
        assert text_ids(events) == new_ids(session, **options)
    wide = [stream(session, sampling=replace(config, top_k=0, seed=seed)) for seed in (1, 2)]
    assert text_ids(wide[0]) != text_ids(wide[1])


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_end_tokens_may_be_absent(ignore_eos: bool, session: Session, generating: Any) -> None:
    generating(min_new_tokens=3, exponential_decay_length_penalty=(2, 5.0), no_repeat_ngram_size=2)
    ends = None if ignore_eos else [0, 278]
    options = {"exponential_decay_length_penalty": None} if ignore_eos else {}
    theirs = new_ids(session, do_sample=False, eos_token_id=ends, **options)
    assert text_ids(stream(session, ignore_eos=ignore_eos)) == theirs
    assert (len(theirs) == NEW) == ignore_eos


@pytest.mark.slow
def test_a_folder_is_decoded_as_by_generate(lade: Any, model_with: Any, rows_file: Any) -> None:
    fields: dict[str, Any] = {"max_new_tokens": 20, "no_repeat_ngram_size": 2}
    fields |= {"suppress_tokens": [216], "watermarking_config": {}}
    folder = model_with(stating("generation_config.json", **fields))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the", return_tensors="pt")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    theirs = model.generate(**ids, pad_token_id=0)[0, ids["input_ids"].shape[1] :].tolist()
    result = lade("generate", folder, "-p", "the", "--json")
    answer = result.json()
    assert (answer["token_ids"], answer["finish_reason"]) == (theirs, "length")
    assert "cut at 20 tokens" in result.err
    # Against plain decoding.
    verified = lade("verify", folder, "--prompts", rows_file({"prompt": "the cat"}), "-n", "20")
    assert verified.code == 0, verified.err


def test_invalid_values(lade: Any, model_with: Any) -> None:
    """Files may be edited by hand; `generate` refuses most of these values or fails."""
    sampling = {"do_sample": True, "top_k": -1, "num_beams": 3}
    wrong = {"max_new_tokens": "many", "max_length": -1, "stop_strings": [5], "bad_words_ids": []}
    wrong |= {"min_new_tokens": "5", "no_repeat_ngram_size": "3", "typical_p": -1.0}
    wrong |= {"watermarking_config": {"bad": 1}, "eos_token_id": [0, 10**9]}
    silent = {"cache_implementation": "bogus", "early_stopping": 5, "compile_config": {}}
    folder = model_with(stating("generation_config.json", **sampling, **wrong, **silent))
    result = lade("generate", folder, "-p", "the", "-n", "8", "--ignore-eos", "--json")
    assert len(result.json()["token_ids"]) == 8
    words = "not applied, though the model's generation config has it: num_beams, top_k -1"
    assert words in result.err
    (line,) = [line for line in result.err.splitlines() if "invalid values" in line]
    report = lade("doctor", folder).out
    assert "not applied: num_beams, top_k -1" in report
    for name, value in wrong.items():
        assert (f"{name} {value!r}" in line, f"{name} " in report) == (True, True)
    assert not any(name in line + report for name in silent)


def test_sampling_that_is_not_switched_on(session: Session, generating: Any) -> None:
    """With a user's temperature, the values of the file apply, although it does not sample."""
    generating(do_sample=False, temperature=0.5, top_k=9)
    assert session.loaded.defaults.without_samples == SamplingConfig(top_k=9)
    generating(top_p=0.6).do_sample = None
    assert session.loaded.defaults.without_samples == SamplingConfig(top_p=0.6)
