"""`lade bench compare`: planted changes are found, noise and the machine's drift are not."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ladecli.bench.compare import Result, compare, judge

SPEEDS = {"autoregressive": 1.0, "paper": 0.8, "lookahead": 1.5, "hf": 0.8}
OURS = ("autoregressive", "paper", "lookahead")
TRIES = 40
EVIL = "look\x1b[2Jahead\u202e"


def result(
    speeds: Mapping[str, float] = SPEEDS,
    *,
    rows: int = 9,
    repeats: int = 3,
    noise: float = 0.03,
    seed: int = 0,
    slowed: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What `lade bench --json` writes, for methods that are `speeds` times as fast as plain.

    `slowed` has factors on the times by method; "" is the machine.
    """
    dice, factors = random.Random(seed), slowed or {}
    runs = []
    for repeat in range(1, repeats + 1):
        for row in range(rows):
            for name, speed in speeds.items():
                steps = max(round(32 / max(speed, 1.0)), 2)
                seconds = 0.1 / speed * max(dice.gauss(1.0, noise), 0.1)
                seconds *= factors.get(name, 1.0) * factors.get("", 1.0)
                runs.append(
                    {
                        "contender": name, "row": f"row-{row}", "turn": 1, "repeat": repeat,
                        "prompt_digest": f"prompt {row}", "digest": f"answer {row}",
                        "tokens": 32, "first_tokens": 1, "steps": steps, "first_seconds": 0.01,
                        "step_seconds": [seconds / (steps - 1)] * (steps - 1),
                        "accepted": {"context": 32 - steps}, "peak_memory": 300_000_000,
                    }
                )  # fmt: skip
    return {
        "schema": "lade-bench/1",
        "created": f"2026-01-02T03:04:{seed:02}+00:00",
        "reference": "autoregressive" if "autoregressive" in speeds else None,
        "machine": {
            "device": "Test CPU", "memory": 8 << 30, "threads": 1, "versions": {"torch": "2.13"},
        },
        "model": {"name": "demo", "parameters": 3e6, "compute": "float32"},
        "conditions": {
            "prompts": "builtin", "rows": rows, "repeat": repeats, "max_new_tokens": 32,
            "ignore_eos": False, "template": True, "sampling": {}, "command": "lade bench",
        },
        "contenders": [
            {"name": name, "strategy": name, "settings": {"window": 5}} for name in speeds
        ],
        "runs": runs,
    }  # fmt: skip


def changed(before: dict[str, Any], contender: str, **fields: object) -> dict[str, Any]:
    """The same with other fields in the answers of one method."""
    after = copy.deepcopy(before)
    for run in after["runs"]:
        if run["contender"] == contender:
            run.update(fields)
    return after


