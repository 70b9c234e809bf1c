"""How far a verification is."""

from __future__ import annotations

from ladecli.verifying.verification import Progress


def test_every_part_counts_in_full_and_no_more() -> None:
    told: list[int] = []
    progress = Progress(told.append)
    progress.begin(10)
    progress.passed(4)
    # An answer ended early: what is left of its part is not needed.
    progress.begin(10)
    assert sum(told) == 10
    # A step may yield more than was asked for.
    progress.passed(8)
    progress.passed(8)
    assert sum(told) == 20
    assert min(told) >= 0
