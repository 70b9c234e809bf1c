"""Exactness: every strategy on every family says, token for token, what transformers says."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest

from ladecli.decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.events import Event, Step
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import TokenTree

from .decoding import ids_of, run, transformers_ids
from .families import FAMILIES, model_of, prompt_for

OTHERS = ("lookahead", "jacobi", "prompt-lookup")
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
PENALIZED = SamplingConfig(repetition_penalty=1.3)


@functools.cache
def plain(
    family: str,
    prompt: tuple[int, ...],
    sampling: SamplingConfig | None = None,
    new: int = 40,
    attention: str = "auto",
) -> list[int]:
    """What autoregressive decoding says, which is asked for once."""
    decoder = Decoder(model_of(family), attention=attention)
    return ids_of(run(decoder, prompt, sampling=sampling, limits=Limits(new)))


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
    expected = plain(family, tuple(prompt), new=50, attention=attention)
    config = LookaheadConfig(window=5, ngram=4, guesses=5)
    decoder = Decoder(model, attention=attention)
    for sources in (("trajectory",), SOURCES):
        chosen = dataclasses.replace(config, sources=sources)
        events = run(decoder, prompt, strategy, chosen, limits=Limits(50))
        assert ids_of(events) == expected


EVERY_CHOICE = [c for n in (1, 2, 3) for c in itertools.combinations(SOURCES, n)]


RISING = StepCost((1, 2, 8, 64), (0, 50), ((1.0, 1.2, 1.4, 3.0), (1.0, 1.2, 1.6, 4.0)))
STATIC = (1, 6, 14, 20, 40, 60)


@pytest.mark.parametrize("sources", EVERY_CHOICE)
@pytest.mark.parametrize("budget", [None, 20, 60])
@pytest.mark.parametrize("step_cost", [StepCost(), RISING], ids=["flat", "rising"])
@pytest.mark.parametrize("widths", [(), STATIC], ids=["any", "static"])
def test_sources_and_budgets(
    sources: tuple[str, ...], budget: int | None, step_cost: StepCost, widths: tuple[int, ...]
) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    config = LookaheadConfig(4, 4, 4, budget, sources, step_cost, widths)
    for sampling in (SamplingConfig(), SAMPLED, PENALIZED):
        expected = plain("llama", tuple(prompt), sampling)
        events = run(Decoder(model), prompt, "lookahead", config, sampling)
        assert ids_of(events) == expected
        steps = [event for event in events if isinstance(event, Step)]
        # The first step takes the prompt along.
        behind = [step.width for step in steps[1:]]
        assert max(behind) <= config.step_limit
        if widths:
            assert set(behind) <= {*widths}


@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("budget", [1, 2, 9, 10, 11, 30])
def test_budgets_of_every_strategy(strategy: str, budget: int) -> None:
    """Also those that leave no room for candidates beside the window, or for any at all."""
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain("llama", tuple(prompt))
    window = (5, 3) if budget >= 9 else (1, 2)
    if budget < LookaheadConfig(*window).window_cells:
        window = (1, 2)
    for widths in ((), (1, 6, 14), (1, 8)):
        limit = max((width for width in widths if width <= budget), default=budget)
        if limit < LookaheadConfig(*window).window_cells:
            continue
        config = LookaheadConfig(*window, 3, budget, widths=widths)
        events = run(Decoder(model), prompt, strategy, config)
        assert ids_of(events) == expected
        if strategy == "lookahead":
            behind = [event.width for event in events if isinstance(event, Step)][1:]
            assert max(behind) <= limit


def test_no_window_where_no_candidate_has_room() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    full = LookaheadConfig(5, 3, 5, LookaheadConfig(5, 3).window_cells)
    steps = [e for e in run(Decoder(model), prompt, "lookahead", full) if isinstance(e, Step)]
    assert any(step.proposed for step in steps), "the window took all the room"


def test_widths_bound_the_window_and_start_with_the_plain_step() -> None:
    assert LookaheadConfig(2, 3, 2, 30, widths=(1, 6, 14)).step_limit == 14
    with pytest.raises(ConfigError, match="the widest step that widths allow has 6 tokens"):
        LookaheadConfig(7, 5, 7, widths=(1, 6))
    with pytest.raises(ConfigError, match="widths must ascend from 1"):
        LookaheadConfig(widths=(8, 64))


def test_drafts_of_another_model_are_refused() -> None:
    model, prompt, drafts = model_of("llama"), prompt_for("llama", 12), DraftState()
    unknown = {model.config.vocab_size + 5: 0.9}
    drafts.model.recycle(prompt[-1:], TokenTree(), Successors.of([unknown]))
    strategy = make_strategy("lookahead", LookaheadConfig(2, 3, 2, 20), drafts)
    with pytest.raises(ConfigError, match="more token ids"):
        list(Decoder(model).generate(prompt, strategy, None, Limits(10)))


def test_two_generations_may_share_drafts() -> None:
    """Each takes turns with the other: neither text is taken for the other's."""
    model, drafts = model_of("llama"), DraftState()
    config = LookaheadConfig(2, 3, 2, 20)
    prompts = [prompt_for("llama", 12), prompt_for("llama", 30)[5:]]
    expected = [ids_of(run(Decoder(model), prompt)) for prompt in prompts]
    running = [
        Decoder(model).generate(p, make_strategy("lookahead", config, drafts), None, Limits(40))
        for p in prompts
    ]
    said: list[list[Event]] = [[], []]
    for pair in itertools.zip_longest(*running):
        for events, event in zip(said, pair, strict=True):
            events += [event] if event else []
    assert [ids_of(events) for events in said] == expected
    corpus, boundary = drafts.context.corpus.tokens, -1
    pieces: list[list[int]] = [[]]
    for token in corpus:
        if token == boundary:
            pieces.append([])
        else:
            pieces[-1].append(token)
    texts = [prompt + ids for prompt, ids in zip(prompts, expected, strict=True)]
    whole = [" ".join(map(str, text)) for text in texts]
    assert all(any(" ".join(map(str, p)) in text for text in whole) for p in pieces)


