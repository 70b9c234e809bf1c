"""Running out of memory anywhere: no token is lost or changed."""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import GROWTH, STRATEGIES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.events import Event, PromptRead, StepNarrowed
from ladecli.decoder.executor import Executor
from ladecli.decoder.faults import attempt, is_out_of_memory
from ladecli.decoder.model.forward import StepInputs
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from tests.support.decoding import decoder_of, ids_of, reason_of, run, steps_of
from tests.support.memory import limit_pages
from tests.support.models import model_of, prompt_for
from tests.support.oracle import EagerCapture, cached_ids, change_logits, oracle, run_out, scrambled

pytestmark = pytest.mark.slow

SAMPLINGS = (
    SamplingConfig(),
    SamplingConfig(temperature=0.8, top_k=20, seed=5),
    SamplingConfig(repetition_penalty=1.3),
)
CONFIGS = {
    "paper": LookaheadConfig(5, 4, 5, sources=("trajectory",)),
    "all": LookaheadConfig(5, 4, 5, 60),
    "static": LookaheadConfig(4, 4, 4, 60, widths=(1, 6, 14, 20, 40, 60)),
    "costly": LookaheadConfig(4, 4, 4, 60, step_cost=StepCost((1, 64), (0,), ((1.0, 3.0),))),
}
CPU = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"
PROMPT = [(5 * i) % 12 for i in range(30)]
EXPECTED = ids_of(run(scrambled(), PROMPT, limits=Limits(60)))


def narrowed(events: list[Event]) -> list[int]:
    return [event.width for event in events if isinstance(event, StepNarrowed)]


OTHERS = ("mistral", "llama_dynamic", "phi3_long", "gpt2")
"""Families, with some that read the whole text again beyond the rotary boundary."""


@pytest.mark.parametrize(
    ("family", "config", "most"),
    [
        *itertools.product(["llama"], CONFIGS, [40, 9, 1]),
        *itertools.product(OTHERS, ["all"], [12, 3]),
    ],
)
def test_narrow_steps_yield_the_same(family: str, config: str, most: int) -> None:
    decoder, prompt = decoder_of(family), prompt_for(family)
    sampling = SAMPLINGS[([*CONFIGS].index(config) + most) % 3]
    expected = ids_of(run(decoder_of(family), prompt, sampling=sampling))
    ran = run_out(decoder, lambda step: len(step.tokens) > most)
    events = run(decoder, prompt, "lookahead", CONFIGS[config], sampling)
    assert ids_of(events) == expected
    assert max(ran) <= most
    widths = narrowed(events)
    assert all(a > b >= 1 for a, b in pairwise(widths))
    # The first step also feeds the prompt, and a later one the text that is read again.
    after = {step.width for step in steps_of(events)[1:]}
    assert family in OTHERS or max(after) <= (widths[-1] if widths else most)
    assert config != "static" or after <= {*CONFIGS["static"].widths}


def test_the_next_text_has_wide_steps_again() -> None:
    decoder, short = scrambled(), [True]
    run_out(decoder, lambda step: short[0] and len(step.tokens) > 3)
    run(decoder, PROMPT, "lookahead", CONFIGS["paper"], limits=Limits(60))
    short[0] = False
    again = run(decoder, PROMPT, "lookahead", CONFIGS["paper"], limits=Limits(60))
    assert max(step.width for step in steps_of(again)) > 9, "one bad moment is not for ever"


