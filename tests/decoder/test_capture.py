"""What torch does not forgive in captures, against a stand-in that forgives as little.

Its rules are those of torch's allocator: a pool whose last graph is gone takes no other, and a
capture that could not be ended is under way for good, with its stream as the current one.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.capture import WARM_UP, CudaCapture
from ladecli.decoder.errors import DeviceLostError

Pool = tuple[int, int]
HEAP = (0, 0)
"""What everybody's memory is from."""


class Cuda:
    """Stands for `torch.cuda`.

    Attributes:
        users: graphs of each pool that was ever captured into.
        underway: pools that a capture has begun in and not ended.
        current: the current stream.
        log: streams that waited for another one, (who, for whom).
        workspaces: of cuBLAS for each stream, by the pool that they lie in.
        wrote: where the products wrote.
        fault: what every call says from now on.
    """

    def __init__(self) -> None:
        self.users: Counter[Pool] = Counter()
        self.underway: list[Pool] = []
        self.current: Any = self.new_stream("default")
        self.log: list[tuple[str, str]] = []
        self.workspaces: dict[str, Pool] = {}
        self.wrote: list[Pool] = []
        self.fault = ""
        self._pools = 0

    def new_stream(self, name: str = "side") -> Any:
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.log.append((name, other.name)),
            synchronize=self.synchronize,
        )

    def synchronize(self, _device: object = None) -> None:
        if self.fault:
            raise RuntimeError(f"CUDA error: {self.fault}\nand advice")

    def handle(self) -> Pool:
        self._pools += 1
        return 0, self._pools

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Graph, *, pool: Pool, stream: Any, **_: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        if pool in self.users and self.users[pool] == 0:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.users[pool] += 1
        self.underway.append(pool)
        try:
            yield
        except RuntimeError as error:
            if "permitted" in str(error):
                raise RuntimeError("CUDA error: a previous error during capture") from None
            raise
        self.end(pool)
        self.current = before
        graph.ended = pool

    def multiply(self) -> None:
        """A product by cuBLAS, whose workspace is taken when a stream has none."""
        heap = self.underway[-1] if self.underway else HEAP
        self.wrote.append(self.workspaces.setdefault(self.current.name, heap))

    def end(self, pool: Pool) -> None:
        self.underway.remove(pool)

    def release(self, pool: Pool) -> None:
        self.users[pool] -= 1


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.ended: Pool | None = None

    def pool(self) -> Pool:
        if self.ended is None:
            raise RuntimeError("pool() without a preceding successful capture")
        return self.ended

    def replay(self) -> None:
        pass

    def __del__(self) -> None:
        if self.ended is not None:
            self.cuda.release(self.ended)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    for name, stand_in in {
        "device": lambda _: cuda.stream(cuda.current),
        "Stream": cuda.new_stream,
        "stream": cuda.stream,
        "current_stream": lambda *_: cuda.current,
        "current_device": lambda: 0,
        "graph_pool_handle": cuda.handle,
        "CUDAGraph": lambda: Graph(cuda),
        "graph": cuda.graph,
        "synchronize": cuda.synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name, undo in {
        "_cuda_endAllocateToPool": lambda _, pool: cuda.end(pool),
        "_cuda_releasePool": lambda _, pool: cuda.release(pool),
        "_cuda_clearCublasWorkspaces": cuda.workspaces.clear,
    }.items():
        monkeypatch.setattr(torch._C, name, undo, raising=False)
    return cuda


def work() -> tuple[Tensor, ...]:
    return (torch.zeros(1),)


def asking(on: int) -> Any:
    """Work that asks the device for a number: in this run of it that is an error."""
    runs = 0

    def run() -> tuple[Tensor, ...]:
        nonlocal runs
        runs += 1
        if runs == on:
            raise RuntimeError("operation not permitted when stream is capturing")
        return work()

    return run


def test_graphs_share_a_pool_until_the_last_one_is_gone(cuda: Cuda) -> None:
    """Regression: the trial of a model was captured, and nothing else ever after."""
    capture = CudaCapture(torch.device("cuda"))
    held = [capture.capture(work), capture.capture(work)]
    assert dict(cuda.users) == {(0, 1): 2}
    held.clear()
    held.append(capture.capture(work))
    assert dict(cuda.users) == {(0, 1): 0, (0, 2): 1}


def test_a_capture_that_fails_leaves_nothing_behind(cuda: Cuda) -> None:
    capture = CudaCapture(torch.device("cuda"))
    kept = capture.capture(work)
    default = cuda.current
    with pytest.raises(RuntimeError, match="not permitted"):
        capture.capture(asking(WARM_UP + 1))
    assert cuda.current is default
    assert not cuda.underway
    assert dict(cuda.users) == {(0, 1): 1}
    again = capture.capture(work)
    assert sum(cuda.users.values()) == 2
    assert kept is not again


def test_what_a_broken_run_has_launched_is_waited_for(cuda: Cuda) -> None:
    capture = CudaCapture(torch.device("cuda"))
    with pytest.raises(RuntimeError, match="not permitted"):
        capture.capture(asking(WARM_UP))
    assert cuda.log == [("side", "default"), ("default", "side")]
    assert not cuda.users


def test_a_lost_gpu_is_told_from_work_that_cannot_be_captured(cuda: Cuda) -> None:
    capture = CudaCapture(torch.device("cuda"))

    def astray() -> tuple[Tensor, ...]:
        cuda.fault = "an illegal memory access was encountered"
        raise RuntimeError("CUDA error: whatever came to light first")

    capture.wait()
    with pytest.raises(DeviceLostError, match=r"\(CUDA error: an illegal memory access was enc"):
        capture.capture(astray)
    with pytest.raises(DeviceLostError) as told:
        capture.wait()
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(
        "; start again, if it comes back with --no-cuda-graphs --attention sdpa, and if even then,"
        " after `pip uninstall triton`, which lade's own kernels need"
    )
    # Nothing is lost while another capture is under way.
    cuda.fault = "operation not permitted when stream is capturing"
    with pytest.raises(RuntimeError, match="not permitted"):
        capture.wait()


def test_garbage_is_not_collected_while_a_graph_is_captured(cuda: Cuda) -> None:
    """What is in it may be another graph."""
    collected: list[bool] = []

    def seen() -> tuple[Tensor, ...]:
        collected.append(gc.isenabled())
        return work()

    capture = CudaCapture(torch.device("cuda"))
    capture.capture(seen)
    assert collected == [True] * WARM_UP + [False]
    with pytest.raises(RuntimeError, match="not permitted"):
        capture.capture(asking(WARM_UP + 1))
    assert gc.isenabled()


@pytest.mark.parametrize("breaks", [False, True])
def test_products_of_a_graph_write_to_its_own_pool(cuda: Cuda, *, breaks: bool) -> None:
    """However many graphs of the stream end, or compilers capture."""

    def product() -> tuple[Tensor, ...]:
        cuda.multiply()
        return work()

    capture = CudaCapture(torch.device("cuda"))
    first = capture.capture(product)
    if breaks:
        with pytest.raises(RuntimeError, match="not permitted"):
            capture.capture(asking(WARM_UP + 1))
    second = capture.capture(product)
    # What ran before a capture took memory of everybody's.
    assert cuda.wrote[:WARM_UP] == [HEAP] * WARM_UP
    pools = [each for each in cuda.wrote if each != HEAP]
    assert pools == [first._graph.pool(), second._graph.pool()]
    # What an eager product takes next is none of theirs.
    with cuda.stream(capture._stream):
        cuda.multiply()
    assert cuda.wrote[-1] == HEAP
