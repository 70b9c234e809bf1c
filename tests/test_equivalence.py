"""Exactness: every strategy on every family yields, token for token, what transformers yields."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from types import ModuleType

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ladecli.decoder.config import SOURCES, STRATEGIES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting import ngram_model
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.load import load_decoder
from ladecli.decoder.model.stock import StockModel
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import lookahead, make_strategy
from ladecli.decoder.tree import TokenTree

from .decoding import PAPER, decoder_of, ids_of, run, steps_of, transformers_ids
from .families import FAMILIES, OWN, model_of, prompt_for

pytestmark = pytest.mark.slow

OTHERS = ("lookahead", "jacobi", "prompt-lookup")
BOTH = [LookaheadConfig(5, 4, 5, sources=sources) for sources in (("trajectory",), SOURCES)]
"""The paper's algorithm, and what is built on it."""
GREEDY = SamplingConfig()
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
PENALIZED = SamplingConfig(repetition_penalty=1.3)
MIXED = dataclasses.replace(SAMPLED, repetition_penalty=1.2)
LLAMA = prompt_for("llama")


loaded = functools.cache(decoder_of)


def fresh(family: str, attention: str = "sdpa") -> Decoder:
    """A decoder that tests share, without what it keeps of earlier texts."""
    decoder = loaded(family, attention=attention)
    decoder.forget()
    return decoder


@functools.cache
def theirs(family: str) -> list[int]:
    """The greedy text of transformers, across every boundary that `families` has."""
    prompt = prompt_for(family)
    room = model_of(family).config.max_position_embeddings - len(prompt)
    return transformers_ids(model_of(family), prompt, min(32, room))


@functools.cache
def plain(
    family: str, prompt: tuple[int, ...], sampling: SamplingConfig = GREEDY, new: int = 40
) -> list[int]:
    """The text of plain decoding."""
    return ids_of(run(fresh(family), prompt, sampling=sampling, limits=Limits(new)))


def assert_plain(
    family: str,
    prompt: list[int],
    config: LookaheadConfig,
    sampling: SamplingConfig = GREEDY,
    new: int = 40,
) -> list[int]:
    """Lookahead yields what plain decoding yields; the widths of the steps after the first."""
    events = run(fresh(family), prompt, "lookahead", config, sampling, Limits(new))
    assert ids_of(events) == plain(family, tuple(prompt), sampling, new)
    # The first step takes the prompt along.
    return [step.width for step in steps_of(events)[1:]]


# Families.


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_equals_transformers(family: str) -> None:
    decoder = fresh(family)
    assert type(decoder.runner.model) is (Transformer if family in OWN else StockModel)
    assert not decoder.runner.notices
    assert len(set(theirs(family))) > 5, "a text that repeats itself proves little"
    events = run(decoder, prompt_for(family), limits=Limits(len(theirs(family))))
    assert ids_of(events) == theirs(family)


@pytest.mark.parametrize("packed", [False, True], ids=["joined", "packed"])
@pytest.mark.parametrize("family", OWN)
@pytest.mark.usefixtures("small_weights_count")
def test_joined_and_packed_weights_equal_transformers(family: str, packed: bool) -> None:
    decoder = load_decoder(copy.deepcopy(model_of(family)), join=True, pack=packed)
    assert isinstance(decoder.runner.model, Transformer)
    assert not decoder.runner.model.keeps_weights
    for strategy in ("autoregressive", "lookahead"):
        events = run(decoder, prompt_for(family), strategy, BOTH[1], limits=Limits(16))
        assert ids_of(events) == theirs(family)[:16]


@pytest.mark.parametrize("family", FAMILIES)
def test_strategies_equal_transformers(family: str) -> None:
    """Those that draft chains in turn, as they differ in where chains are from alone."""
    expected = theirs(family)
    limits = Limits(len(expected))
    chains = ("jacobi", "prompt-lookup")[[*FAMILIES].index(family) % 2]
    for attention, strategy, config in (
        ("reference", "lookahead", BOTH[1]),
        ("sdpa", "lookahead", BOTH[0]),
        ("sdpa", chains, PAPER),
    ):
        decoder = fresh(family, attention)
        events = run(decoder, prompt_for(family), strategy, config, limits=limits)
        assert ids_of(events) == expected, (attention, strategy, config.sources)


# Sources, budgets and widths.


EVERY_CHOICE = [c for n in (1, 2, 3) for c in itertools.combinations(SOURCES, n)]
RISING = StepCost((1, 2, 8, 64), (0, 50), ((1.0, 1.2, 1.4, 3.0), (1.0, 1.2, 1.6, 4.0)))
STATIC = (1, 6, 14, 20, 40, 60)


