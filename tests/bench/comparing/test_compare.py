"""Two results side by side: planted changes are found, noise and the machine's moods are not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pytest

from ladecli.bench.comparing.compare import compare
from ladecli.bench.comparing.values import Comparison
from ladecli.bench.result import PLAIN, Contender, Failure, Result, Run
from ladecli.errors import UsageError
from tests.bench.makers import MACHINE, MODEL, result, sweep

SPEEDS = {"autoregressive": 1.0, "paper": 0.8, "lookahead": 1.5, "hf": 0.8}
OURS = ("autoregressive", "paper", "lookahead")
TRIES = 60


def slowed(before: Result, factors: Mapping[str, float]) -> Result:
    """The same result with some contenders' steps taking so many times as long."""
    runs = tuple(
        dataclasses.replace(
            run,
            step_seconds=tuple(s * factors.get(run.contender, 1.0) for s in run.step_seconds),
        )
        for run in before.runs
    )
    return dataclasses.replace(before, runs=runs)


def changed(before: Result, contender: str, row: str | None = None, **changes: object) -> Result:
    """The same result with other fields in the runs of a contender, in one row or in all."""

    def one(run: Run) -> Run:
        here = run.contender == contender and row in (None, run.row)
        return dataclasses.replace(run, **changes) if here else run

    return dataclasses.replace(before, runs=tuple(map(one, before.runs)))


def another(seed: int, **options: object) -> Result:
    """The same thing on another day: other noise, another speed of the machine, other luck."""
    luck = random.Random(seed)
    drift = luck.uniform(0.9, 1.15)
    lucky = {name: luck.gauss(1.0, 0.012) for name in SPEEDS}
    return slowed(result(SPEEDS, seed=seed, drift=drift, **options), lucky)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {each.name: each.change.verdict for each in comparison.judged if each.change}


@pytest.mark.parametrize(("noise", "rows"), [(0.03, 9), (0.06, 18)])
def test_the_same_thing_is_called_equal_in_nine_of_ten_tries(noise: float, rows: int) -> None:
    found = [
        compare(*(another(seed, noise=noise, rows=rows) for seed in (2 * n, 2 * n + 1))).verdict
        for n in range(TRIES)
    ]
    assert found.count("equal") >= 0.9 * TRIES


@pytest.mark.parametrize(
    "planted",
    [("lookahead",), ("autoregressive",), OURS],
    ids=["lookahead", "plain decoding", "all that is ours"],
)
def test_a_slowdown_of_ten_percent_is_found(planted: tuple[str, ...]) -> None:
    """In noise that is larger than usual: three answers to each of 18 prompts."""
    factors = dict.fromkeys(planted, 1.1)
    hits, wrong = 0, 0
    for n in range(TRIES):
        pair = another(2 * n, rows=18), slowed(another(2 * n + 1, rows=18), factors)
        found = verdicts(compare(*pair))
        hits += sum(found[name] == "slower" for name in planted)
        wrong += any(found[name] in ("slower", "faster") for name in set(OURS) - set(planted))
    assert hits >= 0.85 * TRIES * len(planted)
    assert wrong <= 0.1 * TRIES


@pytest.mark.parametrize("planted", [("lookahead",), OURS])
def test_without_luck_of_processes_ten_percent_are_as_good_as_always_found(
    planted: tuple[str, ...],
) -> None:
    factors = dict.fromkeys(planted, 1.1)
    missed = 0
    for n in range(TRIES):
        after = slowed(result(SPEEDS, seed=2 * n + 1, drift=1.1), factors)
        found = verdicts(compare(result(SPEEDS, seed=2 * n), after))
        missed += sum(found[name] != "slower" for name in planted)
    assert missed <= 0.05 * TRIES * len(planted)


