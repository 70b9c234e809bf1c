"""What a load found out about a processor's products is there for the next one."""

from __future__ import annotations

from typing import Any

import pytest

import ladecli
from ladecli.decoder.model import form_races
from ladecli.profiles import races, user
from ladecli.specs.device import Device, detect

from .makers import tuned

EPYC = Device("cpu", "cpu", "AMD EPYC", threads=1)
RESULTS = {"float32 960x576 1": {"columns": 80.5, "rows": 99.0, "packed": 85.1}}


def test_results_are_kept_by_device() -> None:
    races.write(EPYC, RESULTS)
    more = Device("cpu", "cpu", "AMD EPYC", threads=2)
    assert races.read(more) == {}
    races.write(more, {})
    assert races.read(EPYC) == RESULTS


@pytest.mark.parametrize("text", ["{", '{"AMD EPYC": {"float32": 1}}', "\0"])
def test_a_damaged_file_is_as_good_as_none(text: str) -> None:
    user.folder().mkdir(parents=True)
    races.path().write_text(text)
    assert races.read(EPYC) == {}
    races.write(EPYC, RESULTS)
    assert races.read(EPYC) == RESULTS


def test_where_nothing_can_be_written_nothing_is() -> None:
    user.folder().parent.mkdir(parents=True)
    user.folder().touch()
    races.write(EPYC, RESULTS)
    assert races.read(EPYC) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("raced")
def test_a_load_races_once_and_steps_cost_what_products_do_but_for_a_tuned_profile(
    lade: Any,
) -> None:
    assert lade("generate", "-p", "def ", "-n", "4", "--device", "cpu").code == 0
    here = detect("cpu")
    results = races.read(here)
    assert any(name.startswith("float32 ") for name in results)
    ladecli.load("demo")
    assert results.items() <= races.read(here).items()
    slow = {
        name: dict.fromkeys(times, 1.0 if name.endswith(f" {form_races.ONE}") else 40.0)
        for name, times in races.read(here).items()
    }
    races.write(here, slow)
    cost = ladecli.load("demo").lookahead.step_cost
    assert cost.at(1, 128) == 1.0
    dear = cost.at(8, 128)
    assert 20.0 < dear < 40.0, "a step is more than its products"
    assert dear < cost.at(8 + 1, 128)
    assert cost.at(24, 128) < cost.at(24, 8192), "attention takes what it took"
    user.write(tuned(device=user.key_of(here), versions=user.versions_here()))
    assert ladecli.load("demo").lookahead.step_cost.at(8, 128) < dear
