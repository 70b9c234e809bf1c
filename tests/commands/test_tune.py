"""`lade tune`: the measurement, its table and the kept file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ladecli
from ladecli.profiles import measured
from tests.support.models import saved

pytestmark = pytest.mark.slow

WIDTHS = (1, 2, 4, 8, 16, 32)


def test_measured_step_costs_are_kept_and_used(lade: Any) -> None:
    result = lade("tune", "demo", "--seconds", "1", "--json", "-q").json()
    assert [row["width"] for row in result["steps"]] == [*WIDTHS]
    costs = [row["cost"] for row in result["steps"]]
    assert (costs[0], costs) == (1.0, sorted(costs))
    assert result["file"] == str(measured.path())
    cost = ladecli.load("demo").lookahead.step_cost
    assert cost.widths == WIDTHS
    assert cost.at(16, 0) == pytest.approx(costs[4], abs=1e-3)
    assert cost.at(16, 8192) > cost.at(16, 0), "attention costs more after a long text"


def test_a_dry_run_shows_a_table_and_writes_nothing(lade: Any) -> None:
    result = lade("tune", "demo", "--seconds", "1", "--dry-run")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[0] for row in rows if row[0].isdecimal()] == [*map(str, WIDTHS)]
    assert "nothing was written" in result.err
    assert not measured.path().exists()


def test_failures_of_measuring_and_keeping(lade: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert "--seconds" in lade("tune", "demo", "--seconds", "1e-9").refused(1)
    plain = lade("tune", saved(tmp_path, "mamba"))
    assert (plain.code, "no step is wider" in plain.err) == (1, True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    result = lade("tune", "demo", "--seconds", "1")
    assert (result.code, "cannot be written" in result.err) == (1, True)
