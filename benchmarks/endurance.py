"""Long sessions, interruptions, kills, and full or read-only disks: nothing may be lost.

    python benchmarks/endurance.py --json benchmarks/results/endurance.json
    python benchmarks/endurance.py --quick                     # a smoke run of two minutes
    python benchmarks/endurance.py --only kills --only disks

Programs are real ones, in their own pipes or terminals.  This needs the extra `test`, and root for
full and read-only disks.  The exit code is 1 if there is a violation.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from common import Report, argument_parser, run_parts

from tests.support import processes
from tests.support.terminal import Terminal

QUESTION = "What is lookahead decoding?"
SHORT = ("-n", "12", "--temperature", "0")
GENERATE = ("generate", "demo", "-p", "def ", "--raw")
TUNE = ("tune", "demo", "--seconds", "1")
FINISHED = re.compile(r"\d+ tokens? in \d+ step")


# A long session.


def long_session(report: Report, args: Namespace, place: Path) -> None:
    """One answer of 50,000 tokens in a context of 64k: memory, and the time of a plain step."""
    import torch

    from ladecli.decoder.backends.load import load_decoder
    from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
    from ladecli.decoder.events import Step
    from ladecli.decoder.strategies import make_strategy
    from tests.support.models import new_model

    torch.set_num_threads(1)
    tokens, block = (2_000, 250) if args.quick else (50_000, 5_000)
    for strategy in ("autoregressive", "lookahead"):
        decoder = load_decoder(new_model("llama", max_position_embeddings=1 << 16))
        drafts = make_strategy(strategy, LookaheadConfig(budget=16, sources=WITHOUT_WINDOW))
        memory, seconds, times = [], [], list[float]()
        made = steps = 0
        began = time.perf_counter()
        for event in decoder.generate([5, 6, 7], drafts, None, Limits(tokens)):
            if isinstance(event, Step):
                before, made, steps = made, made + len(event.tokens), steps + 1
                times.append(event.seconds)
                if made // block > before // block:
                    memory.append(psutil.Process().memory_info().rss / 1e6)
                    seconds.append(statistics.median(times[1:]))
                    times.clear()
        # Attention reads all keys, so a step may grow in proportion to the text and no faster.
        half = len(seconds) // 2
        slope = (seconds[half] - seconds[0]) / half
        expected = seconds[0] + slope * (len(seconds) - 1)
        figures = {
            "minutes": round((time.perf_counter() - began) / 60, 1),
            "steps": steps,
            "MB after each part": [*map(round, memory)],
            "ms per step": [round(1000 * duration, 2) for duration in seconds],
            "last over a line through the first half": round(seconds[-1] / expected, 2),
        }
        report.row(f"{tokens:,} tokens, {strategy}", figures)
        report.holds(made == tokens, f"{strategy}: {made} tokens of {tokens}")
        report.holds(seconds[-1] < 1.3 * expected, f"{strategy}: steps grow faster than the text")
        kept = (memory[-1] - memory[0]) / (tokens / 1000)
        report.holds(args.quick or kept < 3, f"{strategy}: {kept:.1f} MB more per thousand tokens")


# Chats.


def turns(report: Report, args: Namespace, place: Path) -> None:
    """Turns of a chat, each saved and loaded again."""
    count, file = 30 if args.quick else 500, place / "chat.json"
    questions = [f"{QUESTION} {number}" for number in range(count)]
    text = "".join(f"{question}\n/save {file}\n/load {file}\n" for question in questions)
    began, memory = time.perf_counter(), []
    chat = ("chat", "demo", *SHORT, "--max-context", "400")
    program = processes.Program(*chat, text=text, **_home(place / "home"))
    while program.process.exitcode is None:
        with suppress(psutil.Error):
            memory.append(psutil.Process(program.pid).memory_info().rss / 1e6)
        time.sleep(0.1)
    done = program.ended()
    messages = json.loads(file.read_text())["messages"]
    asked = [message["content"] for message in messages if message["role"] == "user"]
    figures = {
        "seconds": round(time.perf_counter() - began),
        "messages": len(messages),
        "kB": file.stat().st_size // 1000,
        "MB at a third and at the end": [round(memory[len(memory) // 3]), round(memory[-2])],
    }
    report.row(f"{count} turns with /save and /load", figures)
    report.ends(done, f"a chat of {count} turns")
    report.holds(len(messages) == 2 * count, f"{len(messages)} messages of {count} turns")
    report.holds(asked == questions, "messages are in another order")


ENDS = (b"(stopped)", b"tokens per step")
"""The text on the screen after the end of a reply."""


def interruptions(report: Report, args: Namespace, place: Path) -> None:
    """Ctrl-C at random moments; the next reply is that of a fresh chat."""
    count, draw, file = 15 if args.quick else 200, random.Random(1), place / "reply.json"
    stopped = 0
    options = ("--temperature", "0", "-n", "300", "--ignore-eos")
    with Terminal("chat", "demo", *options, lines=50, env=_home(place)) as chat:
        chat.wait("/help")
        chat.wait(lambda _: any(row.startswith(">") for row in chat.rows()), "prompt")

        def reply() -> str:
            file.unlink(missing_ok=True)
            for line in ("/reset", "/set max-new-tokens 24", QUESTION, f"/save {file}"):
                chat.enter(line)
                chat.read(0.05)
            chat.wait(lambda _: file.exists(), "the file")
            chat.enter("/set max-new-tokens 300")
            return str(json.loads(file.read_text())["messages"][-1]["content"])

        fresh = reply()
        for number in range(count):
            chat.enter(f"Tell me everything, please, number {number}.")
            chat.read(draw.choice((0.0, draw.random() * 0.1, draw.random() * 0.6)))
            before = len(chat.raw)
            chat.send("\x03")
            # What is typed before a reply has stopped stays in the input.
            until = time.monotonic() + 3
            while not any(end in chat.raw[before:] for end in ENDS) and time.monotonic() < until:
                chat.read(0.05)
            stopped += b"(stopped)" in chat.raw[before:]
            chat.send("\x15")  # Ctrl-C before Enter was read leaves the message in the input
            got = reply()
            report.holds(got == fresh, f"after Ctrl-C {number}: {got!r} in place of {fresh!r}")
        chat.enter("/exit")
        code = chat.close()
    report.row(f"{count} Ctrl-C at random moments", {"replies stopped": stopped, "exit code": code})
    report.holds(code == 0, f"the chat ends with {code}")


# Kills.


def kills(report: Report, args: Namespace, place: Path) -> None:
    """SIGKILL at random moments of a chat: finished replies are kept, and the chat can go on."""
    count, draw = 4 if args.quick else 30, random.Random(2)
    lost = finished = 0
    for number in range(count):
        home = _home(place / f"killed-{number}")
        with Terminal("chat", "demo", *SHORT, lines=60, env=home) as chat:
            chat.wait("/help")
            until = time.monotonic() + draw.random() * 4
            for message in range(1000):
                chat.enter(f"message {message} of {number}")
                chat.read(draw.random() * 0.3)
                if time.monotonic() > until:
                    break
            os.kill(chat.child.pid, signal.SIGKILL)
            chat.read(0.3)
            done = len(FINISHED.findall(chat.text()))
        file = place / f"killed-{number}.json"
        again = ("chat", "demo", "--continue", *SHORT)
        went_on = processes.lade(*again, text=f"/save {file}\none more\n", **home)
        if done == 0 and "there is no conversation" in went_on.stderr:
            continue
        report.ends(went_on, f"--continue after kill {number}")
        messages = json.loads(file.read_text())["messages"] if file.exists() else []
        replies = [message for message in messages if message["role"] == "assistant"]
        whole = sum(bool(reply["content"]) and not reply["interrupted"] for reply in replies)
        finished += done
        lost += max(done - whole, 0)
        report.holds(whole >= done, f"kill {number}: {whole} of {done} replies")
    report.row(f"{count} SIGKILLs of a chat", {"finished replies": finished, "lost": lost})


def kills_of_writers(report: Report, args: Namespace, place: Path) -> None:
    """SIGKILL while answers, a profile or a result is written: the file is old, new or none."""
    count, draw = 3 if args.quick else 30, random.Random(3)
    result, home = place / "result.json", _home(place / "home")
    small = place / "small.jsonl"
    small.write_text('{"prompt": "def "}\n')
    methods = ("--strategies", "autoregressive,lookahead", "--repeat", "1", "-n", "8")
    chat = ("chat", "demo", QUESTION, "-n", "40")
    bench = ("bench", "demo", "--prompts", str(small), *methods, "--report", str(result))
    # A command, the file that it writes, and what reads that.
    commands = {
        "answers": (chat, place, chat),
        "tune": (TUNE, place, ("profiles",)),
        "bench": (bench, result, ("bench", "compare", str(result), str(result))),
    }
    for name, (arguments, file, reader) in commands.items():
        times = []
        for _ in range(4):
            began = time.perf_counter()
            whole = processes.lade(*arguments, **home)
            times.append(time.perf_counter() - began)
            report.ends(whole, name)
        usual = min(times[1:])  # the first one reads files anew
        killed = runs = 0
        while killed < count and runs < 4 * count:  # a run may end before its moment
            runs += 1
            program = processes.Program(*arguments, **home)
            # Half of them at the end, when files are written.
            time.sleep(usual * draw.choice((draw.random(), 0.8 + 0.2 * draw.random())))
            if program.process.exitcode is None:
                os.kill(program.pid, signal.SIGKILL)
            program.wait()
            killed += program.ended().returncode == -signal.SIGKILL
            if file.exists():
                read = processes.lade(*reader, **home)
                sound = read.returncode == 0 and "left out" not in read.stderr
                report.holds(sound, f"{name}: a file is damaged after run {runs}")
        left = len([*place.rglob(".*.tmp")])
        figures = {"killed at work": killed, "runs": runs, "temporary files left": left}
        report.row(f"{count} SIGKILLs of {name}", figures)


# Disks.


@contextmanager
def _disk(place: Path) -> Iterator[Path]:
    """Return a small disk with a folder for a user."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    (place / "home").mkdir()
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def disks(report: Report, args: Namespace, place: Path) -> None:
    """A full disk, and a read-only one: answers still come."""
    if os.name != "posix" or os.geteuid() != 0:
        print("disks: left out, for only root can mount them", file=sys.stderr)
        return
    with _disk(place / "full") as full:
        chat = full / "chat.json"
        (full / "filling").write_bytes(b"x" * 100_000)
        with open(full / "rest", "wb", buffering=0) as rest, suppress(OSError):
            while True:
                rest.write(b"x" * 4096)
        _on_a_disk(report, "full", full)
        report.holds(not chat.exists(), "a file was begun on a full disk")
    with _disk(place / "fixed") as fixed:
        subprocess.run(["mount", "-o", "remount,ro", str(fixed)], check=True)
        _on_a_disk(report, "read-only", fixed)


