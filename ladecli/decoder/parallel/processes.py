"""The transport between processes, over torch.distributed."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from .meeting import LOOK, Meeting, Waiting

_FOREVER = timedelta(days=365)
"""Of torch's own timeouts, which end the process: a chat may be idle for days."""
_BUSY = 0.02
"""Seconds of a wait in which nothing else is done: most steps of other ranks end as soon."""
_PAUSE = 0.001
"""Seconds between two looks in a longer wait."""
_IDLE = 0.01
"""Seconds between two looks where nothing is under way."""
_LEAVE = 2.0
"""Seconds that torch may take to end a group."""


class Processes:
    """Ranks that are processes: a `Transport`, and what the leader tells the others beside it.

    While it waits, signals are heard: nothing here blocks for longer than a moment.

    Args:
        meeting: where the ranks have met.
        device: where numbers of a step lie: "cpu", or "cuda:N", of which every rank has its own.

    Raises:
        RankError: a rank is gone.
    """

    def __init__(self, meeting: Meeting, device: str = "cpu") -> None:
        self.meeting = meeting
        self._device = torch.device(device)
        self._sent = torch.empty(0, dtype=torch.int32)
        self._received = torch.empty(0, 0, dtype=torch.int32)
        self._gathered = 0
        self._work: dist.Work | None = None
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._control: dist.ProcessGroup | None = None
        self._init()

    @property
    def rank(self) -> int:
        """This one's number, from 0 on."""
        return self.meeting.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.meeting.size

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers, in the order of the ranks.

        Args:
            numbers: this rank's, each in [-2**31, 2**31), as many as every other rank gives.

        Raises:
            RankError: a rank is gone, or did not answer.
        """
        self._check()
        if self._work is not None:
            # Ctrl-C broke off the wait for the last one, which the others have finished.
            self._await(self._work, self._late)
        if len(numbers) != self._sent.numel():
            shape = (self.size, len(numbers))
            self._sent = torch.empty(len(numbers), dtype=torch.int32, device=self._device)
            self._received = torch.empty(shape, dtype=torch.int32, device=self._device)
        self._sent.copy_(torch.tensor(numbers, dtype=torch.int32))
        self._gathered += 1
        rows = list(self._received.unbind())
        self._work = self._started(lambda: dist.all_gather(rows, self._sent, async_op=True))
        self._await(self._work, self._late)
        self._work = None
        gathered: list[list[int]] = self._received.tolist()
        return gathered

    def tell(self, word: Any) -> None:
        """Say something to all followers, which must `hear` it.

        Args:
            word: whatever can be pickled.

        Raises:
            RankError: a rank is gone.
        """
        self.meeting.round += 1
        data = pickle.dumps(word)
        self._broadcast(torch.tensor([len(data)]))
        self._broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def hear(self) -> Any:
        """Wait, however long, for what the leader tells.

        Raises:
            RankError: a rank is gone.
        """
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(length, idle=True)
        data = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(data)
        self.meeting.round += 1
        return pickle.loads(data.numpy().tobytes())

    def collect(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks, which all call this equally often.

        Raises:
            RankError: a rank failed, or did not answer.
        """
        self._check()
        return self.meeting.collect(text)

    def leave(self) -> None:
        """Leave the group, which ends it for all."""
        # torch may wait for ranks that are gone.
        if self.meeting.lost is None and dist.is_initialized():
            thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
            thread.start()
            thread.join(_LEAVE)

    def _init(self) -> None:
        """Connect the ranks.

        torch hears no signal while it waits for the others, nor that one of them is gone; so it
        waits in a thread.
        """
        errors: list[Exception] = []

        def init() -> None:
            try:
                store = self.meeting.connect()
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo",
                    store=PrefixStore("group", store),
                    rank=self.rank,
                    world_size=self.size,
                    timeout=_FOREVER,
                )
                # A follower that fell out of step must not take one kind of word for another.
                self._control = dist.new_group(backend="gloo", timeout=_FOREVER)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=init, daemon=True)
        thread.start()
        waiting = Waiting(self.meeting)
        while thread.is_alive():
            thread.join(_IDLE)
            waiting.look(lambda: [])
        if errors:
            raise self.meeting.gone() from errors[0]

    def _check(self) -> None:
        if self.meeting.lost is not None:
            raise self.meeting.lost

    def _broadcast(self, tensor: torch.Tensor, *, idle: bool = False) -> None:
        self._check()
        start = self._started(lambda: dist.broadcast(tensor, 0, group=self._control, async_op=True))
        self._await(start, lambda: [], idle=idle)

    def _started(self, start: Callable[[], Any]) -> dist.Work:
        try:
            work: dist.Work = start()
        except RuntimeError as error:
            raise self.meeting.gone() from error
        return work

    def _await(self, work: dist.Work, late: Callable[[], list[int]], *, idle: bool = False) -> None:
        """Wait for what is under way; `work.wait` itself would hear no signal.

        Raises:
            RankError: a rank is gone, or did not answer.
        """
        began = time.monotonic()
        waiting, told = Waiting(self.meeting), False
        while not work.is_completed():
            passed = time.monotonic() - began
            if idle:
                # Whoever ends the leader ends this process, too: see `Meeting`.
                time.sleep(_IDLE if passed > LOOK else _PAUSE)
                continue
            time.sleep(0 if passed < _BUSY else _PAUSE)
            if passed > LOOK:
                if not told:
                    self._say_that_it_waits()
                    told = True
                waiting.look(late)
        try:
            work.wait()
        except RuntimeError as error:
            raise self.meeting.gone() from error

    def _say_that_it_waits(self) -> None:
        try:
            self.meeting.waits(str(self._gathered))
        except RuntimeError as error:
            raise self.meeting.gone() from error

    def _late(self) -> list[int]:
        try:
            return self.meeting.late(str(self._gathered))
        except RuntimeError as error:
            raise self.meeting.gone() from error


def share_cores(size: int) -> Callable[[], None]:
    """Leave the processor's cores to so many ranks; returns what takes them all again."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(before // size, 1))
    return lambda: torch.set_num_threads(before)