@pytest.mark.parametrize("number", range(len(EVERY_CHOICE)))
def test_sources_and_budgets(number: int) -> None:
    """Over all choices every cost and width meets every budget, greedy and sampled."""
    sources = EVERY_CHOICE[number]
    ways = itertools.product((StepCost(), RISING), ((), STATIC))
    for turn, (step_cost, widths) in enumerate(ways, start=number):
        budget, sampling = (None, 20, 60)[turn % 3], (GREEDY, MIXED)[turn % 2]
        config = LookaheadConfig(4, 4, 4, budget, sources, step_cost, widths)
        after = assert_plain("llama", LLAMA, config, sampling, 30)
        assert max(after) <= config.step_limit
        assert not widths or {*after} <= {*widths}


@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("budget", [1, 2, 9, 10, 11, 30])
def test_budgets_of_every_strategy(strategy: str, budget: int) -> None:
    """Also those that leave no room for candidates beside the window, or for any at all."""
    window = (5, 3) if budget >= LookaheadConfig(5, 3).window_cells else (1, 2)
    for widths in ((), (1, 6, 14), (1, 8)):
        limit = max((width for width in widths if width <= budget), default=budget)
        if limit < LookaheadConfig(*window).window_cells:
            continue
        config = LookaheadConfig(*window, 3, budget, widths=widths)
        events = run(fresh("llama"), LLAMA, strategy, config, limits=Limits(30))
        assert ids_of(events) == plain("llama", tuple(LLAMA), new=30)
        if strategy == "lookahead":
            assert max(step.width for step in steps_of(events)[1:]) <= limit


GRID = [*itertools.product((1, 2, 7), (2, 3, 5), (0, 1, 4)), (15, 5, 15), (20, 7, 20)]


