"""What a comparison comes to, line by line."""

from __future__ import annotations

import dataclasses

from ladecli.bench.comparing.compare import compare
from ladecli.bench.comparing.values import Comparison
from ladecli.bench.comparing.words import findings, notes, percent
from ladecli.bench.result import Result
from tests.bench.comparing.test_compare import SPEEDS, changed, slowed
from tests.bench.comparing.test_report import without_noise
from tests.bench.makers import MODEL, result


def said(comparison: Comparison) -> list[str]:
    return [finding.text for finding in findings(comparison)]


def test_nothing_changed() -> None:
    found = compare(result(SPEEDS, seed=1), result(SPEEDS, seed=2))
    assert said(found) == ["no time per token changed by more than noise"]


def test_what_changed() -> None:
    found = compare(without_noise(), without_noise({"lookahead": 1.1, "paper": 0.8}))
    assert [(each.text, each.verdict) for each in findings(found)] == [
        (
            "paper is faster in B: compared with transformers' generate, it takes 20 % less time"
            " per token than in A (-24.5 % to -15.3 %)",
            "faster",
        ),
        (
            "lookahead is slower in B: compared with transformers' generate, it takes 10 % more"
            " time per token than in A (+4.2 % to +16.1 %)",
            "slower",
        ),
    ]


def test_a_sentence_is_true_by_the_clock_too() -> None:
    """Twice as fast, and yet slower beside the yardstick, which gained more."""
    found = compare(without_noise(), without_noise({**dict.fromkeys(SPEEDS, 0.4), "paper": 0.5}))
    assert said(found) == [
        "paper is slower in B: compared with transformers' generate, it takes 25 % more time per"
        " token than in A (+18.0 % to +32.4 %); by the clock, 50 % less"
    ]


def test_of_another_model_only_what_is_true_is_said() -> None:
    other = dataclasses.replace(MODEL, name="stories260K", parameters=2.6e5)
    factors = {**dict.fromkeys(SPEEDS, 0.46), "lookahead": 0.53}
    found = compare(without_noise(), dataclasses.replace(without_noise(factors), model=other))
    assert notes(found) == [
        "transformers' generate, not our code, takes 54 % less time per token in B: it did other"
        " work there, too"
    ]
    assert said(found) == [
        "nothing is called slower or faster: A and B did other work (not the same: the model)",
        "compared with transformers' generate, lookahead takes 15 % more time per token than in A"
        " (+8.8 % to +22.0 %); by the clock, 47 % less",
    ]
    half = dataclasses.replace(
        without_noise(factors), model=dataclasses.replace(MODEL, compute="x")
    )
    assert notes(compare(without_noise(), half))[:2] == [
        "the model is not the same: changes can come from that, too",
        "transformers' generate, not our code, takes 54 % less time per token in B: the model,"
        " machine, load or torch changed",
    ]


def test_drafts_that_differ_are_told_as_exact() -> None:
    before = without_noise()
    after = changed(before, "paper", "row-0", steps=16, accepted={"context": 16})
    assert (
        "paper: 3 of 27 answers were drafted otherwise, tokens per step 1.000 → 1.059; this is"
        " exact"
    ) in said(compare(before, after))
    runs = tuple(
        dataclasses.replace(r, steps=r.steps + r.repeat) if r.contender == "paper" else r
        for r in before.runs
    )
    assert "paper: answers or steps differ between repeats of the same run" in said(
        compare(before, dataclasses.replace(before, runs=runs))
    )


def test_what_to_do_where_it_is_unclear() -> None:
    pair = [result(SPEEDS, noise=0.15, rows=9, seed=seed) for seed in (1, 2)]
    unclear = [line for line in said(compare(*pair)) if "unclear" in line]
    assert unclear
    for line in unclear:
        assert " or more rows show 10 %" in line
        assert "; --repeat " in line
    few = [result(SPEEDS, rows=2, repeats=1, seed=seed) for seed in (1, 2)]
    assert (
        "lookahead is unclear: any change could be noise; --repeat 3 or more rows give an interval"
    ) in said(compare(*few))


def test_what_the_yardstick_is_worth() -> None:
    plain = {"autoregressive": 1.0}
    assert notes(compare(result(plain, seed=1), result(plain, seed=2))) == [
        "nothing here tells a slower program from a slower machine; measure both with hf among"
        " --strategies"
    ]
    two = {**plain, "lookahead": 1.5}
    told = notes(compare(result(two), result(two, drift=1.2)))
    assert told[:2] == [
        "plain decoding, the yardstick, takes 20 % more time per token in B: machine or code"
        " changed",
        "changes are over plain decoding, which is our code too: a change that hits all alike is"
        " not seen; measure both with hf among --strategies",
    ]


def test_what_transformers_compiled_is_in_everybodys_memory() -> None:
    def told(a: Result, b: Result) -> list[str]:
        return [each for each in notes(compare(a, b)) if "compiled" in each]

    without, with_it = result(SPEEDS), result({**SPEEDS, "hf-compiled": 1.2}, seed=1)
    said = (
        "what transformers compiled in {}, and its static cache, are part of everybody's memory"
        " there"
    )
    assert told(without, result(SPEEDS, seed=2)) == []
    assert told(without, with_it) == [said.format("B")]
    assert told(with_it, dataclasses.replace(with_it, runs=with_it.runs[1:])) == [
        said.format("A and B")
    ]
    unknown = tuple(dataclasses.replace(run, peak_memory=None) for run in without.runs)
    assert told(dataclasses.replace(without, runs=unknown), with_it) == []


def test_a_run_compared_with_itself_is_told() -> None:
    one = result(SPEEDS)
    assert notes(compare(one, one)) == [
        "A and B are one and the same run: nothing can differ; measure again for B"
    ]


def test_a_slower_first_token_and_more_memory_are_told() -> None:
    before = without_noise()
    after = slowed(changed(before, "paper", first_seconds=0.013, peak_memory=400 << 20), {})
    assert said(compare(before, after)) == [
        "no time per token changed by more than noise",
        "paper: compared with transformers' generate, the first token takes 30 % more time than"
        " in A",
        "paper: peak memory 315 MB → 419 MB",
    ]


def test_rows_left_out_are_named() -> None:
    before = result(SPEEDS)
    runs = tuple(
        dataclasses.replace(r, prompt_digest="new") if r.row != "row-0" else r for r in before.runs
    )
    assert notes(compare(before, dataclasses.replace(before, runs=runs)))[0] == (
        "prompts of these rows are not the same, so they are left out: row-1, row-2, row-3, row-4,"
        " row-5 and 3 more"
    )


def test_a_change_that_rounds_to_nothing_has_no_minus() -> None:
    assert [percent(each) for each in (0.99999, 1.0, 1.093, 0.5)] == [
        "+0.0 %",
        "+0.0 %",
        "+9.3 %",
        "-50.0 %",
    ]
