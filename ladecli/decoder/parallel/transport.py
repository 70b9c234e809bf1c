"""How ranks exchange messages: over torch.distributed, NCCL between GPUs and gloo between CPUs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# They are public, and torch's own annotations do not say so.
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ..errors import RankError

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds that rank 0 waits for other ranks; those wait for it as long as it lives."""
_LOOK = 0.25
"""Seconds between looks for ranks that failed."""
_REASON = 1.0
"""Seconds to find out why a connection broke."""
_FOREVER = timedelta(days=365)
"""Between two messages of a chat; torch's own timeout would end the process."""


class DistributedTransport:
    """Ranks that are processes; `connect` comes first.

    All calls of torch that wait for other ranks are made in a thread, so that Ctrl-C is handled
    meanwhile; a call that it breaks off is finished before the next one begins.

    Args:
        rank, size: this rank's number, and how many there are.
        listener: where rank 0 lets others find it; None for what the environment says, see
            `torch.distributed.rendezvous`.
        failure: says which rank's process has ended and how; None while all run.

    Attributes:
        rank, size: as given.
        lost: why the ranks cannot go on, once they cannot.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        listener: socket.socket | None = None,
        failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.rank, self.size = rank, size
        self.lost: RankError | None = None
        self._failure = failure
        self._device = torch.device("cpu")
        self._control: dist.ProcessGroup | None = None
        self._round = 0
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self._store: Any = None
        self._store = self._call(lambda: _open_store(listener))

    def connect(self, device: str = "cpu", threads: int | None = None) -> None:
        """Wait for all ranks, and connect with them.

        Args:
            device: of this rank's model: "cpu", or "cuda:N" with a GPU for each rank.
            threads: of torch's operations on the CPU; None for torch's choice.

        Raises:
            RankError: a rank failed, or did not come.
        """
        self._device = torch.device(device)
        gpu = self._device.type == "cuda"
        if threads is not None:
            torch.set_num_threads(threads)

        def connect() -> None:
            if gpu:
                torch.cuda.set_device(self._device)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu else "gloo",
                store=PrefixStore("ranks", self._store.clone()),
                rank=self.rank,
                world_size=self.size,
                timeout=_FOREVER,
            )
            self._control = dist.new_group(backend="gloo", timeout=_FOREVER)

        if gpu:
            torch.cuda.set_device(self._device)
        self._call(connect)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's int32 numbers, equally many of each, by rank.

        Raises:
            RankError: a rank is gone, or did not answer.
        """

        def exchange() -> list[list[int]]:
            sent = torch.tensor(numbers, dtype=torch.int32, device=self._device)
            received = [torch.empty_like(sent) for _ in range(self.size)]
            dist.all_gather(received, sent)
            gathered: list[list[int]] = torch.stack(received).tolist()
            return gathered

        return self._call(exchange)

    def gather_objects(self, mine: Any) -> list[Any]:
        """Every rank's object, which can be pickled, by rank; errors as in `gather`."""
        objects: list[Any] = [None] * self.size
        self._call(lambda: dist.all_gather_object(objects, mine, group=self._control))
        return objects

    def broadcast(self, task: Any = None, patience: float | None = None) -> Any:
        """Rank 0's object, which can be pickled, on all ranks.

        Raises:
            RankError: a rank is gone, or did not answer.
        """
        box = [task]
        self._call(lambda: dist.broadcast_object_list(box, src=0, group=self._control), patience)
        self._round += 1
        return box[0]

    def fail(self, reason: str) -> None:
        """Leave the reason why this rank cannot do what rank 0 broadcast last; the first counts."""
        with contextlib.suppress(RuntimeError):  # the others are gone
            self._store.compare_set(self._key(), "", f"rank {self.rank} failed: {reason}")

    def lose(self, reason: str) -> RankError:
        """Note that the ranks cannot go on, and why: the first reason counts."""
        self.lost = self.lost or RankError(reason)
        return self.lost

    def explain(self, problem: str) -> RankError:
        """Note a problem with another rank, with the rank's own reason where it leaves one."""
        if self.lost is None:
            self.lost = RankError(problem)
            deadline = time.monotonic() + (_REASON if self.rank == 0 else 0.0)
            while (reason := self.failure()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            self.lost = RankError(reason or problem)
        return self.lost

    def failure(self) -> str | None:
        """Why a rank is known to have failed, or None; only rank 0 finds out."""
        if self.rank > 0 or self._store is None:
            return None
        with contextlib.suppress(RuntimeError):  # the store is gone: so is torchrun
            if self._store.check([self._key()]):
                return str(self._store.get(self._key()).decode())
        return self._failure()

    def close(self) -> None:
        """Leave the group."""
        if self.lost is None and self._control is not None:
            with contextlib.suppress(RankError):
                self._call(dist.destroy_process_group, patience=2.0)

    def _key(self) -> str:
        return f"failed/{self._round}"

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

    def _call(self, call: Callable[[], T], patience: float | None = None) -> T:
        """What `call` returns, which waits for other ranks."""
        if self.lost is not None:
            raise self.lost
        if patience is None:
            patience = float("inf") if self.rank > 0 else PATIENCE
        other = f"rank {1 - self.rank}" if self.size == 2 else "another rank"
        future: Future[T] = Future()
        self._calls.put((future, call))
        waited = 0.0
        while waited < patience:
            try:
                return future.result(_LOOK)
            except TimeoutError:
                waited += _LOOK  # not by the clock: a process that is suspended does not wait
            except RuntimeError as error:
                raise self.explain(f"{other} ended") from error
            if reason := self.failure():
                raise self.lose(reason)
        raise self.lose(f"{other} did not answer for {patience:.0f} s")


def _open_store(listener: socket.socket | None) -> Any:
    """The store in which ranks find each other, and leave why they failed."""
    if listener is None:
        store, _, _ = next(rendezvous("env://"))
        return store
    host, port = listener.getsockname()[:2]
    descriptor = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
