"""What is ours is given up bit by bit where steps cannot be captured with it, and texts stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import BACKENDS
from ladecli.decoder.attention.sdpa import sdpa_attention
from ladecli.decoder.capture import Captured, Work
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import DeviceLostError
from ladecli.decoder.graphs import GraphRunner
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.ladder import Ladder, Way
from ladecli.decoder.lean import PARTS, fused, make_lean, slots
from ladecli.decoder.probe import probe, try_capture
from ladecli.decoder.static_step import StaticCache, StepInputs

from ..decoding import ids_of, run
from ..families import model_of, prompt_for
from ..needs import TRITON
from .test_lean import fresh
from .tracing import Again

CONFIG = LookaheadConfig(3, 3, 3, 8, widths=(1, 8))
NEW = Limits(8)
WHY = "too many resources requested for launch"


def ways_of(ladder: Ladder) -> list[Way]:
    found = [ladder.way]
    while ladder.step_down(WHY):
        found.append(ladder.way)
    return found


def test_the_most_doubtful_goes_first() -> None:
    assert ways_of(Ladder("triton", True)) == [
        *(("triton", True), ("triton", False), ("sdpa", True), ("sdpa", False))
    ]
    assert ways_of(Ladder("flash", False)) == [("flash", False), ("sdpa", False)]
    assert ways_of(Ladder("auto", False)) == [("sdpa", False)], "that has nothing of ours"


def test_what_was_given_up_is_told_in_one_line() -> None:
    ladder = Ladder("triton", True)
    said = [ladder.given_up]
    while ladder.step_down(f"reason {len(said)}"):
        said.append(ladder.given_up)
    assert said == [
        None,
        "without lade's small kernels: reason 1",
        "with attention sdpa, not triton: reason 2",
        "without lade's small kernels and with attention sdpa, not triton: reason 3",
    ]
    # Nothing helped, so it was none of that.
    assert (ladder.way, ladder.given_up) == (Way("triton", True), None)


def test_what_has_stood_counts_again_where_nothing_helps() -> None:
    ladder = Ladder("triton", True)
    ladder.step_down("wrong")
    ladder.stand()
    assert len(ways_of(ladder)) == 3
    assert ladder.way == Way("triton", False)
    assert ladder.given_up == "without lade's small kernels: wrong"


class Strict(Again):
    """A capture within which some things fail that work by themselves.

    Attributes:
        underway: whether it is.
        tried: captures begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.underway = False
        self.tried = 0

    def capture(self, work: Work) -> Captured:
        self.tried += 1
        self.underway = True
        try:
            return super().capture(work)
        finally:
            self.underway = False


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Strict:
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)
    return Strict()


