"""Steps captured as CUDA graphs: one copy in, one launch, logits left at a fixed address.

A small step is hundreds of kernels, whose launches take the host longer than their work takes a
fast GPU.  So a step is padded to one of a few widths, and the whole forward of that width is
captured when it is first needed.  Addresses, shapes and Python's decisions are fixed then; tokens,
positions, mask and the length of the text are read from one buffer on the device.  Prompt chunks,
very wide steps, and steps of a width that cannot be captured run as in `Executor`.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from ..config import CAPTURED_WIDTHS, PREFILL_CHUNK, captured_width
from ..executor import Executor, Read, T
from ..faults import check_alive, is_out_of_memory, reason_of
from ..kv_cache import KVCache, Target, to_device
from ..layout import StepLayout, packed, words_for
from ..model.families import ModelFacts
from ..model.forward import Forward, StepInputs
from ..model.mask import CapturedMask, DeviceMask
from .attention import SDPA
from .quiet import quiet

WARM_UP = 2
"""The number of runs before a capture, in which libraries create their handles."""
MOST_PENDING = 32
"""Steps with more pending tokens are not captured: they end a prompt, and do not recur."""
LEAST_SLOTS = 512
"""The fewest slots of attention; the number grows in powers of two, with a capture for each."""
MOST_GRAPHS = 32
"""The most captured steps; each takes a few MB of the driver's memory."""

Work = Callable[[], None]
"""Reads and writes tensors at fixed addresses."""
Capture = Callable[[Work], Work]
"""Captures work after a few runs of it, and returns a function that repeats the work."""


class GraphCapture:
    """Captures work on a CUDA device; all graphs compute in one pool of memory, one at a time."""

    # torch allows one capture at a time in a process.
    _one: ClassVar[threading.Lock] = threading.Lock()
    _broken: ClassVar[list[torch.cuda.CUDAGraph]] = []

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._pool: Any = None

    def __call__(self, work: Work) -> Work:
        """Capture work; see `Capture`.

        Raises:
            RuntimeError: the work cannot be captured, for example since it waits for the device.
        """
        with self._one, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._warm_up(work, current)
            # torch captures no more into a pool whose last graph is gone.
            if self._pool is None or not self._alive:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # Garbage may hold graphs and streams, which must not be destroyed during a capture.
            collects = gc.isenabled()
            gc.disable()
            # cuBLAS keeps a workspace for every stream, to which captured products go on writing;
            # torch frees them whenever some graph of the stream ends (its issue 193402).  So each
            # capture takes one from the pool of its graph.
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
            clear()
            try:
                # A capture that cannot be ended leaves its stream the current one: the outer
                # context takes that back.  Other threads may use the GPU meanwhile.
                with (
                    torch.cuda.stream(current),
                    torch.cuda.graph(
                        graph,
                        pool=self._pool,
                        stream=self._stream,
                        capture_error_mode="thread_local",
                    ),
                ):
                    work()
            except BaseException as error:
                # The earlier error says more than the failure to end the capture.
                cause = error.__context__ if self._abandon(graph) else None
                raise (cause or error) from None
            finally:
                clear()
                if collects:
                    gc.enable()
        self._alive.add(graph)
        return graph.replay

    def _warm_up(self, work: Work, current: torch.cuda.Stream) -> None:
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP):
                    work()
        finally:
            # Launched kernels may still write to the cache, even after an interrupted run.
            current.wait_stream(self._stream)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> bool:
        """Restore the allocator and random numbers after a capture that could not be ended; return
        True if this was such a capture."""
        with suppress(RuntimeError):
            graph.pool()
            return False
        # torch may yet ask it whether it is being captured.
        self._broken.append(graph)
        index = torch.cuda.current_device()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        with suppress(Exception):
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())
        self._pool = None
        return True


class GraphKey(NamedTuple):
    """The numbers that are fixed in a captured step."""

    width: int  # T, tokens of the step, padding included
    slots: int  # S, the padded KV length
    last_position: int  # which rotary tables it reads; see `RotaryTables.at`


