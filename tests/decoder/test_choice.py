"""Choosing an attention backend: the fastest wins, one that fails is out, and it says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import BACKENDS, choice
from ladecli.decoder.attention.choice import CANDIDATES, check_usable, choose
from ladecli.decoder.attention.reference import reference_attention
from ladecli.decoder.capture import Work
from ladecli.decoder.errors import ConfigError, DeviceLostError

SHAPE = ("cpu", "float32", 4, 2, 8)


class Clock:
    """Gives every backend a time of its own, by the order in which they are tried.

    Attributes:
        runs: outputs of the work that was timed.
    """

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)
        self.runs: list[Tensor] = []

    def __call__(self, work: Work) -> float:
        self.runs += work()
        return self._seconds.pop(0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short texts, and backends that take no time."""
    monkeypatch.setattr(choice, "TEXT", 96)
    monkeypatch.setattr(choice, "WIDTH", 40)
    monkeypatch.setattr(choice, "LEAST_BYTES", 3 * 96 * 2 * 2 * 8 * 4)
    for name in CANDIDATES:
        monkeypatch.setitem(BACKENDS, name, reference_attention)
    yield
    choose.cache_clear()


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize(
    ("seconds", "name", "times"),
    [
        ((3e-3, 3e-4, 6e-4), "flash", "flash 100 µs, triton 200 µs, sdpa 1000 µs"),
        ((3e-3, 6e-4, 3e-4), "triton", "triton 100 µs, flash 200 µs, sdpa 1000 µs"),
        # What is no faster does not take the place of what is simpler.
        ((3e-4, 2.95e-4, 2.99e-4), "sdpa", "sdpa 100 µs, flash 98 µs, triton 100 µs"),
    ],
)
def test_the_fastest_is_taken(
    seconds: tuple[float, ...], name: str, times: str, captured: bool
) -> None:
    clock = Clock(*seconds)
    found = choose(*SHAPE, captured=captured, clock=clock)
    assert found.name == name
    # Three layers are timed as one.
    assert found.why == f"the fastest of those tried here: {times} a layer, 40 tokens behind 96"
    assert choose(*SHAPE, captured=captured, clock=clock) is found, "asked once"
    # A static step and a live one are the same step.
    assert [out.shape for out in clock.runs] == [(1, 4, 40, 8)] * 3


def broken(error: Exception | None = None, *, off: float = 0.0) -> Callable[..., Tensor]:
    def backend(*args: Any) -> Tensor:
        if error is not None:
            raise error
        return reference_attention(*args) + off

    return backend


def test_what_fails_or_says_something_else_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "flash", broken(off=1.0))
    monkeypatch.setitem(BACKENDS, "triton", broken(RuntimeError("no image for it\nand more")))
    found = choose(*SHAPE, clock=Clock(1e-3))
    assert found.name == "sdpa"
    assert "flash is out: off by " in found.why
    assert found.why.endswith("; triton is out: no image for it")


def test_where_none_can_be_tried_sdpa_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CANDIDATES:
        monkeypatch.setitem(BACKENDS, name, broken(MemoryError("no room")))
    found = choose(*SHAPE, clock=Clock())
    assert found.name == "sdpa"
    assert found.why.startswith("none could be tried: sdpa is out: no room; flash is out: ")
    # There is no such device here.
    assert choose("cuda:0", *SHAPE[1:]).name == "sdpa"


def test_elsewhere_there_is_a_rule() -> None:
    assert choose(*SHAPE).name == "sdpa"
    assert choose("mps", *SHAPE[1:]).name == "sdpa"


@pytest.mark.parametrize(
    ("name", "backend", "line"),
    [
        ("flash", reference_attention, None),
        ("flash", broken(RuntimeError("no kernel image\n...")), "no kernel image; use --attention"),
        ("flash", broken(off=1.0), "'flash' does not work here: off by"),
        ("flash", broken(ConfigError("flash needs this")), "^flash needs this$"),
        ("triton", broken(ConfigError("x")), "^attention 'triton' needs a CUDA GPU, and the"),
        ("fast", None, "^unknown attention 'fast'; use one of"),
    ],
)
def test_what_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, backend: Any, line: str | None
) -> None:
    if backend is not None:
        monkeypatch.setitem(BACKENDS, name, backend)
    if line is None:
        check_usable(name, *SHAPE)
        return
    with pytest.raises(ConfigError, match=line):
        check_usable(name, *SHAPE)


def test_numbers_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(query: Tensor, *_: object) -> Tensor:
        return torch.full_like(query, float("nan"))

    monkeypatch.setitem(BACKENDS, "flash", backend)
    with pytest.raises(ConfigError, match="off by nan"):
        check_usable("flash", *SHAPE)


def test_elsewhere_nothing_is_tried() -> None:
    assert choose("mps", *SHAPE[1:]).why == "the only one that is made for mps"


def test_on_a_gpu_that_is_lost_none_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "flash", broken(DeviceLostError("the GPU has met a fault")))
    with pytest.raises(DeviceLostError):
        choose(*SHAPE, clock=Clock(1.0, 1.0, 1.0))
