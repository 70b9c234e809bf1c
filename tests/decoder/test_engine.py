"""The loop with an oracle: what is found when, what is accepted, and what the cache holds."""

from __future__ import annotations

import copy
import math
import statistics
import threading
from collections.abc import Generator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder.config import SOURCES, LookaheadConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import ConfigError, DecoderError, NoNumbersError, PromptError
from ladecli.decoder.events import Event, Finished, Prefill, Started, Step
from ladecli.decoder.readout import Rows
from ladecli.decoder.strategies import make_strategy

from ..decoding import ids_of, run, tokens_of
from ..families import model_of, prompt_for
from ..oracle import OracleModel, scrambles, spells

TEXT = [10 + i % 80 for i in range(300)]


def cached_ids(decoder: Decoder) -> list[int]:
    """The tokens whose keys the cache holds: the oracle writes ids as keys."""
    if decoder.cache.keys is None:
        return []
    return [int(x) for x in decoder.cache.keys[0, 0, 0, : decoder.cache.length, 0]]


def turns(seen: Sequence[int]) -> int:
    """A rule that counts round a circle of 20 tokens, whatever came before the last one."""
    return 10 + (seen[-1] - 9) % 20


@pytest.mark.parametrize("ngram", [2, 3, 4, 6])
def test_a_fully_matched_ngram_yields_n_tokens(ngram: int) -> None:
    """Once the pool has an n-gram for every token of the circle, each step yields N.

    The first column's n-grams mix the current token with guesses from before it was known, so
    the pool needs room for some that are wrong.
    """
    decoder = Decoder(OracleModel(turns))
    config = LookaheadConfig(window=3, ngram=ngram, guesses=20, sources=("trajectory",))
    events = run(decoder, [10, 11, 12], "lookahead", config, limits=Limits(300))
    assert ids_of(events) == [10 + i % 20 for i in range(3, 303)]
    steps = [len(event.tokens) for event in events if isinstance(event, Step)]
    assert steps[: ngram - 1] == [1] * (ngram - 1), "no n-gram is closed before the window fills"
    assert set(steps[40:-1]) == {ngram}


def test_every_token_says_where_it_came_from() -> None:
    decoder = Decoder(OracleModel(turns))
    config = LookaheadConfig(window=3, ngram=4, guesses=20, sources=("trajectory",))
    events = run(decoder, [10, 11, 12], "lookahead", config, limits=Limits(100))
    steps = [event for event in events if isinstance(event, Step)]
    for step in steps[:-1]:
        accepted = len(step.tokens) - 1
        assert [t.source for t in step.tokens] == ["trajectory"] * accepted + [None]
        assert step.proposed >= accepted
    assert {len(step.tokens) for step in steps} == {1, 4}


def test_the_window_fills_before_it_finds() -> None:
    """N - 2 steps fill the window; the n-grams of the next one serve from then on."""
    decoder = Decoder(OracleModel(spells([10] * 300)))
    config = LookaheadConfig(window=3, ngram=5, guesses=2, sources=("trajectory",))
    events = run(decoder, [10, 10], "lookahead", config, limits=Limits(40))
    proposed = [event.proposed for event in events if isinstance(event, Step)]
    assert proposed[:4] == [0, 0, 0, 0]
    assert proposed[4] == 4


def test_prompt_ngrams_serve_from_the_first_step() -> None:
    decoder = Decoder(OracleModel(spells([*range(10, 20)] * 20)))
    config = LookaheadConfig(window=2, ngram=4, guesses=2, sources=("context",))
    events = run(decoder, [*range(10, 20), 10], "lookahead", config, limits=Limits(8))
    first = next(event for event in events if isinstance(event, Step))
    assert [token.source for token in first.tokens] == ["context"] * 6 + [None]