class StaticInputs:
    """The inputs of captured steps of one width, in one buffer on the host and on the device.

    Args:
        width: T.
        device: of the model.

    Attributes:
        tokens, positions: int64 [T].
        mask: the mask, and the length of the text.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._width = width
        self._words = words_for(width)
        sizes = [2 * width, 2 * width, 1, width, width * self._words]
        on_gpu = device.type == "cuda"
        # Pinned: the copy needs no detour, and the host need not wait for it.
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=on_gpu)
        self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        parts = torch.split(self._device, sizes)
        self.tokens, self.positions = (part.view(torch.int64) for part in parts[:2])
        self.mask = DeviceMask(parts[2], parts[3], parts[4].view(width, self._words))
        self._memory = self._host.numpy().data.cast("B")
        self._format = Struct(f"={2 * width}q{1 + width}i{4 * width * self._words}s")
        # A row of padding sees itself, so that no softmax is over nothing.
        self._alone = packed([1 << row for row in range(width)], self._words)
        self._copied: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def send(self, layout: StepLayout, length: int) -> None:
        """Write a step of at most T tokens after `length` committed ones to the device."""
        if self._copied is not None:
            # The last step may have been abandoned before the device read it.
            self._copied.synchronize()
        count = len(layout.tokens)
        padding = self._width - count
        tokens = *layout.tokens, *layout.tokens[:1] * padding
        positions = *layout.positions, *layout.positions[:1] * padding
        rows = packed(layout.rows, self._words) + self._alone[4 * count * self._words :]
        self._format.pack_into(self._memory, 0, *tokens, *positions, length, *positions, rows)
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device.device))


class CapturedCache:
    """The cache of one captured step, whose length only the device knows.

    Args:
        cache: with room for the step.
        length: int32 [1].
        count: T.
        slots: S.
    """

    def __init__(self, cache: KVCache, length: Tensor, count: int, slots: int) -> None:
        self._cache = cache
        self._length = length
        self._count = count
        self._slots = slots
        self._written: Tensor | None = None

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache.write`; returns S slots."""
        if self._written is None:
            self._written = self._length + torch.arange(self._count, device=self._length.device)
        all_keys, all_values = self._cache.layer(index)
        all_keys.index_copy_(1, self._written, keys)
        all_values.index_copy_(1, self._written, values)
        return all_keys[:, : self._slots], all_values[:, : self._slots]

    def target(self, index: int, count: int) -> Target:
        """See `KVCache.target`."""
        return Target(*self._cache.layer(index), self._length, self._slots)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A captured step."""

    inputs: StaticInputs
    replay: Work  # launches the step
    logits: Tensor  # its output, [T, vocabulary]


class CudaGraphs(Executor):
    """Runs steps as CUDA graphs, and those that cannot be captured as in `Executor`.

    Args:
        model, cache, facts, max_context, chunk: see `Executor`.
        capture: captures work; None for CUDA graphs on the model's device.

    Attributes:
        given_up: the first reason why steps of some width are not captured, or None.
    """

    overlaps = True

    def __init__(
        self,
        model: Forward,
        cache: KVCache,
        facts: ModelFacts,
        max_context: int | None = None,
        chunk: int | None = None,
        *,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(model, cache, facts, max_context, chunk)
        self.given_up: str | None = None
        self._capture = capture or GraphCapture(self.device)
        self._steps: OrderedDict[GraphKey, CapturedStep] = OrderedDict()
        self._uncaptured: set[int] = set()  # widths whose capture has failed
        self._inputs: dict[int, StaticInputs] = {}
        # By rows: each is read before the next step is launched, so that steps can share it.
        self._logits: dict[int, Tensor] = {}
        self._allocation = cache.allocation

    def widths(self, limit: int) -> Sequence[int]:
        """See `Executor`."""
        widths = *(width for width in CAPTURED_WIDTHS if width < limit), limit
        captured = {width for width in widths if captured_width(width) not in self._uncaptured}
        return sorted({1, *captured}) if captured else ()

    @torch.inference_mode()
    def launch(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        """See `Executor`; logits stay valid until the next step starts.

        A step that has been captured is launched; otherwise the capture, which takes a moment, is
        delayed until the result is needed.
        """
        width = captured_width(len(layout.tokens))
        fits = layout.pending <= MOST_PENDING and width <= PREFILL_CHUNK
        if self.facts.rope_grows and max(layout.positions) >= (self.facts.rope_boundary or 0):
            fits = False  # no two steps have the same rotary frequencies
        if not fits or width in self._uncaptured:
            return super().launch(layout, read)
        key = self._key(layout, width)
        step = self._steps.get(key)
        if step is None:
            return lambda: read(self._capture_and_run(key, layout))()
        self._steps.move_to_end(key)
        return read(self._replay(step, layout))

    def forget(self) -> None:
        """See `Executor`."""
        if self._steps and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._steps.clear()
        self._inputs.clear()
        self._logits.clear()

    def _key(self, layout: StepLayout, width: int) -> GraphKey:
        """Return the key of the captured step for a layout, after making room in the cache."""
        cache = self.cache
        cache.reserve(cache.length + width)
        if cache.allocation != self._allocation:
            self.forget()
            self._allocation = cache.allocation
        slots = cache.slots
        if not self.model.operations.reads_length:
            needed = max(cache.length + width, LEAST_SLOTS)
            slots = min(1 << (needed - 1).bit_length(), slots)
        # Tables reach as far as any text in this cache.
        last = min(cache.slots, self.max_context) - 1
        boundary = self.facts.rope_boundary
        if boundary is not None and max(layout.positions) < boundary:
            last = min(last, boundary - 1)
        return GraphKey(width, slots, last)

    def _replay(self, step: CapturedStep, layout: StepLayout) -> Tensor:
        step.inputs.send(layout, self.cache.length)
        step.replay()
        return _rows(step.logits, layout.outputs)

    @torch.no_grad()
    def _capture_and_run(self, key: GraphKey, layout: StepLayout, *, again: bool = True) -> Tensor:
        try:
            self._steps[key] = self._make(key, layout)
        except Exception as error:
            check_alive(self.device, error)
            why, again = reason_of(error), again and not is_out_of_memory(error)
        else:
            self.graphs_made += 1
            while len(self._steps) > MOST_GRAPHS:
                self._steps.popitem(last=False)
            return self._replay(self._steps[key], layout)
        # Here the error is gone, with the tensors that it held.
        if again:  # another thread may have broken the capture
            return self._capture_and_run(key, layout, again=False)
        self._uncaptured.add(key.width)
        if self.given_up is None:
            self.given_up = why
            self.notices.append(f"some steps run without CUDA graphs, and slower: {why}")
        return self.run(layout)

    def _make(self, key: GraphKey, layout: StepLayout) -> CapturedStep:
        if key.width not in self._inputs:
            self._inputs[key.width] = StaticInputs(key.width, self.device)
        inputs = self._inputs[key.width]
        inputs.send(layout, self.cache.length)
        replay = self._capture(partial(self._compute, key, inputs))
        return CapturedStep(inputs, replay, self._logits[self._rows_for(key)][: key.width])

    def _rows_for(self, key: GraphKey) -> int:
        return max(key.width, CAPTURED_WIDTHS[-1])

    def _compute(self, key: GraphKey, inputs: StaticInputs) -> None:
        """Run the forward of a captured step, and copy its logits."""
        # New objects in every run, since they keep results of the run.
        mask = CapturedMask(inputs.mask, key.slots)
        cache = CapturedCache(self.cache, inputs.mask.length, key.width, key.slots)
        numbers = inputs.tokens, inputs.positions
        step = StepInputs(*numbers, mask, None, key.slots, key.last_position)
        with quiet(), sdpa_kernel(SDPA):
            logits = self.model.forward(step, cache)
        rows = self._rows_for(key)
        if rows not in self._logits:
            # This is the first run, before the capture, which shows the size of the logits.
            self._logits[rows] = logits.new_empty((rows, logits.shape[-1]))
        self._logits[rows][: key.width].copy_(logits)


def _rows(logits: Tensor, outputs: Sequence[int]) -> Tensor:
    """Return the rows of logits that a layout asks for, without a copy if they are adjacent."""
    first, count = outputs[0], len(outputs)
    if list(outputs) == [*range(first, first + count)]:
        return logits[first : first + count]
    return logits[to_device(outputs, logits.device)]
