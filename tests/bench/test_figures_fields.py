"""Every field of the figures, on runs whose answers can be worked out by hand."""

from __future__ import annotations

import pytest

from ladecli.bench.figures import Figures, figures_of

from .makers import result, run

CONTENDERS = result({"autoregressive": 1.0, "jacobi": 1.0}).contenders


def jacobi() -> Figures:
    """Three answers of two rows: skewed times, growing memory, drafts from two sources."""
    steps = tuple(float(n) for n in range(1, 11))  # 1 to 10 seconds
    runs = (
        run("autoregressive", "a", "chat"),
        run(
            "jacobi", "a", "chat", tokens=21, steps=11, fed=40, first_seconds=1.0,
            step_seconds=steps, peak_memory=100, accepted={"context": 7},
        ),
        run(
            "jacobi", "b", "chat", tokens=11, steps=11, fed=20, first_seconds=2.0,
            step_seconds=steps, peak_memory=300, accepted={"context": 1, "recycled": 2},
        ),
        run(
            "jacobi", "c", "code", tokens=4, steps=2, fed=3, first_seconds=9.0,
            step_seconds=(100.0,), peak_memory=200,
        ),
    )  # fmt: skip
    made = result(runs=runs, contenders=CONTENDERS)
    return figures_of(made)[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 3),
        ("tokens_per_step", 36 / 24),
        ("width", 63 / 21),
        ("tokens_per_second", (20 + 10 + 3) / (55 + 55 + 100)),
        ("first_seconds", 2.0),  # the mean is 4
        ("step_median", 6.0),  # the mean is 10
        ("step_p95", 10.0),
        ("peak_memory", 300),
        ("accepted", {"context": 8, "recycled": 2}),
        ("equal", 1),
        ("compared", 1),
        ("speedup", None),
    ],
)
def test_each_field_is_what_it_says(field: str, value: object) -> None:
    assert getattr(jacobi(), field) == (pytest.approx(value) if isinstance(value, float) else value)


def test_what_one_run_does_not_know_nobody_knows() -> None:
    known = run("jacobi", "a", "chat")
    unknown = run("jacobi", "b", "chat", fed=None, peak_memory=None, step_seconds=(), tokens=1)
    both = figures_of(result(runs=(known, unknown), contenders=CONTENDERS, reference=None))[0]
    assert both.width is None
    assert both.peak_memory == known.peak_memory
    alone = figures_of(result(runs=(unknown,), contenders=CONTENDERS, reference=None))[0]
    assert (alone.step_median, alone.step_p95, alone.peak_memory) == (None, None, None)
