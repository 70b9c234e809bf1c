"""Running out of memory anywhere: not a token is lost, and none is another one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder import engine, job, kv_cache, layout, runner
from ladecli.decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Event, Finished, Prefill, Squeezed, Step
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.memory import Allowance, attempt, is_out_of_memory
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy

from ..decoding import PAPER, ids_of, run
from ..families import model_of, prompt_for
from ..oracle import OracleModel, scrambles
from .test_engine import cached_ids

STRATEGIES = ("autoregressive", "lookahead", "jacobi", "prompt-lookup")
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "sampled": SamplingConfig(temperature=0.8, top_k=20, seed=5),
    "penalized": SamplingConfig(repetition_penalty=1.3),
}
CONFIGS = {
    "paper": LookaheadConfig(5, 4, 5, sources=("trajectory",)),
    "all": LookaheadConfig(5, 4, 5, 60),
    "static": LookaheadConfig(4, 4, 4, 60, widths=(1, 6, 14, 20, 40, 60)),
    "costly": LookaheadConfig(4, 4, 4, 60, step_cost=StepCost((1, 64), (0,), ((1.0, 3.0),))),
}
CPU = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"


def tighten(decoder: Decoder, fails: Callable[[StepLayout], bool]) -> list[int]:
    """Let forwards run out of memory where `fails` says so; returns the widths of the others.

    They do so at their end, so that all of the cache that they may scribble over is.
    """
    forward, ran = decoder.runner.forward, list[int]()

    def short(layout: StepLayout) -> Any:
        logits = forward(layout)
        if fails(layout):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        ran.append(len(layout.tokens))
        return logits

    decoder.runner.forward = short
    return ran


def wider_than(most: int) -> Callable[[StepLayout], bool]:
    return lambda layout: len(layout.tokens) > most


def reason_of(events: list[Event]) -> str:
    assert isinstance(events[-1], Finished)
    return events[-1].reason


def oracle() -> OracleModel:
    return OracleModel(scrambles(12, memory=1), 12)


@pytest.mark.parametrize("most", [40, 9, 3, 1])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("config", CONFIGS)
def test_narrow_steps_say_the_same(most: int, sampling: str, config: str) -> None:
    model, prompt, chosen = model_of("llama"), prompt_for("llama"), SAMPLINGS[sampling]
    expected = ids_of(run(Decoder(model), prompt, sampling=chosen))
    for strategy in STRATEGIES:
        decoder = Decoder(model)
        ran = tighten(decoder, wider_than(most))
        events = run(decoder, prompt, strategy, CONFIGS[config], chosen)
        assert ids_of(events) == expected
        assert reason_of(events) == "length"
        assert max(ran) <= most
        told = [event.width for event in events if isinstance(event, Squeezed)]
        assert all(a > b >= 1 for a, b in pairwise(told))
        # The first step takes the prompt along.
        _, *behind = [event.width for event in events if isinstance(event, Step)]
        assert max(behind) <= (told[-1] if told else most)
        if config == "static" and strategy == "lookahead":
            assert set(behind) <= {*CONFIGS["static"].widths}


@pytest.mark.parametrize("family", ["mistral", "gemma3", "llama_dynamic", "phi3_long", "gpt2"])
@pytest.mark.parametrize("most", [12, 3])
def test_other_families_say_the_same(family: str, most: int) -> None:
    """Also those whose whole text is read again where it outgrows a boundary."""
    model, prompt = model_of(family), prompt_for(family)
    expected = ids_of(run(Decoder(model), prompt))
    decoder = Decoder(model)
    tighten(decoder, wider_than(most))
    assert ids_of(run(decoder, prompt, "lookahead", CONFIGS["all"])) == expected


def test_drafts_go_on_where_there_is_room_for_them() -> None:
    """A plain step is the last resort: with room for 9 tokens, drafts are accepted still."""
    for strategy, config in (("lookahead", CONFIGS["all"]), ("prompt-lookup", PAPER)):
        decoder = Decoder(OracleModel(lambda seen: 10 + len(seen) % 6))
        tighten(decoder, wider_than(9))
        events = run(decoder, [10 + i % 6 for i in range(24)], strategy, config)
        steps = [event for event in events if isinstance(event, Step)]
        assert len(steps) < 16, "few of 40 tokens came from drafts"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("most", [40, 9, 1])
def test_chunks_of_the_prompt_become_smaller(strategy: str, most: int) -> None:
    prompt = [(7 * i) % 12 for i in range(150)]
    expected = ids_of(run(Decoder(oracle()), prompt))
    decoder = Decoder(oracle(), prefill_chunk=64)
    ran = tighten(decoder, wider_than(most))
    events = run(decoder, prompt, strategy, CONFIGS["all"])
    assert ids_of(events) == expected
    assert max(ran) <= most
    read = [event.done for event in events if isinstance(event, Prefill)]
    assert read
    assert all(a < b <= len(prompt) for a, b in pairwise(read))
    # A long prompt says nothing about how wide the steps behind it may be.
    assert most < 40 or strategy != "prompt-lookup" or not squeezed(events)


def squeezed(events: list[Event]) -> list[Squeezed]:
    return [event for event in events if isinstance(event, Squeezed)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("at", range(1, 14))
def test_one_bad_moment_anywhere_changes_nothing(strategy: str, at: int) -> None:
    prompt = [(5 * i) % 12 for i in range(30)]
    expected = ids_of(run(Decoder(oracle()), prompt))
    decoder = Decoder(oracle(), prefill_chunk=8)
    calls = iter(range(1, 10**6))
    tighten(decoder, lambda _: next(calls) == at)
    events = run(decoder, prompt, strategy, CONFIGS["all"])
    # The plain step of plain decoding cannot shrink: there the text ends.
    plain = strategy == "autoregressive" and reason_of(events) == "memory"
    assert ids_of(events) == expected[: len(ids_of(events)) if plain else None]
    assert ids_of(run(decoder, prompt, strategy, CONFIGS["all"])) == expected


@settings(max_examples=50, deadline=None)
@given(
    bad=st.lists(st.booleans(), max_size=40),
    strategy=st.sampled_from(STRATEGIES),
    config=st.sampled_from(["paper", "all", "costly"]),
    chunk=st.integers(1, 20),
)
def test_bad_moments_in_any_order(bad: list[bool], strategy: str, config: str, chunk: int) -> None:
    """At every yield the cache holds the text; what was said is what plain decoding says."""
    prompt = [(5 * i) % 12 for i in range(20)]
    expected = ids_of(run(Decoder(oracle()), prompt, limits=Limits(25)))
    decoder = Decoder(oracle(), prefill_chunk=chunk)
    moments = iter(bad)
    tighten(decoder, lambda _: next(moments, False))
    text = list(prompt)
    chosen = make_strategy(strategy, CONFIGS[config])
    event: Event | None = None
    for event in decoder.generate(prompt, chosen, None, Limits(25)):
        if isinstance(event, Step):
            text += [token.id for token in event.tokens]
        if len(text) > len(prompt):
            assert cached_ids(decoder) == text[:-1]
        else:
            assert cached_ids(decoder) == prompt[: decoder.cache.length]
    said = text[len(prompt) :]
    assert isinstance(event, Finished)
    assert event.reason in ("length", "memory")
    assert said == (expected if event.reason == "length" else expected[: len(said)])
    list(moments)  # memory is back
    again = run(decoder, prompt, strategy, CONFIGS[config], limits=Limits(25))
    assert ids_of(again) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("after", [0, 1, 3, 9])
def test_where_nothing_runs_the_text_ends_and_is_kept(strategy: str, after: int) -> None:
    prompt = [(5 * i) % 12 for i in range(30)]
    expected = ids_of(run(Decoder(oracle()), prompt))
    decoder = Decoder(oracle(), prefill_chunk=8)
    room = {"left": after}

    def fails(_: StepLayout) -> bool:
        room["left"] -= 1
        return room["left"] < 0

    tighten(decoder, fails)
    events = run(decoder, prompt, strategy, CONFIGS["all"])
    assert reason_of(events) == "memory"
    said = ids_of(events)
    assert said == expected[: len(said)]
    assert bool(said) == (after == 9)
    assert cached_ids(decoder) == [*prompt, *said][: decoder.cache.length]
    room["left"] = 10**6
    again = run(decoder, [*prompt, *said], strategy, CONFIGS["all"], limits=Limits(40 - len(said)))
    assert ids_of(again) == expected[len(said) :]


# The cache.


def growing_to(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cache of more than `most` slots find no memory, for its values at first."""
    grown, calls = KVCache._grown, iter(range(10**6))

    def short(cache: KVCache, old: torch.Tensor, slots: int) -> torch.Tensor:
        if slots > most and next(calls) % 2:
            raise RuntimeError(CPU)
        return grown(cache, old, slots)

    monkeypatch.setattr(KVCache, "_grown", short)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("most", "reached"), [(128, 128), (120, 96), (70, 64), (40, 32)])