def test_a_speed_up_is_found_too() -> None:
    found = compare(result(SPEEDS, seed=1), slowed(result(SPEEDS, seed=2), {"lookahead": 1 / 1.15}))
    assert verdicts(found)["lookahead"] == "faster"
    assert found.verdict == "faster"
    both = compare(
        result(SPEEDS, seed=1), slowed(result(SPEEDS, seed=2), {"lookahead": 0.8, "paper": 1.3})
    )
    assert both.verdict == "mixed"
    noisy = tuple(
        dataclasses.replace(run, step_seconds=tuple(s * 3.0**run.repeat for s in run.step_seconds))
        if run.contender == "paper"
        else run
        for run in result(SPEEDS, seed=2).runs
    )
    after = dataclasses.replace(result(SPEEDS, seed=2), runs=noisy)
    after = slowed(after, {"lookahead": 1.3, "paper": 1 / 9})
    found = compare(result(SPEEDS, seed=1), after)
    assert verdicts(found)["paper"] == "unclear"
    assert found.verdict == "slower", "what is sure counts before what is not"


@pytest.mark.parametrize("drift", [0.7, 1.15, 2.0])
def test_a_slower_machine_is_no_change(drift: float) -> None:
    found = compare(result(SPEEDS, seed=1), result(SPEEDS, seed=2, drift=drift))
    assert found.verdict == "equal"
    assert (found.yardstick, found.foreign) == (Contender("hf", "hf"), True)
    raw = {each.name: each.raw for each in found.contenders}
    assert raw["hf"] == pytest.approx(drift, rel=0.05)
    assert raw["lookahead"] == pytest.approx(drift, rel=0.05)


def test_disturbances_within_a_run_are_no_change() -> None:
    """The second round met a neighbour who halved the speed; a few answers met worse."""
    before, after = result(SPEEDS, seed=1), result(SPEEDS, seed=2)
    runs = tuple(
        dataclasses.replace(run, step_seconds=tuple(s * factor for s in run.step_seconds))
        for number, run in enumerate(after.runs)
        for factor in ((2.0 if run.repeat == 2 else 1.0) * (3.0 if number % 17 == 0 else 1.0),)
    )
    assert compare(before, dataclasses.replace(after, runs=runs)).verdict == "equal"


def test_without_foreign_code_changes_are_over_the_reference() -> None:
    speeds = {name: SPEEDS[name] for name in OURS}
    after = slowed(result(speeds, seed=2, drift=1.1), {"lookahead": 1.15})
    found = compare(result(speeds, seed=1), after)
    assert (found.yardstick, found.foreign) == (Contender(PLAIN, PLAIN), False)
    assert verdicts(found) == {"paper": "equal", "lookahead": "slower"}


def test_a_single_contender_cannot_be_told_from_the_machine() -> None:
    only = {"autoregressive": 1.0}
    found = compare(result(only, seed=1), result(only, seed=2, drift=1.1))
    assert found.yardstick is None
    assert verdicts(found) == {"autoregressive": "unclear"}
    change = found.judged[0].change
    assert change is not None
    assert change.visible is not None
    # 1.96 deviations of two processes that differ by 5 % each, and noise.
    assert 0.148 < change.visible < 0.16
    # No machine is so much slower from one day to the next.
    assert compare(result(only, seed=1), result(only, seed=2, drift=1.5)).verdict == "slower"


def test_a_file_is_equal_to_itself() -> None:
    one = result(seed=3)
    found = compare(one, one)
    assert found.verdict == "equal"
    assert found.unlike == ()
    for each in found.contenders:
        assert each.seconds_per_token.a == each.seconds_per_token.b
        assert each.counted is not None
        counts = each.counted
        assert (counts.other_texts, counts.other_steps, counts.other_accepted) == (0, 0, 0)
        assert counts.settled
        assert not each.memory_changed


def test_what_is_counted_is_exact() -> None:
    """One answer of nine takes one step more: far below any noise, and no noise."""
    before = result(SPEEDS, seed=1)
    old = next(run for run in before.runs if (run.contender, run.row) == ("lookahead", "row-4"))
    changes = {"steps": old.steps + 1, "accepted": {"context": 1}}
    after = changed(result(SPEEDS, seed=2), "lookahead", "row-4", **changes)
    found = {each.name: each for each in compare(before, after).contenders}
    counts = found["lookahead"].counted
    assert counts is not None
    assert (counts.answers, counts.other_steps, counts.other_accepted) == (27, 3, 3)
    assert counts.tokens_per_step.b < counts.tokens_per_step.a
    assert (counts.other_texts, counts.first, counts.settled) == (0, None, True)
    assert found["hf"].counted is not None
    assert found["hf"].counted.other_steps == 0


