"""Ranks as processes: one text, one line per error, and no process left running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ladecli.__main__ import run_and_exit
from ladecli.errors import UsageError
from ladecli.events import TextStep
from ladecli.models import device
from ladecli.models.device import Device
from ladecli.options.answer import GenerateRequest, RankedOptions
from ladecli.session import opening
from ladecli.session.rank_info import RankInfo, assign_device, find_rank
from ladecli.session.session import Session, Settings
from ladecli.view.terminal import Terminal
from tests.support import processes
from tests.support.decoding import text_ids
from tests.support.models import saved

pytestmark = pytest.mark.slow


def torchrun() -> None:
    """Start the program as two ranks, as torchrun does, but as forks of this process."""
    meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    options = {"nproc_per_node": 2, "max_restarts": 0, "start_method": "fork"}
    elastic_launch(LaunchConfig(1, 1, **options, **meeting), run_and_exit)()


class Ranks:
    """A program whose ranks are processes, in a process group as a terminal makes one.

    Args:
        arguments: of the command line.
        options: of `processes.Fork`.
    """

    def __init__(self, *arguments: str, **options: Any) -> None:
        read, write = os.pipe()
        self.out = open(read)  # noqa: SIM115  (`ended`)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`ended`)
        streams = (None, write, self.errors.fileno())
        self.program = processes.Fork(arguments, streams, os.environ, **options)
        os.close(write)
        self.family: list[psutil.Process] = []

    def line(self) -> str:
        """Return the first line of output, after which the processes are known."""
        line = self.out.readline()
        self.family = psutil.Process(self.program.pid).children(recursive=True)
        return line

    def kill_last_rank(self) -> None:
        max(self.family, key=lambda process: process.pid).kill()

    def ended(self) -> tuple[int, str, list[str]]:
        """Return the exit code, the rest of the output, and the program's lines on stderr."""
        with self.out, self.errors:
            code, out = self.program.wait(processes.SECONDS), self.out.read()
            self.errors.seek(0)
            lines = [line for line in self.errors if line.startswith("lade: ")]
        _, left = psutil.wait_procs(self.family, timeout=10)
        assert not left
        return code, out, lines


