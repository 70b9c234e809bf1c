"""What was measured so far, on disk round by round: an unfinished benchmark can go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .. import outputs
from ..errors import LadeError, told
from . import record
from .result import Failure, Run, Skipped


@dataclass(frozen=True, slots=True)
class Round:
    """All contenders on one row, once.

    Attributes:
        repeat: from 1 on.
        row: id of the row.
        runs: of all that could answer, turn by turn.
        failures: of the others.
        skipped: turns that could not be had.
    """

    repeat: int
    row: str
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()
    skipped: tuple[Skipped, ...] = ()


class Journal:
    """A file with one line for each round, under a name that only the same benchmark has.

    A half-written last line, of a process that was killed, is passed over.  Where it cannot be
    written, the user is told once, and the benchmark goes on.

    Args:
        identity: what must be the same for runs to be put together; anything that JSON takes.
        say: shows a line to the user.

    Attributes:
        keeps: whether rounds could be kept so far.
    """

    def __init__(self, identity: Any, say: Callable[[str], None] = lambda _line: None) -> None:
        text = json.dumps(identity, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:20]
        self._path = _folder() / f"{key}.jsonl"
        # What a benchmark that began anew left of the one before it.
        self._old = self._path.with_suffix(".old")
        # Given back by the system when this process ends, however it does.
        self._lock = FileLock(self._path.with_suffix(".lock"), blocking=False)
        self._foreign = False
        self._say = say
        self.keeps = True

    def claim(self) -> None:
        """Take the file for this benchmark alone.

        Rounds of two that run at the same time would be put together as those of one: where
        another process has the file, it is left alone, and nothing of this benchmark is kept.
        """
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._lock.acquire()
            except NotImplementedError:
                pass  # some file systems know no locks
            except Timeout:
                self._foreign = True
                raise LadeError("another process is at work on the same benchmark") from None

    def rounds(self) -> list[Round]:
        """Those that were finished, in order: of the newest try, or of one that came further."""
        return max(_read(self._path), _read(self._old), key=len) if not self._foreign else []

    def start(self, rounds: list[Round]) -> None:
        """Begin with these rounds; what the file holds is put aside where there are none."""
        if self._foreign:
            return
        with self._told():
            if not rounds and len(_read(self._path)) > len(_read(self._old)):
                self._path.replace(self._old)
            text = "".join(_line(each) + "\n" for each in rounds)
            outputs.write_whole(self._path, text, "the journal")

    def add(self, finished: Round) -> None:
        """Append a round."""
        if self._foreign:
            return
        with self._told(), self._path.open("a", encoding="utf-8") as file:
            file.write(_line(finished) + "\n")

    def end(self) -> None:
        """The benchmark is finished: nothing is left to go on with."""
        if self._foreign:
            return
        for path in (self._path, self._old, Path(self._lock.lock_file)):
            with contextlib.suppress(OSError):
                path.unlink()
        self._lock.release(force=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, LadeError) as error:
            if self.keeps:
                self._say(f"nothing is kept for --resume: {told(error)}")
            self.keeps = False


def _read(path: Path) -> list[Round]:
    """The rounds of a file, up to a line that makes no sense; each of them once."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    found: dict[tuple[int, str], Round] = {}
    for line in lines:
        if (each := _round(line)) is None:
            break
        found.setdefault((each.repeat, each.row), each)
    return list(found.values())


def _round(line: bytes) -> Round | None:
    try:
        found: Round = record.adapter(Round).validate_json(line)
    except ValueError:
        return None
    return found


def _line(finished: Round) -> str:
    return str(record.adapter(Round).dump_json(finished).decode())


def _folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("lade", appauthor=False) / "bench"
