"""The program with several ranks: real processes over gloo, and the text of one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ladecli.decoder.config import SamplingConfig
from ladecli.models import load
from ladecli.parallel import start
from ladecli.repl import chat_file
from ladecli.session import Session, Settings

from .. import forked
from ..processes import ROOT, SECONDS, SOON, family, followers, gone_within
from ..screens import Terminal
from ..test_chat_terminal import CTRL_C, CTRL_D, QUESTION, flowing, flows, ready

LADE = [sys.executable, "-m", "ladecli"]
STORY = "def "


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [*LADE, *arguments], capture_output=True, text=True, timeout=SECONDS, cwd=ROOT
    )


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(load("demo"))


def plain(session: Session, prompt: str, new: int, sampling: SamplingConfig | None = None) -> Any:
    """The ids of plain decoding by one process."""
    chosen = sampling or SamplingConfig()
    settings = Settings(
        strategy="autoregressive", sampling=chosen, max_new_tokens=new, ignore_eos=True
    )
    steps = session.stream(session.encode(prompt), settings)
    return [token for step in steps for token in getattr(step, "token_ids", ())]


@pytest.mark.parametrize("mode", ["lookahead", "tensor"])
def test_generate_says_what_one_process_says(session: Session, mode: str, tmp_path: Path) -> None:
    prompts = [STORY, "# Return the largest item of the list.\ndef largest(items):\n"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    options = ("-f", str(file), "-n", "60", "--ignore-eos", "--json")
    done = program("generate", *options, "--parallel", "2", "--parallel-mode", mode)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["token_ids"] for answer in answers] == [plain(session, p, 60) for p in prompts]
    assert min(answer["decode"]["steps"] for answer in answers) < 60
    for answer in answers:
        assert (answer["decode"]["ranks"], answer["decode"]["parallel_mode"]) == (2, mode)


def test_a_chat_with_ranks_over_a_pipe_says_what_one_without_says() -> None:
    """Turns that go on, drawing tokens, undoing, and strategies that the leader has for itself."""
    said = "\n".join(
        [
            *(QUESTION, "/set temperature 0.8", "/set seed 3", "What is the pool?", "/undo"),
            *("What is a draft?", "/set strategy autoregressive", "And then?"),
            *("/set strategy lookahead", "/set budget 30", "/regenerate", ""),
        ]
    )
    options = ("chat", "demo", "-n", "25", "--no-stats")
    alone = forked.lade(*options, text=said)
    together = forked.lade(*options, "--parallel", "2", text=said)
    assert together.returncode == alone.returncode == 0, together.stderr
    assert together.stdout == alone.stdout
    assert len(together.stdout.splitlines()) >= 5


def test_a_follower_that_is_killed_ends_all_and_the_text_is_kept(
    session: Session, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    drawn = ("-t", "1", "--seed", "3", "-n", "1900", "--ignore-eos")
    leader = forked.Program(
        *("generate", "-p", STORY, *drawn, "--json", "--parallel", "2", "--trace", str(trace))
    )
    deadline = time.monotonic() + SECONDS
    while not trace.exists() or trace.stat().st_size < 10_000:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    everyone, [follower] = family(leader.pid), followers(leader.pid)
    follower.kill()
    began = time.monotonic()
    done = leader.ended()
    assert time.monotonic() - began < 10.0
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("lade: rank 1 was killed (SIGKILL"), done.stderr
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "lost"
    ids = answer["token_ids"]
    sampling = SamplingConfig(temperature=1.0, seed=3)
    assert ids == plain(session, STORY, len(ids), sampling)
    assert 0 < len(ids) < 1900
    assert gone_within(everyone, SOON)


@pytest.mark.parametrize("mode", ["lookahead", "tensor"])
def test_ctrl_c_ends_the_reply_on_all_ranks_and_the_chat_goes_on(mode: str) -> None:
    options = ("-n", "1500", "--ignore-eos", "--parallel", "2", "--parallel-mode", mode)
    with Terminal("chat", "demo", *options) as terminal:
        ranks = "2 ranks" if mode == "lookahead" else "2 ranks (tensor)"
        assert f"demo · lookahead · {ranks} · profile cpu · " in flowing(ready(terminal))
        terminal.enter("/show parallel")
        flows(terminal, "parallel 2 flag --parallel")
        everyone = family(terminal.child.pid)
        assert len(everyone) == 2  # torchrun, and the follower
        terminal.enter(QUESTION)
        terminal.wait("tok/s")
        terminal.send(CTRL_C)
        terminal.wait("(stopped)")
        ready(terminal)
        terminal.enter("/set max-new-tokens 20")
        terminal.enter("What is the pool?")
        seen = flowing(terminal.wait("20 tokens in"))
        assert "The pool holds the n-grams" in seen
        terminal.send(CTRL_D)
        assert terminal.close() == 0
        assert gone_within(everyone, SOON)


def test_a_chat_that_loses_a_rank_saves_what_was_said(tmp_path: Path) -> None:
    options = ("chat", "demo", "-n", "1500", "--ignore-eos", "--parallel", "2", "--quiet")
    with subprocess.Popen(
        [*LADE, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{QUESTION}\n")
        process.stdin.flush()
        begun = process.stdout.read(40)
        [follower] = followers(process.pid)
        follower.kill()
        rest, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    [file] = (tmp_path / "lade" / "chats").iterdir()
    saved, lost = err.splitlines()
    assert saved == f"lade: the conversation was saved to {file}; /load {file} goes on"
    assert lost.startswith("lade: rank 1 was killed (SIGKILL")
    question, answer = chat_file.load(file).messages
    assert question.content == QUESTION
    assert answer.interrupted
    assert (begun + rest).startswith(answer.content)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--parallel", "0"), "parallel must be at least 1, not 0"),
        (
            ("--parallel", "2", "--parallel-mode", "pipeline"),
            "unknown parallel-mode 'pipeline'; use one of lookahead, tensor",
        ),
        (
            ("--parallel", "99"),
            "--parallel 99 asks for 99 processes, and this machine has 2 cores and no GPU; use at"
            " most 8",
        ),
    ],
)
def test_what_ranks_cannot_do_is_said_before_any_starts(
    lade: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], line: str
) -> None:
    monkeypatch.setattr(start, "cores", lambda: 2)
    monkeypatch.setattr(start, "Launcher", lambda *_: pytest.fail("ranks were started"))
    done = lade("generate", "-p", "x", *options)
    assert (done.code, done.err) == (2, f"lade: {line}\n")


@pytest.mark.parametrize(
    ("code", "options", "line"),
    [
        (1, ("no-such-model",), "no-such-model is not on this machine, "),
        (2, ("--parallel-mode", "tensor"), "2 key/value heads of demo cannot be split over 3 "),
        (
            2,
            ("--parallel-mode", "tensor", "--quantize", "4bit"),
            "--quantize 4bit does not go with --parallel-mode tensor",
        ),
    ],
)
def test_nobody_waits_for_ranks_that_will_have_nothing_to_do(
    lade: Any,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    options: tuple[str, ...],
    line: str,
) -> None:
    class Launched:
        """Ranks that never come."""

        closed: ClassVar[list[bool]] = []

        def __init__(self, *_: Any) -> None: ...

        def ended(self) -> None: ...

        def close(self, *, patient: bool) -> None:
            self.closed.append(patient)

    monkeypatch.setattr(start, "Launcher", Launched)
    done = lade("generate", "-p", "x", "--parallel", "3", *options)
    assert done.code == code
    assert done.err.startswith(f"lade: {line}")
    assert done.err.count("\n") == 1
    assert Launched.closed == [False]


def test_a_grid_of_settings_over_two_processes() -> None:
    """`scripts/check_ranks.py` runs the rest of the grid, and more ranks."""
    script = [sys.executable, "scripts/check_ranks.py", "--ranks", "2", "--cells", "4"]
    done = subprocess.run(
        [*script, "--limit", "1", "-n", "40"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^2 ranks: 8 texts, 320 tokens, 0 different$", done.stdout, re.M)