def _on_a_disk(report: Report, kind: str, disk: Path) -> None:
    """Check the output of commands if nothing can be written."""
    answer, chat = (*GENERATE, "-n", "8"), ("chat", "demo", *SHORT)
    works, fails = (0,), (1, 2)
    calls: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]] = {
        "generate": (answer, "", works),
        "--trace": ((*answer, "--trace", str(disk / "trace")), "", fails),
        "chat": (chat, f"{QUESTION}\nagain\n", works),
        "/save": (chat, f"{QUESTION}\n/save {disk / 'chat.json'}\n", fails),
        "tune": (TUNE, "", fails),
        "config init": (("config", "init"), "", fails),
        "doctor": (("doctor",), "", works),
        "models": (("models",), "", works),
    }
    codes = {}
    for name, (arguments, text, expected) in calls.items():
        done = processes.lade(*arguments, text=text, **_home(disk / "home"))
        codes[name] = done.returncode
        report.ends(done, f"{kind} disk, {name}", expected)
        unsound = "Traceback" in done.stderr or "--debug shows" in done.stderr
        said = done.stderr.strip().rpartition("\n")[2].startswith("lade: ")
        report.holds(not unsound and (said or not done.returncode), f"{kind} disk, {name}: errors")
    report.row(f"a {kind} disk", {"exit codes": codes})


