"""While the device is at work on a step, whoever reads the text has the one before."""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator
from typing import Any
from unittest import mock

import pytest
import torch

from ladecli.decoder import layout
from ladecli.decoder.config import GROWTH, captured_width
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Event, Finished, Started, Step, Token
from ladecli.decoder.graphs import PENDING, GraphRunner
from ladecli.decoder.layout import Draft, StepLayout
from ladecli.decoder.meanwhile import MEANWHILE, told_meanwhile
from ladecli.decoder.readout import Shown, Wanted
from ladecli.decoder.runner import Running
from ladecli.decoder.strategies import State, make_strategy

from ..decoding import PAPER, ids_of, run
from ..oracle import OracleModel, scrambles
from .tracing import Again

START, END = Started(0, 1), Finished("length")
ZERO, ONE, TWO = (Step((Token(i),), 1, 0, 0.1) for i in range(3))


def test_a_step_is_held_back_until_there_is_time_or_something_else_happens() -> None:
    done: list[str] = []

    def events() -> Generator[Event | None]:
        yield MEANWHILE
        yield START
        yield ZERO
        done.append("first")
        yield ONE
        done.append("work")
        yield MEANWHILE
        yield MEANWHILE
        yield TWO
        done.append("more")
        yield END

    assert [(event, list(done)) for event in told_meanwhile(events())] == [
        (START, []),
        (ZERO, []),
        (ONE, ["first", "work"]),
        (TWO, ["first", "work", "more"]),
        (END, ["first", "work", "more"]),
    ]


def test_a_step_is_told_before_what_went_wrong_behind_it() -> None:
    def events() -> Generator[Event | None]:
        yield ZERO
        yield ONE
        raise ValueError("a broken device")

    told = told_meanwhile(events())
    assert [next(told), next(told)] == [ZERO, ONE]
    with pytest.raises(ValueError, match="a broken device"):
        next(told)


def test_ctrl_c_waits_for_no_reader() -> None:
    """It would be lost if nobody asked for another event."""

    def events() -> Generator[Event | None]:
        yield ZERO
        yield ONE
        raise KeyboardInterrupt

    told = told_meanwhile(events())
    assert next(told) is ZERO
    with pytest.raises(KeyboardInterrupt):
        next(told)


def test_the_last_step_is_told_and_who_has_enough_closes_all() -> None:
    closed: list[bool] = []

    def events() -> Generator[Event | None]:
        try:
            yield ONE
            yield MEANWHILE
            yield TWO
        finally:
            closed.append(True)

    assert [*told_meanwhile(events())] == [ONE, TWO]
    for told in (1, 2):
        reading = told_meanwhile(events())
        assert [next(reading) for _ in range(told)] == [ONE, TWO][:told]
        reading.close()
    assert closed == [True, True, True]


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders capture without a trial, which an oracle would not pass."""
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)


class Noted(Again):
    """Writes down what is asked of the device, and when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[int] = []

    def wait(self) -> None:
        self.waits.append(self.replays)


def steps_of(decoder: Decoder, new: int = 12) -> Generator[Event]:
    """Plain decoding behind two tokens."""
    return decoder.generate(
        [5, 6], make_strategy("autoregressive", PAPER), None, Limits(max_new_tokens=new)
    )


def test_the_next_step_is_under_way_when_one_is_told() -> None:
    model: Any = OracleModel(scrambles())
    capture = Noted()
    decoder = Decoder(model, capture=capture)
    run(decoder, [5, 6], limits=Limits(12))  # everything is captured now
    first, asked, waited = capture.replays, [], []
    for event in steps_of(decoder):
        if isinstance(event, Step):
            asked.append(capture.replays - first)
            waited.append(len([replays for replays in capture.waits if replays > first]))
    # The first is told at once; behind the last one there is nothing to do.
    assert asked == [1, *range(3, 13), 12]
    assert waited == [*range(1, 13)]


def test_nobody_waits_for_a_step_that_runs_on_the_host_or_is_yet_to_be_captured() -> None:
    model: Any = OracleModel(scrambles())
    fed = []
    for decoder in (Decoder(model), Decoder(model, capture=Noted())):
        before = len(model.steps)
        for number, event in enumerate(steps_of(decoder, 3)):
            if isinstance(event, Step) and number < 3:
                fed.append(len(model.steps) - before)
    # The capture runs the second step's work, too, but only when the first has been told.
    assert fed[:2] == [1, 2]
    assert fed[2] == 1


def test_a_step_that_was_for_nothing_spoils_nothing() -> None:
    model: Any = OracleModel(scrambles())
    expected = ids_of(run(Decoder(model), [9, 8, 7], limits=Limits(12)))
    capture = Noted()
    decoder = Decoder(model, capture=capture)
    run(decoder, [5, 6], limits=Limits(12))
    for enough in range(2, 6):
        events = steps_of(decoder)
        told = [next(events) for _ in range(1 + enough)]
        events.close()
        assert decoder.cache.length == 1 + len(ids_of(told))
        under_way = capture.replays
        assert capture.waits[-1] < under_way
        assert ids_of(run(decoder, [9, 8, 7], limits=Limits(12))) == expected
        # Its inputs were not written over before it had read them.
        assert under_way in capture.waits