def test_prompt_lookup_copies_ten_tokens() -> None:
    decoder = Decoder(OracleModel(spells([*range(10, 40)] * 9)))
    prompt = [*range(10, 40), 10, 11, 12]
    events = run(decoder, prompt, "prompt-lookup", limits=Limits(22))
    assert [len(event.tokens) for event in events if isinstance(event, Step)] == [11, 11]


def test_jacobi_converges_with_an_oracle_by_position() -> None:
    decoder = Decoder(OracleModel(spells(TEXT)))
    config = LookaheadConfig(window=6)
    events = run(decoder, TEXT[:4], "jacobi", config, limits=Limits(40))
    assert ids_of(events) == TEXT[4:44]
    steps = [len(event.tokens) for event in events if isinstance(event, Step)]
    # One iteration corrects all W guesses; after the bonus token they are fresh again.
    assert steps == [1, 7] * 5


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "jacobi", "prompt-lookup"])
@pytest.mark.parametrize("stop_after", [1, 2, 7, 20, 1000])
def test_cache_holds_the_text_but_its_last_token_at_every_yield(
    strategy: str, stop_after: int
) -> None:
    decoder = Decoder(OracleModel(scrambles(12, memory=1), 12), prefill_chunk=4)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    text = list(prompt)
    config = LookaheadConfig(4, 4, 4)
    generator = decoder.generate(prompt, make_strategy(strategy, config), None, Limits(60))
    for number, event in enumerate(generator, start=1):
        if isinstance(event, Step):
            text += [token.id for token in event.tokens]
            assert cached_ids(decoder) == text[:-1]
        elif isinstance(event, Prefill):
            assert cached_ids(decoder) == prompt[: event.done]
        if number == stop_after:
            break
    generator.close()
    assert cached_ids(decoder) == text[:-1] or len(text) == len(prompt)
    # What is left in the cache serves the next generation, and does not change it.
    again = ids_of(run(decoder, text, "lookahead", config, limits=Limits(20)))
    fresh = Decoder(OracleModel(scrambles(12, memory=1), 12))
    assert again == ids_of(run(fresh, text, limits=Limits(20)))


def test_an_exception_in_the_forward_leaves_a_valid_cache() -> None:
    model = OracleModel(scrambles(12, memory=1), 12)
    decoder = Decoder(model)
    prompt = [3, 1, 4, 1, 5]
    config = LookaheadConfig(4, 4, 4)
    calls = 0
    rule = model.rule

    def interrupts(seen: tuple[int, ...]) -> int:
        nonlocal calls
        calls += 1
        if calls == 200:
            raise KeyboardInterrupt
        return rule(seen)

    model.rule = interrupts
    text = list(prompt)
    generator = decoder.generate(prompt, make_strategy("lookahead", config), None, Limits(90))

    def consume() -> None:
        for event in generator:
            if isinstance(event, Step):
                text.extend(token.id for token in event.tokens)

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert len(text) > len(prompt)
    assert cached_ids(decoder) == text[:-1]


def test_a_generation_that_was_replaced_touches_nothing_any_more() -> None:
    decoder = Decoder(OracleModel(scrambles(12, memory=2), 12))
    config = LookaheadConfig(3, 3, 3)
    first, second = [3, 1, 4, 1, 5], [3, 1, 4, 9, 9, 9, 2, 7]
    expected = ids_of(run(Decoder(OracleModel(scrambles(12, memory=2), 12)), first))

    def started() -> Generator[Event]:
        generation = decoder.generate(first, make_strategy("lookahead", config), None, Limits(40))
        for _ in range(4):
            next(generation)
        return generation

    closed_late = started()
    run(decoder, second)
    closed_late.close()
    assert ids_of(run(decoder, first)) == expected

    resumed = started()
    run(decoder, second)
    with pytest.raises(DecoderError, match="another generation has started"):
        next(resumed)
    assert ids_of(run(decoder, first)) == expected


