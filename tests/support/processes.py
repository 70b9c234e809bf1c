"""Programs that start with everything imported: `lade` in forks of one process.

Importing torch and transformers takes five seconds, which is most of the time of a short program;
other tests start the program as users do.  Here a server imports all modules once, and every
program is a fork of it with its own arguments, variables and streams, which runs the same
`run_and_exit`.  Values that are read during imports (such as the hub's address and folder) are the
server's, not the program's.
"""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pexpect
import ptyprocess

SECONDS = 120.0
"""Seconds to wait for the end of a program, enough for a busy machine."""
SERVER = multiprocessing.get_context("forkserver")
"""Starts processes with everything imported."""
SERVER.set_forkserver_preload(["tests.support.preloaded"])
Stream = int | None
"""A file descriptor that becomes a standard stream; None for one that is closed."""


class Result:
    """Exit code, standard output and standard error of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self, code: int = 0) -> Any:
        """The object that a command printed, which ended with this exit code."""
        (row,) = self.rows(code)
        return row

    def rows(self, code: int = 0) -> list[Any]:
        """The objects that a command printed, one a line; the same."""
        assert self.code == code, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, code: int = 2) -> str:
        """The one line of error that a command prints, after the program's name."""
        assert (self.code, self.out) == (code, ""), self.err
        assert self.err.startswith("lade: ")
        assert self.err.count("\n") == 1
        return self.err[len("lade: ") :]


class Fork:
    """`lade` as a separate process, in its own process group.

    Args:
        streams: standard input, output and errors; they stay open here.
        env: all its variables.
        terminal: True if the streams are a terminal, which becomes the program's own.
        ranks: True if ranks that it starts are forks of it, which import nothing again either.
        main: the function that runs with the arguments, if not the program itself.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        streams: Sequence[Stream],
        env: Mapping[str, str],
        terminal: bool = False,
        ranks: bool = False,
        main: Callable[[], None] | None = None,
    ) -> None:
        # Only this type of object can carry a descriptor to such a process.
        lent = [None if s is None else Connection(os.dup(s)) for s in streams]
        args = ([*arguments], lent, {**env}, os.getcwd(), terminal, ranks, main)
        self.process = SERVER.Process(target=_run, args=args, daemon=True)
        self.process.start()
        for connection in filter(None, lent):
            connection.close()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self, seconds: float = SECONDS) -> int:
        """Return the exit code, as in `subprocess`."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the program does not end"
        return self.process.exitcode


class Program(Fork):
    """A program whose streams are files; it reads `text`, and has additional variables."""

    def __init__(self, *arguments: str, text: str = "", **env: str) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115  (`ended`)
        self._files[0].write(text.encode())
        self._files[0].seek(0)
        super().__init__(arguments, [file.fileno() for file in self._files], os.environ | env)
        self.arguments = arguments

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        code, texts = self.wait(), []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode())
            file.close()
        return subprocess.CompletedProcess(self.arguments, code, *texts[1:])


def lade(*arguments: str, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, see `Program`."""
    return Program(*arguments, text=text, **env).ended()


def with_ranks(work: Callable[[], None]) -> int:
    """Run a function of a module whose ranks are forks; return the exit code, 1 if it fails."""
    process = SERVER.Process(target=_work, args=(work, {**os.environ}), daemon=True)
    process.start()
    process.join(SECONDS)
    code = process.exitcode
    process.kill()
    assert code is not None, "the program does not end"
    return code


class Spawn(pexpect.spawn):
    """`pexpect.spawn` for commands that begin with `python -m ladecli`."""

    def _spawnpty(
        self, args: list[str] | list[bytes], env: Mapping[str, str] | None, **options: Any
    ) -> Any:
        _, *command = map(os.fsdecode, args)
        assert command[:2] == ["-m", "ladecli"]
        ours, theirs = pty.openpty()
        ptyprocess.ptyprocess._setwinsize(ours, *options["dimensions"])
        program = Fork(command[2:], [theirs] * 3, os.environ if env is None else env, True)
        os.close(theirs)
        return _Child(program, ours)


class _Child(ptyprocess.PtyProcess):
    """A child of the server, which reports its end."""

    def __init__(self, program: Fork, fd: int) -> None:
        super().__init__(program.pid, fd)
        self.program = program

    def isalive(self) -> bool:
        code = self.program.process.exitcode
        if code is not None:
            self.terminated = True
            self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        return not self.terminated

    def wait(self) -> int | None:
        self.program.wait()
        self.isalive()
        return self.exitstatus


def _let_ranks_fork() -> None:
    """Let ranks be forks; if they were spawned, each would import everything again."""
    forks = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: forks  # type: ignore[assignment]


def _work(work: Callable[[], None], env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.current_process().daemon = False  # which might start none of its own
    _let_ranks_fork()
    work()


def _run(
    arguments: list[str],
    streams: Sequence[Connection | None],
    env: dict[str, str],
    folder: str,
    terminal: bool,
    ranks: bool,
    main: Callable[[], None] | None,
) -> None:
    """Run the program, in a new process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.current_process().daemon = False  # see `_work`
    # Tests in the background of a script ignore Ctrl-C, and those after `nohup` a hangup; what a
    # terminal starts ignores neither.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    if terminal:
        assert streams[0] is not None
        fcntl.ioctl(streams[0].fileno(), termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        if stream is None:
            os.close(number)
        else:
            os.dup2(stream.fileno(), number)
            stream.close()
    # As Python opens them at its start; the encoding is that of the terminal, or a variable's.
    coding = env.get("PYTHONIOENCODING", "utf-8")
    opened = [
        None
        if stream is None
        else io.TextIOWrapper(
            open(number, "rb" if number == 0 else "wb", closefd=False),  # noqa: SIM115  (they live on)
            encoding=coding,
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
        )
        for number, stream in enumerate(streams)
    ]
    sys.stdin, sys.stdout, sys.stderr = opened
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = opened
    sys.argv = ["lade", *arguments]
    if ranks:
        _let_ranks_fork()

    from ladecli.__main__ import run_and_exit

    (main or run_and_exit)()
