"""Exactness: every strategy on every family says, token for token, what transformers says."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from ladecli.decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step

from .decoding import ids_of, run, transformers_ids
from .families import FAMILIES, model_of, prompt_for

OTHERS = ("lookahead", "jacobi", "prompt-lookup")
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
PENALIZED = SamplingConfig(repetition_penalty=1.3)


@pytest.mark.parametrize("family", FAMILIES)
def test_autoregressive_equals_transformers(family: str) -> None:
    model, prompt = model_of(family), prompt_for(family)
    new = min(60, Decoder(model).max_context - len(prompt))
    expected = transformers_ids(model, prompt, new)
    assert len(set(expected)) > 5, "a text that repeats itself proves little"
    assert ids_of(run(Decoder(model), prompt, limits=Limits(new))) == expected


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_strategies_equal_autoregressive(family: str, strategy: str, attention: str) -> None:
    model, prompt = model_of(family), prompt_for(family)
    expected = ids_of(run(Decoder(model, attention=attention), prompt, limits=Limits(50)))
    config = LookaheadConfig(window=5, ngram=4, guesses=5)
    decoder = Decoder(model, attention=attention)
    for sources in (("trajectory",), SOURCES):
        chosen = dataclasses.replace(config, sources=sources)
        events = run(decoder, prompt, strategy, chosen, limits=Limits(50))
        assert ids_of(events) == expected


EVERY_CHOICE = [c for n in (1, 2, 3) for c in itertools.combinations(SOURCES, n)]


@pytest.mark.parametrize("sources", EVERY_CHOICE)
@pytest.mark.parametrize("budget", [None, 20, 60])
@pytest.mark.parametrize("token_cost", [0.0, 0.05])
def test_sources_and_budgets(
    sources: tuple[str, ...], budget: int | None, token_cost: float
) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    config = LookaheadConfig(4, 4, 4, budget, sources, token_cost)
    for sampling in (SamplingConfig(), SAMPLED, PENALIZED):
        expected = ids_of(run(Decoder(model), prompt, sampling=sampling))
        events = run(Decoder(model), prompt, "lookahead", config, sampling)
        assert ids_of(events) == expected
        steps = [event for event in events if isinstance(event, Step)]
        # The first step takes the prompt along.
        assert max(step.width for step in steps[1:]) <= config.step_limit


GRID = [
    *itertools.product((1, 2, 7), (2, 3, 5), (0, 1, 4)),
    (15, 5, 15),
    (20, 7, 20),
]


@pytest.mark.parametrize(("window", "ngram", "guesses"), GRID)
@pytest.mark.parametrize("length", [1, 2, 30])
def test_grid_of_settings(window: int, ngram: int, guesses: int, length: int) -> None:
    model, prompt = model_of("mistral"), prompt_for("mistral", length)
    config = LookaheadConfig(window, ngram, guesses)
    for sampling in (SamplingConfig(), SAMPLED, PENALIZED):
        expected = ids_of(run(Decoder(model), prompt, sampling=sampling))
        for sources in (("trajectory",), SOURCES):
            chosen = dataclasses.replace(config, sources=sources)
            events = run(Decoder(model), prompt, "lookahead", chosen, sampling)
            assert ids_of(events) == expected


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("seed", range(3))
def test_sampling_depends_on_the_seed_alone(family: str, strategy: str, seed: int) -> None:
    model, prompt = model_of(family), prompt_for(family)
    sampling = SamplingConfig(temperature=1.2, min_p=0.01, repetition_penalty=1.1, seed=seed)
    expected = ids_of(run(Decoder(model), prompt, sampling=sampling))
    config = LookaheadConfig(6, 3, 6)
    assert ids_of(run(Decoder(model), prompt, strategy, config, sampling)) == expected


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "phi3_long", "llama_dynamic"])
@pytest.mark.parametrize("chunk", [1, 7, 23])
def test_long_prompts_in_chunks(family: str, chunk: int) -> None:
    model = model_of(family)
    decoder = Decoder(model, prefill_chunk=chunk)
    prompt = prompt_for(family, min(100, decoder.max_context - 20))
    expected = transformers_ids(model, prompt, 15)
    for strategy in ("autoregressive", *OTHERS):
        fresh = Decoder(model, prefill_chunk=chunk)
        assert ids_of(run(fresh, prompt, strategy, limits=Limits(15))) == expected


@pytest.mark.parametrize("length", range(34, 46))
def test_prompts_on_both_sides_of_a_rope_boundary(length: int) -> None:
    model, prompt = model_of("phi3_long"), prompt_for("phi3_long", length)
    expected = transformers_ids(model, prompt, 20)
    for strategy in ("autoregressive", *OTHERS):
        assert ids_of(run(Decoder(model), prompt, strategy, limits=Limits(20))) == expected
