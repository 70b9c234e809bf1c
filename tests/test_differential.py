"""A few random cases of `benchmarks/differential.py`, through every entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import differential


@pytest.mark.slow
@pytest.mark.parametrize("number", [17, 33])
def test_every_entry_point_gives_the_text_of_generate(number: int, tmp_path: Path) -> None:
    with differential.quietly():
        outcome = differential.run(number, tmp_path)
    assert not outcome.faults, (outcome.family, outcome.rope)
