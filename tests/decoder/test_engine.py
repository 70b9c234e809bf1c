"""The loop with an oracle: the pool, accepted tokens, and the content of the cache."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import SOURCES, STRATEGIES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import ConfigError, DecoderError, PromptError
from ladecli.decoder.events import Event, Finished, PromptRead, Started, Step
from ladecli.decoder.executor import Executor
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from tests.support.decoding import ids_of, reason_of, run, steps_of, transformers_ids
from tests.support.device import FakeCapture
from tests.support.models import new_model, prompt_for
from tests.support.oracle import (
    EagerCapture,
    cached_ids,
    counts,
    oracle,
    scrambled,
    scrambles,
    spells,
    watch,
)

SMALL = LookaheadConfig(4, 4, 4)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
TEXT = [*PROMPT, *ids_of(run(scrambled(), PROMPT, limits=Limits(80)))]
EXECUTORS = pytest.mark.parametrize("kind", [Executor, EagerCapture])


def follow(generation: Iterator[Event], text: list[int]) -> None:
    """Add tokens to a text as they are yielded."""
    for event in generation:
        text += [token.id for token in getattr(event, "tokens", ())]


@pytest.mark.parametrize("ngram", [2, 3, 4, 6])
def test_a_fully_matched_ngram_yields_n_tokens(ngram: int) -> None:
    """Once the pool has an n-gram for every token of the circle, each step yields N.

    It also has room for n-grams that mix tokens from before they were known.
    """
    paper = LookaheadConfig(window=3, ngram=ngram, guesses=20, sources=("trajectory",))
    events = run(oracle(counts), [10, 11, 12], "lookahead", paper, limits=Limits(300))
    assert ids_of(events) == [10 + i % 20 for i in range(3, 303)]
    yields = [len(step.tokens) for step in steps_of(events)]
    assert yields[: ngram - 1] == [1] * (ngram - 1), "no n-gram is closed before the window fills"
    assert {*yields[40:-1]} == {ngram}


def test_jacobi_converges_with_an_oracle_by_position() -> None:
    text = [10 + i % 80 for i in range(60)]
    decoder = oracle(spells(text))
    events = run(decoder, text[:4], "jacobi", LookaheadConfig(window=6), limits=Limits(40))
    assert ids_of(events) == text[4:44]
    # One iteration corrects all W guesses; after the bonus token they are fresh again.
    assert [len(step.tokens) for step in steps_of(events)] == [1, 7] * 5


@st.composite
def configs(draw: st.DrawFn) -> LookaheadConfig:
    """Any settings that agree with each other."""
    sources = draw(st.sets(st.sampled_from(SOURCES), min_size=1).map(sorted))
    shape = draw(st.integers(1, 8)), draw(st.integers(2, 6)), draw(st.integers(0, 6))
    cells = LookaheadConfig(*shape, sources=tuple(sources)).window_cells
    budget = draw(st.none() | st.integers(cells, 60))
    widths = draw(st.none() | st.sets(st.integers(2, 60)))
    return LookaheadConfig(
        *shape,
        budget,
        tuple(sources),
        draw(st.sampled_from([StepCost(), RISING])),
        () if widths is None else tuple(sorted({1, cells, *widths})),
    )


RISING = StepCost((1, 2, 8, 64), (0, 50), ((1.0, 1.2, 1.4, 3.0), (1.0, 1.2, 1.6, 4.0)))
SAMPLINGS = [
    SamplingConfig(),
    SamplingConfig(temperature=0.25, seed=3),
    SamplingConfig(temperature=0.25, top_k=3, seed=4),
    SamplingConfig(temperature=0.25, repetition_penalty=1.2, seed=5),
]
"""Sampling that draws the oracle's token nine times out of ten, from logits of 0 and 1."""


