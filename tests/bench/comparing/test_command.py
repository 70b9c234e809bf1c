"""`lade bench compare` as people and programs see it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ladecli.bench import record
from ladecli.bench.comparing.command import run
from ladecli.bench.result import Result
from ladecli.errors import UsageError
from tests.bench.comparing.test_compare import SPEEDS, changed, slowed
from tests.bench.comparing.test_report import without_noise
from tests.bench.makers import CATEGORIES, MACHINE, MODEL, result

EVIL = "look\x1b[2Jahead\u202e"


def saved(folder: Path, name: str, one: Result) -> str:
    path = folder / name
    path.write_text(json.dumps(record.as_object(one)), encoding="utf-8")
    return str(path)


def test_the_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = saved(tmp_path, "a.json", without_noise())
    b = saved(tmp_path, "b.json", without_noise({"lookahead": 1.1}))
    assert run(a, b, "auto", json=True) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["verdict"]) == ("lade-compare/1", "slower")
    assert (data["yardstick"], data["yardstick_is_foreign"]) == ("hf", True)
    assert data["a"] == {"file": a, "created": "2026-01-02T03:04:05+00:00"}
    assert [(each["contender"], each["verdict"]) for each in data["contenders"]] == [
        ("autoregressive", "equal"),
        ("paper", "equal"),
        ("lookahead", "slower"),
        ("hf", None),
    ]
    lookahead = data["contenders"][2]
    assert lookahead["change"]["ratio"] == pytest.approx(1.1)
    assert 1.0 < lookahead["change"]["low"] < 1.1 < lookahead["change"]["high"]
    assert lookahead["raw_ratio"] == pytest.approx(1.1)
    assert lookahead["exact"]["other_texts"] == 0
    assert lookahead["exact"]["first_other_text"] is None


def test_what_is_unknown_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = result(SPEEDS, rows=1, repeats=1)
    one = changed(one, "paper", step_seconds=(), tokens=1, first_tokens=1, steps=1)
    a = saved(tmp_path, "a.json", changed(one, "hf", peak_memory=None))
    run(a, a, "auto", json=True)
    data = json.loads(capsys.readouterr().out)  # infinities would be refused
    ours, paper, _, hf = data["contenders"]
    assert (ours["change"]["verdict"], ours["change"]["low"], ours["change"]["visible"]) == (
        "unclear",
        None,
        None,
    )
    assert (paper["change"], paper["raw_ratio"], paper["step_seconds"]) == (None, None, None)
    assert hf["peak_memory"] is None
    assert run(a, a, "auto", json=False) == 0
    assert "no time to compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "fail", "code"), [(1.2, True, 1), (1.2, False, 0), (0.8, True, 0)]
)
def test_the_exit_code_can_guard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, fail: bool, code: int
) -> None:
    a = saved(tmp_path, "a.json", without_noise())
    b = saved(tmp_path, "b.json", without_noise({"paper": factor}))
    assert run(a, b, "never", json=False, fail_on_slower=fail) == code
    capsys.readouterr()


def test_what_is_gone_fails_the_guard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = saved(tmp_path, "a.json", without_noise())
    b = saved(tmp_path, "b.json", result({"lookahead": 1.5, "hf": 0.8}, noise=0.0))
    assert run(a, b, "never", json=False, fail_on_slower=True) == 1
    assert "\npaper is missing in B: it has answers in A only\n" in capsys.readouterr().out
    run(a, b, "never", json=True)
    assert json.loads(capsys.readouterr().out)["missing"] == ["autoregressive", "paper"]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_guard_does_not_judge_other_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Neither "slower" nor "all is well": what can be told is printed, then it is refused."""
    other = dataclasses.replace(MODEL, name="stories260K", parameters=2.6e5)
    after = dataclasses.replace(without_noise({"lookahead": 1.2}), model=other)
    a, b = saved(tmp_path, "a.json", without_noise()), saved(tmp_path, "b.json", after)
    assert run(a, b, "never", json=as_json) == 0
    out = capsys.readouterr().out
    with pytest.raises(UsageError) as refused:
        run(a, b, "never", json=as_json, fail_on_slower=True)
    assert str(refused.value) == (
        "--fail-on-slower cannot tell: A and B did other work (the model); measure both alike"
    )
    assert capsys.readouterr().out == out
    if as_json:
        data = json.loads(out)
        assert (data["verdict"], data["other_work"]) == ("unrelated", ["the model"])
        assert {each["verdict"] for each in data["contenders"]} == {"unrelated", None}


def test_on_a_pipe_every_row_is_a_line_without_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "lookahead " + " ".join(f"W={n}" for n in range(40))
    speeds = {"autoregressive": 1.0, long: 1.2, "hf": 0.8}
    a = saved(tmp_path, "a.json", result(speeds))
    run(a, a, "auto", json=False)
    out = capsys.readouterr().out
    assert out.startswith(f"A: {a}, demo on Test CPU, 2026-01-02T03:04:05+00:00\nB: {a}, ")
    assert "\x1b" not in out
    assert any(line.startswith(long) and "equal" in line for line in out.splitlines())


def test_names_from_files_do_not_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = result({EVIL: 1.0, "hf": 0.8})
    runs = tuple(
        dataclasses.replace(r, row=EVIL + r.row, category=CATEGORIES[0]) for r in before.runs
    )
    machine = dataclasses.replace(MACHINE, device="\x1b]0;title\x07[red]CPU[/red]")
    before = dataclasses.replace(before, runs=runs, machine=machine)
    after = slowed(changed(before, EVIL, digest="other", steps=9), {EVIL: 1.3})
    after = dataclasses.replace(after, machine=MACHINE)
    a, b = saved(tmp_path, "a.json", before), saved(tmp_path, "b.json", after)
    for json_wanted in (False, True):
        run(a, b, "never", json=json_wanted)
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\x07" not in out
    run(a, b, "never", json=False)
    assert "[red]CPU[/red]" in capsys.readouterr().out, "markup is text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "{path} cannot be read: No such file or directory"),
        ("{}", "{path} has no schema, and this program reads lade-bench/1; measure again"),
        (
            '{"schema": "lade-bench/9"}',
            "{path} has schema 'lade-bench/9', and this program reads lade-bench/1; measure again",
        ),
        ('{"schema": "lade-bench/1"}', "{path} is damaged: created: Field required"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | None, message: str) -> None:
    good, bad = saved(tmp_path, "good.json", result(SPEEDS)), tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text, encoding="utf-8")
    for pair in ((good, str(bad)), (str(bad), good)):
        with pytest.raises(UsageError) as refused:
            run(*pair, "auto", json=False)
        assert str(refused.value) == message.format(path=bad)
