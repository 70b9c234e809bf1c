"""Groups: several ranks yield, token for token, the text of one, and notice when they cannot."""

from __future__ import annotations

import contextlib
import copy
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
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import NoMemoryError, RankError
from ladecli.decoder.events import Event, Finished, StepNarrowed, Token
from ladecli.decoder.executor import Executor
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.ranks.executors import LookaheadParallel, TensorParallel
from ladecli.decoder.sampling import Sampler
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft, State, StepResult
from ladecli.decoder.tree import ROOT, TokenTree
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
        found = [*self._table]
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barrier.wait(20)  # all have read before anyone writes again
        return found


def simulate(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """What `work` returns on every rank; or its error, if it is not merely the loss of another."""
    table: list[Any] = [None] * size
    barrier = threading.Barrier(size)

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


def decoder_of(
    family: str = "llama",
    wait: Threads | None = None,
    before: Callable[[int, int], object] = max,
    **options: Any,
) -> Decoder:
    """A decoder of a rank.

    Args:
        wait: lets the ranks wait for one another in every forward, as parts of one model do.
        before: is called before every forward with the number of those before and the step's
            width, and may raise an error.
    """
    with MODELS:  # which are made of torch's own random numbers
        decoder = load_decoder(copy.deepcopy(model_of(family)), **options)
    forward, numbers = decoder.executor.run, itertools.count()

    def watched(step: StepLayout) -> Any:
        before(next(numbers), len(step.tokens) - step.pending)
        if wait is not None:
            assert len({*map(tuple, wait.gather([len(step.tokens), step.pending]))}) == 1
        return forward(step)

    decoder.executor.run = watched
    return decoder


def decoder_on(transport: Threads, kind: type, **options: Any) -> Decoder:
    return decoder_of(wait=transport if kind is TensorParallel else None, **options)


def raises(error: type[BaseException], when: Callable[[int, int], bool]) -> Callable[..., None]:
    """For `before`: an error where `when` is true."""

    def check(number: int, width: int) -> None:
        if when(number, width):
            raise error("no cable")

    return check


def answer(
    decoder: Decoder,
    executor: Executor | None = None,
    strategy: str = "lookahead",
    config: LookaheadConfig = CONFIGS["all"],
    sampling: SamplingConfig = GREEDY,
    prompt: Sequence[int] = PROMPT,
    **options: Any,
) -> list[Event]:
    return run(decoder, prompt, strategy, config, sampling, executor=executor, **options)


def together(
    transport: Threads, before: Callable[[int, int], object] = max, **options: Any
) -> list[Event]:
    """An answer that all ranks decode by lookahead parallelism."""
    decoder = decoder_of(before=before)
    return answer(decoder, LookaheadParallel(decoder.executor, transport), **options)


@cache
def expected(family: str = "llama", sampling: SamplingConfig = GREEDY, times: int = 1) -> list[int]:
    """The text of plain decoding."""
    return ids_of(run(decoder_of(family), prompt_for(family) * times, sampling=sampling))


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
        decoder, prompt = decoder_of(family), prompt_for(family)
        chosen = {"config": CONFIGS[config], "sampling": sampling, "prompt": prompt}
        return ids_of(answer(decoder, LookaheadParallel(decoder.executor, transport), **chosen))

    assert simulate(size, one) == [expected(family, sampling)] * size


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensor_parallel_ranks_yield_the_text_of_one(strategy: str) -> None:
    def one(transport: Threads) -> list[int]:
        decoder = decoder_on(transport, TensorParallel)
        executor = TensorParallel(decoder.executor, transport)
        return ids_of(answer(decoder, executor, strategy, sampling=SAMPLED))

    assert simulate(3, one) == [expected(sampling=SAMPLED)] * 3


class Finds(Sampler):
    """Finds something in a rank's share of a step, whatever the logits are."""

    def __init__(self, found: StepResult) -> None:
        super().__init__(GREEDY)
        self.found, self.draft = found, Draft()

    def read(self, logits: Any, layout: StepLayout, draft: Draft) -> Callable[[], StepResult]:
        self.draft = draft
        return lambda: self.found


def test_an_output_of_two_ranks_is_that_of_the_first() -> None:
    tree = TokenTree([5, 6, 7], [ROOT, 0, 0], [1, 2, 2], ["context"] * 3)

    def one(transport: Threads) -> Any:
        rank, decoder, state = transport.rank, decoder_of(), State([3, 1, 2, 3, 1], 5)
        decoder.cache.length = 5 - rank
        best = [10 * rank + output for output in range(3)]
        tokens = [*map(Token, [5, 6, 9] if rank == 0 else [5, 8])]
        mine = StepResult([0, 1] if rank == 0 else [0], tokens, best, [{t: 0.5} for t in best])
        executor, sampler = LookaheadParallel(decoder.executor, transport), Finds(mine)
        executor.begin(state, ())
        assert executor.cache.length == 4, "what all ranks have"
        executor.start(state, Draft(tree, successors=1), sampler)
        found = executor.verify()
        assert sampler.draft.tree.tokens == ([5, 6] if rank == 0 else [5, 7])
        assert isinstance(found, StepResult)
        executor.commit(found.nodes)
        assert executor.cache.length == 5 + (2 if rank == 0 else 1)
        assert executor.room(state).loads == (1, 2), "rank 1 lacks the branch"
        return found

    for found in simulate(2, one):
        assert found.best == [0, 1, 2, 12]
        assert found.successors == [{token: 0.5} for token in found.best]
        assert (found.nodes, [token.id for token in found.tokens]) == ([0, 1], [5, 6, 9])


@KINDS
@pytest.mark.parametrize("after", [1, 4, 9])
def test_closing_on_one_rank_ends_all_and_the_next_answer_is_right(kind: Any, after: int) -> None:
    """Wherever it is closed: at the start, while the prompt is read in chunks, between steps."""
    prompt = PROMPT * 2

    def one(transport: Threads) -> tuple[bool, list[int]]:
        decoder = decoder_on(transport, kind, prefill_chunk=8)
        store, executor, seen = DraftStore(), kind(decoder.executor, transport), list[Event]()
        strategy = make_strategy("lookahead", CONFIGS["all"], store)
        events = decoder.generate(prompt, strategy, GREEDY, Limits(40), executor=executor)
        for event in events:
            seen.append(event)
            if transport.rank == 0 and len(seen) == after:
                events.close()
        again = answer(decoder, executor, prompt=prompt, store=store)
        return isinstance(seen[-1], Finished), ids_of(again)

    assert simulate(3, one) == [(False, expected(times=2))] * 3


@KINDS
def test_an_interrupt_within_a_step(kind: Any) -> None:
    """Ranks of lookahead parallelism go on with the next answer; parts of a model cannot."""

    def one(transport: Threads) -> list[int] | str:
        interrupt = raises(KeyboardInterrupt, lambda n, _: (n, transport.rank) == (2, 0))
        decoder = decoder_on(transport, kind, before=interrupt)
        executor = kind(decoder.executor, transport)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                answer(decoder, executor)
            return ids_of(answer(decoder, executor))
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
        with pytest.raises((RankError, ValueError)) as error:
            together(transport, before=fails)
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
def test_a_rank_that_does_something_else_is_named(other: dict[str, Any], problem: str) -> None:
    def one(transport: Threads) -> None:
        given = {"config": LookaheadConfig(5, 4, 5, 30, sources=PAPER)}
        given |= other if transport.rank == 2 else {}
        together(transport, **given)

    with pytest.raises(RankError, match=f"rank 2 .*{problem}"):
        simulate(3, one)


@pytest.mark.parametrize("bad", [[1], [0, 1]])
def test_memory_that_runs_out_on_one_rank_narrows_the_steps_of_all(bad: list[int]) -> None:
    def one(transport: Threads) -> list[Event]:
        small = transport.rank in bad
        fails = raises(torch.OutOfMemoryError, lambda _, width: small and width > 9)
        return together(transport, before=fails)

    ranks = simulate(2, one)
    assert [ids_of(events) for events in ranks] == [expected()] * 2
    narrowed = [[e.width for e in events if isinstance(e, StepNarrowed)] for events in ranks]
    assert narrowed[0] == narrowed[1] != []


def out_of_memory_from(at: int) -> list[list[Event]]:
    """Answers of three ranks, one of which has no memory for any forward from some number on."""

    def one(transport: Threads) -> list[Event]:
        full = transport.rank == 1
        fails = raises(torch.OutOfMemoryError, lambda n, _: full and n >= at)
        return together(transport, before=fails)

    return simulate(3, one)


def test_a_rank_without_memory_for_any_step_ends_the_text_on_all() -> None:
    for events in out_of_memory_from(2):
        assert events[-1] == Finished("memory")
        found = ids_of(events)
        assert found == expected()[: len(found)] != []
    # Not even for a part of the prompt.
    with pytest.raises(NoMemoryError):
        out_of_memory_from(0)
