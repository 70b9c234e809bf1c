"""`lade bench` at the command line: methods, sweeps, reports, failures, Ctrl-C, bad input."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ladecli.bench.methods import DEFAULT, STRATEGIES
from ladecli.bench.result import SCHEMA
from ladecli.bench.runners import OwnRunner
from tests.support.compiler import Compiler

pytestmark = pytest.mark.slow

QUICK = ("-n", "12", "--repeat", "1", "--raw", "--ignore-eos")
TWO = ("--strategies", "autoregressive,lookahead")
PAPER = {"window": 7, "ngram": 5, "guesses": 7, "sources": "trajectory"}
ALL = STRATEGIES[:-1]  # the last one compiles
KEYS = (
    "schema created seconds interrupted reference machine model conditions contenders runs skipped"
    " failures time_spent"
)
RUN_KEYS = (
    "contender row category turn repeat prompt_tokens prompt_digest tokens first_tokens steps fed"
    " first_seconds step_seconds accepted peak_memory reason digest"
)
ROWS = (
    {"id": "one", "category": "prose", "prompt": "Once upon a time there was"},
    {"id": "two", "category": "code", "prompt": "def f(x):\n    return f(x)\ndef f(x):"},
    {"id": "talk", "category": "prose", "turns": ["Say it.", "Say it again."]},
)


@pytest.fixture
def bench(lade: Any, model_folder: str, rows_file: Any) -> Any:
    """Return a function that runs `lade bench` on prompts, by default three of two categories."""

    def call(*options: str, rows: tuple[object, ...] = ROWS) -> Any:
        return lade("bench", model_folder, "--prompts", rows_file(*rows), *QUICK, *options)

    return call


def before_answers(patch: pytest.MonkeyPatch, do: Callable[[str], None]) -> None:
    """Call a function with the method's name before each answer of our own methods."""
    whole = OwnRunner.answer

    def answer(self: OwnRunner, prompt: list[int], cancelled: Any) -> Any:
        do(self.method.name)
        return whole(self, prompt, cancelled)

    patch.setattr(OwnRunner, "answer", answer)


def test_all_strategies_side_by_side(bench: Any, tmp_path: Path) -> None:
    done = bench("--json", "-q", "--strategies", ",".join(ALL))
    assert (done.code, done.err) == (0, "")
    result = done.json()
    assert result["schema"] == SCHEMA == "lade-bench/1"
    assert result.keys() == {*KEYS.split()}
    assert result["runs"][0].keys() == {*RUN_KEYS.split()}
    assert result["contenders"][0].keys() == {"name", "strategy", "settings"}
    settings = {c["name"]: c["settings"] for c in result["contenders"]}
    assert [*settings] == list(ALL)
    assert settings["lookahead"] == {"budget": 24, "sources": "context+recycled"}
    assert settings["paper"] == PAPER | {"budget": 56}
    assert result["reference"] == "autoregressive"
    assert result["model"]["name"] == "tiny-llama"
    assert result["conditions"]["prompts"] == "rows.jsonl"
    assert str(tmp_path) not in done.out
    # Every method answers every turn, and in float32 all texts are equal.
    runs = result["runs"]
    assert len(runs) == len(ALL) * 4
    assert len({(run["row"], run["turn"], run["digest"]) for run in runs}) == 4
    for run in runs:
        assert (run["tokens"], run["steps"]) == (12, len(run["step_seconds"]) + 1)
        assert run["peak_memory"] is None or run["peak_memory"] > 0
        source = {"jacobi": "jacobi", "prompt-lookup": "context"}.get(run["contender"])
        assert source is None or run["accepted"].keys() <= {source}
    by_method = {name: [run for run in runs if run["contender"] == name] for name in ALL}
    plain, stock = by_method["autoregressive"], by_method["hf"]
    assert all((run["steps"], run["fed"], run["accepted"]) == (12, 11, {}) for run in plain)
    assert all((run["steps"], run["fed"]) == (12, None) for run in stock)
    for run in (*by_method["paper"], *by_method["lookahead"]):
        assert sum(run["accepted"].values()) == 12 - run["steps"]
    spent = {part["contender"]: part["seconds"] for part in result["time_spent"]}
    for name, parts in spent.items():  # the parts of a step add up to its time
        steps = [seconds for run in by_method[name] for seconds in run["step_seconds"]]
        assert sum(parts.values()) == pytest.approx(sum(steps) / len(steps), rel=0.05)
    assert spent.keys() == {"autoregressive", "jacobi", "prompt-lookup", "paper", "lookahead"}
    assert spent["lookahead"].keys() == {"draft", "forward", "commit", "learn", "text"}


def test_the_default_is_short_and_fits_a_pipe(lade: Any, tmp_path: Path) -> None:
    done = lade("bench", "-n", "2", "--report", str(tmp_path / "r.json"))
    assert done.code == 0
    assert "6 prompts × 4 methods × 1 repeat" in done.err
    assert max(map(len, done.out.splitlines())) <= 100
    result = json.loads((tmp_path / "r.json").read_text())
    assert [method["name"] for method in result["contenders"]] == [*DEFAULT]