@pytest.mark.parametrize("number", range(len(GRID)))
def test_grid_of_settings(number: int) -> None:
    """Any two numbers of a setting meet prompts of every length, and any one every sampling."""
    prompt = prompt_for("mistral", (1, 2, 30)[(number // 9 + number // 3 + number) % 3])
    sampling = (GREEDY, SAMPLED, PENALIZED)[(number // 9 + 2 * (number // 3)) % 3]
    for sources in (PAPER.sources, SOURCES):
        config = LookaheadConfig(*GRID[number], sources=sources)
        assert_plain("mistral", prompt, config, sampling, 30)


# Sampling and processors.


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("seed", range(2))
def test_sampling_depends_on_the_seed_alone(family: str, strategy: str, seed: int) -> None:
    prompt = prompt_for(family)
    sampling = SamplingConfig(temperature=1.2, min_p=0.01, repetition_penalty=1.1, seed=seed)
    events = run(fresh(family), prompt, strategy, LookaheadConfig(6, 3, 6), sampling)
    assert ids_of(events) == plain(family, tuple(prompt), sampling)
    other = dataclasses.replace(sampling, seed=seed + 1)
    assert ids_of(events) != plain(family, tuple(prompt), other)


IDEAS: dict[str, tuple[ModuleType, str, object]] = {
    "prior": (ngram_model, "PRIOR_SUCCESSORS", 0),
    "many successors": (lookahead, "MAX_CHILDREN", 1),
    "noise": (lookahead, "GumbelNoise", lambda sampling: None),
}


@pytest.mark.parametrize("without", IDEAS)
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_no_idea_of_drafting_changes_what_is_drawn(
    without: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingConfig(temperature=temperature, top_p=0.9, seed=6)
    config = LookaheadConfig(2, 3, 2, 32)
    before = run(fresh("llama"), LLAMA, "lookahead", config, sampling)
    monkeypatch.setattr(*IDEAS[without])
    after = run(fresh("llama"), LLAMA, "lookahead", config, sampling)
    assert ids_of(before) == ids_of(after) == plain("llama", tuple(LLAMA), sampling)
    widths = [[step.width for step in steps_of(events)] for events in (before, after)]
    assert widths[0] != widths[1], "nothing was switched off"


CHANGES: dict[str, tuple[SamplingConfig, list[LogitsProcessor]]] = {
    "penalty": (PENALIZED, []),
    "reward": (SamplingConfig(repetition_penalty=0.8), []),
    "ngrams": (GREEDY, [NoRepeatNGramLogitsProcessor(2)]),
    "tokens": (GREEDY, [SuppressTokensLogitsProcessor([3, 77]), NoRepeatNGramLogitsProcessor(3)]),
    "end": (GREEDY, [MinNewTokensLengthLogitsProcessor(len(LLAMA), 20, 91)]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_penalties_and_processors_equal_transformers(name: str) -> None:
    """They see the path to each node as part of the text."""
    (sampling, processors), decoder = CHANGES[name], fresh("llama")
    changes = {
        "repetition_penalty": sampling.repetition_penalty,
        "logits_processor": LogitsProcessorList(processors),
    }
    expected, drawn = transformers_ids(model_of("llama"), LLAMA, 32, **changes), []
    assert expected != theirs("llama"), "nothing was changed"
    for strategy in STRATEGIES:
        answer = functools.partial(run, decoder, LLAMA, strategy, limits=Limits(32))
        assert ids_of(answer(sampling=sampling, processors=processors)) == expected
        events = answer(sampling=MIXED, processors=processors)
        drawn.append(ids_of(events))
    assert drawn == [drawn[0]] * len(STRATEGIES)


# Texts: chunks, boundaries, and what earlier texts left behind.


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "phi3_long", "llama_dynamic"])
@pytest.mark.parametrize("chunk", [1, 7, 23])
def test_long_prompts_in_chunks(family: str, chunk: int) -> None:
    prompt = prompt_for(family, min(60, fresh(family).max_context - 20))
    expected = transformers_ids(model_of(family), prompt, 15)
    for strategy in ("autoregressive", "lookahead"):
        decoder = decoder_of(family, prefill_chunk=chunk)
        assert ids_of(run(decoder, prompt, strategy, limits=Limits(15))) == expected


@pytest.mark.parametrize("length", range(36, 43))
def test_prompts_on_both_sides_of_a_rope_boundary(length: int) -> None:
    prompt = prompt_for("phi3_long", length)
    expected = transformers_ids(model_of("phi3_long"), prompt, 20)
    decoder = fresh("phi3_long")
    # After a longer and after a shorter text, whose keys are of the other frequencies.
    others = itertools.cycle(([], [*prompt[:20], *range(3, 43)], prompt[:20]))
    for strategy, other in zip(STRATEGIES, others, strict=False):
        decoder.forget()
        if other:
            run(decoder, other, limits=Limits(2))
        assert ids_of(run(decoder, prompt, strategy, limits=Limits(20))) == expected


@pytest.mark.parametrize("sources", [PAPER.sources, SOURCES])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_of_earlier_texts_change_no_token(
    sources: tuple[str, ...], sampling: SamplingConfig
) -> None:
    store, decoder = DraftStore(), decoder_of("llama")
    config = LookaheadConfig(4, 4, 4, 40, sources)
    texts = [prompt_for("llama", length) for length in (30, 12, 30, 31)]
    # Forks of an earlier text: its end is known, and something else follows.
    texts += [[*texts[0][:25], 7, 7], texts[0][:25], texts[0]]
    for prompt in texts:
        events = run(decoder, prompt, "lookahead", config, sampling, store=store)
        assert ids_of(events) == plain("llama", tuple(prompt), sampling)


def test_two_generations_may_share_drafts() -> None:
    """They take turns: neither text is taken for the other's."""
    store = DraftStore()
    config = LookaheadConfig(2, 3, 2, 20)
    prompts = [prompt_for("llama", 12), prompt_for("llama", 30)[5:]]
    running = [
        decoder_of("llama").generate(
            prompt, make_strategy("lookahead", config, store), None, Limits(40)
        )
        for prompt in prompts
    ]
    rounds = [*itertools.zip_longest(*running)]
    for prompt, events in zip(prompts, zip(*rounds, strict=True), strict=True):
        assert ids_of([event for event in events if event]) == plain("llama", tuple(prompt))
    # What is remembered as text was text.
    texts = [[*prompt, *plain("llama", tuple(prompt))] for prompt in prompts]
    grams = {tuple(text[i : i + 2]) for text in texts for i in range(len(text))}
    remembered = store.to_dict()["text"]
    pairs = [pair for pair in itertools.pairwise(remembered) if min(pair) >= 0]
    assert pairs
    assert {*pairs} <= grams


def test_drafts_of_another_model_are_refused() -> None:
    store, prompt = DraftStore(), prompt_for("llama", 12)
    store.model.recycle(prompt[-1:], TokenTree(), [{model_of("llama").config.vocab_size + 5: 0.9}])
    with pytest.raises(ConfigError, match="more token ids"):
        run(fresh("llama"), prompt, "lookahead", LookaheadConfig(2, 3, 2, 20), store=store)


def test_half_precision_agrees_with_itself() -> None:
    """In bfloat16, where near-ties may break either way, most texts are equal still."""
    decoder = load_decoder(copy.deepcopy(model_of("llama")).to(torch.bfloat16))
    expected = ids_of(run(decoder, LLAMA))
    found = ids_of(run(decoder, LLAMA, "lookahead", LookaheadConfig(4, 4, 4)))
    assert found[:10] == expected[:10]