@pytest.mark.slow
@settings(max_examples=60)
@given(
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    memory=st.integers(1, 4),
    config=configs(),
    chunk=st.integers(1, 9),
    sampling=st.sampled_from(SAMPLINGS),
)
def test_strategies_yield_what_plain_decoding_yields(
    prompt: list[int], memory: int, config: LookaheadConfig, chunk: int, sampling: SamplingConfig
) -> None:
    """The oracle reads its text through the mask: any wrong mask, slot or position shows."""
    rule = scrambles(7, memory)
    expected = ids_of(run(oracle(rule, 7, 64), prompt, sampling=sampling, limits=Limits(24)))
    # Padding beside several tokens of a prompt sees a gap, but has no output.
    decoder = oracle(rule, 7, 64, 1 if config.widths else chunk)
    for strategy in STRATEGIES:
        events = run(decoder, prompt, strategy, config, sampling, Limits(24))
        assert ids_of(events) == expected
        if strategy == "lookahead":
            # The first step also feeds the prompt.
            widths = {step.width for step in steps_of(events)[1:]}
            assert max(widths) <= config.step_limit
            assert not config.widths or widths <= {*config.widths}


def test_a_long_prompt_is_read_in_chunks() -> None:
    decoder = scrambled(chunk=4)
    events = run(decoder, PROMPT, limits=Limits(2))
    types = [Started, PromptRead, PromptRead, Step, Step, Finished]
    assert [type(event) for event in events] == types
    assert [event.done for event in events if isinstance(event, PromptRead)] == [4, 8]
    assert [step.width for step in steps_of(events)] == [2, 1]


@pytest.mark.parametrize("sources", [("trajectory",), SOURCES])
def test_a_step_has_the_details_of_its_candidates(sources: tuple[str, ...]) -> None:
    config = LookaheadConfig(window=3, ngram=4, guesses=20, sources=sources)
    plain, watched = (
        steps_of(run(oracle(counts), [10, 11], "lookahead", config, detailed=detailed))
        for detailed in (False, True)
    )
    assert [step.tokens for step in plain] == [step.tokens for step in watched]
    text, ngrams = [10, 11], []
    for step in watched:
        detail = step.detail
        assert detail is not None
        assert detail.current == text[-1]
        text += [token.id for token in step.tokens]
        assert len(detail.tree) == len(detail.parents) == len(detail.sources) == step.proposed
        path = [(detail.tree[node], detail.sources[node]) for node in detail.accepted]
        assert path == [(token.id, token.source) for token in step.tokens[: len(path)]]
        parents = [detail.parents[node] for node in detail.accepted]
        assert parents == [-1, *detail.accepted][: len(parents)]
        if detail.window:
            assert detail.window[0][0] == detail.current
            assert len(detail.outputs) == len(detail.window[-1])
        ngrams += detail.ngrams
    assert ngrams
    # The oracle uses only the last token, so n-grams continue as the text does.
    assert all(len(ngram) == 4 and ngram[-1] == counts(ngram[-2:-1]) for ngram in ngrams)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("limit", [1, 2, 5, 17, 500, None])
def test_length_and_context_are_exact(strategy: str, limit: int | None) -> None:
    decoder = oracle(spells([10] * 99), context=40)
    events = run(decoder, [10] * 8, strategy, SMALL, limits=Limits(limit))
    count, reason = (limit, "length") if limit and limit < 32 else (32, "context")
    assert (ids_of(events), reason_of(events)) == ([10] * count, reason)


def test_without_a_token_to_generate_there_is_no_forward() -> None:
    decoder = watch(scrambled(), lambda _: pytest.fail("a forward"))
    assert run(decoder, PROMPT, limits=Limits(0)) == [Finished("length")]
    with pytest.raises(ConfigError, match="max-new-tokens must be 0 or more, not -3"):
        Limits(-3)


