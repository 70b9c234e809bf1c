"""Parts of a check: each has a limit of time, may fail alone, and leaves what it found so far."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

DONE, FAILED, LATE, LEFT = "done", "failed", "out of time", "left out"
"""What became of a part."""
SPARE = 3.0
"""Seconds kept for the summary; a part that would have less than `LEAST` is not begun."""
LEAST = 1.0
AGAIN = 10.0
"""Seconds after which a part whose time is over is told so again: a destructor that was running may
have swallowed it."""
HUNG = 10.0
"""Seconds beyond its limit after which a part within a call that never returns ends the process."""


class OutOfTime(BaseException):
    """A part's time is over; no `except Exception` on the way may take it for a failure."""


class LeftOut(Exception):
    """A part cannot be done here, for the reason that this says."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Break work off after so many seconds.

    Within a call into C that never returns nothing can: `Journal` may end the process then.

    Raises:
        OutOfTime: in the work, wherever it is.
    """

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's limit, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3))


class Journal:
    """All that a check finds, in a file that is whole at any moment.

    Args:
        path: of the JSON file; its folder is made.
        seconds: that the whole check may take.
        say: told one line per part.
        clock: seconds, ascending.
        resume: whether to go on with the file, whose parts are not done again.
        ends: whether a part that hangs ends the process.

    Attributes:
        data: the figures; whoever measures writes here as it goes.
        lost: whether the GPU answers nothing but errors in this process.
    """

    def __init__(
        self,
        path: Path,
        seconds: float,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
        *,
        resume: bool = False,
        ends: bool = False,
    ) -> None:
        self.data: dict[str, Any] = {"version": 1, "parts": {}}
        if resume and path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
        self._before = float(self.data.get("seconds", 0.0))
        parts = self.data["parts"]
        if underway := self.data.pop("underway", None):
            parts[underway] = {"state": FAILED, "reason": "the process ended within it"}
        self._earlier = {name: part["state"] for name, part in parts.items()}
        self.lost = False
        self._ends = ends
        self._path = path
        self._say = say
        self._clock = clock
        self._began = clock()
        self._seconds = seconds

    @property
    def left(self) -> float:
        """Seconds that parts may still take."""
        return self._seconds - SPARE - (self._clock() - self._began)

    def had(self, name: str) -> bool:
        """Whether a part was done, or tried, by a process before this one."""
        return name in self._earlier

    def part(
        self, name: str, limit: float, work: Callable[[], None], *, anew: bool = False
    ) -> bool:
        """Do a part, and note what became of it; nothing but Ctrl-C ends the check.

        Args:
            name: of the part.
            limit: seconds that it may take, if the whole check has as many left.
            work: writes what it finds to `data` as it goes.
            anew: whether it is done again though an earlier process has done it.

        Returns:
            Whether it was done, now or earlier.
        """
        done_before = self._earlier.get(name) == DONE
        if self.lost or (self.had(name) and not (anew and done_before)):
            return done_before and not self.lost
        if self.left < LEAST:
            self._note(name, LEFT, 0.0, "no time was left")
            return False
        began, reason, state = self._clock(), "", DONE
        trace: list[str] = []
        allowed = min(limit, self.left)
        self.data["underway"] = name
        self.save()
        try:
            with limited(allowed), self._hanging(allowed + HUNG):
                work()
        except OutOfTime:
            state, reason = LATE, f"after {allowed:.0f} s"
        except LeftOut as why:
            state, reason = LEFT, str(why)
        except Exception as error:
            state, reason = FAILED, told(error)
            trace = places(error)
            # Frames hold tensors, and the next part needs their memory.
            traceback.clear_frames(error.__traceback__)
        self._note(name, state, self._clock() - began, reason, trace)
        return state == DONE

    def skip(self, names: list[str], reason: str) -> None:
        """Note parts that are not even tried."""
        for name in names:
            if not self.lost and not self.had(name):
                self._note(name, LEFT, 0.0, reason)

    @contextlib.contextmanager
    def _hanging(self, seconds: float) -> Iterator[None]:
        """End the process, and say where it was, if work takes so long that it must hang."""
        if not self._ends:
            yield
            return
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _note(
        self, name: str, state: str, seconds: float, reason: str, trace: list[str] | None = None
    ) -> None:
        found: dict[str, Any] = {"state": state, "seconds": round(seconds, 2)}
        found |= {"reason": reason} if reason else {}
        found |= {"trace": trace} if trace else {}
        self.data["parts"][name] = found
        self.data.pop("underway", None)
        self._say(f"{name}: {state}, {seconds:.1f} s{': ' if reason else ''}{reason}")
        self.save()
        if torch.cuda.is_available():
            gc.collect()
            # A GPU that has met a fault answers nothing but errors.
            try:
                # Nor does it answer at all while a kernel runs that never ends.
                with self._hanging(HUNG):
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
            except RuntimeError as error:
                self.lost = True
                self._say(f"the GPU is lost to this process: {told(error)}")

    def save(self) -> None:
        """Write the file anew, in one go: the machine may be gone the next moment."""
        self.data["seconds"] = round(self._before + self._clock() - self._began, 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        # A figure that is no number is none: JSON has no word for it.
        beside.write_text(json.dumps(_finite(self.data), indent=1, allow_nan=False) + "\n")
        beside.replace(self._path)


def told(error: BaseException) -> str:
    """An error in one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def places(error: BaseException) -> list[str]:
    """Where an error came from, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        # Six digits say all that was measured.
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return value