def test_nothing_captured_is_let_go_of_while_it_runs() -> None:
    model: Any = OracleModel(scrambles())
    capture = Noted()
    decoder = Decoder(model, capture=capture)
    run(decoder, [5, 6], limits=Limits(12))
    events = steps_of(decoder)
    next(events), next(events), next(events)
    events.close()
    assert capture.waits[-1] < capture.replays
    decoder.runner.forget()
    assert capture.waits[-1] == capture.replays


@pytest.mark.parametrize(("captured", "timed"), [(False, False), (False, True), (True, True)])
def test_the_readers_time_is_not_the_steps_where_the_device_waits_for_it(
    captured: bool, timed: bool
) -> None:
    model: Any = OracleModel(scrambles())
    decoder = Decoder(model, capture=Noted() if captured else None)
    run(decoder, [5, 6], limits=Limits(4))
    strategy = make_strategy("autoregressive", PAPER)
    for event in decoder.generate([5, 6], strategy, None, Limits(4), timed=timed):
        if isinstance(event, Step):
            assert event.seconds < 0.05
            assert event.parts is None or sum(event.parts.values()) < 0.05
        time.sleep(0.06)


def test_the_readers_time_is_not_that_of_a_step_which_is_yet_to_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = OracleModel(scrambles())
    decoder = Decoder(model, capture=Noted())
    run(decoder, [5, 6], limits=Limits(4))
    monkeypatch.setattr(decoder.runner, "is_ready", lambda *_: False)
    for event in steps_of(decoder, 4):
        if isinstance(event, Step):
            assert event.seconds < 0.06
        time.sleep(0.06)


def test_on_a_host_a_step_is_told_before_the_next_one_is_thought_of() -> None:
    model: Any = OracleModel(scrambles())
    strategy, proposed = make_strategy("autoregressive", PAPER), list[int]()
    propose = strategy.propose

    def noted(state: State) -> Draft:
        proposed.append(len(state.tokens))
        return propose(state)

    with mock.patch.object(strategy, "propose", noted):
        events = Decoder(model).generate([5, 6], strategy, None, Limits(4))
        told = [len(proposed) for event in events if isinstance(event, Step)]
    assert told == [1, 2, 3, 4]


def test_a_step_is_ready_where_nothing_but_its_launch_is_left() -> None:
    model: Any = OracleModel(scrambles())
    decoder = Decoder(model, capture=Noted())
    run(decoder, [5, 6], limits=Limits(4))
    runner, cache, wanted = decoder.runner, decoder.cache, Wanted(0, logits=False)
    assert isinstance(runner, GraphRunner)
    plain, prompt = (layout.build([5] * count, cache.length, Draft()) for count in (1, PENDING + 1))
    assert runner.is_ready(plain, wanted)
    assert not runner.is_ready(plain, Wanted(4))
    # A draft may be as wide; but the end of a prompt is not captured.
    captured = runner._steps[runner._kind(1, wanted)]
    runner._steps[runner._kind(captured_width(PENDING + 1), wanted)] = captured
    assert not runner.is_ready(prompt, wanted)
    cache.edition += 1
    assert not runner.is_ready(plain, wanted)


def test_the_readers_time_counts_where_it_holds_the_next_step_up() -> None:
    model: Any = OracleModel(scrambles())
    decoder = Decoder(model, capture=Noted())
    run(decoder, [5, 6], limits=Limits(4))
    seconds = []
    for event in steps_of(decoder, 4):
        if isinstance(event, Step):
            seconds.append(event.seconds)
        time.sleep(0.06)
    # Nothing is read while the first and the second step run.
    assert seconds[1] < 0.06
    assert all(each >= 0.06 for each in seconds[2:])


def test_nobody_waits_while_the_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is captured anew then."""
    monkeypatch.setattr("ladecli.decoder.graphs.FIRST_SLOTS", GROWTH)
    model: Any = OracleModel(scrambles())
    capture = Noted()
    decoder = Decoder(model, max_context=4 * GROWTH, capture=capture)
    cache, strategy = decoder.cache, make_strategy("autoregressive", PAPER)
    events = decoder.generate([7] * (GROWTH - 8), strategy, None, Limits(12))
    told = (event for event in events if isinstance(event, Step))
    slots = dict((cache.length, cache.slots) for _ in told)  # noqa: C402  (the key changes)
    assert slots[GROWTH] == GROWTH, "its step is told before there is room for the next one"
    assert slots[GROWTH + 1] > GROWTH


def test_a_step_that_memory_did_not_suffice_for_is_gone_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = OracleModel(scrambles())
    decoder = Decoder(model)
    started: list[weakref.ref[Running]] = []
    start, result = decoder.runner.start, Running.result

    def noted(step: StepLayout, wanted: Wanted) -> Running:
        assert not any(each() for each in started)
        running = start(step, wanted)
        started.append(weakref.ref(running))
        return running

    def short(running: Running) -> Shown:
        if len(started) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return result(running)

    monkeypatch.setattr(decoder.runner, "start", noted)
    monkeypatch.setattr(Running, "result", short)
    assert len(ids_of(run(decoder, [5, 6], limits=Limits(3)))) == 3
    assert len(started) == 4