def test_other_answers_are_counted_up_to_the_turn_where_a_conversation_parts() -> None:
    before = result(SPEEDS, rows=4, repeats=2)
    second = tuple(
        dataclasses.replace(run, turn=2, digest=f"second {run.row}") for run in before.runs
    )
    before = dataclasses.replace(before, runs=before.runs + second)
    found = compare(before, changed(before, "lookahead", "row-2", digest="other"))
    counts = next(e.counted for e in found.contenders if e.name == "lookahead")
    assert counts is not None
    assert (counts.answers, counts.other_texts, counts.first) == (14, 2, ("row-2", 1))


def test_counts_that_differ_between_repeats_are_not_called_exact() -> None:
    before = result(SPEEDS)
    runs = tuple(
        dataclasses.replace(run, steps=run.steps + run.repeat) if run.contender == "paper" else run
        for run in before.runs
    )
    shaky = dataclasses.replace(before, runs=runs)
    settled = {
        each.name: each.counted.settled
        for each in compare(before, shaky).contenders
        if each.counted
    }
    assert settled == {"autoregressive": True, "paper": False, "lookahead": True, "hf": True}
    for sampling, greedy in (({"temperature": 0.8}, False), ({"repetition_penalty": 1.3}, True)):
        conditions = dataclasses.replace(shaky.conditions, sampling=sampling)
        drawn = dataclasses.replace(shaky, conditions=conditions)
        paper = next(each for each in compare(drawn, drawn).contenders if each.name == "paper")
        assert paper.counted is not None
        assert paper.counted.settled is not greedy, "drawn repeats have other numbers"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"repeat": 5}, True),
        ({"profile": "gpu"}, True),
        ({"max_new_tokens": 16}, False),
        ({"ignore_eos": True}, False),
        ({"template": False}, False),
        ({"sampling": {"temperature": 1.0}}, False),
    ],
)
def test_only_answers_to_the_same_question_are_compared_exactly(
    change: dict[str, object], same: bool
) -> None:
    before = result(SPEEDS)
    conditions = dataclasses.replace(before.conditions, **change)
    found = compare(before, dataclasses.replace(before, conditions=conditions))
    assert all((each.counted is not None) == same for each in found.contenders)
    assert len(found.unlike) == 1
    asked = () if same else tuple(each.replace("_", " ") for each in change)
    assert found.other_work == asked
    assert found.verdict == ("equal" if same else "unrelated")


def test_what_is_not_the_same_is_said_and_the_rest_compared() -> None:
    before = result(SPEEDS, seed=1)
    versions = {**MACHINE.versions, "torch": "2.14.0"}
    after = result(
        {"lookahead": 1.5, "hf": 0.8, "jacobi": 0.9},
        rows=5,
        seed=2,
        machine=dataclasses.replace(MACHINE, device="Other CPU", threads=1024, versions=versions),
        model=dataclasses.replace(MODEL, compute="bfloat16"),
        contenders=(
            Contender("lookahead", "lookahead", {"window": 7, "budget": 16}),
            Contender("hf", "hf"),
            Contender("jacobi", "jacobi"),
        ),
        interrupted=True,
        failures=(Failure("jacobi", "row-1", "no"), Failure("hf", "", "no")),
    )
    found = compare(before, after)
    assert [(each.what, each.a, each.b) for each in found.unlike] == [
        ("machine: device", "Test CPU", "Other CPU"),
        ("machine: threads", "1", "1,024"),
        ("machine: versions torch", "2.13.0", "2.14.0"),
        ("model: compute", "float32", "bfloat16"),
        ("asked: rows", "9", "5"),
        ("lookahead: window", "5", "7"),
        ("lookahead: ngram", "3", "-"),
        ("lookahead: guesses", "5", "-"),
        ("lookahead: sources", "context", "-"),
        ("contenders in one only", "plain decoding and paper", "jacobi"),
        ("rows in one only", "row-5, row-6, row-7 and row-8", "-"),
        ("interrupted", "no", "yes"),
        ("speed-ups over", "plain decoding", "-"),
        ("failed", "-", "jacobi on row-1 and transformers' generate"),
    ]
    assert [each.name for each in found.contenders] == ["lookahead", "hf"]
    assert found.judged[0].change is not None
    assert found.judged[0].change.pairs == 5 * 3