# Simultaneous programs.


def company(report: Report, args: Namespace, place: Path) -> None:
    """Two programs at once on one config, profile and folder of chats and answers."""
    rounds, home = 2 if args.quick else 20, _home(place / "home")
    chat = ("chat", "demo", QUESTION, "-n", "40")
    calls = [*[("config", "init", "--force"), chat] * rounds, TUNE]
    for arguments in calls:
        both = [processes.Program(*arguments, **home) for _ in range(2)]
        for done in [program.ended() for program in both]:
            report.ends(done, f"{arguments[0]} beside itself")
    for _ in range(rounds):
        with (
            Terminal("chat", "demo", *SHORT, env=home) as one,
            Terminal("chat", "demo", *SHORT, env=home) as other,
        ):
            for chat in (one, other):
                chat.wait("/help")
                chat.enter(QUESTION)
            for chat in (one, other):
                chat.wait("tokens in")
                chat.enter("/exit")
            report.holds((one.close(), other.close()) == (0, 0), "a chat beside another fails")
    report.ends(processes.lade("config", **home), "the config file")
    report.holds(
        "left out" not in processes.lade("profiles", **home).stderr, "a profile is damaged"
    )
    chats = [*(place / "home").rglob("chats/*.jsonl")]
    report.holds(len(chats) == min(2 * rounds, 100), f"{len(chats)} chats of {2 * rounds}")
    whole = [len(path.read_text().splitlines()) >= 2 for path in chats]
    report.holds(all(whole), "a chat has the lines of another")
    report.row(f"{len(calls) + rounds} pairs of programs at once", {"chats": len(chats)})


def _home(place: Path) -> dict[str, str]:
    """Return the variables of a user's own folders."""
    kinds = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME")
    return dict.fromkeys(kinds, str(place))


PARTS = {
    "long": long_session,
    "turns": turns,
    "interruptions": interruptions,
    "kills": kills,
    "writers": kills_of_writers,
    "disks": disks,
    "company": company,
}


if __name__ == "__main__":
    sys.exit(run_parts(argument_parser(__doc__), PARTS))