def compared(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return compare(Result.model_validate(a), Result.model_validate(b))


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {each["contender"]: each["verdict"] for each in found["contenders"]}


def another(seed: int, slowed: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The same program on another day: another speed of the machine, other luck of processes."""
    luck = random.Random(seed)
    factors = {name: luck.gauss(1.0, 0.004) * (slowed or {}).get(name, 1.0) for name in SPEEDS}
    return result(rows=18, seed=seed, slowed={**factors, "": luck.uniform(0.9, 1.2)})


@pytest.fixture
def command(tmp_path: Path, lade: Callable[..., Any]) -> Callable[..., Any]:
    """Runs `lade bench compare` on two results."""

    def call(a: object, b: object, *options: str) -> Any:
        paths = [tmp_path / "a.json", tmp_path / "b.json"]
        for path, content in zip(paths, (a, b), strict=True):
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return lade("bench", "compare", *map(str, paths), *options)

    return call


def test_the_same_program_is_called_equal() -> None:
    found = [compared(another(2 * n), another(2 * n + 1))["verdict"] for n in range(TRIES)]
    assert found.count("equal") >= 0.9 * TRIES


@pytest.mark.parametrize("planted", [("lookahead",), OURS], ids=["lookahead", "all of ours"])
@pytest.mark.parametrize("factor", [1.06, 1.1])
def test_a_planted_slowdown_is_found(planted: tuple[str, ...], factor: float) -> None:
    slowed, hits, wrong = dict.fromkeys(planted, factor), 0, 0
    for n in range(TRIES):
        found = verdicts(compared(another(2 * n), another(2 * n + 1, slowed)))
        hits += sum(found[name] == "slower" for name in planted)
        wrong += any(found[name] in ("slower", "faster") for name in {*OURS} - {*planted})
    assert hits >= 0.9 * TRIES * len(planted)
    assert wrong <= 0.1 * TRIES


def test_chance_is_not_called_a_change() -> None:
    """With noise alone, in at most 5 % of all families of methods is any called changed."""
    dice, wrong = random.Random(1), 0
    for _ in range(100):
        samples = {str(n): [dice.gauss(0.0, 0.2) for _ in range(27)] for n in range(5)}
        wrong += any(each.verdict in ("slower", "faster") for each in judge(samples, 0.0).values())
    assert wrong <= 10  # 11 or more have a chance of 1 %


def test_disturbances_within_a_run_are_no_change() -> None:
    """In the second round the machine was half as fast, and some answers met worse."""
    after = result(seed=2)
    for number, run in enumerate(after["runs"]):
        factor = (2.0 if run["repeat"] == 2 else 1.0) * (3.0 if number % 17 == 0 else 1.0)
        run["step_seconds"] = [seconds * factor for seconds in run["step_seconds"]]
    assert compared(result(seed=1), after)["verdict"] == "equal"


def test_faster_and_mixed() -> None:
    faster = compared(result(seed=1), result(seed=2, slowed={"lookahead": 0.85}))
    assert (faster["verdict"], verdicts(faster)["lookahead"]) == ("faster", "faster")
    mixed = compared(result(seed=1), result(seed=2, slowed={"lookahead": 0.8, "paper": 1.3}))
    assert mixed["verdict"] == "mixed"


def test_few_answers_prove_nothing() -> None:
    pair = [result(rows=2, repeats=1, seed=n, slowed={"paper": 1.0 + n}) for n in (0, 1)]
    found = compared(*pair)
    assert found["verdict"] == "unclear"
    assert {each["change"]["low"] for each in found["contenders"] if each["change"]} == {None}


@pytest.mark.parametrize(
    ("methods", "baseline", "foreign", "verdict"),
    [
        (("paper", "hf-prompt-lookup", "lookahead", "hf"), "hf", True, "slower"),
        (("paper", "hf-prompt-lookup", "lookahead"), "hf-prompt-lookup", True, "slower"),
        (("paper", "autoregressive", "lookahead"), "autoregressive", False, "slower"),
        (("lookahead",), None, False, "unclear"),
    ],
)
def test_the_baseline(
    methods: tuple[str, ...], baseline: str | None, foreign: bool, verdict: str
) -> None:
    speeds = dict.fromkeys(methods, 1.0)
    after = result(speeds, seed=2, slowed={"": 1.01, "lookahead": 1.12})
    found = compared(result(speeds, seed=1), after)
    assert (found["yardstick"], found["yardstick_is_foreign"]) == (baseline, foreign)
    assert verdicts(found)["lookahead"] == verdict
    assert bool(found["notes"]) is not foreign


def test_what_is_counted_is_exact() -> None:
    before = result()
    after = copy.deepcopy(before)
    for run in after["runs"]:
        if (run["contender"], run["row"]) == ("lookahead", "row-4"):
            run.update(steps=run["steps"] + 1, digest="another text", accepted={})
    exact = {each["contender"]: each["exact"] for each in compared(before, after)["contenders"]}
    found = exact["lookahead"]
    assert (found["answers"], found["other_texts"], found["other_steps"]) == (27, 3, 3)
    assert (found["other_accepted"], found["settled"]) == (3, True)
    assert found["first_other_text"] == {"row": "row-4", "turn": 1}
    assert found["tokens_per_step"]["b"] < found["tokens_per_step"]["a"]
    assert exact["hf"]["other_texts"] == exact["hf"]["other_steps"] == 0


def test_answers_after_the_turn_that_differs_are_not_counted() -> None:
    before = result(rows=4, repeats=2)
    before["runs"] += [{**run, "turn": 2} for run in before["runs"]]
    after = copy.deepcopy(before)
    for run in after["runs"]:
        if run["row"] == "row-2":
            run["digest"] = "other"
    exact = compared(before, after)["contenders"][0]["exact"]
    assert (exact["answers"], exact["other_texts"]) == (14, 2)


def test_repeats_that_differ_are_not_settled() -> None:
    shaky = result()
    for run in shaky["runs"]:
        run["digest"] += str(run["repeat"])
    assert not compared(shaky, shaky)["contenders"][0]["exact"]["settled"]
    shaky["conditions"]["sampling"] = {"temperature": 0.8}
    assert compared(shaky, shaky)["contenders"][0]["exact"]["settled"], "repeats have other seeds"


def test_first_token_and_memory() -> None:
    after = changed(result(), "paper", first_seconds=0.013, peak_memory=400_000_000)
    found = {each["contender"]: each for each in compared(result(), after)["contenders"]}
    assert found["paper"]["verdict"] == "equal"
    assert found["paper"]["first_token_change"]["verdict"] == "slower"
    assert found["paper"]["first_token_change"]["ratio"] == pytest.approx(1.3)
    assert (found["paper"]["memory_changed"], found["hf"]["memory_changed"]) == (True, False)


def test_conditions_that_differ_are_named() -> None:
    after = result(rows=5, seed=1)
    after["machine"].update(device="Other CPU", memory=(8 << 30) + 4096, versions={"torch": "3"})
    after["contenders"][2]["settings"]["window"] = 7
    found = compared(result(), after)
    assert {each["what"]: (each["a"], each["b"]) for each in found["not_the_same"]} == {
        "machine: device": ("Test CPU", "Other CPU"),
        "machine: versions torch": ("2.13", "3"),
        "asked: rows": ("9", "5"),
        "lookahead: window": ("5", "7"),
        "prompts measured": ("9", "5"),
    }
    assert any("machine" in note for note in found["notes"])
    assert {each["change"]["pairs"] for each in found["contenders"] if each["change"]} == {15}


def test_rows_with_other_prompts_are_left_out() -> None:
    after = result()
    for run in after["runs"]:
        if run["row"] == "row-3":
            run["prompt_digest"] = "edited"
    found = compared(result(), after)
    assert found["other_prompts"] == ["row-3"]
    assert found["contenders"][0]["change"]["pairs"] == 8 * 3


@pytest.mark.parametrize(
    ("group", "change", "why"),
    [
        ("model", {"name": "stories260K"}, "the model"),
        ("conditions", {"max_new_tokens": 16}, "max new tokens"),
        ("conditions", {"sampling": {"temperature": 1.0}}, "sampling"),
    ],
)
def test_other_work_is_neither_slower_nor_faster(
    command: Callable[..., Any], group: str, change: dict[str, Any], why: str
) -> None:
    after = result(slowed={"lookahead": 2.0})
    after[group].update(change)
    ran = command(result(), after, "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["verdict"], found["other_work"]) == (0, "unrelated", [why])
    assert set(verdicts(found).values()) == {"unrelated", None}
    assert {each["exact"] for each in found["contenders"]} == {None}
    refused = command(result(), after, "--json", "--fail-on-slower")
    assert (refused.code, refused.out) == (2, ran.out)
    assert why in refused.err


def test_the_object(command: Callable[..., Any]) -> None:
    found = json.loads(command(result(), result(slowed={"lookahead": 1.1}), "--json").out)
    assert list(found) == [
        "schema", "a", "b", "verdict", "yardstick", "yardstick_is_foreign", "same_run",
        "not_the_same", "other_work", "other_prompts", "missing", "contenders", "notes", "findings",
    ]  # fmt: skip
    assert (found["schema"], found["verdict"]) == ("lade-compare/1", "slower")
    assert found["a"]["created"] == "2026-01-02T03:04:00+00:00"
    lookahead = found["contenders"][2]
    assert set(lookahead) == {
        "contender", "verdict", "seconds_per_token", "step_seconds", "raw_ratio", "change",
        "first_token_change", "exact", "peak_memory", "memory_changed",
    }  # fmt: skip
    assert lookahead["change"] == {
        "verdict": "slower", "ratio": pytest.approx(1.1), "low": pytest.approx(1.1),
        "high": pytest.approx(1.1), "visible": pytest.approx(0.04), "pairs": 27,
    }  # fmt: skip


def test_what_is_unknown_is_null(command: Callable[..., Any]) -> None:
    one = changed(result(), "paper", step_seconds=[], tokens=1, steps=1, peak_memory=None)
    found = json.loads(command(one, one, "--json").out)
    assert found["same_run"]
    paper = found["contenders"][1]
    assert {paper[key] for key in ("change", "raw_ratio", "step_seconds", "peak_memory")} == {None}
    assert command(one, one).code == 0


@pytest.mark.parametrize(
    ("factor", "options", "code"),
    [(1.2, ["--fail-on-slower"], 1), (1.2, [], 0), (0.8, ["--fail-on-slower"], 0)],
)
def test_the_exit_code(
    command: Callable[..., Any], factor: float, options: list[str], code: int
) -> None:
    assert command(result(), result(slowed={"paper": factor}), *options).code == code


def test_a_missing_method_fails_the_guard(command: Callable[..., Any]) -> None:
    after = result({name: SPEEDS[name] for name in ("autoregressive", "lookahead", "hf")})
    assert command(result(), after, "--fail-on-slower").code == 1
    assert json.loads(command(result(), after, "--json").out)["missing"] == ["paper"]
    assert command(after, result(), "--fail-on-slower").code == 0


def test_the_page(command: Callable[..., Any]) -> None:
    after = result(seed=1, slowed={"": 1.5, "lookahead": 1.3})
    out = command(result(), after).out
    rows = {line.split()[0]: line for line in out.splitlines() if "→" in line}
    assert rows["lookahead"].count("slower") == 1
    assert "baseline" in rows["hf"]
    assert "equal" in rows["paper"]
    assert "\x1b" not in out


def test_names_from_files_do_not_control_the_terminal(command: Callable[..., Any]) -> None:
    before = result({EVIL: 1.0, "hf": 0.8})
    before["machine"]["device"] = "\x1b]0;title\x07[red]CPU[/red]"
    after = changed(result({EVIL: 1.3, "hf": 0.8}), EVIL, digest=EVIL, row=EVIL)
    after["runs"] += before["runs"]
    pages = [command(before, after, *options).out for options in ([], ["--json"])]
    for page in pages:
        assert not {"\x1b", "\u202e", "\x07"} & set(page)
    assert "[red]CPU[/red]" in pages[0], "markup is text"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no result"),
        ("[]", "no schema"),
        ('{"schema": "lade-bench/9"}', "lade-bench/9"),
        ('{"schema": "lade-bench/1"}', "created"),
        (json.dumps(changed(result(), "hf", first_seconds=float("nan"))), "first_seconds"),
        (json.dumps(result({"jacobi": 1.0})), "jacobi"),
        (json.dumps({**result(), "runs": []}), "--prompts"),
    ],
)
def test_bad_files(command: Callable[..., Any], content: str, said: str) -> None:
    ran = command(result(), content)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


def test_a_file_that_is_not_there(lade: Callable[..., Any]) -> None:
    ran = lade("bench", "compare", "nowhere.json", "nowhere.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "nowhere.json" in ran.err