def test_drafts_that_were_broken_off_are_known_as_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model, drafts = model_of("llama"), DraftState()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(drafts.context.corpus, "extend", interrupted)
    strategy = make_strategy("lookahead", LookaheadConfig(2, 3, 2, 20), drafts)
    with pytest.raises(KeyboardInterrupt):
        list(Decoder(model).generate([1, 2, 3], strategy, None, Limits(10)))
    assert drafts.spoiled


def test_the_papers_algorithm_does_not_look_at_costs() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    dear = StepCost((1, 2), (0,), ((1.0, 50.0),))
    paper = LookaheadConfig(4, 4, 4, sources=("trajectory",))
    free = run(Decoder(model), prompt, "lookahead", paper)
    priced = run(Decoder(model), prompt, "lookahead", dataclasses.replace(paper, step_cost=dear))
    widths = [[e.width for e in events if isinstance(e, Step)] for events in (free, priced)]
    assert widths[0] == widths[1]


def test_steps_that_never_pay_are_plain() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    dear = StepCost((1, 2), (0,), ((1.0, 50.0),))
    config = LookaheadConfig(4, 4, 4, 40, step_cost=dear, sources=("context", "recycled"))
    steps = [e for e in run(Decoder(model), prompt, "lookahead", config) if isinstance(e, Step)]
    assert {step.width for step in steps[1:]} == {1}


@pytest.mark.parametrize("sources", [("trajectory",), SOURCES])
@pytest.mark.parametrize("sampling", [SamplingConfig(), SAMPLED], ids=["greedy", "sampled"])
def test_drafts_of_earlier_texts_change_no_token(
    sources: tuple[str, ...], sampling: SamplingConfig
) -> None:
    model, drafts = model_of("llama"), DraftState()
    config = LookaheadConfig(4, 4, 4, 40, sources)
    texts = [prompt_for("llama", length) for length in (30, 12, 30, 31)]
    # Forks of an earlier text: its end is known, and something else follows.
    texts += [[*texts[0][:25], 7, 7], texts[0][:25], texts[0]]
    for prompt in texts:
        expected = plain("llama", tuple(prompt), sampling)
        strategy = make_strategy("lookahead", config, drafts)
        events = list(Decoder(model).generate(prompt, strategy, sampling, Limits(40)))
        assert ids_of(events) == expected


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
        expected = plain("mistral", tuple(prompt), sampling)
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
    expected = plain(family, tuple(prompt), sampling)
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
