"""`lade bench compare`: planted changes are found, noise and the machine's drift are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladecli.bench.result import to_json
from ladecli.bench.statistics import judge

from .makers import result

pytestmark = pytest.mark.slow

METHODS = {"autoregressive": 1.0, "paper": 0.8, "lookahead": 1.5, "hf": 0.8}
EVIL = "look\x1b[2Jahead\u202e"
Data = dict[str, Any]


def made(speeds: dict[str, float] | None = None, **options: Any) -> Data:
    """What `lade bench --json` wrote."""
    found: Data = json.loads(to_json(result(speeds or METHODS, **options)))
    return found


def slowed(data: Data, **factors: float) -> Data:
    """The same with other times, by method; `machine` slows all of them."""
    for run in data["runs"]:
        factor = factors.get(run["contender"], 1.0) * factors.get("machine", 1.0)
        run["step_seconds"] = [seconds * factor for seconds in run["step_seconds"]]
    return data


def changed(data: Data, method: str, row: str | None = None, **fields: object) -> Data:
    """The same with other fields in the answers of a method."""
    for run in data["runs"]:
        if run["contender"] == method and row in (None, run["row"]):
            run.update(fields)
    return data


@pytest.fixture
def command(tmp_path: Path, lade: Callable[..., Any]) -> Callable[..., Any]:
    """Runs `lade bench compare` on two results."""

    def call(a: object, b: object, *options: str) -> Any:
        paths = [tmp_path / "a.json", tmp_path / "b.json"]
        for path, content in zip(paths, (a, b), strict=True):
            if content is not None:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        return lade("bench", "compare", *map(str, paths), *options)

    return call


@pytest.fixture
def compared(command: Callable[..., Any]) -> Callable[..., Data]:
    """The JSON of a comparison, and its methods by name in `by`."""

    def call(a: Data, b: Data) -> Data:
        ran = command(a, b, "--json")
        assert (ran.code, ran.err) == (0, "")
        found: Data = ran.json()
        return {**found, "by": {each["contender"]: each for each in found["contenders"]}}

    return call


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "equal"), (1.1, "slower"), (0.9, "faster")])
def test_changes_of_the_program_are_told_from_those_of_the_machine(
    compared: Callable[..., Data], factor: float, verdict: str
) -> None:
    after = slowed(made(seed=2), lookahead=factor, machine=1.3)
    found = compared(made(seed=1), after)
    assert (found["verdict"], found["by"]["lookahead"]["verdict"]) == (verdict, verdict)
    assert found["by"]["paper"]["verdict"] == "equal"
    assert found["by"]["hf"]["verdict"] is None


def test_chance_is_not_called_a_change() -> None:
    """With noise alone, one method in a hundred is called changed."""
    dice = random.Random(1)
    samples = ([dice.gauss(0.0, 0.2) for _ in range(27)] for _ in range(100))
    wrong = sum(judge(sample, 0.0).verdict in ("slower", "faster") for sample in samples)
    assert wrong <= 4  # 5 or more have a chance of 0.4 %


def test_what_lies_far_from_no_change_is_not_called_equal() -> None:
    assert judge([0.2] * 7 + [-0.01], 0.04).verdict == "unclear"
    assert judge([0.01, -0.01] * 4, 0.04).verdict == "equal"


@pytest.mark.parametrize(
    ("methods", "baseline"),
    [
        (("paper", "hf-prompt-lookup", "lookahead", "hf"), "hf"),
        (("paper", "autoregressive", "lookahead"), "autoregressive"),
        (("lookahead",), None),
    ],
)
def test_the_baseline(
    compared: Callable[..., Data], methods: tuple[str, ...], baseline: str | None
) -> None:
    speeds = dict.fromkeys(methods, 1.0)
    after = slowed(made(speeds, seed=2), lookahead=1.12, machine=1.01)
    found = compared(made(speeds, seed=1), after)
    assert found["yardstick"] == baseline
    # Without a baseline, the machine could have changed as much.
    assert found["by"]["lookahead"]["verdict"] == ("slower" if baseline else "unclear")
    assert bool(found["notes"]) is (baseline != "hf")


def test_what_is_counted_is_exact(compared: Callable[..., Data]) -> None:
    after = changed(made(), "lookahead", "row-4", digest="other", accepted={}, steps=30)
    found = compared(made(), after)["by"]
    exact = found["lookahead"]["exact"]
    assert (exact["answers"], exact["other_texts"], exact["other_steps"]) == (27, 3, 3)
    assert exact["tokens_per_step"]["b"] < exact["tokens_per_step"]["a"]
    assert found["hf"]["exact"]["other_texts"] == 0


def test_conditions_that_differ_are_named(compared: Callable[..., Data]) -> None:
    after = made(rows=5, seed=1)
    after["machine"].update(device="Other CPU", memory=(8 << 30) + 4096)
    after["machine"]["versions"]["torch"] = "3"
    after["contenders"][2]["settings"]["window"] = 7
    found = compared(made(), after)
    assert {each["what"]: (each["a"], each["b"]) for each in found["not_the_same"]} == {
        "machine: device": ("Test CPU", "Other CPU"),
        "version: torch": ("2.13.0", "3"),
        "asked: rows": ("9", "5"),
        "lookahead: window": ("5", "7"),
        "asked: prompts measured": ("9", "5"),
    }
    assert {each["change"]["pairs"] for each in found["contenders"] if each["change"]} == {15}


def test_answers_to_other_prompts_are_left_out(compared: Callable[..., Data]) -> None:
    after = changed(made(), "lookahead", "row-3", prompt_digest="edited")
    found = compared(made(), after)
    assert found["other_prompts"] == ["row-3"]
    assert found["by"]["lookahead"]["change"]["pairs"] == 8 * 3
    assert found["by"]["paper"]["change"]["pairs"] == 9 * 3


@pytest.mark.parametrize(
    ("group", "change", "why"),
    [
        ("model", {"name": "stories260K"}, "model"),
        ("conditions", {"sampling": {"temperature": 1.0}}, "sampling"),
    ],
)
def test_other_work_is_neither_slower_nor_faster(
    command: Callable[..., Any], group: str, change: Data, why: str
) -> None:
    after = slowed(made(), lookahead=2.0)
    after[group].update(change)
    if why == "model":  # which has a tokenizer of its own
        for name in METHODS:
            changed(after, name, prompt_digest="other")
    ran = command(made(), after, "--json")
    found = ran.json()
    assert (ran.code, found["verdict"], found["other_work"]) == (0, "unrelated", [why])
    assert {each["exact"] for each in found["contenders"]} == {None}
    refused = command(made(), after, "--json", "--fail-on-slower")
    assert (refused.code, refused.out) == (2, ran.out)
    assert why in refused.err


def test_keys_are_those_of_the_schema(compared: Callable[..., Data]) -> None:
    found = compared(made(), slowed(made(), lookahead=1.1))
    assert [*found][:-1] == [
        "schema", "a", "b", "verdict", "yardstick", "same_run",
        "not_the_same", "other_work", "other_prompts", "missing", "failed", "contenders", "notes",
    ]  # fmt: skip
    assert (found["schema"], found["verdict"]) == ("lade-compare/1", "slower")
    assert set(found["by"]["lookahead"]) == {
        "contender", "verdict", "seconds_per_token", "first_seconds", "raw_ratio",
        "change", "exact", "peak_memory",
    }  # fmt: skip
    assert found["by"]["lookahead"]["change"] == {
        "verdict": "slower", "ratio": pytest.approx(1.1), "low": pytest.approx(1.1),
        "high": pytest.approx(1.1), "pairs": 27,
    }  # fmt: skip


def test_what_is_unknown_is_null(compared: Callable[..., Data], command: Any) -> None:
    one = changed(made(), "paper", step_seconds=[], tokens=1, steps=1, peak_memory=None)
    found = compared(one, one)
    paper = found["by"]["paper"]
    assert found["same_run"]
    assert {paper[key] for key in ("change", "raw_ratio", "peak_memory")} == {None}
    assert command(one, one).code == 0
    few = made(rows=2, repeats=1)
    found = compared(few, slowed(made(rows=2, repeats=1), paper=2.0))
    assert found["verdict"] == "unclear"
    assert {each["change"]["low"] for each in found["contenders"] if each["change"]} == {None}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: slowed(data, paper=0.8), None),
        (lambda data: slowed(data, paper=1.2), "paper became slower"),
        (lambda data: without(data, "paper"), "paper is missing in B"),
        (lambda data: without(data, "paper", "row-3"), "paper failed in B"),
    ],
)
def test_the_guard(
    command: Callable[..., Any], change: Callable[[Data], Data], told: str | None
) -> None:
    ran = command(made(), change(made()), "--fail-on-slower")
    assert (ran.code, told is None or told in ran.err) == (int(told is not None), True)
    assert command(made(), change(made())).code == 0
    # What was so before is no fault of B.
    assert command(change(made()), change(made()), "--fail-on-slower").code == 0


def without(data: Data, method: str, failed: str | None = None) -> Data:
    """The same without a method, or without its answers to a row on which it failed."""
    data["runs"] = [
        run
        for run in data["runs"]
        if run["contender"] != method or failed not in (None, run["row"])
    ]
    if failed:
        data["failures"] = [{"contender": method, "row": failed, "error": "out of memory"}]
    return data


def test_the_page_ends_with_what_it_comes_to(command: Callable[..., Any]) -> None:
    out = command(made(), slowed(made(seed=1), machine=1.5, lookahead=1.3)).out
    rows = {line.split()[0]: line for line in out.splitlines() if "→" in line}
    assert "slower" in rows["lookahead"]
    assert "baseline" in rows["hf"]
    assert out.splitlines()[-1].startswith("lookahead is slower")


def test_names_from_files_do_not_control_the_terminal(command: Callable[..., Any]) -> None:
    before = made({EVIL: 1.0, "hf": 0.8})
    before["machine"]["device"] = "\x1b]0;title\x07[red]CPU[/red]"
    after = changed(made({EVIL: 1.3, "hf": 0.8}), EVIL, digest=EVIL, row=EVIL)
    after["runs"] += before["runs"]
    pages = [command(before, after, *options).out for options in ([], ["--json"])]
    for page in pages:
        assert not {"\x1b", "\u202e", "\x07"} & set(page)
    assert "[red]CPU[/red]" in pages[0], "markup is text"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "b.json; check the path"),
        ("", "lade-bench/1"),
        ('{"schema": "lade-bench/9"}', "schema"),
        ('{"schema": "lade-bench/1"}', "created"),
        (json.dumps(changed(made(), "hf", first_seconds=float("nan"))), "first_seconds"),
        (json.dumps(changed(made(), "hf", tokens=0)), "tokens"),
        (json.dumps(made({"jacobi": 1.0})), "--strategies"),
    ],
)
def test_bad_files_are_one_line(
    command: Callable[..., Any], content: str | None, named: str
) -> None:
    assert named in command(made(), content).refused()


RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("bench-*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_older_results_are_read(lade: Callable[..., Any], path: Path) -> None:
    ran = lade("bench", "compare", str(path), str(path), "--json")
    assert (ran.code, ran.json()["same_run"]) == (0, True)