def test_a_cache_that_cannot_grow_is_used_up_to_its_end(
    strategy: str, most: int, reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last token that memory has a slot for is said."""
    monkeypatch.setattr(kv_cache, "GROWTH", 32)
    prompt = [(5 * i) % 12 for i in range(20)]
    model = OracleModel(lambda seen: (seen[-1] * 5 + 1) % 12, 12, context=4096)
    config = LookaheadConfig(4, 3, 4, 30)
    growing_to(most, monkeypatch)
    decoder = Decoder(model, prefill_chunk=8)
    events = run(decoder, prompt, strategy, config, limits=Limits(300))
    said = ids_of(events)
    assert reason_of(events) == "memory"
    assert len(prompt) + len(said) == reached + 1
    monkeypatch.undo()
    assert said == ids_of(run(Decoder(model), prompt, limits=Limits(len(said))))


# What counts, and what is done about it.


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError(f"{CPU} to allocate 4503599627370496 bytes. Error code 12"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.88 GB, other: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (MemoryError(), True),
        (np.exceptions.AxisError("axis"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_counts_as_out_of_memory(error: BaseException, counts: bool) -> None:
    assert is_out_of_memory(error) is counts

    def work() -> None:
        raise error

    if counts:
        assert attempt(work) is None
    else:
        with pytest.raises(type(error)):
            attempt(work)


def test_torch_says_it_as_expected() -> None:
    assert attempt(torch.empty, 1 << 50) is None
    assert attempt(np.zeros, 1 << 50) is None


def test_a_failed_try_leaves_no_tensors_behind() -> None:
    decoder = Decoder(model_of("llama"))
    forward, held = decoder.runner.forward, list[weakref.ref[torch.Tensor]]()

    def short(layout: StepLayout) -> Any:
        assert all(tensor() is None for tensor in held), "the try before is still alive"
        logits = forward(layout)
        if len(layout.tokens) > 3:
            held.append(weakref.ref(logits))
            raise torch.OutOfMemoryError
        return logits

    decoder.runner.forward = short
    run(decoder, prompt_for("llama"), "lookahead", CONFIGS["all"])
    assert len(held) > 3


def failing(
    work: Callable[..., Any], failures: Iterator[bool], error: type[BaseException] = MemoryError
) -> Callable[..., Any]:
    def short(*args: Any, **kwargs: Any) -> Any:
        result = work(*args, **kwargs)
        if next(failures, False):
            raise error
        return result

    return short


@pytest.mark.parametrize(("module", "where"), [(job, "walk"), (runner, "pack")])
def test_memory_may_run_out_behind_the_forward_too(
    module: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [(5 * i) % 12 for i in range(30)]
    expected = ids_of(run(Decoder(oracle()), prompt))
    decoder = Decoder(oracle())
    bad = iter([False, False, True, False, False, True, True, False, True])
    monkeypatch.setattr(module, where, failing(getattr(module, where), bad))
    heard: list[int] = []
    limits = Limits(40, should_stop=lambda token: heard.append(token) is not None)
    events = run(decoder, prompt, "lookahead", CONFIGS["all"], limits=limits)
    # Each token is told once, however often its step was tried.
    assert ids_of(events) == heard == expected
    assert squeezed(events)


def test_keys_that_cannot_be_kept_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [(5 * i) % 12 for i in range(30)]
    expected = ids_of(run(Decoder(oracle()), prompt))
    decoder = Decoder(oracle())
    bad = iter([True, False, True])
    lost: list[int] = []

    def keep(kept: Any) -> None:
        start = decoder.cache.length
        KVCache.keep(decoder.cache, kept)
        in_place = list(kept) == [*range(len(kept))]
        if not in_place and next(bad, False):
            decoder.cache.length = start  # it is set last
            lost.append(len(kept) - pending[-1])
            raise MemoryError

    monkeypatch.setattr(decoder.cache, "keep", keep)
    heard: list[int] = []
    limits = Limits(40, should_stop=lambda token: heard.append(token) is not None)
    pending = pending_of(decoder)
    events = run(decoder, prompt, "lookahead", CONFIGS["all"], limits=limits)
    assert ids_of(events) == heard == expected
    assert not squeezed(events)  # the step itself had room
    # What was accepted stands before the next current token.
    assert [count - 1 for count in pending[1:] if count > 1] == lost
    assert len(lost) == 2


def pending_of(decoder: Decoder) -> list[int]:
    """How many committed tokens each step feeds, as they come."""
    forward, counts = decoder.runner.forward, list[int]()

    def noted(layout: StepLayout) -> Any:
        counts.append(layout.pending)
        return forward(layout)

    decoder.runner.forward = noted
    return counts


def test_nobody_learns_from_a_draft_that_did_not_run() -> None:
    """Drafts are proposed again for every try, and observed once, when they ran."""
    log: list[tuple[str, int, int]] = []

    class Watched:
        name = "watched"

        def __init__(self) -> None:
            self.inner = make_strategy("lookahead", CONFIGS["all"], DraftState())
            self.outputs, self.successors = self.inner.outputs, self.inner.successors

        def checksum(self) -> int:
            return self.inner.checksum()

        def begin(self, state: Any) -> None:
            self.inner.begin(state)

        def propose(self, state: Any) -> Any:
            self.draft = self.inner.propose(state)
            log.append(("propose", len(self.draft.tree), state.widest))
            return self.draft

        def observe(self, state: Any, seen: Any) -> None:
            assert seen.draft is self.draft
            assert len(seen.best) == 1 + len(seen.draft.tree) + len(seen.window_outputs)
            log.append(("observe", len(seen.draft.tree), state.widest))
            self.inner.observe(state, seen)

    decoder = Decoder(oracle())
    ran = tighten(decoder, wider_than(9))
    events = list(decoder.generate([1, 2, 3], Watched(), None, Limits(60)))
    observed = [entry for entry in log if entry[0] == "observe"]
    assert len(observed) == len(ran) == sum(isinstance(event, Step) for event in events)
    assert len(log) == 2 * len(observed) + len(squeezed(events))
    assert max(nodes for _, nodes, _ in observed) <= 8


def test_other_errors_are_not_swallowed() -> None:
    decoder = Decoder(oracle())
    decoder.runner.forward = failing(decoder.runner.forward, iter([False, True]), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        run(decoder, [1, 2, 3], "lookahead", CONFIGS["all"])


@pytest.mark.parametrize(
    ("chunk", "pending", "width", "then"),
    [
        (512, 512, 1, (256, None)),
        (512, 100, 60, (50, None)),
        (512, 60, 60, (512, 30)),
        (512, 1, 60, (512, 30)),
        (512, 1, 2, (512, 1)),
        (512, 2, 1, (1, None)),
        (512, 1, 1, None),
    ],
)
def test_the_larger_part_is_halved(
    chunk: int, pending: int, width: int, then: tuple[int, int | None] | None
) -> None:
    allowance = Allowance(chunk)
    before = allowance.width
    assert allowance.shrink(pending, width) is (then is not None)
    if then is not None:
        assert (allowance.chunk, allowance.width) == (then[0], then[1] or before)


def test_a_generation_starts_without_the_limits_of_the_last_one() -> None:
    """Memory comes back: one bad moment must not slow down all of a session."""
    decoder = Decoder(oracle())
    bad = iter([False, False, True, True])
    tighten(decoder, lambda _: next(bad, False))
    config = LookaheadConfig(4, 4, 4, 60, SOURCES)
    assert squeezed(run(decoder, [1, 2, 3], "lookahead", config))
    again = run(decoder, [1, 2, 3], "lookahead", config)
    assert not squeezed(again)
    assert max(event.width for event in again if isinstance(event, Step)) > 30


def test_a_prompt_without_room_takes_no_memory_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing as wide as the whole prompt is laid out for a step that will never run."""
    widest = [0]
    build = layout.build

    def noted(pending: Any, *rest: Any) -> StepLayout:
        widest[0] = max(widest[0], len(pending))
        return build(pending, *rest)

    monkeypatch.setattr(engine.layout, "build", noted)
    decoder = Decoder(oracle(), prefill_chunk=4)
    tighten(decoder, wider_than(0))
    assert reason_of(run(decoder, [5] * 200, "lookahead", CONFIGS["all"])) == "memory"
    assert widest[0] == 0
