"""`lade tune` as people use it: what it shows, what it writes, and that it is used then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ladecli import suites, toml
from ladecli.device import detect
from ladecli.errors import UsageError
from ladecli.profiles import Tuned, user
from ladecli.tune import Report, as_object, profile_of, sample_prompts
from ladecli.tune.measure import CURRENT, PLAIN, Candidate, Curve, Outcome, Score

from .profiles.makers import tuned
from .test_tuning import CONFIG, COST

QUICK = ("tune", "demo", "--seconds", "3")


def test_what_it_writes_is_used_from_then_on(lade: Any) -> None:
    result = lade(*QUICK, "--json")
    assert result.code == 0
    found = json.loads(result.out)
    path = Path(found["profile"])
    assert str(path) in result.err
    written = toml.loads(path.read_text(encoding="utf-8"))
    assert written["tuned"]["parameters"] == found["parameters"] == 3148224
    assert written["setting"][0]["origin"].startswith("measured: ")
    decode = json.loads(lade("generate", "demo", "-p", "def ", "-n", "5", "--json").out)["decode"]
    assert decode["profile"] == path.stem
    for name in ("budget", "sources"):
        assert decode[name] == found["setting"][name]


def test_a_dry_run_shows_and_writes_nothing(lade: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nope")  # where nothing could be written
    result = lade(*QUICK, "--dry-run", "--color", "never")
    assert result.code == 0
    assert "nothing was written" in result.err
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line for line in lines if "after 128" in line]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "0"), "seconds must be finite and above 0, not 0"),
        (("--prompts", "nowhere.jsonl"), "there is no prompt file nowhere.jsonl; check the path"),
        (("--profile", "x"), "No such option: --profile"),
        (("--max-context", "40"), "no sample prompt leaves room for an answer in 40 tokens of"),
    ],
)
def test_mistakes(lade: Any, arguments: tuple[str, ...], message: str) -> None:
    result = lade(*QUICK, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert user.names() == []


def test_where_no_profile_can_be_written_nothing_is_measured(lade: Any) -> None:
    user.folder().parent.mkdir(parents=True)
    user.folder().touch()
    result = lade("tune", "demo", "--seconds", "1000")
    assert (result.code, result.out) == (2, "")
    assert f"the folder {user.folder()} cannot be made" in result.err
    assert "--dry-run measures and writes nothing" in result.err


def test_a_file_that_cannot_be_written_does_not_lose_the_figures(lade: Any) -> None:
    name = tuned(device=user.key_of(detect("cpu"))).name
    user.path_of(name).mkdir(parents=True)  # in the way
    result = lade(*QUICK)
    assert result.code == 1
    assert "after 128" in result.out
    assert str(user.path_of(name)) in result.err


def test_interrupted_it_writes_nothing(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ladecli.tune.measure.Tuner.search", interrupted)
    result = lade(*QUICK)
    assert (result.code, result.out) == (130, "")
    assert "no profile was written" in result.err
    assert user.names() == []


def test_every_category_is_tried_early(tmp_path: Path) -> None:
    category = {row.turns[0]: row.category for row in suites.load("builtin").rows}
    texts = sample_prompts(None)
    assert sorted(texts) == sorted(category)
    assert len({category[text] for text in texts[:6]}) == 6
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": ["b", "c"]}\n{"prompt": "d", "category": "e"}\n')
    assert sample_prompts(str(path)) == ["a", "d", "b"]
    with pytest.raises(UsageError, match=r"there is no prompt file x\.jsonl"):
        sample_prompts("x.jsonl")


def outcome(speed: float, *repeats: float, name: str = "budget 64") -> Outcome:
    score = Score(Candidate(name, None if name == PLAIN else CONFIG), speed, repeats)
    return Outcome(score, (score,), 3)


@pytest.mark.parametrize(
    ("found", "verdict", "caveat"),
    [
        (None, "as before", "raise --seconds"),
        (outcome(1.5, 1.4, 1.6), "1.50×", "14%"),
        (outcome(1.5, 1.5), "1.50×", "repeat"),
        (outcome(1.2, 1.2, 1.2, name=CURRENT), "keeping", None),
        (outcome(1.0, 1.0, 1.0, name=PLAIN), "plain decoding is fastest", None),
    ],
)
def test_verdict_and_caveats(found: Outcome | None, verdict: str, caveat: str | None) -> None:
    key = Tuned(
        device="GPU",
        parameters=7e9,
        weights="bfloat16",
        attention="sdpa",
        versions={"torch": "2.13.0"},
        date="2026-11-21",
    )
    report = Report("m", key, "a100, derived", Curve(COST, (0.01,), 300), found, CONFIG, 12.5)
    assert verdict in report.verdict
    assert bool(report.caveats) == (caveat is not None)
    assert not caveat or caveat in report.caveats[0]
    json.dumps(as_object(report, None), allow_nan=False)
    written = profile_of(report)
    assert written.name == "tuned-gpu-7B-bfloat16-sdpa"
    assert written.settings[0].lookahead == CONFIG