def test_threads_never_mix_texts() -> None:
    """There is one cache: a thread gets its own text, or is told that another one took over."""
    decoder = Decoder(OracleModel(scrambles(12, memory=2), 12))
    prompts = [[3, 1, 4, 1, 5], [2, 7, 1, 8]]
    fresh = [Decoder(OracleModel(scrambles(12, memory=2), 12)) for _ in prompts]
    expected = [ids_of(run(d, p)) for d, p in zip(fresh, prompts, strict=True)]
    wrong: list[object] = []

    def work(number: int) -> None:
        for _ in range(15):
            try:
                said = ids_of(run(decoder, prompts[number]))
            except DecoderError:
                continue
            except Exception as error:
                wrong.append(error)
                continue
            if said != expected[number]:
                wrong.append(said)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_second_prompt_prefills_only_what_is_new() -> None:
    model = OracleModel(scrambles(12, memory=1), 12)
    decoder = Decoder(model)
    first = run(decoder, [3, 1, 4, 1, 5], limits=Limits(10))
    model.steps.clear()
    second = [3, 1, 4, 1, 5, *ids_of(first), 7, 7]
    run(decoder, second, limits=Limits(1))
    # The last generated token was never fed; the two new ones come behind it.
    assert len(model.steps) == 1
    assert len(model.steps[0]) == 3


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    memory=st.integers(1, 4),
    window=st.integers(1, 8),
    ngram=st.integers(2, 6),
    guesses=st.integers(0, 6),
    sources=st.sets(st.sampled_from(SOURCES), min_size=1).map(sorted).map(tuple),
    chunk=st.integers(1, 9),
)
def test_lookahead_says_what_autoregressive_says(
    prompt: list[int],
    memory: int,
    window: int,
    ngram: int,
    guesses: int,
    sources: tuple[str, ...],
    chunk: int,
) -> None:
    """The oracle reads its text through the mask: any wrong mask, slot or position shows."""
    model = OracleModel(scrambles(7, memory), 7, context=64)
    expected = ids_of(run(Decoder(model), prompt))
    config = LookaheadConfig(window, ngram, guesses, sources=sources)
    decoder = Decoder(model, prefill_chunk=chunk)
    for strategy in ("lookahead", "jacobi", "prompt-lookup"):
        assert ids_of(run(decoder, prompt, strategy, config)) == expected


# Where a generation ends.


def finish(events: list[Event]) -> str:
    assert isinstance(events[-1], Finished)
    return events[-1].reason


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "prompt-lookup"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17])
def test_length_is_exact(strategy: str, length: int) -> None:
    decoder = Decoder(OracleModel(spells([10] * 99)))
    events = run(decoder, [10] * 8, strategy, LookaheadConfig(4, 4, 4), limits=Limits(length))
    assert ids_of(events) == [10] * length
    assert finish(events) == "length"


@pytest.mark.parametrize("at", range(1, 9))
def test_stop_id_inside_a_multi_token_acceptance(at: int) -> None:
    text = [*range(10, 20)] * 9
    stop = text[10 + at - 1]
    decoder = Decoder(OracleModel(spells(text)))
    limits = Limits(50, stop_ids=frozenset({stop, 99}))
    events = run(decoder, text[:10], "prompt-lookup", limits=limits)
    assert ids_of(events) == text[10 : 10 + at]
    assert finish(events) == "eos"


