"""Programs that begin with everything imported: `lade` in forks of one process.

Importing torch and transformers takes five seconds of the processor, which is most of the life of
a short program, and other tests start it as people do.  Here a server imports it all once, and
every program is a fork of it with arguments, variables and streams of its own: the same
`run_and_exit`, in a process of its own.  What is read while modules are imported (the hub's address
and folder, say) is the server's, and not the program's.
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
"""To wait for the end of a program, on a machine that is busy."""
SERVER = multiprocessing.get_context("forkserver")
"""Its processes begin with everything imported, whatever they run."""
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
        """The one line that a command says in place of an answer, after the program's name."""
        assert (self.code, self.out) == (code, ""), self.err
        assert self.err.startswith("lade: ")
        assert self.err.count("\n") == 1
        return self.err[len("lade: ") :]


class Forked:
    """`lade` as a process of its own, in a process group of its own.

    Args:
        streams: standard input, output and errors; they stay open here.
        env: all its variables.
        terminal: whether the streams are a terminal, which becomes the program's own.
        ranks: whether ranks that it starts are forks of it, and import nothing anew either.
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
        # The one kind of object that carries a descriptor to such a process.
        lent = [None if s is None else Connection(os.dup(s)) for s in streams]
        args = ([*arguments], lent, {**env}, os.getcwd(), terminal, ranks, main)
        self.process = SERVER.Process(target=_run, args=args, daemon=True)
        self.process.start()
        for connection in filter(None, lent):
            connection.close()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self, seconds: float = SECONDS) -> int:
        """The exit code, as `subprocess` has it."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the program does not end"
        return self.process.exitcode


class Program(Forked):
    """A program whose streams are files; it reads `text`, and has variables beside the test's."""

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
    """Run a function of a module where ranks that it starts are forks; the exit code, 1 if it
    fails."""
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
        program = Forked(command[2:], [theirs] * 3, os.environ if env is None else env, True)
        os.close(theirs)
        return _Child(program, ours)


class _Child(ptyprocess.PtyProcess):
    """Its end is known to the server, whose child it is."""

    def __init__(self, program: Forked, fd: int) -> None:
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
    """Ranks are spawned, and each would import everything anew."""
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
    """The program, in a process that has just begun."""
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
