"""A simulated device: its tensors are on the host, and every copy and wait is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ladecli.decoder.backends.cuda_graphs import CudaGraphs, Work
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.model.families import ModelFacts
from tests.support.oracle import Markov

DEVICE = torch.device("meta")
"""The device of its tensors: the only one besides the CPU for which torch needs no driver."""
_READS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero")
_COPIES = ("to", "_to_copy", "copy_", "index", "index_put_")
"""Operations that may have tensors of both host and device."""
_FREE = ("detach_", "lift_fresh", "expand", "view", "reshape", "flatten", "select", "slice", "to")
"""Operations that launch nothing, unless they copy to or from the host."""


class DeviceTensor(Tensor):
    """A tensor of the device; `here` is a tensor of the host with the same numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> DeviceTensor:
        return Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), dtype=here.dtype, device=DEVICE
        )

    def __init__(self, here: Tensor) -> None:
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} outside the simulation")


class SimulatedDevice(TorchDispatchMode):
    """A context in which tensors can be created and used on `DEVICE`.

    The host waits for every value that it reads, and for every copy to the device, unless that is
    started with `non_blocking`.

    Args:
        seconds: the time of a captured step on the device, from its launch.

    Attributes:
        counts: "waits", "launches", and copies, "to host" and "to device".
        gaps: processor seconds of our own code, without torch and the simulation, from the end of a
            wait to the next launch of a captured step.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.gaps: list[float] = []
        self._within = 0.0  # torch and the simulation took so far
        self._since: float | None = None  # our own clock when the last wait ended
        self._seconds = seconds
        self._done = 0.0
        self._around = ExitStack()

    def __enter__(self) -> SimulatedDevice:
        self._around.enter_context(torch.inference_mode())
        self._around.enter_context(_Methods(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._around.close()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Stop our own clock during a block of torch or of the simulation."""
        began, before, waits = time.thread_time(), self._within, self.counts["waits"]
        yield
        self._within = before + time.thread_time() - began
        if self.counts["waits"] > waits:
            self._since = began - before

    def capture(self, work: Work) -> Work:
        """Capture work; see `cuda_graphs.Capture`."""
        work()

        @torch.inference_mode()
        def replay() -> None:
            if self._since is not None:
                self.gaps.append(time.thread_time() - self._within - self._since)
                self._since = None
            with self.within():
                counts = self.counts.copy()
                work()
                self.counts = counts
            self.counts["launches"] += 1
            self._done = max(self._done, time.perf_counter()) + self._seconds

        return replay

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with self.within():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, schema = tree_leaves((args, kwargs)), func._schema
        of_device = {id(leaf.here): leaf for leaf in leaves if isinstance(leaf, DeviceTensor)}
        places = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        name = schema.name.partition("::")[2]
        there = places[0] == DEVICE if places else bool(of_device)
        if name == "copy_":
            there = isinstance(args[0], DeviceTensor)
        names = [argument.name for argument in schema.arguments]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        copies = self._count(name, leaves, bool(of_device), there)
        if copies and not arguments.get("non_blocking"):
            self.counts["waits"] += 1
            time.sleep(max(0.0, self._done - time.perf_counter()))
        out = func(*tree_map(_here, args), **tree_map(_here, kwargs))
        return tree_map(lambda part: _there(part, of_device), out) if there else out

    def _count(self, name: str, leaves: list[Any], from_device: bool, there: bool) -> bool:
        """Count an operation; return True if it is a copy between host and device."""
        from_host = any(type(leaf) is Tensor and leaf.dim() for leaf in leaves)
        if from_device and (name in _READS or not there):
            kind = "to host"
        elif there and from_host and name in _COPIES:
            kind = "to device"
        else:
            self.counts["launches"] += there and name not in _FREE
            return False
        self.counts[kind] += 1
        return True


class _Methods(TorchFunctionMode):
    """Handles operations that bypass `__torch_dispatch__`, and torch's own time."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        with self._device.within():
            if func is torch.tensor and options.get("device") == DEVICE:
                return func(*args, **{**options, "device": None}).to(DEVICE)
            if func is Tensor.tolist and isinstance(args[0], DeviceTensor):
                return args[0].to("cpu").tolist()
            return func(*args, **options)


def _here(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.here
    return torch.device("cpu") if leaf == DEVICE else leaf


def _there(out: Any, known: dict[int, DeviceTensor]) -> Any:
    return known.get(id(out), DeviceTensor(out)) if type(out) is Tensor else out


class Circle(Markov):
    """A forward whose logits depend on the last token only; after 16 tokens the text repeats."""

    def __init__(self, vocabulary: int, device: torch.device = DEVICE) -> None:
        table = torch.randn(16, vocabulary, generator=torch.Generator().manual_seed(0))
        # One of the next two on the circle, most probably.
        places = torch.arange(16)
        table[places, (places + 1) % 16] = 16.0
        table[places, (places + 2) % 16] = 15.5
        super().__init__(table.to(device))
        self.device = device


def simulated_decoder(device: SimulatedDevice, vocabulary: int, context: int = 2048) -> Decoder:
    """Return a decoder with captured steps on the device; its texts are those of a `Circle`."""
    model = Circle(vocabulary)
    facts = ModelFacts("oracle", 1, vocabulary, context, None, None)
    cache = KVCache(model.layer_shapes, context + 256, context + 256)
    return Decoder(CudaGraphs(model, cache, facts, context, capture=device.capture))


class FakeCapture:
    """A fake capture that replays work by running it again, and counts captures and replays; the
    next captures raise `errors`, None for no error."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.captures = self.replays = 0

    def __call__(self, work: Work) -> Work:
        self.captures += 1
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        work()

        @torch.inference_mode()
        def replay() -> None:
            self.replays += 1
            work()

        return replay