@settings(max_examples=60)
@given(
    bad=st.lists(st.booleans(), max_size=40),
    forever=st.booleans(),
    strategy=st.sampled_from(STRATEGIES),
    config=st.sampled_from(["paper", "all", "costly"]),
    chunk=st.integers(1, 20),
    kind=st.sampled_from([Executor, EagerCapture]),
    broken_off=st.none() | st.integers(1, 20),
)
def test_faults_in_any_order(
    bad: list[bool],
    forever: bool,
    strategy: str,
    config: str,
    chunk: int,
    kind: type[Executor],
    broken_off: int | None,
) -> None:
    """At every yield, and after an interruption, the cache holds the text, which is that of plain
    decoding, or its start if no further step is possible."""
    decoder, events = scrambled(chunk=chunk, kind=kind), list[Event]()
    moments = itertools.chain(bad, itertools.repeat(forever, 99))
    run_out(decoder, lambda _: next(moments, False))

    def check_cache() -> None:
        text, cached = [*PROMPT, *ids_of(events)], cached_ids(decoder)
        assert cached == (text[:-1] if ids_of(events) else PROMPT[: len(cached)])

    chosen = make_strategy(strategy, CONFIGS[config])
    generation = decoder.generate(PROMPT, chosen, None, Limits(25))
    for event in itertools.islice(generation, broken_off):
        events.append(event)
        check_cache()
        assert not isinstance(event, PromptRead) or len(cached_ids(decoder)) == event.done
    generation.close()
    check_cache()
    ids = ids_of(events)
    assert broken_off or reason_of(events) == ("length" if len(ids) == 25 else "memory")
    assert ids == EXPECTED[: len(ids)]
    list(moments)  # memory is back
    for known in (0, len(ids)):
        more = run(decoder, [*PROMPT, *ids[:known]], strategy, CONFIGS[config])
        assert ids_of(more)[:25] == EXPECTED[known : known + 25]


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead"])
def test_a_cache_that_cannot_grow_is_used_up_to_its_end(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last token that memory has a slot for is generated."""
    sizes = list[int]()

    def fits(size: int) -> bool:
        sizes.append(size)
        return size <= sizes[0]

    decoder = oracle(lambda seen: (seen[-1] * 5 + 1) % 12, 12, context=4096, chunk=64)
    config, prompt = LookaheadConfig(4, 3, 4, 30), PROMPT * 7
    with monkeypatch.context() as patch:
        limit_pages(patch, fits)
        events = run(decoder, prompt, strategy, config, limits=Limits(600))
    ids = ids_of(events)
    assert reason_of(events) == "memory"
    assert len(prompt) + len(ids) == 2 * GROWTH + 1
    more = run(decoder, [*prompt, *ids], strategy, config, limits=Limits(9))
    assert ids + ids_of(more) == ids_of(run(decoder, prompt, limits=Limits(len(ids) + 9)))


def test_memory_may_run_out_after_the_forward_too() -> None:
    decoder = scrambled()
    bad = iter([False, False, True, False, False, True, True, False, True])

    def processor(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if next(bad, False):
            raise MemoryError
        return scores

    calls: list[int] = []
    limits = Limits(40, should_stop=lambda token: calls.append(token) is not None)
    strategy = make_strategy("lookahead", CONFIGS["all"])
    events = list(decoder.generate(PROMPT, strategy, None, limits, [processor]))
    # `should_stop` is called once per token, even if its step was tried several times.
    assert ids_of(events) == calls == EXPECTED[:40]
    assert narrowed(events)


def test_a_failed_attempt_leaves_no_tensors() -> None:
    decoder, failed = decoder_of("llama"), list[weakref.ref[torch.Tensor]]()

    def fail(step: StepInputs, logits: torch.Tensor) -> torch.Tensor:
        assert all(tensor() is None for tensor in failed), "the try before is still alive"
        if len(step.tokens) > 3:
            failed.append(weakref.ref(logits))
            raise torch.OutOfMemoryError
        return logits

    change_logits(decoder, fail)
    run(decoder, prompt_for("llama"), "lookahead", CONFIGS["all"])
    assert len(failed) > 3


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_memory_that_runs_out_while_loading_is_not_taken_for_a_wrong_forward(family: str) -> None:
    model, calls = copy.deepcopy(model_of(family)), itertools.count()

    def fail(*_: Any) -> None:
        # The embedding is the only module that our own forward calls.
        if next(calls) >= 1:
            raise torch.OutOfMemoryError

    model.get_input_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        load_decoder(model)


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError(f"{CPU} to allocate 4503599627370496 bytes. Error code 12"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.88 GB, other: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error: BaseException, counts: bool) -> None:
    assert is_out_of_memory(error) is counts
    work = Mock(side_effect=error)
    with contextlib.nullcontext() if counts else pytest.raises(type(error)):
        assert attempt(work) is None