def test_rows_of_one_name_with_other_prompts_are_left_out() -> None:
    before = result(SPEEDS)
    runs = tuple(
        dataclasses.replace(run, prompt_digest="edited") if run.row == "row-3" else run
        for run in before.runs
    )
    found = compare(before, dataclasses.replace(before, runs=runs))
    assert found.other_prompts == ("row-3",)
    assert found.judged[0].change is not None
    assert found.judged[0].change.pairs == 8 * 3
    other = dataclasses.replace(before, runs=runs, model=dataclasses.replace(MODEL, name="other"))
    assert compare(before, other).other_prompts == (), "another tokenizer has other tokens"
    conditions = dataclasses.replace(before.conditions, template=False)
    other = dataclasses.replace(before, runs=runs, conditions=conditions)
    assert compare(before, other).other_prompts == (), "so has another template"
    later = changed(before, "hf", "row-3", turn=2)
    other = changed(later, "hf", "row-3", prompt_digest="what was answered before it")
    assert compare(later, other).other_prompts == (), "an answer made it another one"


def test_an_interrupted_file_is_compared_as_far_as_it_goes() -> None:
    after = result(SPEEDS, seed=2, interrupted=True)
    after = dataclasses.replace(after, runs=after.runs[:50])
    found = compare(result(SPEEDS, seed=1), after)
    assert {each.change.pairs for each in found.judged if each.change} == {12}
    assert found.verdict == "equal"


def test_answers_of_one_step_have_no_time_per_token() -> None:
    before = changed(result(SPEEDS), "paper", step_seconds=(), tokens=1, first_tokens=1, steps=1)
    found = {each.name: each for each in compare(before, before).contenders}
    paper = found["paper"]
    assert (paper.change, paper.raw, paper.step_seconds) == (None, None, None)
    assert paper.first is not None
    assert found["lookahead"].change is not None
    # One answer that ended early in B alone has no time to compare, and the others have.
    after = changed(result(SPEEDS), "paper", "row-1", step_seconds=(), tokens=1, first_tokens=1)
    found = {each.name: each for each in compare(result(SPEEDS), after).contenders}
    assert found["paper"].change is not None
    assert found["paper"].change.pairs == 8 * 3


def test_memory_changes_beyond_its_margin_only() -> None:
    before = result(SPEEDS)
    for factor, expected in ((1.04, False), (1.06, True), (0.9, True)):
        after = changed(before, "paper", peak_memory=int((300 << 20) * factor))
        found = {each.name: each for each in compare(before, after).contenders}
        assert found["paper"].memory_changed is expected
        assert not found["hf"].memory_changed
    unknown = compare(before, changed(before, "paper", peak_memory=None))
    assert [each.memory for each in unknown.contenders if each.name == "paper"] == [None]


def test_a_slower_first_token_is_found_apart_from_the_rest() -> None:
    before = result(SPEEDS)
    after = changed(before, "paper", first_seconds=0.013)
    found = {each.name: each for each in compare(before, after).contenders}
    first = found["paper"].first
    assert first is not None
    assert (first.verdict, first.ratio.value) == ("slower", pytest.approx(1.3))
    assert found["paper"].change is not None
    assert found["paper"].change.verdict == "equal"


def test_cells_of_a_sweep_are_contenders_like_others() -> None:
    found = compare(sweep(seed=1), slowed(sweep(seed=2), {"lookahead W=5 N=3": 1.2}))
    slower = [name for name, verdict in verdicts(found).items() if verdict == "slower"]
    assert slower == ["lookahead W=5 N=3"]