@pytest.mark.parametrize("launcher", [None, torchrun], ids=["ours", "torchrun"])
def test_ranks_yield_the_text_of_one_process_until_one_is_killed(
    launcher: Any, lade: Any, rows_file: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    prompts = rows_file({"prompt": "def largest(items):"}, {"prompt": "class Stack:"})
    asked = ["generate", "--prompt-file", prompts, "-n", "200", "--ignore-eos", "--json"]
    asked += ["--temperature", "0.7", "--seed", "3"]
    expected = [row["token_ids"] for row in lade(*asked).rows()]
    if not launcher:
        asked += ["--parallel", "2"]
        assert processes.lade("--version").returncode == 0  # tests start processes, too
        monkeypatch.chdir(tmp_path)
        for name in ("multiprocessing", "os", "random", "re", "signal", "ladecli", "torch"):
            (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'x')")
    ranks = Ranks(*asked, main=launcher)
    first = json.loads(ranks.line())
    assert (first["decode"]["ranks"], first["token_ids"]) == (2, expected[0])
    ranks.kill_last_rank()
    code, rest, errors = ranks.ended()
    second = json.loads(rest)
    assert (code, second["finish_reason"]) == (1, "lost")
    assert second["token_ids"] == expected[1][: len(second["token_ids"])]
    assert errors[-1].startswith(f"lade: rank 1 {'ended' if launcher else 'was killed (SIGKILL'}")
    assert not [path for path in tmp_path.iterdir() if not path.suffix], "code of a folder ran"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_leaders_clean_up(number: int, code: int, tmp_path: Path, monkeypatch: Any) -> None:
    asked = ("generate", "-p", "def a():\n", "-n", "900", "--ignore-eos", "--parallel", "2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ranks = Ranks(*asked, ranks=True)
    assert ranks.line()
    # To the whole group, like a terminal at Ctrl-C or when it is closed.
    send = os.kill if number == signal.SIGKILL else os.killpg
    send(ranks.program.pid, number)
    assert ranks.ended()[0] == code
    assert not [*tmp_path.iterdir()]  # nor a rendezvous folder


def break_off() -> None:
    """Interrupt answers of two ranks at any moment of their last step, or leave them open."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def plain(session: Session) -> object:
        return text_ids(session.stream(prompt, replace(shared, strategy="autoregressive")))

    def text(session: Session) -> object:
        return session.add_draft_text("class Zebra:\n    def stripes(self, many):\n" * 9)

    signal.signal(signal.SIGALRM, interrupt)
    request = GenerateRequest(model="demo", parallel=2)
    with opening.open_with_ranks(request, Terminal(quiet=True)) as session:
        prompt = session.encode("def area(width, height):\n")
        shared = Settings(max_new_tokens=20, ignore_eos=True)
        expected = plain(session)
        for number in range(60):
            session.start_over()
            events = session.stream(prompt, replace(shared, max_new_tokens=2))
            while not isinstance(event := next(events), TextStep):
                pass
            if len(event.token_ids) < 2:
                signal.setitimer(signal.ITIMER_REAL, 5e-4 + number * 5e-5)
                with contextlib.suppress(KeyboardInterrupt):
                    text_ids(events)
                    signal.setitimer(signal.ITIMER_REAL, 0)
        assert text_ids(session.stream(prompt, shared)) == expected
        for meanwhile in (plain, text, Session.start_over):
            left = session.stream(prompt, replace(shared, max_new_tokens=200))
            assert [next(left), next(left)]
            meanwhile(session)
            assert text_ids(session.stream(prompt, shared)) == expected


def test_an_interrupted_answer_does_not_affect_later_ones() -> None:
    assert processes.with_ranks(break_off) == 0


def launched(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """Return the environment of a process that torchrun started."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = map(str, (rank, size, local_rank, local_size))
    return {"TORCHELASTIC_RUN_ID": "none", **dict(zip(names, values, strict=True))}


def launch(patch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Pretend that torchrun started this process."""
    for name, value in launched(*numbers).items():
        patch.setenv(name, value)


def test_ranks_of_torchrun_that_differ() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"

    asked = ("generate", "-p", "a", "--temperature", "1", "--seed")
    programs = [
        processes.Program(*asked, f"{rank}", **meeting, **launched(rank, 2, rank, 2))
        for rank in range(2)
    ]
    first, second = (program.ended() for program in programs)
    del store  # the rendezvous
    assert (first.returncode, second.returncode, first.stdout) == (1, 1, "")
    assert "rank 1 has seed 1 and rank 0 has 0" in first.stderr


def test_options_that_ranks_cannot_use_are_refused(lade: Any, monkeypatch: Any) -> None:
    def refusal(*arguments: str) -> Any:
        return lade("generate", "-p", "a", *arguments).refused()

    assert "--parallel 9999" in refusal("--parallel", "9999")
    for option in (("--device", "cuda:1"), ("--device-map", "auto")):
        assert " ".join(option) in refusal("--parallel", "2", *option)
    launch(monkeypatch, 0, 3, 0, 3)
    assert "--parallel 2" in refusal("--parallel", "2")


def test_models_that_verify_no_trees_are_refused(lade: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path, "stablelm", vocab_size=300)
    asked = ("generate", folder, "-p", "the cat", "--raw", "-n", "4")
    alone = lade(*asked)
    assert alone.code == 0
    assert "chains of drafts instead of trees: it does not pass keywords" in alone.err
    refusal = lade(*asked, "--parallel", "2").refused()
    assert re.search("does not pass keywords.* leave --parallel out\n$", refusal)


def test_the_rank_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():  # another launcher's
        monkeypatch.setenv(name, value)
    assert find_rank(RankedOptions()) == RankInfo()
    launch(monkeypatch, 5, 8, 1, 4)
    assert find_rank(RankedOptions()) == RankInfo(5, 8, 1, 4, launched=True)


def test_ranks_that_share_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Device("cuda", f"cuda:{number}", "H100") for number in range(2)]
    monkeypatch.setattr(device, "present", lambda: gpus)
    monkeypatch.setattr(device, "detect", lambda _: gpus[0])
    assert assign_device(RankedOptions(), RankInfo(3, 4, 1, 2, launched=True)).device == "cuda:1"
    with pytest.raises(UsageError, match=r"^4 ranks .* need a GPU each, and here are 2"):
        assign_device(RankedOptions(), RankInfo(0, 4, 0, 4))
