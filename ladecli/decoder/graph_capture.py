"""Capture of CUDA graphs: work on the device that is recorded once and launched as a whole."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from weakref import WeakSet

import torch

WARM_UP = 2
"""Runs before a capture: libraries make their handles in the first ones."""

Work = Callable[[], None]
"""Reads and writes tensors whose addresses stay."""
Capture = Callable[[Work], Work]
"""Captures work, after a few runs of it; what it returns does the work again."""


class _Replay:
    """A captured graph, alive as long as this is."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def __call__(self) -> None:
        self._graph.replay()


class GraphCapture:
    """Captures work on a CUDA device; all graphs compute in one pool of memory, one at a time.

    Args:
        device: of the work.
    """

    # torch allows one capture at a time in a process.
    _one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._alive: WeakSet[_Replay] = WeakSet()
        self._pool: Any = None
        self._failed: list[torch.cuda.CUDAGraph] = []

    def __call__(self, work: Work) -> Work:
        """Capture work; see `Capture`.

        Raises:
            RuntimeError: it does what cannot be captured, such as asking the device for a number.
        """
        with self._one, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UP):
                        work()
            finally:
                # What was launched may write to the cache, even if a run broke off.
                current.wait_stream(self._stream)
            replay = self._captured(work, current)
        self._alive.add(replay)
        return replay

    def _captured(self, work: Work, current: torch.cuda.Stream) -> _Replay:
        # torch captures no more into a pool whose last graph is gone.
        if self._pool is None or not self._alive:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            # A capture that cannot be ended leaves its stream the current one: the outer context
            # takes that back.  Other threads may use the GPU meanwhile (thread_local).  Garbage
            # may hold graphs and streams, which must not be destroyed now.
            with (
                _no_garbage_collection(),
                _own_workspaces(),
                torch.cuda.stream(current),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                work()
        except BaseException as error:
            self._mend(graph)
            # That it could not be ended says less than what went wrong before.
            first = error.__context__
            if first is not None and "previous error" in str(error):
                raise first from None
            raise
        return _Replay(graph)

    def _mend(self, graph: torch.cuda.CUDAGraph) -> None:
        """Undo what torch leaves of a capture that could not be ended.

        Its allocator would wait for the end for good, and `torch.cuda.empty_cache` fail; so would
        whatever draws random numbers on the GPU (`CUDAGraph::capture_end` returns early).
        """
        with suppress(RuntimeError):
            graph.pool()
            return  # It did end.
        # The allocator of pinned memory may yet ask it whether it is being captured.
        self._failed.append(graph)
        pool, self._pool = self._pool, None
        index = torch.cuda.current_device()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        with suppress(Exception):
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS take its workspace from the pool of the graph that is captured.

    It keeps one for every stream, to which captured products go on writing; but torch frees them
    whenever some graph of the stream ends (since 2.12, its issue 193402), and when its compiler
    captures.
    """
    # torch without cuBLAS has no such function.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    # The runs before the capture have left one that is not the pool's.
    clear()
    try:
        yield
    finally:
        # The next graph of the pool may take the same memory.
        clear()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