def failing(capture: Strict, works: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if capture.underway:
            raise RuntimeError(f"{WHY}\nand more")
        return works(*args, **kwargs)

    return called


def runner_of(decoder: Decoder) -> GraphRunner:
    assert isinstance(decoder.runner, GraphRunner)
    return decoder.runner


def with_kernels() -> Any:
    """A Llama that computes with Triton's kernels, in the interpreter."""
    model = copy.deepcopy(model_of("llama"))
    # Other decoders may have made the original lean in their way.
    for module in model.modules():
        vars(module).pop("forward", None)
    assert len(make_lean(model, PARTS)) > 0
    return model


@TRITON
def test_a_kernel_that_fails_in_a_capture_is_not_used_there(
    capture: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompt = with_kernels(), prompt_for("llama", 5)
    expected = ids_of(run(Decoder(model_of("llama")), prompt, limits=NEW))
    monkeypatch.setattr(fused, "add", failing(capture, fused.add))
    decoder = Decoder(model, lean=False, capture=capture)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected
    assert capture.replays > 0
    assert decoder.runner.trouble is None
    assert decoder.runner.given_up == f"without lade's small kernels: {WHY}"
    # What has failed once is not tried for other steps.
    assert capture.tried == len(runner_of(decoder)._steps) + 1
    # Nor where nothing can be captured any more.
    capture.fails = [RuntimeError("no graphs")] * 3
    monkeypatch.setattr(fused, "add", lambda *_: pytest.fail("nobody asked"))
    runner_of(decoder).forget()
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected
    assert decoder.runner.trouble == "no graphs"
    assert decoder.runner.given_up == f"without lade's small kernels: {WHY}"


def test_an_attention_that_fails_in_a_capture_gives_way_to_torchs(
    capture: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompt = model_of("llama"), prompt_for("llama", 5)
    expected = ids_of(run(Decoder(model), prompt, limits=NEW))
    monkeypatch.setitem(BACKENDS, "triton", failing(capture, sdpa_attention))
    decoder = Decoder(model, attention="triton", capture=capture)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected
    runner = runner_of(decoder)
    assert (runner.trouble, runner.attention) == (None, "sdpa")
    assert runner.given_up == f"with attention sdpa, not triton: {WHY}"
    assert capture.replays > 0


def test_nothing_is_tried_again_on_a_gpu_that_is_lost(capture: Strict) -> None:
    decoder = Decoder(model_of("llama"), capture=capture)
    capture.fails = [DeviceLostError("the GPU has met a fault")]
    with pytest.raises(DeviceLostError):
        run(decoder, prompt_for("llama", 5), limits=NEW)
    assert capture.tried == 1


def test_the_trial_tells_of_a_lost_gpu() -> None:
    capture = Again(DeviceLostError("the GPU has met a fault"))
    facts = Decoder(model_of("llama")).facts
    with pytest.raises(DeviceLostError):
        try_capture(model_of("llama"), facts, "sdpa", capture)


def test_want_of_memory_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    facts, ladder = Decoder(model_of("llama")).facts, Ladder("triton", True)
    monkeypatch.setitem(BACKENDS, "triton", full)
    why = try_capture(model_of("llama"), facts, "triton", Again(), ladder)
    assert (why, ladder.way) == ("out of memory", Way("triton", True))


def test_a_lost_gpu_says_nothing_about_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Tensor:
        raise DeviceLostError("the GPU has met a fault")

    facts = Decoder(model_of("llama")).facts
    monkeypatch.setattr("ladecli.decoder.probe._decode", lost)
    with pytest.raises(DeviceLostError):
        probe(fresh("llama"), facts)


def test_what_fails_on_the_way_to_the_first_capture_is_given_up_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Tensor:
        raise RuntimeError(WHY)

    model, prompt = model_of("llama"), prompt_for("llama", 5)
    expected = ids_of(run(Decoder(model), prompt, limits=NEW))
    monkeypatch.setitem(BACKENDS, "flash", broken)
    decoder = Decoder(model, attention="flash", capture=Again())
    assert decoder.runner.given_up == f"with attention sdpa, not flash: {WHY}"
    # Chunks of a prompt, which are not captured, do without it as well.
    assert ids_of(run(decoder, prompt, limits=NEW)) == expected


@TRITON
def test_a_kernel_that_fails_anywhere_is_used_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Tensor:
        raise RuntimeError(WHY)

    model, prompt = with_kernels(), prompt_for("llama", 5)
    expected = ids_of(run(Decoder(model_of("llama")), prompt, limits=NEW))
    monkeypatch.setattr(fused, "add", broken)
    decoder = Decoder(model, lean=False, capture=Again())
    assert decoder.runner.given_up == f"without lade's small kernels: {WHY}"
    assert ids_of(run(decoder, prompt, limits=NEW)) == expected


def test_doubted_kernels_are_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, inputs = KVCache(1), StepInputs(2, torch.device("cpu"))
    with torch.inference_mode():
        cache.update(torch.ones(1, 1, 3, 8), torch.ones(1, 1, 3, 8), 0)
    asked: list[int] = []
    monkeypatch.setattr(slots, "work", lambda *_: asked.append(1))
    StaticCache(cache, inputs, cache.slots)
    assert asked
    with fused.switched(False):
        StaticCache(cache, inputs, cache.slots)
    assert len(asked) == 1


def test_the_trial_finds_an_attention_that_says_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In steps of either sort: torch's own operations are what it is compared with."""
    decoder = Decoder(model_of("llama"))

    def wrong(*args: Any) -> Tensor:
        return sdpa_attention(*args) * 1.5

    monkeypatch.setitem(BACKENDS, "triton", wrong)
    ladder = Ladder("triton", False)
    assert try_capture(model_of("llama"), decoder.facts, "triton", Again(), ladder) is None
    assert ladder.way.attention == "sdpa"
    assert ladder.given_up is not None
    assert "captured steps were off by" in ladder.given_up
    # What was wrong stays out of it, whatever happens.
    assert not ladder.step_down(WHY)
    assert ladder.way.attention == "sdpa"
    # The steps of a decoder begin where its trial has ended.
    decoder = Decoder(model_of("llama"), attention="triton", capture=Again())
    assert (decoder.runner.attention, decoder.runner.trouble) == ("sdpa", None)


def test_switched_off_kernels_are_asked_by_nobody() -> None:
    both = torch.randn(1, 2, 8)
    assert fused.may_gate(both)
    with fused.switched(False):
        assert not fused.may_gate(both)
        with fused.switched(True):
            assert fused.may_gate(both)
    assert fused.may_gate(both)
