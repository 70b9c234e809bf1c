"""The exchange of messages between ranks: torch.distributed over gloo.

Messages are made and read on the host, so gloo carries them between GPUs too: a process that ends
closes its connections, and the others notice at once.  NCCL carries the sums of a split model.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from ..errors import RankError

T = TypeVar("T")

MESSAGE_BYTES = 1 << 13
"""The most bytes of a message that takes one round; a step of 60 tokens with their successors has
about 4,000."""
_POLL = 0.25
"""Seconds between looks for processes that ended."""
_LAST_WORDS = 1.0
"""Seconds to find out why a connection broke."""
_FOREVER = timedelta(days=365)
"""A chat may pause between two messages for as long as it likes."""


class DistributedTransport:
    """Exchanges messages between ranks that are processes; call `connect` first.

    Calls of torch that wait for other ranks are made in a thread, so that Ctrl-C is handled
    meanwhile; a call that it interrupts is finished before the next one begins.  The threads share
    nothing but a `SimpleQueue`: Ctrl-C while a future is waited for can leave its lock taken.

    Args:
        rank: the number of this rank.
        size: the number of ranks.
        meeting: the address at which they meet; see `torch.distributed.init_process_group`.
        failure: says which rank's process has ended and how, or returns None while all run; None if
            that cannot be known.

    Attributes:
        rank, size: see the arguments.
        lost: why the ranks cannot go on; None as long as they can.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        meeting: str = "env://",
        failure: Callable[[], str | None] | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.lost: RankError | None = None
        self._meeting = meeting
        self._failure = failure
        self._group: dist.ProcessGroup | None = None
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]]] = SimpleQueue()

    def connect(self, device: str = "cpu", *, split: bool = False) -> None:
        """Wait for all ranks, and connect with them.

        Args:
            device: the device of this rank's model: "cpu", or "cuda:N" with a GPU for each rank.
            split: True if each rank holds a part of one model.

        Raises:
            RankError: a rank failed.
        """
        gpu = device.startswith("cuda")

        def connect() -> None:
            if gpu:
                torch.cuda.set_device(device)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu and split else "gloo",
                init_method=self._meeting,
                rank=self.rank,
                world_size=self.size,
                timeout=_FOREVER,
            )
            # Another group, in case an interrupted forward of a split model left data unread.
            self._group = dist.new_group(backend="gloo", timeout=_FOREVER)

        if gpu:
            torch.cuda.set_device(device)
        threading.Thread(target=self._make_calls, daemon=True).start()
        self._wait(connect)

    def gather(self, mine: Any) -> list[Any]:
        """Return the object of every rank, by rank; objects are pickled.

        Raises:
            RankError: a rank is gone.
        """
        data = pickle.dumps(mine)

        def exchange() -> list[bytes]:
            # Nearly all messages fit into this size, so that one round suffices.
            received = self._gather_bytes(data, MESSAGE_BYTES)
            most = max(size for size, _ in received)
            if most > MESSAGE_BYTES:
                received = self._gather_bytes(data, most)
            return [content for _, content in received]

        return [pickle.loads(content) for content in self._wait(exchange)]

    def _gather_bytes(self, data: bytes, room: int) -> list[tuple[int, bytes]]:
        """Return how many bytes every rank has, and at most the first `room` of them."""
        head = len(data).to_bytes(8, "little")
        sent = torch.frombuffer(bytearray(head + data[:room].ljust(room)), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent, group=self._group)
        messages = [bytes(tensor.numpy()) for tensor in received]
        sizes = [int.from_bytes(message[:8], "little") for message in messages]
        return [(size, raw[8 : 8 + size]) for size, raw in zip(sizes, messages, strict=True)]

    @property
    def other(self) -> str:
        """The name of another rank, in a message that cannot say which one."""
        return f"rank {1 - self.rank}" if self.size == 2 else "another rank"

    def lose(self, reason: str) -> RankError:
        """Record why the ranks cannot go on; the first reason counts."""
        self.lost = self.lost or RankError(reason)
        return self.lost

    def explain(self) -> RankError | None:
        """Return why the ranks cannot go on after an error; None if that is unknown."""
        deadline = time.monotonic() + _LAST_WORDS
        while self._failure is not None and time.monotonic() < deadline:
            if reason := self._failure():
                self.lost = RankError(reason)
                break
            time.sleep(0.01)
        return self.lost

    def close(self) -> None:
        """Leave the group; ranks that still wait for this one lose it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which waits for other ranks."""
        if self.lost is not None:
            raise self.lost
        answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self._calls.put((call, answers))
        while (answer := _next(answers)) is None:
            if self._failure is not None and (reason := self._failure()):
                raise self.lose(reason)
        result, error = answer
        if isinstance(error, RuntimeError):
            raise self.explain() or self.lose(f"{self.other} ended") from error
        if error is not None:
            raise error
        return cast("T", result)

    def _make_calls(self) -> None:
        """Make one call after the other, as long as the process lives."""
        while True:
            call, answers = self._calls.get()
            answers.put(_outcome(call))


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return the result of a call and the error that it raised."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _next(queue: SimpleQueue[T]) -> T | None:
    """Return what arrives within `_POLL` seconds, or None."""
    with contextlib.suppress(Empty):
        return queue.get(timeout=_POLL)
    return None


def weights_digest(model: nn.Module) -> str:
    """Return a digest of some bytes of all parameters and buffers in memory, to compare models."""
    digest = hashlib.sha256()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.numel() and tensor.device.type != "meta":
            part = tensor.detach().as_subclass(torch.Tensor)
            while not part.is_contiguous():
                part = part[0]
            raw = part.reshape(-1).view(torch.uint8)
            # With an odd distance, every byte of an element is sampled.
            digest.update(bytes(raw[:: (raw.numel() // 64) | 1].tolist()))
    return digest.hexdigest()