@pytest.mark.parametrize("at", [1, 2, 3, 8])
def test_stops_within_a_multi_token_acceptance(at: int) -> None:
    text = [*range(10, 20)] * 9
    limits = Limits(50, stop_ids=frozenset({text[10 + at - 1], 99}))
    events = run(oracle(spells(text)), text[:10], "prompt-lookup", limits=limits)
    assert ids_of(events) == text[10 : 10 + at]
    assert reason_of(events) == "eos"

    calls: list[int] = []

    def should_stop(token: int) -> bool:
        calls.append(token)
        return len(calls) == at

    decoder, events = oracle(spells(text)), list[Event]()
    strategy, limits = make_strategy("prompt-lookup", SMALL), Limits(50, should_stop=should_stop)
    for event in decoder.generate(text[:10], strategy, None, limits):
        events.append(event)
        assert cached_ids(decoder) == text[: 9 + len(ids_of(events))] or not calls
    assert ids_of(events) == calls == text[10 : 10 + at], "no token after the stop is seen"
    assert reason_of(events) == "stop"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "is empty"),
        ([1] * 40, "has 40 tokens and the context holds 40"),
        ([1, 100], "token 100, and the model knows the ids 0 to 99"),
        ([-1], "token -1"),
    ],
)
def test_prompts_that_cannot_be_decoded(prompt: list[int], message: str) -> None:
    """They are refused when `generate` is called, not when the first event is asked for."""
    with pytest.raises(PromptError, match=message):
        oracle(counts, context=40).generate(prompt, make_strategy("autoregressive", SMALL))


