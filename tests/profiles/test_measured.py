"""Measured step costs are kept, and disturbances of a measurement are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ladecli
from ladecli.options.declare import config_path
from ladecli.profiles import measured
from ladecli.session.session import Session

pytestmark = pytest.mark.slow

ANSWER = ("-p", "def largest(items):", "-n", "40", "--ignore-eos", "--json", "-q")
WIDTHS = (1, 2, 4, 8, 16, 32)
DEAR = dict.fromkeys(WIDTHS, 9.0) | {1: 1.0}
Known = Callable[[dict[int, float]], None]


@pytest.fixture(scope="module")
def key() -> str:
    """Return the key of the demo's steps."""
    session: Session = ladecli.load("demo").session
    return measured.key_of(session.decoder, session.loaded.device, session.loaded.spec)


@pytest.fixture
def known(key: str) -> Known:
    """Return a function that keeps seconds of steps of the demo."""
    return lambda seconds: [None][not measured.keep(key, seconds)]


def costs_of(*widths: int) -> list[float]:
    cost = ladecli.load("demo").lookahead.step_cost
    return [cost.at(width, 0) for width in widths]


@pytest.mark.usefixtures("measures")
def test_a_load_measures_and_keeps_the_smaller_time_of_two(key: str, known: Known) -> None:
    ladecli.load("demo")
    first = measured.read_all()[key]
    assert {1, 4, 16} <= {*first}
    known(dict.fromkeys(WIDTHS, 1000.0) | {4: 50_000.0})
    for _ in range(20):
        ladecli.load("demo")
        if max(measured.read_all()[key].values()) < 1.0:
            break
    else:
        pytest.fail("what another program disturbed lasts")
    known(dict.fromkeys(WIDTHS, 1e-9))
    ladecli.load("demo")
    assert {*measured.read_all()[key].values()} == {1e-9}
    # A load without disturbances keeps the ratios of widths that it did not measure.
    measured.path().unlink()
    known(dict.fromkeys(WIDTHS, 1.8) | {1: 1.0, 64: 2.0})
    ladecli.load("demo")
    seconds = measured.read_all()[key]
    assert seconds[1] < 0.5
    assert seconds[64] / seconds[1] == pytest.approx(2.0)


def test_times_of_products_are_kept_beside_those_of_steps(key: str, known: Known) -> None:
    known({1: 2.0})
    with measured.times_of_products() as times:
        times["a product"] = {1: 1e-5}
    with measured.times_of_products() as times:
        assert (times[key], times["a product"]) == ({1: 2.0}, {1: 1e-5})


def test_drafts_are_few_or_many_by_the_costs_and_the_text_is_the_same(
    lade: Any, known: Known
) -> None:
    answers = []
    for costs in (dict.fromkeys(WIDTHS, 1.0), DEAR):
        known(costs)
        answers.append(lade("generate", "demo", *ANSWER).json())
    widths = [answer["decode"]["step_width"] for answer in answers]
    assert widths[0] > 6 > 2 > widths[1]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]


def test_a_shorter_time_of_a_wider_step_also_counts_for_a_narrower_one(
    known: Known,
) -> None:
    known({1: 1.0, 2: 50.0, 4: 60.0, 8: 1.5, 16: 2.0, 32: 3.0})
    assert costs_of(2, 4) == pytest.approx([1.5, 1.5])
    known({1: 1.0, 2: 3.9, 4: 9.0, 8: 9.8, 16: 9.8, 32: 9.8})
    assert costs_of(2, 4) == pytest.approx([2.0, 4.0])  # as many plain steps
    known({1: 5.0, 2: 1.0, 4: 1.0, 8: 2.0, 16: 3.0, 32: 4.0})
    assert costs_of(2, 8) == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("text", ["{", '{"a": {"1": -1.0}}', '{"a": {"1": Infinity}}', "[]", "\0"])
def test_a_damaged_file_is_ignored(text: str, key: str, known: Known) -> None:
    measured.path().parent.mkdir(parents=True)
    measured.path().write_text(text)
    assert measured.read_all() == {}
    known({1: 1.0})
    assert measured.read_all() == {key: {1: 1.0}}


@pytest.mark.parametrize("place", ["flag", "variable", "config"])
def test_a_named_profile_is_used_unchanged(
    lade: Any, known: Known, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(DEAR)
    flags = ("--profile", "h200") if place == "flag" else ()
    if place == "variable":
        monkeypatch.setenv("LADE_PROFILE", "h200")
    if place == "config":
        config_path().parent.mkdir(parents=True, exist_ok=True)
        config_path().write_text('profile = "h200"\n')
    answer = lade("generate", "demo", *ANSWER[:-1], *flags, "--budget", "60")
    assert answer.json()["decode"]["step_width"] > 25
    assert "made for NVIDIA H200" in answer.err
