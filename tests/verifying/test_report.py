"""What people and programs are told of what was found."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from ladecli.bench.result import Machine, Model, Skipped
from ladecli.verifying.outcome import Compared, Divergence, Outcome, Report, Sampled, Spelled, Trial
from ladecli.verifying.report import as_object, show, verdict

MACHINE = Machine("a processor", "cpu", 1, 1, "Linux", None, {"lade": "0.1.0"})
MODEL = Model("demo", 3e6, 3e6, "bfloat16", "bfloat16", 6e6, 1024, 512, 512, "sdpa")
FAR = Divergence(
    row="chat-1",
    turn=2,
    position=17,
    plain=Spelled(312, "' the'"),
    other=Spelled(401, "'\\x1b'"),
    width=12,
    gap=0.5,
    distance=0.5,
    noise=0.01,
    allowed=0.08,
)
NEAR = replace(FAR, turn=1, distance=0.03, explained=True)
END = Divergence("x", 1, 4, Spelled(3, "'a'"), None, 1)
STARVED = replace(END, other=Spelled(4, "'b'"))


def outcome(*divergences: Divergence | None, **others: object) -> Outcome:
    answers = tuple(
        Compared(f"row-{number}", "chat", 1, 9, 40, 20, "length", divergence)
        for number, divergence in enumerate(divergences)
    )
    return replace(Outcome(answers, settings={"strategy": "jacobi"}), **others)


def report(*outcomes: Outcome, sampled: Sampled | None = None) -> Report:
    created = "2026-11-21T20:00:00+00:00"
    return Report(created, 1.5, MACHINE, MODEL, "builtin", 40, True, "lade", outcomes, sampled)


def shown(what: Report) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    show(what, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


CELLS = tuple({"dtype": name} for name in ("float32", "bfloat16", "float16"))
BROKEN = Outcome(cell=CELLS[2], failure="no float16 here")


@pytest.mark.parametrize(
    ("outcomes", "passed", "said"),
    [
        ([outcome(None, None)], True, "equal: all 80 tokens of 2 answers"),
        (
            [outcome(None, NEAR)],
            True,
            "equal but for near-ties: 1 divergence in 80 tokens of 2 answers, none larger than"
            " the arithmetic explains",
        ),
        (
            [outcome(NEAR, FAR)],
            False,
            "NOT equal: 1 divergence is larger than the arithmetic explains",
        ),
        (
            [outcome(FAR), outcome(END)],
            False,
            "NOT equal: 2 divergences are larger than the arithmetic explains",
        ),
        ([outcome()], False, "nothing could be compared"),
        (
            [outcome(None, cell=CELLS[0]), BROKEN],
            True,
            "equal: all 40 tokens of 1 answer in 1 cell (1 could not run)",
        ),
    ],
)
def test_verdicts(outcomes: list[Outcome], passed: bool, said: str) -> None:
    found = report(*outcomes)
    assert verdict(found) == said
    assert found.passed is passed


def test_a_screen_of_one_setting() -> None:
    skipped = (Skipped("row-9", "the prompt has 90 tokens"),)
    lines = shown(report(outcome(NEAR, FAR, END, STARVED, skipped=skipped)))
    assert lines == [
        "jacobi against plain decoding: demo, bfloat16 on a processor",
        "prompts  answers  tokens  equal  diverged  explained",
        "────────────────────────────────────────────────────",
        "      4        4     160      0         4          1",
        "chat-1, turn 2, token 17 of the answer: plain decoding has ' the' (312), jacobi has"
        " '\\x1b' (401)",
        "  in a step of 12 tokens; logit gap 0.5; arithmetic moves 0.08 at most (noise 0.01):"
        " NOT explained",
        "x, token 4 of the answer: plain decoding has 'a' (3), jacobi has the end",
        "  in a step of 1 token; no arithmetic explains an end: NOT explained",
        "x, token 4 of the answer: plain decoding has 'a' (3), jacobi has 'b' (4)",
        "  in a step of 1 token; memory did not suffice to compute it again: NOT explained",
        "chat-1, token 17 of the answer: plain decoding has ' the' (312), jacobi has '\\x1b' (401)",
        "  in a step of 12 tokens; logit gap 0.5, 0.03 from the other choice; arithmetic moves"
        " 0.08 at most (noise 0.01): explained",
        "skipped row-9: the prompt has 90 tokens",
        "NOT equal: 3 divergences are larger than the arithmetic explains",
    ]


def test_a_screen_of_a_sweep() -> None:
    lines = shown(report(outcome(None, cell=CELLS[0]), outcome(NEAR, None, cell=CELLS[1]), BROKEN))
    assert lines[:6] == [
        "Against plain decoding: demo on a processor",
        "dtype     tokens  diverged  per 1000  median  largest  ÷ noise  explained",
        "─────────────────────────────────────────────────────────────────────────",
        "float32       40         0         0       -        -        -      equal",
        "bfloat16      80         1      12.5    0.03     0.03        3     1 of 1",
        "float16        -         -         -       -        -        -     failed",
    ]
    assert lines[6].startswith("median: logits from one choice to the other, typically; largest: ")
    assert "dtype=float16 could not run: no float16 here" in lines


def test_a_sweep_without_divergences_has_no_distances() -> None:
    lines = shown(report(*(outcome(None, cell=cell) for cell in CELLS)))
    assert lines[1] == "dtype     tokens  diverged  per 1000  explained"
    assert not any("median" in line for line in lines)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "head", "without"),
    [
        (
            100,
            "W   dtype     tokens  diverged  per 1000  median  largest  ÷ noise  explained",
            None,
        ),
        (76, "W   dtype     tokens  diverged  per 1000  largest  ÷ noise  explained", "median"),
        (40, "W   dtype     diverged  explained", "tokens, per 1000, median, largest, ÷ noise"),
    ],
)
def test_a_narrow_screen_has_fewer_columns_and_all_of_each(
    width: int, head: str, without: str | None
) -> None:
    console = Console(file=Screen(), width=width, force_terminal=False)
    show(
        report(outcome(NEAR, cell={"W": "15", **CELLS[1]}), outcome(cell={"W": "5", **CELLS[0]})),
        console,
    )
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert head in lines
    assert max(map(len, lines)) <= width
    said = f"without room here: {without}; a wider screen or --json has them"
    assert (said in " ".join(lines)) is (without is not None)


def test_many_divergences_are_counted() -> None:
    lines = shown(report(outcome(*[NEAR] * 7, FAR)))
    assert "… and 3 more; --json has all" in lines
    assert lines[4].startswith("chat-1, turn 2"), "what is not explained comes first"


TRIALS = (
    Trial("model", "row-0", 1, (), 100, 5, 4.0, 0.4, 0.8),
    Trial("plain", "row-0", 2, (7,), 100, 5, 90.0, 1e-9, 2e-9),
)


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        (TRIALS, "DIFFERENT: 1 of 2 tests fail"),
        (TRIALS[:1], "no difference found in 1 test (smallest p-value, corrected: 0.8)"),
        ((), "nothing could be tested: more samples are needed"),
    ],
)
def test_verdicts_on_sampling(trials: tuple[Trial, ...], said: str) -> None:
    found = report(sampled=Sampled(100, 100, 100, ("row-0",), trials))
    assert shown(found)[-1] == verdict(found) == said
    assert found.passed is (len(trials) == 1)


@pytest.mark.parametrize(
    ("drawn", "plain", "said"),
    [
        (200, 200, "100 answers of each side to 2 prompts; level 0.01 for all tests together"),
        (
            200,
            131,
            "answers: 200 of jacobi and 131 of plain decoding to 2 prompts; 100 of each to every"
            " prompt were wanted; level 0.01 for all tests together",
        ),
        (
            1,
            0,
            "answers: 1 of jacobi and 0 of plain decoding to 2 prompts; 100 of each to every"
            " prompt were wanted; level 0.01 for all tests together",
        ),
    ],
)
def test_answers_are_counted_that_there_are(drawn: int, plain: int, said: str) -> None:
    sampled = Sampled(100, drawn, plain, ("a", "b"), TRIALS, {"strategy": "jacobi"})
    assert said in shown(report(sampled=sampled))


def test_objects_are_json() -> None:
    for found in (
        report(outcome(NEAR, END)),
        report(outcome(None, cell=CELLS[0]), BROKEN),
        report(sampled=Sampled(100, 100, 100, ("row-0",), TRIALS)),
    ):
        read = json.loads(json.dumps(as_object(found), allow_nan=False))
        assert read["schema"] == "lade-verify/1"
        assert read["verdict"] == verdict(found)
    assert as_object(report(outcome(NEAR, END)))["noise"] == 0.01