def test_nothing_in_both_is_refused() -> None:
    ours, theirs = result({"paper": 1.0}), result({"jacobi": 1.0, "hf": 1.0})
    with pytest.raises(UsageError) as refused:
        compare(ours, theirs)
    assert str(refused.value) == (
        "nothing to compare: no contender is in both (A has paper; B has jacobi, hf); measure"
        " both with the same --strategies"
    )
    with pytest.raises(UsageError) as refused:
        compare(result(SPEEDS), dataclasses.replace(result(SPEEDS), runs=()))
    assert str(refused.value) == (
        "nothing to compare: no contender of both has an answer to the same prompt; measure"
        " both with the same --prompts"
    )


def test_another_model_is_neither_slower_nor_faster() -> None:
    """A contender that loses to the yardstick there may be faster by the clock all the same."""
    other = dataclasses.replace(MODEL, name="stories260K", parameters=2.6e5)
    factors = {**dict.fromkeys(SPEEDS, 0.46), "lookahead": 0.53, "paper": 0.3}
    after = dataclasses.replace(slowed(result(SPEEDS, seed=2), factors), model=other)
    found = compare(result(SPEEDS, seed=1), after)
    assert found.other_work == ("the model",)
    assert (found.verdict, found.slower) == ("unrelated", False)
    lookahead = next(each for each in found.contenders if each.name == "lookahead")
    assert lookahead.change is not None
    assert found.verdict_on(lookahead.change) == "unrelated"
    assert lookahead.change.ratio.low > 1.0, "what changed is kept"
    assert lookahead.raw is not None
    assert lookahead.raw < 0.6
    assert lookahead.counted is None
    wider = dataclasses.replace(MODEL, parameters=4e6)  # of the same name
    same_name = dataclasses.replace(result(SPEEDS), model=wider)
    found = compare(result(SPEEDS), same_name)
    assert found.other_work == ("the model",)
    assert [(each.what, each.a, each.b) for each in found.unlike] == [
        ("model: parameters", "3,150,000", "4,000,000")
    ]


def test_a_contender_that_is_gone_is_missing() -> None:
    before, after = result(SPEEDS, seed=1), result(SPEEDS, seed=2)
    left = tuple(run for run in after.runs if run.contender != "paper")
    failed = dataclasses.replace(after, runs=left)  # it takes part, and has no answer
    contenders = tuple(each for each in after.contenders if each.name != "paper")
    for one in (failed, dataclasses.replace(failed, contenders=contenders)):
        found = compare(before, one)
        assert [each.name for each in found.missing] == ["paper"]
        assert [each.name for each in found.contenders] == ["autoregressive", "lookahead", "hf"]
        assert (found.verdict, found.slower) == ("equal", True)
    assert compare(failed, after).missing == (), "A had no answer of it either"
    assert not compare(failed, after).slower


def test_the_yardstick_is_the_steadiest_that_both_have() -> None:
    speeds = {"hf-prompt-lookup": 0.9, **SPEEDS}
    names = []
    for left in (
        speeds,
        {n: s for n, s in speeds.items() if n != "hf"},
        {"paper": 1.0, "jacobi": 1},
    ):
        over = compare(result(speeds | left, seed=1), result(left, seed=2)).yardstick
        names.append(over and over.name)
    assert names == ["hf", "hf-prompt-lookup", None]
    ours = {name: SPEEDS[name] for name in OURS}
    for reference, expected in (("paper", "paper"), (None, PLAIN)):
        one = result(ours, reference=reference)
        yardstick = compare(one, one).yardstick
        assert yardstick is not None
        assert yardstick.name == expected


def test_one_and_the_same_run_is_known() -> None:
    one = result(seed=3)
    assert compare(one, dataclasses.replace(one, created="later")).same_run
    assert not compare(one, result(seed=4)).same_run


def test_a_machine_that_was_started_again_is_the_same() -> None:
    before = result(SPEEDS)
    for change, told in ((12_288, False), (before.machine.memory // 50, True)):
        machine = dataclasses.replace(before.machine, memory=before.machine.memory + change)
        after = dataclasses.replace(before, machine=machine)
        assert bool(compare(before, after).unlike) is told