@pytest.mark.parametrize("at", range(1, 9))
def test_nobody_sees_a_token_behind_a_stop(at: int) -> None:
    text = [*range(10, 20)] * 9
    heard: list[int] = []

    def should_stop(token: int) -> bool:
        heard.append(token)
        return len(heard) == at

    decoder = Decoder(OracleModel(spells(text)))
    events = run(decoder, text[:10], "prompt-lookup", limits=Limits(50, frozenset(), should_stop))
    assert ids_of(events) == heard == text[10 : 10 + at]
    assert finish(events) == "stop"
    assert cached_ids(decoder) == text[: 10 + at - 1]


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "jacobi", "prompt-lookup"])
@pytest.mark.parametrize("limit", [None, 500])
def test_a_full_context_ends_the_text_and_loses_nothing(strategy: str, limit: int | None) -> None:
    decoder = Decoder(OracleModel(spells([10] * 99), context=40))
    events = run(decoder, [10] * 8, strategy, LookaheadConfig(4, 4, 4), limits=Limits(limit))
    assert len(ids_of(events)) == 32
    assert finish(events) == "context"


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="max-new-tokens must be 0 or more, not -3"):
        Limits(-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
def test_a_model_that_says_no_numbers_is_told_of(strategy: str, bad: float) -> None:
    larger = "again, or try --dtype float32, which holds larger ones"
    for dtype, fix in ((torch.float32, "again"), (torch.bfloat16, larger)):
        model = copy.deepcopy(model_of("llama")).to(dtype)
        decoder, prompt = Decoder(model), prompt_for("llama")
        run(decoder, prompt, limits=Limits(2))
        with torch.no_grad():
            model.lm_head.weight.fill_(bad)
        decoder.forget()
        with pytest.raises(NoNumbersError, match=rf"^the model says no numbers: .* {fix}$"):
            run(decoder, prompt, strategy, LookaheadConfig(4, 4, 4), limits=Limits(4))


def test_logits_are_looked_at_once_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    own = Rows.are_numbers
    monkeypatch.setattr(Rows, "are_numbers", lambda rows: looked.append(own(rows)) or looked[-1])
    decoder = Decoder(model_of("llama"))
    for _ in range(2):
        run(decoder, prompt_for("llama"), "lookahead", LookaheadConfig(4, 4, 4), limits=Limits(9))
    assert looked == [True] * 2
    for worst, fine in ((math.inf, False), (math.nan, False), (-math.inf, True), (1e30, True)):
        assert own(Rows(torch.tensor([[0.0, worst]]), [0])) == fine
    assert not own(Rows(torch.full((1, 2), -math.inf), [0]))
    assert own(Rows(None, [0]))


def test_no_token_wanted_no_forward() -> None:
    model = OracleModel(spells(TEXT))
    assert run(Decoder(model), TEXT[:3], limits=Limits(0)) == [Finished("length")]
    assert model.steps == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 40, "the prompt has 40 tokens and the context holds 40, which leaves no room"),
        ([1, 100], "the prompt holds token 100, and the model knows the ids 0 to 99"),
        ([-1], "the prompt holds token -1, and the model knows the ids 0 to 99"),
    ],
)
def test_prompts_that_cannot_be_decoded(prompt: list[int], message: str) -> None:
    decoder = Decoder(OracleModel(spells(TEXT), context=40))
    with pytest.raises(PromptError, match=message):
        decoder.generate(prompt, make_strategy("autoregressive", LookaheadConfig()))


def test_widths_and_sources_add_up() -> None:
    decoder = Decoder(OracleModel(scrambles(6, memory=1), 6))
    config = LookaheadConfig(5, 4, 3)
    events = run(decoder, [1, 2, 3], "lookahead", config, limits=Limits(80))
    steps = [event for event in events if isinstance(event, Step)]
    assert sum(len(step.tokens) for step in steps) == 80
    assert all(step.width <= config.step_limit + 2 for step in steps)
    assert {t.source for t in tokens_of(events)} <= {None, *SOURCES}


def test_a_generation_says_first_what_it_need_not_read() -> None:
    decoder = Decoder(OracleModel(turns))
    first = run(decoder, [10, 11, 12], limits=Limits(5))
    assert first[0] == Started(cached=0, total=3)
    text = [10, 11, 12, *ids_of(first)]
    assert run(decoder, [*text, 7], limits=Limits(2))[0] == Started(len(text) - 1, len(text) + 1)
    # The current token is always fed, also where all of the text is known.
    assert run(decoder, text[:4], limits=Limits(2))[0] == Started(cached=3, total=4)
    assert run(decoder, [10, 9], limits=Limits(2))[0] == Started(cached=1, total=2)
    kinds = [type(event) for event in run(decoder, [8, 9], limits=Limits(2))]
    assert kinds == [Started, Step, Step, Finished]