def raises_at(call: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[..., Any]:
    """A function that raises Ctrl-C when it is called for the n-th time; else its last argument."""
    calls = itertools.count(1)

    def work(*args: Any) -> Any:
        if next(calls) == call:
            raise error
        return args[-1]

    return work


@EXECUTORS
@pytest.mark.parametrize("place", ["forward", "processor", "stop", "observe"])
@pytest.mark.parametrize("call", [1, 2, 3, 9])
def test_an_interrupt_leaves_a_valid_cache(place: str, call: int, kind: type[Executor]) -> None:
    """It is valid at every yield, and the next generation may reuse it."""
    decoder, interrupt = scrambled(chunk=4, kind=kind), raises_at(call)
    limits = Limits(60, should_stop=lambda token: bool(place == "stop" and interrupt(0)))
    strategy, text = make_strategy("lookahead", SMALL), list(PROMPT)
    if place == "forward":
        watch(decoder, interrupt)
    if place == "observe":
        observe = strategy.observe
        strategy.observe = lambda *args: interrupt(observe(*args))
    processors = [interrupt] if place == "processor" else []
    with pytest.raises(KeyboardInterrupt):
        follow(decoder.generate(PROMPT, strategy, None, limits, processors), text)
    cached = cached_ids(decoder)
    assert cached == TEXT[: len(cached)]
    assert len(cached) >= len(text) - 1 or len(text) == len(PROMPT)
    # Only tokens of a committed step may be in the cache without an event.
    assert len(cached) < len(text) or kind is EagerCapture or place == "observe"
    again = ids_of(run(decoder, PROMPT, "lookahead", SMALL, limits=Limits(80)))
    assert [*PROMPT, *again] == TEXT


@EXECUTORS
@pytest.mark.parametrize("call", [2, 5, 9])
def test_a_step_is_yielded_before_the_error_after_it(call: int, kind: type[Executor]) -> None:
    """Its tokens are committed: a captured step must not be lost with the one launched next."""
    decoder = watch(scrambled(kind=kind), raises_at(call, ZeroDivisionError))
    text = list(PROMPT)
    with pytest.raises(ZeroDivisionError):
        follow(decoder.generate(PROMPT, make_strategy("lookahead", SMALL)), text)
    assert cached_ids(decoder) == text[:-1]


def test_a_generation_first_reports_the_cached_tokens() -> None:
    decoder = oracle(counts)
    first = run(decoder, [10, 11, 12], limits=Limits(5))
    assert first[0] == Started(cached=0, total=3)
    text = [10, 11, 12, *ids_of(first)]
    assert run(decoder, [*text, 7], limits=Limits(2))[0] == Started(len(text) - 1, len(text) + 1)
    # The current token is always fed, even if the whole text is cached.
    assert run(decoder, text[:4], limits=Limits(2))[0] == Started(cached=3, total=4)
    assert run(decoder, [10, 9], limits=Limits(2))[0] == Started(cached=1, total=2)
    kinds = [type(event) for event in run(decoder, [8, 9], limits=Limits(2))]
    assert kinds == [Started, Step, Step, Finished]


def started(decoder: Decoder, prompt: list[int], events: int = 4) -> Generator[Event]:
    """Return a generation that has started."""
    generation = decoder.generate(prompt, make_strategy("lookahead", SMALL), None, Limits(40))
    for _ in range(events):
        next(generation)
    return generation


def test_an_abandoned_generation_may_be_freed_in_a_step_of_another() -> None:
    decoder = scrambled()
    left: list[Any] = [started(decoder, PROMPT)]
    left.append(left)  # a cycle, which only the garbage collector frees
    del left
    limits = Limits(80, should_stop=lambda _: bool(gc.collect() < 0))
    assert [*PROMPT, *ids_of(run(decoder, PROMPT, "lookahead", SMALL, limits=limits))] == TEXT


def test_the_cache_belongs_to_the_newest_generation() -> None:
    decoder, second = scrambled(2), [3, 1, 4, 9, 9, 9, 2, 7]
    expected = ids_of(run(scrambled(2), PROMPT))
    closed_late = started(decoder, PROMPT)
    run(decoder, second)
    closed_late.close()
    assert ids_of(run(decoder, PROMPT)) == expected

    for events in (1, 4):
        resumed = started(decoder, PROMPT, events)
        newest = started(decoder, second)
        with pytest.raises(DecoderError, match="another text was begun"):
            next(resumed)
        assert len(list(newest)) > 2
        assert ids_of(run(decoder, PROMPT)) == expected

    # While a generation runs, the next one must not mistake its keys for those of an earlier text.
    unfinished = started(decoder, [*PROMPT[:3], *reversed(PROMPT)])
    assert ids_of(run(decoder, PROMPT)) == expected
    assert cached_ids(decoder) == [*PROMPT, *expected][:-1]
    unfinished.close()
    assert cached_ids(decoder) == [*PROMPT, *expected][:-1]


def test_a_reread_text_does_not_keep_the_slots_of_a_longer_one() -> None:
    decoder = scrambled()
    run(decoder, PROMPT * (decoder.max_context // len(PROMPT) - 8))
    most = decoder.cache.slots
    decoder.forget(keep_memory=True)
    run(decoder, PROMPT)
    assert 0 < decoder.cache.slots < most


@pytest.mark.parametrize("keep_memory", [False, True])
def test_forgetting_drops_the_text_and_ends_the_generation(keep_memory: bool) -> None:
    decoder = scrambled()
    expected = ids_of(run(decoder, PROMPT))
    generation = started(decoder, PROMPT)
    decoder.forget(keep_memory=keep_memory)
    assert decoder.cache.length == 0
    assert (decoder.cache.slots > 0) is keep_memory
    with pytest.raises(DecoderError, match="this one forgotten"):
        next(generation)
    again = run(decoder, PROMPT)
    assert again[0] == Started(0, len(PROMPT))
    assert ids_of(again) == expected


@pytest.mark.parametrize("capture", [None, FakeCapture()])
def test_drafts_with_nan_logits_change_nothing(capture: Any) -> None:
    """In 16 bits, an unlikely draft token may overflow the model's numbers."""
    model, prompt = new_model("llama"), prompt_for("llama")
    expected = transformers_ids(model, prompt, 40)
    bad = next(token for token in range(3, 97) if token not in {*prompt, *expected})
    with torch.no_grad():
        model.model.embed_tokens.weight[bad] = float("nan")
    decoder = load_decoder(model, cuda_graphs=True, capture=capture)
    store = DraftStore()
    store.learn_text([*prompt, *expected[:5], bad, *expected[6:]])
    config = LookaheadConfig(budget=12, sources=("context", "recycled"))
    events = run(decoder, prompt, "lookahead", config, store=store)
    assert ids_of(events) == expected
    assert any(step.proposed for step in steps_of(events))
