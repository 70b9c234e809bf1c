"""`lade verify` as people use it: what it says, what programs read, and its exit codes."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ladecli import launch, models, verify
from ladecli.decoder.engine import Decoder
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.runner import Runner
from ladecli.errors import LadeError, LoadError, UsageError
from ladecli.settings import VerifyRequest
from ladecli.terminal import Terminal

from .verifying.makers import after_loading, plant

QUICK: dict[str, Any] = {"limit": 2, "max_new_tokens": 24, "quiet": True}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """One call: its exit code, and what it printed."""

    def call(**options: Any) -> tuple[int, str]:
        code = verify.run(VerifyRequest(**{**QUICK, **options}))
        return code, capsys.readouterr().out

    return call


def test_equal_answers(run: Run) -> None:
    code, out = run()
    assert code == 0
    assert out.startswith("lookahead against plain decoding: demo, float32 on ")
    assert "prompts  answers  tokens  equal  diverged  explained" in out
    assert out.endswith("equal: all 48 tokens of 2 answers\n")
    assert "\x1b" not in out


@pytest.mark.parametrize("strategy", ["jacobi", "autoregressive"])
def test_drawn_answers_under_other_strategies(run: Run, strategy: str) -> None:
    code, out = run(strategy=strategy, temperature=0.8, repetition_penalty=1.2)
    assert code == 0
    assert out.startswith(f"{strategy} against plain decoding")


def test_a_planted_fault_is_found_and_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, by=2.0)
    code, out = run(limit=6, max_new_tokens=48)
    assert code == 1
    lines = out.splitlines()
    assert lines[-1].startswith("NOT equal: ")
    assert "larger than the arithmetic explains" in lines[-1]
    first = next(line for line in lines if ", token " in line)
    assert ": plain decoding has '" in first
    assert ", lookahead has '" in first
    second = lines[lines.index(first) + 1]
    assert second.startswith("  in a step of ")
    assert "logit gap " in second
    assert second.endswith("NOT explained")


def test_json_has_everything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, by=2.0)
    code, out = run(limit=4, max_new_tokens=32, json=True, sources="context,recycled", budget=16)
    found = json.loads(out)
    assert code == 1
    assert found["schema"] == "lade-verify/1"
    assert found["machine"]["versions"]["torch"]
    assert found["model"]["name"] == "demo"
    assert found["passed"] is False
    assert found["settings"] == {
        "strategy": "lookahead",
        "weights": "float32",
        "compute": "float32",
        "attention": "sdpa",
        "budget": 16,
        "sources": "context+recycled",
    }
    divergences = [a["divergence"] for a in found["answers"] if a["divergence"] is not None]
    assert len(divergences) == found["divergences"] == found["unexplained"] > 0
    assert found["noise"] == max(d["noise"] for d in divergences)
    assert set(divergences[0]) == {
        *("row", "turn", "position", "plain", "other", "width"),
        *("gap", "distance", "noise", "allowed", "explained"),
    }
    assert divergences[0]["plain"].keys() == {"id", "text"}
    assert found["tokens"] == sum(answer["tokens"] for answer in found["answers"])


def test_a_sweep_goes_on_behind_what_cannot_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    load = models.load

    def loads(planned: Any, **options: Any) -> Any:
        if planned.dtype == torch.float16:
            raise LoadError("this processor has no float16; take another --dtype")
        return load(planned, **options)

    monkeypatch.setattr(models, "load", loads)
    sweep = ["dtype=float16,float32,bfloat16 attention=reference,sdpa"]
    code, out = run(sweep=sweep, limit=1)
    assert code == 0
    assert out.count("  failed\n") == 2
    assert (
        "dtype=float16 attention=sdpa could not run: this processor has no float16; take another"
        " --dtype" in out
    )
    assert "tokens of 4 answers in 4 cells (2 could not run)" in out
    code, out = run(sweep=sweep, limit=1, json=True)
    cells = json.loads(out)["cells"]
    assert [cell["cell"] for cell in cells[:2]] == [
        {"dtype": "float16", "attention": "reference"},
        {"dtype": "float16", "attention": "sdpa"},
    ]
    assert [cell["settings"].get("compute") for cell in cells[1:4]] == [None, "float32", "float32"]
    with pytest.raises(LoadError, match="this processor has no float16"):
        run(dtype="float16")
    with pytest.raises(LadeError, match="this processor has no float16"):
        run(sweep=["dtype=float16 W=1,2"])


def test_settings_that_contradict_themselves_are_one_cells_matter(run: Run) -> None:
    code, out = run(sweep=["W=2,40 N=4 budget=30"], limit=1)
    assert code == 0
    assert "W=40 N=4 budget=30 could not run: budget 30 is smaller than the 120 tokens" in out


def test_the_distribution(run: Run) -> None:
    code, out = run(chi_square=120, temperature=1.0, seed=5, limit=1, max_new_tokens=2)
    assert code == 0
    assert "against" in out.splitlines()[1]
    assert "120 answers of each side to 1 prompt; level 0.01 for all tests together" in out
    assert out.splitlines()[-1].startswith("no difference found in ")


def test_the_distribution_for_programs(run: Run) -> None:
    options: dict[str, Any] = {"chi_square": 60, "temperature": 1.0, "seed": 5, "limit": 1}
    code, out = run(**options, max_new_tokens=1, json=True)
    found = json.loads(out)["chi_square"]
    assert code == 0
    assert found["level"] == 0.01
    assert found["sampling"]["seed"] == 5
    assert {trial["against"] for trial in found["trials"]} == {"model", "plain"}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"chi_square": 100},
            UsageError,
            "--chi-square tests what is drawn, and greedy decoding draws nothing; add"
            " --temperature 1, for example",
        ),
        (
            {"chi_square": 100, "temperature": 1.0, "sweep": ["W=1,2"]},
            UsageError,
            "--chi-square and --sweep do not go together; run one after the other",
        ),
        ({"chi_square": 0}, UsageError, "chi-square must be at least 1, not 0"),
        ({"limit": 0}, UsageError, "limit must be at least 1, not 0"),
        ({"sweep": ["W="]}, UsageError, "--sweep W=: W has no values"),
        ({"window": 0}, ConfigError, "window must be at least 1, not 0"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(launch, "open_session", None)
    with pytest.raises(kind) as found:
        run(**options)
    assert str(found.value) == message


def rows(path: Path, *lengths: int) -> str:
    lines = [
        json.dumps({"id": f"row-{number}", "prompt": "word " * length})
        for number, length in enumerate(lengths, start=1)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_prompts_that_are_too_long_are_counted(run: Run, tmp_path: Path) -> None:
    prompts = rows(tmp_path / "rows.jsonl", 3, 500)
    code, out = run(prompts=prompts, max_context=100, raw=True)
    assert code == 0
    assert re.search(r"^skipped row-2: .* tokens", out, re.MULTILINE)
    assert "tokens of 1 answer\n" in out
    prompts = rows(tmp_path / "long.jsonl", 400, 500)
    with pytest.raises(UsageError, match=r"no prompt can be answered: row-1: .* tokens"):
        run(prompts=prompts, max_context=100, raw=True)
    with pytest.raises(UsageError, match=r"no prompt can be drawn from: row-1: .* tokens"):
        run(prompts=prompts, max_context=100, raw=True, chi_square=10, temperature=1.0)


def test_without_memory_nothing_is_compared(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(decoder: Decoder) -> None:
        def full(*_args: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(decoder.runner, "run", full)

    after_loading(monkeypatch, starve)
    code, out = run(limit=1)
    assert code == 1
    assert "memory did not suffice for an answer" in out
    assert out.splitlines()[-1] == "nothing could be compared"


def test_ctrl_c_keeps_what_was_compared(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards, forward = 0, Runner.run

    def pressed(*arguments: Any) -> Any:
        nonlocal forwards
        forwards += 1
        if forwards == 70:
            signal.raise_signal(signal.SIGINT)
        return forward(*arguments)

    monkeypatch.setattr(Runner, "run", pressed)
    code, out = run(limit=4, strategy="autoregressive", ignore_eos=True)
    assert code == 130
    assert "stopped early: this is what was compared until then" in out
    assert out.splitlines()[-1] == "equal: all 24 tokens of 1 answer"


def test_ctrl_c_counts_the_answers_that_were_drawn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards, forward = 0, Runner.run

    def pressed(*arguments: Any) -> Any:
        nonlocal forwards
        forwards += 1
        if forwards == 30:
            signal.raise_signal(signal.SIGINT)
        return forward(*arguments)

    monkeypatch.setattr(Runner, "run", pressed)
    code, out = run(chi_square=2000, temperature=1.0, limit=1, max_new_tokens=1)
    assert code == 130
    assert re.search(
        r"^answers: \d\d of lookahead and 0 of plain decoding to 1 prompt; 2,000 of each to every"
        r" prompt were wanted; ",
        out,
        re.MULTILINE,
    )
    assert out.splitlines()[-1] == "nothing could be tested: more samples are needed"


def test_a_bar_says_how_far_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    @contextmanager
    def bar(_terminal: Any, what: str, total: int) -> Iterator[Any]:
        told.extend((what, total))
        yield told.append

    monkeypatch.setattr(Terminal, "bar", bar)
    run()
    what, total, *done = told
    assert (what, total) == ("verifying", 2 * 2 * 24)
    assert all(more >= 0 for more in done)
    assert sum(done) == total
    told.clear()
    run(chi_square=60, temperature=1.0, limit=None, max_new_tokens=1)
    what, total, *done = told
    assert total == 2 * 60 * 3
    assert sum(done) == total