@pytest.mark.parametrize("sources", [("trajectory",), SOURCES])
def test_a_step_says_what_it_tried_where_that_is_wanted(sources: tuple[str, ...]) -> None:
    config = LookaheadConfig(window=3, ngram=4, guesses=20, sources=sources)
    runs = []
    for detailed in (False, True):
        strategy = make_strategy("lookahead", config)
        decoder = Decoder(OracleModel(turns))
        events = decoder.generate([10, 11], strategy, None, Limits(60), detailed=detailed)
        runs.append([event for event in events if isinstance(event, Step)])
    plain, watched = runs
    assert [step.tokens for step in plain] == [step.tokens for step in watched]
    assert all(step.detail is None for step in plain)
    text = [10, 11]
    for step in watched:
        detail = step.detail
        assert detail is not None
        assert detail.current == text[-1]
        text += [token.id for token in step.tokens]
        assert len(detail.tree) == len(detail.parents) == len(detail.sources) == step.proposed
        path = [detail.tree[node] for node in detail.accepted]
        assert path == [token.id for token in step.tokens[: len(path)]]
        parents = [detail.parents[node] for node in detail.accepted]
        assert parents == [-1, *detail.accepted][: len(parents)]
        if detail.window:
            assert detail.window[0][0] == detail.current
            assert len(detail.outputs) == len(detail.window[-1])
        for ngram in detail.ngrams:
            assert len(ngram) == 4
    found = [ngram for step in watched for ngram in (step.detail.ngrams if step.detail else ())]
    assert found
    # The oracle looks at the last token alone: what follows in an n-gram follows in the text.
    assert all(ngram[-1] == turns(ngram[-2:-1]) for ngram in found)


def test_a_decoder_forgets_text_and_memory() -> None:
    decoder = Decoder(OracleModel(turns))
    events = run(decoder, TEXT[:40], limits=Limits(5))
    assert events[0] == Started(0, 40)
    assert run(decoder, TEXT[:40], limits=Limits(5))[0] == Started(39, 40)
    decoder.forget()
    assert decoder.cache.keys is None
    assert cached_ids(decoder) == []
    again = run(decoder, TEXT[:40], limits=Limits(5))
    assert again[0] == Started(0, 40)
    assert ids_of(again) == ids_of(events)


def test_forgetting_ends_a_generation_under_way() -> None:
    decoder = Decoder(OracleModel(turns))
    events = decoder.generate([10, 11], make_strategy("autoregressive", LookaheadConfig()))
    next(events), next(events)
    decoder.forget()
    with pytest.raises(DecoderError, match="this one is over"):
        next(events)
    assert ids_of(run(decoder, [10, 11], limits=Limits(3))) == [12, 13, 14]


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
def test_steps_say_where_their_time_went_when_asked(strategy: str) -> None:
    decoder = Decoder(OracleModel(turns))
    config = LookaheadConfig(window=3, ngram=4, guesses=20)
    chosen = make_strategy(strategy, config)
    steps = [
        event
        for event in decoder.generate([10, 11, 12], chosen, limits=Limits(60), timed=True)
        if isinstance(event, Step)
    ]
    for step in steps:
        assert step.parts is not None
        assert step.parts.keys() == {
            *("draft", "layout", "forward", "verify", "agree", "cache", "commit", "learn")
        }
        assert min(step.parts.values()) >= 0.0
    # Nothing of a step is left out but the clock's own calls; a busy machine delays some of them.
    left_out = [abs(sum(step.parts.values()) - step.seconds) for step in steps]
    assert statistics.median(left_out) < 2e-4
    untimed = [e for e in run(decoder, [10, 11, 12], strategy, config) if isinstance(e, Step)]
    assert all(step.parts is None for step in untimed)
