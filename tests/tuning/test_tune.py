"""`lade tune` as people use it: what it shows, what it writes, and that it is used then."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ladecli import launch, profiles, suites, toml, tune
from ladecli.cli import entry
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.step_cost import StepCost
from ladecli.errors import LadeError, UsageError
from ladecli.profiles import Tuned, user
from ladecli.tune import Report, as_object, show
from ladecli.tuning.curve import Curve
from ladecli.tuning.search import CURRENT, PLAIN, Candidate, Outcome, Score

QUICK = ("--seconds", "4")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = entry(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_it_writes_is_used_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tune", "demo", *QUICK, "--json")
    assert code == 0
    found = json.loads(out)
    path = Path(found["profile"])
    assert str(path) in err
    written = toml.loads(path.read_text(encoding="utf-8"))
    assert written["tuned"]["parameters"] == found["parameters"] == 3148224
    assert written["setting"][0]["origin"].startswith("measured: ")
    _, out, _ = run(capsys, "generate", "demo", "-p", "def ", "-n", "5", "--json")
    decode = json.loads(out)["decode"]
    assert decode["profile"] == path.stem
    assert decode["budget"] == found["setting"]["budget"]
    assert decode["sources"] == found["setting"]["sources"]


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tune", "demo", *QUICK, "--dry-run")
    assert code == 0
    assert user.names() == []
    assert "nothing was written" in err
    assert "in plain steps" in out
    assert "after 128" in out
    # How much is tried in so little time depends on the machine.
    assert re.search("What is fastest|no time to compare", out)
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "0"), "seconds must be finite and above 0, not 0"),
        (("--seconds", "inf"), "seconds must be finite and above 0, not inf"),
        (("--prompts", "nowhere.jsonl"), "there is no prompt file nowhere.jsonl; check the path"),
        (("--profile", "x"), "No such option: --profile"),
        (("--max-context", "40"), "no sample prompt leaves room for an answer in 40 tokens of"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, "tune", "demo", *QUICK, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert user.names() == []


def test_a_folder_that_cannot_be_written_does_not_lose_the_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_profile: profiles.Profile) -> Path:
        raise LadeError("the folder x cannot be made: Read-only file system")

    monkeypatch.setattr("ladecli.tune.user.write", fail)
    code, out, err = run(capsys, "tune", "demo", *QUICK)
    assert code == 1
    assert "in plain steps" in out
    assert "the folder x cannot be made" in err


@pytest.mark.parametrize("place", [".", "/proc/nope"])
def test_where_no_profile_can_be_written_nothing_is_measured(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
) -> None:
    (tmp_path / "lade").mkdir()
    (tmp_path / "lade" / "profiles").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / place))
    monkeypatch.setattr(launch, "open_session", lambda *_: pytest.fail("a model was loaded"))
    code, out, err = run(capsys, "tune", "demo", *QUICK)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        r"lade: the folder .*profiles cannot be made: .*; --dry-run measures and writes nothing\n",
        err,
    )


def test_a_dry_run_needs_no_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_args: Any) -> None:
        raise LadeError("as far as that")

    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nope")
    monkeypatch.setattr(launch, "open_session", opened)
    assert run(capsys, "tune", "demo", "--dry-run") == (1, "", "lade: as far as that\n")


@pytest.mark.parametrize(
    ("needed", "given", "said"),
    [(0.9, 1.0, 2), (0.9, 1.2, 2), (41.2, 4.0, 42), (41.2, 60.0, 75), (10, 10, 13)],
)
def test_more_time_is_advised_than_was_given(needed: float, given: float, said: int) -> None:
    assert tune.advised(needed, given) == said
    assert said > given


def test_interrupted_it_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ladecli.tuning.search.search", interrupted)
    code, out, _ = run(capsys, "tune", "demo", *QUICK)
    assert (code, out) == (130, "")
    assert user.names() == []


def test_every_category_is_tried_early(tmp_path: Path) -> None:
    rows = suites.load("builtin").rows
    texts = tune.sample_prompts(None)
    assert sorted(texts) == sorted(row.turns[0] for row in rows)
    category = {row.turns[0]: row.category for row in rows}
    assert len({category[text] for text in texts[:6]}) == 6
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c"]}\n{"prompt": "d", "category": "e"}\n')
    assert tune.sample_prompts(str(path)) == ["a", "d", "b"]
    with pytest.raises(UsageError, match=r"there is no prompt file x\.jsonl"):
        tune.sample_prompts("x.jsonl")


KEY = Tuned("GPU", 7e9, "bfloat16", "sdpa", {"torch": "2.13.0"}, "2026-11-21")
CURVE = Curve(StepCost((1, 8, 64), (128,), ((1.0, 1.1, 1.6),)), (0.01,), 0.01, 300)


def report(outcome: Outcome | None, curve: Curve = CURVE) -> Report:
    setting = LookaheadConfig(5, 3, 5, 64)
    return Report("m", KEY, "a100, derived", curve, outcome, setting, 12.5, 42)


def score(speed: float, *repeats: float, name: str = "budget 64") -> Score:
    config = None if name == PLAIN else LookaheadConfig()
    return Score(Candidate(name, config), speed, repeats)


@pytest.mark.parametrize(
    ("given", "verdict", "caveat"),
    [
        (report(None), "no time to compare", "--seconds 42"),
        (report(Outcome(score(1.5, 1.4, 1.6), (score(1.5),), 3, 0)), "1.50×", "14%"),
        (report(Outcome(score(1.5, 1.5), (score(1.5),), 3, 0)), "1.50×", "repeat"),
        (report(Outcome(score(1.2, 1.2, 1.2, name=CURRENT), (score(1.2),), 3, 0)), "a100", None),
        (report(Outcome(score(1.0, 1.0, 1.0, name=PLAIN), (score(1.0),), 3, 2)), "plain", "2 of 3"),
        (report(None, Curve(CURVE.cost, (0.01,), float("inf"), 3)), "as before", "once or twice"),
    ],
)
def test_verdict_and_caveats(given: Report, verdict: str, caveat: str | None) -> None:
    assert verdict in given.verdict
    assert bool(given.caveats) == (caveat is not None)
    if caveat:
        assert caveat in given.caveats[0]
    json.dumps(as_object(given, None), allow_nan=False)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    console = Console(file=Screen(), width=width, force_terminal=True, color_system=None)
    outcome = Outcome(score(1.5, 1.5, 1.5), (score(1.5, 1.5, 1.5), score(1.0, 1.0)), 3, 0)
    show(report(outcome), console)
    lines = console.file.getvalue().splitlines()
    assert any("1.50×" in line for line in lines)
    assert any("⡇" in line for line in lines) == (width >= 76)
    assert max(map(len, lines)) <= width
