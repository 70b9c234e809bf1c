"""CUDA graphs: work on the device that is recorded once, and launched as a whole from then on.

Launching the kernels of a forward one by one takes the host longer than a fast GPU takes to run
them.  A graph is launched in one call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from .errors import DeviceLostError
from .places import devices_of
from .uncollected import uncollected

WARM_UP = 2
"""Runs before a capture: libraries make their handles in the first ones."""

Work = Callable[[], tuple[Tensor, ...]]
"""Reads tensors at addresses that stay, writes in place, and returns tensors."""


class Captured(Protocol):
    """Work that was captured."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What the work returned: at the same addresses after every replay, until another
        captured work of the same `Capture` is replayed."""

    def replay(self) -> None:
        """Do it again, with what its inputs hold now; returns before it is done."""


class Capture(Protocol):
    """Captures work."""

    def capture(self, work: Work) -> Captured:
        """Run `work` a few times, and record it.

        Whatever Python decides while it runs is decided for good.

        Raises:
            RuntimeError: it does what cannot be captured, such as asking the device for a number.
            DeviceLostError: nothing can be computed any more.
        """

    def wait(self) -> None:
        """Until everything that was launched is done.

        Raises:
            DeviceLostError: it never will be.
        """


class _Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self._graph = graph
        self.outputs = outputs

    def replay(self) -> None:
        self._graph.replay()


class CudaCapture:
    """Captures CUDA graphs, whose intermediate results share one pool of memory.

    Args:
        device: a CUDA device.
    """

    # torch allows no more in a process: the start of one would end another.
    _one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()
        self._pool: Any = None
        self._failed: list[torch.cuda.CUDAGraph] = []

    def capture(self, work: Work) -> Captured:
        """See `Capture`."""
        try:
            return self._capture(work)
        except RuntimeError as error:
            check_alive(self._device, error)
            raise

    def _capture(self, work: Work) -> Captured:
        with self._one, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UP):
                        work()
            finally:
                # What was launched may write to the cache, even if it broke off then.
                current.wait_stream(self._stream)
            captured = self._captured(work, current)
        self._graphs.add(captured)
        return captured

    def _captured(self, work: Work, current: torch.cuda.Stream) -> _Graph:
        # One after the other they can all compute in the same memory.  But torch captures no more
        # into a pool whose last graph is gone.
        if self._pool is None or not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            # A capture that cannot be ended leaves its stream the current one: the outer context
            # takes that back.  Other threads may use the GPU meanwhile; what they do is none of
            # this graph's.  Garbage may hold other graphs and streams, which must not be destroyed
            # now.
            with (
                uncollected(),
                own_workspaces(),
                torch.cuda.stream(current),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                outputs = work()
        except BaseException as error:
            self._mend(graph)
            # That it could not be ended says less than what went wrong before.
            first = error.__context__
            if first is not None and "previous error" in str(error):
                raise first from None
            raise
        return _Graph(graph, outputs)

    def _mend(self, graph: torch.cuda.CUDAGraph) -> None:
        """Undo what torch leaves behind of a capture that could not be ended.

        Its allocator would wait for the end for good, and `torch.cuda.empty_cache` fail; so would
        whatever draws random numbers on the GPU (`CUDAGraph::capture_end`, which returns early).
        """
        with suppress(RuntimeError):
            graph.pool()
            return  # It did end.
        # What waits for memory of the host may ask it yet whether it is being captured.
        self._failed.append(graph)
        pool, self._pool = self._pool, None
        index = torch.cuda.current_device()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        with suppress(Exception):
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())

    def wait(self) -> None:
        """See `Capture`."""
        try:
            torch.cuda.current_stream(self._device).synchronize()
        except RuntimeError as error:
            check_alive(self._device, error)
            raise


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Let cuBLAS take what it writes to from the pool of the graph that is captured within.

    It keeps a workspace for every stream, to which a captured product goes on writing.  But torch
    frees them whenever some graph of the stream ends (since 2.12, see its issue 193402), and when a
    compiler of its own captures.
    """
    # Where torch has no such function, there is no cuBLAS.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    # The runs before a capture have left one that is not the pool's.
    clear()
    try:
        yield
    finally:
        # The next graph of the pool may take the same memory: they compute one after the other.
        clear()


def check_alive(device: torch.device, error: Exception) -> None:
    """Tell an error from a fault that the process cannot get over, such as a kernel that wrote
    where it must not.

    Args:
        device: that work has failed on.
        error: what was said.

    Raises:
        DeviceLostError: it was such a one.
    """
    if isinstance(error, DeviceLostError):
        raise error
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        said = (str(fault).splitlines() or [""])[0]
        # That is no fault: some capture is still under way.
        if "captur" in said:
            return
        raise DeviceLostError(
            f"the GPU has met a fault that only a new process gets over ({said}); start again, if"
            " it comes back with --no-cuda-graphs --attention sdpa, and if even then, after"
            " `pip uninstall triton`, which lade's own kernels need"
        ) from error


def capture_for(model: nn.Module) -> Capture | None:
    """What captures the steps of a model; None off CUDA, and where several devices hold it."""
    devices = {*devices_of(model)}
    if len(devices) != 1:
        return None
    device = devices.pop()
    return CudaCapture(device) if device.type == "cuda" else None
