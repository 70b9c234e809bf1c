"""Several ranks yield, token for token, the text of one process, and detect when they cannot."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import SOURCES, STRATEGIES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import NoMemoryError, RankError
from ladecli.decoder.events import Event, Finished, StepNarrowed
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.ranks.executors import LookaheadParallel, TensorParallel
from ladecli.decoder.strategies import make_strategy
from tests.support.decoding import ids_of, run
from tests.support.models import model_of, prompt_for

pytestmark = pytest.mark.slow

PAPER = ("trajectory",)
CONFIGS = {
    "paper": LookaheadConfig(5, 4, 5, sources=PAPER),
    "two rows": LookaheadConfig(9, 3, 6, sources=PAPER),
    "all": LookaheadConfig(5, 4, 5, 30, sources=SOURCES),
    "narrow": LookaheadConfig(2, 3, 2, 8),
    "static": LookaheadConfig(4, 4, 4, 40, widths=(1, 6, 14, 20, 40)),
}
GREEDY = SamplingConfig()
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
PROMPT = prompt_for("llama")
KINDS = pytest.mark.parametrize("kind", [LookaheadParallel, TensorParallel])
Check = Callable[[int, int], object]
"""A function that is called before every forward with the number of those before and the step's
width, and may raise an error."""


class Threads:
    """A transport between threads of this process."""

    def __init__(self, rank: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(table)
        self.lost: RankError | None = None
        self._table, self._barrier = table, barrier

    def lose(self, reason: str) -> RankError:
        self.lost = self.lost or RankError(reason)
        self._barrier.abort()
        return self.lost

    def gather(self, mine: Any) -> list[Any]:
        if self.lost:
            raise self.lost
        self._table[self.rank] = mine
        try:
            self._barrier.wait(20)
        except threading.BrokenBarrierError:
            raise RankError("another rank ended") from None
        everyone = [*self._table]
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barrier.wait(20)  # all threads read before any writes again
        return everyone


def simulate(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """Return what `work` returns on every rank; raise its error, if another rank's loss is not all
    that it is."""
    table, barrier = [None] * size, threading.Barrier(size)

    def one(rank: int) -> Any:
        try:
            return work(Threads(rank, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RankError)):
        raise error
    return [future.result() for future in futures]


MODELS = threading.Lock()


def executor_on(
    transport: Threads | None,
    kind: type = LookaheadParallel,
    family: str = "llama",
    before: Check = max,
    **options: Any,
) -> Any:
    """Return the executor of a rank or of a single process; ranks of a split model wait for each
    other in every forward."""
    with MODELS:  # since they come from torch's own random numbers
        decoder = load_decoder(copy.deepcopy(model_of(family)), **options)
    forward, numbers = decoder.executor.run, itertools.count()

    def checked(step: StepLayout) -> Any:
        before(next(numbers), len(step.tokens) - step.pending)
        if transport and kind is TensorParallel:
            assert len({*map(tuple, transport.gather([len(step.tokens), step.pending]))}) == 1
        return forward(step)

    decoder.executor.run = checked
    executor = kind(decoder.executor, transport) if transport else decoder.executor
    executor.decoder = decoder
    return executor


def raises(error: type[BaseException], when: Callable[[int, int], bool]) -> Check:
    def check(number: int, width: int) -> None:
        if when(number, width):
            raise error("no cable")

    return check


def answer(
    executor: Any,
    strategy: str = "lookahead",
    config: LookaheadConfig = CONFIGS["all"],
    sampling: SamplingConfig = GREEDY,
    prompt: Sequence[int] = PROMPT,
    **options: Any,
) -> list[Event]:
    options |= {"executor": executor}
    return run(executor.decoder, prompt, strategy, config, sampling, **options)


@cache
def expected(family: str = "llama", sampling: SamplingConfig = GREEDY, times: int = 1) -> list[int]:
    """Return the text of plain decoding."""
    decoder, prompt = executor_on(None, family=family).decoder, prompt_for(family) * times
    return ids_of(run(decoder, prompt, sampling=sampling))


@pytest.mark.parametrize(
    ("size", "config", "sampling", "family"),
    [
        (3, "paper", GREEDY, "llama"),
        (2, "paper", SAMPLED, "llama"),
        (2, "two rows", SAMPLED, "llama"),
        (4, "all", GREEDY, "llama"),
        (3, "all", SAMPLED, "llama"),
        (2, "narrow", SAMPLED, "llama"),
        (3, "static", GREEDY, "llama"),
        (2, "all", GREEDY, "gemma3"),  # sliding windows
        (2, "all", GREEDY, "phi3_long"),  # rotary frequencies that change with the length
        (2, "all", GREEDY, "gpt2"),  # the model's own forward
    ],
)
def test_lookahead_parallel_ranks_yield_the_text_of_one(
    size: int, config: str, sampling: SamplingConfig, family: str
) -> None:
    def one(transport: Threads) -> list[int]:
        executor, prompt = executor_on(transport, family=family), prompt_for(family)
        return ids_of(answer(executor, "lookahead", CONFIGS[config], sampling, prompt))

    assert simulate(size, one) == [expected(family, sampling)] * size


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensor_parallel_ranks_yield_the_text_of_one(strategy: str) -> None:
    def one(transport: Threads) -> list[int]:
        return ids_of(answer(executor_on(transport, TensorParallel), strategy, sampling=SAMPLED))

    assert simulate(3, one) == [expected(sampling=SAMPLED)] * 3


@KINDS
@pytest.mark.parametrize("after", [1, 4, 9])
def test_closing_on_one_rank_ends_all_and_the_next_answer_is_right(kind: Any, after: int) -> None:
    """Close it at the start, while the prompt is read in chunks, and between steps."""
    prompt = PROMPT * 2

    def one(transport: Threads) -> tuple[bool, list[int]]:
        executor, store = executor_on(transport, kind, prefill_chunk=8), DraftStore()
        strategy, seen = make_strategy("lookahead", CONFIGS["all"], store), list[Event]()
        events = executor.decoder.generate(prompt, strategy, GREEDY, Limits(40), executor=executor)
        for event in events:
            seen.append(event)
            if transport.rank == 0 and len(seen) == after:
                events.close()
        again = answer(executor, prompt=prompt, store=store)
        return isinstance(seen[-1], Finished), ids_of(again)

    assert simulate(3, one) == [(False, expected(times=2))] * 3


@KINDS
def test_ctrl_c_within_a_step(kind: Any) -> None:
    """Lookahead-parallel ranks can decode the next answer; ranks of a split model cannot."""

    def one(transport: Threads) -> list[int] | str:
        interrupt = raises(KeyboardInterrupt, lambda n, _: (n, transport.rank) == (2, 0))
        executor = executor_on(transport, kind, before=interrupt)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                answer(executor)
            return ids_of(answer(executor))
        except RankError as error:
            return str(error)

    if kind is LookaheadParallel:
        assert simulate(2, one) == [expected()] * 2
    else:
        assert "start the ranks again" in simulate(2, one)[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_named_on_the_others(rank: int) -> None:
    def one(transport: Threads) -> str:
        fails = raises(ValueError, lambda n, _: (n, transport.rank) == (2, rank))
        executor = executor_on(transport, before=fails)
        with pytest.raises((RankError, ValueError)) as error:
            answer(executor)
        return str(error.value)

    others = [f"rank {rank} failed: ValueError: no cable"] * 3
    assert simulate(3, one) == [*others[:rank], "no cable", *others[rank + 1 :]]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"prompt": [1, 2, 3]}, "another prompt or other settings"),
        ({"sampling": SAMPLED}, "another prompt or other settings"),
        ({"config": LookaheadConfig(4, 4, 5, 30, sources=PAPER)}, "drafted other tokens"),
    ],
)
def test_a_rank_that_differs_is_named(other: dict[str, Any], problem: str) -> None:
    def one(transport: Threads) -> None:
        options = {"config": LookaheadConfig(5, 4, 5, 30, sources=PAPER)}
        answer(executor_on(transport), **options | (other if transport.rank == 2 else {}))

    with pytest.raises(RankError, match=f"rank 2 .*{problem}"):
        simulate(3, one)


def answers_without_memory(size: int, fails: Callable[[int, int, int], bool]) -> list[list[Event]]:
    """Return the answers of ranks whose forwards run out of memory if `fails`, by rank, number and
    width."""

    def one(transport: Threads) -> list[Event]:
        check = raises(torch.OutOfMemoryError, functools.partial(fails, transport.rank))
        return answer(executor_on(transport, before=check))

    return simulate(size, one)


@pytest.mark.parametrize("bad", [[1], [0, 1]])
def test_memory_that_runs_out_on_one_rank_narrows_the_steps_of_all(bad: list[int]) -> None:
    ranks = answers_without_memory(2, lambda rank, _, width: rank in bad and width > 9)
    assert [ids_of(events) for events in ranks] == [expected()] * 2
    narrowed = [[e.width for e in events if isinstance(e, StepNarrowed)] for events in ranks]
    assert narrowed[0] == narrowed[1] != []


def test_a_rank_without_memory_for_any_step_ends_the_text_on_all() -> None:
    for events in answers_without_memory(3, lambda rank, number, _: rank == 1 and number >= 2):
        assert events[-1] == Finished("memory")
        assert ids_of(events) == expected()[: len(ids_of(events))] != []
    with pytest.raises(NoMemoryError):  # not even for a part of the prompt
        answers_without_memory(3, lambda rank, *_: rank == 1)