def test_reports_of_compiled_steps(bench: Any, compiler: Compiler, tmp_path: Path) -> None:
    files = [tmp_path / f"r.{kind}" for kind in ("md", "json")]
    reports = [word for file in files for word in ("--report", str(file))]
    done = bench("--strategies", "autoregressive,lookahead,hf,hf-compiled", *reports)
    assert done.code == 0
    assert done.err.startswith("lade: compiling the steps of hf-compiled")
    for file in files:
        assert f"written to {file}" in done.err
        assert file.stat().st_size > 1000
    result = json.loads(files[1].read_text())
    assert result["conditions"]["rows"] == 3
    methods = Counter(run["contender"] for run in result["runs"])
    assert methods == dict.fromkeys(("autoregressive", "lookahead", "hf", "hf-compiled"), 4)
    assert len({(run["row"], run["turn"], run["digest"]) for run in result["runs"]}) == 4
    assert compiler.count <= 2
    assert result["failures"] == []
    for words in ("plain decoding", "transformers' compiled generate", "4/4"):
        assert words in done.out
    assert "\x1b" not in done.out


def test_prompts_that_are_too_long_are_left_out(bench: Any) -> None:
    turns = {"short": ["Once"], "long": ["word " * 300], "later": ["Once", "word " * 300]}
    rows = tuple({"id": name, "turns": texts} for name, texts in turns.items())
    result = bench(*TWO, "--json", rows=rows).json()
    assert {run["row"] for run in result["runs"]} == {"short", "later"}
    reasons = {row["row"]: row["reason"] for row in result["skipped"]}
    assert "which with an answer of 12 is more than the context's 256; " in reasons["long"]
    assert reasons["later"].startswith("turn 2: the prompt has 1,230 tokens, which ")


def test_a_failing_method_does_not_affect_the_others(bench: Any, monkeypatch: Any) -> None:
    def fail(method: str) -> None:
        if method == "jacobi":
            raise RuntimeError("shape mismatch\nin some kernel")

    before_answers(monkeypatch, fail)
    result = bench("--strategies", "autoregressive,jacobi,lookahead", "--json").json(1)
    assert {run["contender"] for run in result["runs"]} == {"autoregressive", "lookahead"}
    assert result["failures"][0]["contender"] == "jacobi"
    assert result["failures"][0]["error"] == "RuntimeError: shape mismatch"


def test_a_grid_of_settings(bench: Any) -> None:
    result = bench("--sweep", "W=3,5 N=3,4 G=W", "--sources", "trajectory", "--json").json()
    cells = [f"lookahead W={w} N={n} G={w}" for w in (3, 5) for n in (3, 4)]
    assert [c["name"] for c in result["contenders"]] == ["autoregressive", *cells]
    settings = PAPER | {"window": 3, "ngram": 4, "guesses": 3, "budget": 18}
    assert result["contenders"][2]["settings"] == settings
    assert result["conditions"]["sweep"] == {"W": ["3", "5"], "N": ["3", "4"], "G": ["W"]}


def test_lengths_can_be_swept_up_to_the_models_context(lade: Any, model_folder: str) -> None:
    sweep = ("--sweep", "context=50,100,1k", "--limit", "1")
    result = lade("bench", model_folder, *QUICK, *sweep, "--json").json()
    assert [c["name"] for c in result["contenders"]] == [*DEFAULT]
    runs = {(run["category"], run["prompt_tokens"]) for run in result["runs"]}
    assert runs == {("50", 50), ("100", 100)}
    assert result["model"]["context"] == 256
    assert len({run["digest"] for run in result["runs"]}) == 2, "the text is the same for all"
    (left_out,) = result["skipped"]
    assert left_out["row"] == "1024/1"
    assert "than the context's 256" in left_out["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "250"), "allow fewer new tokens"),
        (("--sweep", "budget=4 W=15"), "budget=4 W=15 cannot run"),
    ],
)
def test_refused_measurements(lade: Any, model_folder: str, arguments: Any, message: str) -> None:
    assert message in lade("bench", model_folder, *arguments, "-q").refused()


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_ctrl_c_keeps_results(bench: Any, tmp_path: Path, monkeypatch: Any, presses: int) -> None:
    asked = count(1)

    def press(_: str) -> None:
        if next(asked) == 10:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)

    before_answers(monkeypatch, press)
    done = bench(*TWO, "--report", str(tmp_path / "half.json"))
    assert done.code == 130
    assert "stopped early" in done.err
    assert "Interrupted" in done.out
    half = json.loads((tmp_path / "half.json").read_text())
    assert half["interrupted"]
    # Six answers were the warm-up, and the last one was interrupted.
    assert len(half["runs"]) == 3
