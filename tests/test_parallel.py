"""Ranks as processes: one text, one line when something is wrong, and nothing left running."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ladecli.commands.cli import entry
from ladecli.decoder.model import form_races
from ladecli.errors import UsageError
from ladecli.options.answer import RankedOptions
from ladecli.profiles import races
from ladecli.session.place import (
    Place,
    assign_device,
    find_place,
)
from ladecli.specs import device
from ladecli.specs.device import Device

from .families import new_model
from .tokenizers_here import byte_level

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SECONDS = 120.0
LADE = ("-m", "ladecli", "generate")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


class Program:
    """A program in a process group of its own, as a terminal starts it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.family: list[psutil.Process] = []

    def line(self) -> str:
        """What it writes first; its processes are known then."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def kill_last_rank(self) -> None:
        ranks = [each for each in self.family if "resource_tracker" not in str(each.cmdline())]
        max(ranks, key=lambda each: each.pid).kill()

    def ended(self) -> tuple[int, str, list[str]]:
        """Its exit code, what else it wrote, and its own lines on stderr."""
        out, errors = self.process.communicate(timeout=SECONDS)
        _, left = psutil.wait_procs(self.family, timeout=10)
        assert not left
        return self.process.returncode, out, [e for e in errors.split("\n") if e[:6] == "lade: "]


@pytest.fixture
def prompts(rows_file: Callable[..., str]) -> str:
    return rows_file({"prompt": "def largest(items):"}, {"prompt": "class Stack:"})


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([*LADE, "--parallel", "2"], "rank 1 was killed (SIGKILL"),
        ([*TORCHRUN, *LADE], "rank 1 ended"),
    ],
)
def test_ranks_yield_the_text_of_one_until_one_is_killed(
    ranks: list[str], line: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--prompt-file", prompts, "-n", "200", "--ignore-eos", "--json"]
    given += ["--temperature", "0.7", "--seed", "3"]
    assert entry(["generate", *given]) == 0
    expected = [json.loads(row)["token_ids"] for row in capsys.readouterr().out.splitlines()]
    program = Program(*ranks, *given)
    first = json.loads(program.line())
    assert (first["decode"]["ranks"], first["token_ids"]) == (2, expected[0])
    program.kill_last_rank()
    code, rest, errors = program.ended()
    second = json.loads(rest)
    assert (code, second["finish_reason"]) == (1, "lost")
    assert second["token_ids"] == expected[1][: len(second["token_ids"])]
    assert errors[-1].startswith(f"lade: {line}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_leader_leaves_no_process(number: signal.Signals, code: int) -> None:
    program = Program(*LADE, "-p", "def a():\n", "-n", "900", "--ignore-eos", "--parallel", "2")
    assert program.line()
    # As a terminal does with Ctrl-C: to all of the group; other signals reach the leader alone.
    send = os.killpg if number == signal.SIGINT else os.kill
    send(program.process.pid, number)
    assert program.ended()[0] == code


def test_torchruns_ranks_that_differ() -> None:
    shell = f"exec {sys.executable} {' '.join(LADE)} -p a --temperature 1 --seed $RANK"
    code, out, errors = Program(*TORCHRUN, "--no-python", "sh", "-c", shell).ended()
    assert (code, out) == (1, "")
    assert any("rank 1 has seed 1 and rank 0 has 0" in error for error in errors)


def test_ranks_that_know_other_forms_to_be_fast_yield_the_text_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(form_races, "RACE_SECONDS", 1.0)
    given = ["-p", "def largest(items):", "-n", "40", "--ignore-eos", "--json"]
    assert entry(["generate", *given]) == 0
    expected = json.loads(capsys.readouterr().out)["token_ids"]
    cpu = device.detect("cpu")
    raced = races.read(cpu)
    assert raced
    for rank, fast in enumerate(("columns", "rows")):
        results = {
            name: {form: 1.0 if form == fast else 9.0 for form in times}
            for name, times in raced.items()
        }
        for name in ("HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, str(tmp_path / str(rank)))
        races.write(replace(cpu, threads=1), results)
    home = f"HOME={tmp_path}/$RANK XDG_CONFIG_HOME={tmp_path}/$RANK OMP_NUM_THREADS=1"
    shell = f"{home} exec {sys.executable} {' '.join(LADE)} {shlex.join(given)}"
    code, out, errors = Program(*TORCHRUN, "--no-python", "sh", "-c", shell).ended()
    assert (code, errors[:-1]) == (0, [])
    assert json.loads(out)["token_ids"] == expected


def torchrun(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """The environment of a process that torchrun started."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = map(str, (rank, size, local_rank, local_size))
    return {"TORCHELASTIC_RUN_ID": "none", **dict(zip(names, values, strict=True))}


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (["--parallel", "9999"], {}, "--parallel 9999"),
        (["--parallel", "2", "--device", "cuda:1"], {}, "--device cuda:1"),
        (["--parallel", "2", "--device-map", "auto"], {}, "--device-map auto"),
        (["--parallel-mode", "tensor"], {}, "--parallel-mode tensor"),
        (["--parallel", "2"], torchrun(0, 3, 0, 3), "--parallel 2"),
    ],
)
def test_what_ranks_cannot_do_is_refused(
    arguments: list[str],
    environment: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert entry(["generate", "-p", "a", *arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert named in error


def test_models_that_verify_no_trees_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = new_model("lfm2", layer_types=["conv", "full_attention"], vocab_size=300)
    model.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    asked = ["generate", str(tmp_path), "-p", "the cat", "--raw", "-n", "4"]
    capsys.readouterr()
    assert entry(asked) == 0
    assert "chains of drafts instead of trees: it keeps a recurrent" in capsys.readouterr().err
    assert entry([*asked, "--parallel", "2"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert "recurrent state" in error
    assert error.endswith("leave --parallel out\n")


@pytest.mark.parametrize(
    ("wanted", "environment", "place"),
    [
        (None, {}, Place()),
        (3, {}, Place(0, 3, 0, 3)),
        (None, {"RANK": "1", "WORLD_SIZE": "2"}, Place()),  # another launcher's
        (None, torchrun(5, 8, 1, 4), Place(5, 8, 1, 4, launched=True)),
    ],
)
def test_the_place_of_a_process(
    wanted: int | None, environment: dict[str, str], place: Place
) -> None:
    assert find_place(RankedOptions(parallel=wanted), environment) == place


def test_ranks_that_share_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Device("cuda", f"cuda:{number}", "H100") for number in range(2)]
    monkeypatch.setattr(device, "present", lambda: gpus)
    monkeypatch.setattr(device, "detect", lambda _: gpus[0])
    assert assign_device(RankedOptions(), Place(3, 4, 1, 2, launched=True)).device == "cuda:1"
    with pytest.raises(UsageError, match="--parallel 4 needs 4 GPUs and 2 are visible"):
        assign_device(RankedOptions(), Place(0, 4, 0, 4))
