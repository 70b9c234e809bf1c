"""A device that is not there: its tensors are the host's, and every copy and wait is counted."""

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
from ladecli.decoder.kv_cache import KVCache, LayerShape, StepCache
from ladecli.decoder.model.families import ModelFacts
from ladecli.decoder.model.forward import StepInputs
from tests.support.oracle import Oracle

DEVICE = torch.device("meta")
"""Where its tensors claim to be: of all devices but the CPU, torch needs no driver for this one."""
_READS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero")
_COPIES = ("to", "_to_copy", "copy_", "index", "index_put_")
"""Where tensors of the host and of a device may meet."""
_FREE = ("detach_", "lift_fresh", "expand", "view", "reshape", "flatten", "select", "slice", "to")
"""They launch nothing, if they copy nothing to or from the host."""


class There(Tensor):
    """A tensor of the device.

    Attributes:
        here: the same numbers.
    """

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        """Wrap numbers of the host."""
        return Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), dtype=here.dtype, device=DEVICE
        )

    def __init__(self, here: Tensor) -> None:
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        """Nothing is computed where nothing counts."""
        raise RuntimeError(f"{func} outside the simulation")


class Simulated(TorchDispatchMode):
    """While it is in effect, tensors can be made, and used, on `DEVICE`.

    What the host asks for it waits for.  So it does for a copy to the device, unless that is
    started with `non_blocking`.

    Args:
        seconds: that the device takes for a captured step, from its launch on.

    Attributes:
        counts: "waits", "launches", and copies, "to host" and "to device".
        replays: of captured steps.
        gaps: seconds of the processor for our own code, torch and the simulation left out, from the
            end of a wait to the next launch of a captured step.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.replays = 0
        self.gaps: list[float] = []
        self._within = 0.0  # torch and the simulation took so far
        self._since: float | None = None  # our own clock when the last wait ended
        self._seconds = seconds
        self._done = 0.0
        self._around = ExitStack()

    def __enter__(self) -> Simulated:
        """Begin."""
        self._around.enter_context(torch.inference_mode())
        self._around.enter_context(_Methods(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End."""
        super().__exit__(*error)
        self._around.close()

    @contextmanager
    def within(self) -> Iterator[None]:
        """What torch and the simulation do: our own clock stands still."""
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
            self.replays += 1
            self._done = max(self._done, time.perf_counter()) + self._seconds

        return replay

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with self.within():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        leaves = tree_leaves((args, given))
        of_device = {id(leaf.here): leaf for leaf in leaves if isinstance(leaf, There)}
        places = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        schema = func._schema
        name = schema.name.partition("::")[2]
        there = places[0] == DEVICE if places else bool(of_device)
        if name == "copy_":
            there = isinstance(args[0], There)
        names = [argument.name for argument in schema.arguments]
        given_names = {**dict(zip(names, args, strict=False)), **given}
        waits = self._count(name, leaves, bool(of_device), there) and not given_names.get(
            "non_blocking"
        )
        if waits:
            self.counts["waits"] += 1
            time.sleep(max(0.0, self._done - time.perf_counter()))
        found = func(*tree_map(_here, args), **tree_map(_here, given))
        return tree_map(lambda out: _there(out, of_device), found) if there else found

    def _count(self, name: str, leaves: list[Any], from_device: bool, there: bool) -> bool:
        """Count an operation; whether it is a copy between host and device."""
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
    """What torch does not leave to `__torch_dispatch__`, and the time that it takes itself.

    Args:
        device: the simulation.
    """

    def __init__(self, device: Simulated) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        with self._device.within():
            if func is torch.tensor and given.get("device") == DEVICE:
                return func(*args, **{**given, "device": None}).to(DEVICE)
            if func is Tensor.tolist and isinstance(args[0], There):
                return args[0].to("cpu").tolist()
            return func(*args, **given)


def _here(leaf: Any) -> Any:
    if isinstance(leaf, There):
        return leaf.here
    return torch.device("cpu") if leaf == DEVICE else leaf


def _there(out: Any, known: dict[int, There]) -> Any:
    return known.get(id(out), There(out)) if type(out) is Tensor else out


class Circle(Oracle):
    """A forward whose logits depend on the last token only.

    Args:
        vocabulary: tokens.
        device: where it runs.
        around: after so many tokens the text repeats itself.
    """

    def __init__(self, vocabulary: int, device: torch.device = DEVICE, around: int = 16) -> None:
        super().__init__(lambda _: 0, vocabulary)
        self.device = device
        draw = torch.Generator().manual_seed(0)
        table = torch.randn(around, vocabulary, generator=draw)
        # One of the next two on the circle, most probably.
        places = torch.arange(around)
        table[places, (places + 1) % around] = 16.0
        table[places, (places + 2) % around] = 15.5
        self._table = table.to(device)

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """As on the host."""
        return [LayerShape(1, 2, 1, torch.float32, self.device)]

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Logits of `step.outputs`."""
        written = torch.stack([step.tokens, step.positions], dim=-1).float()[None]
        cache.write(0, written, written[..., :1])
        tokens = step.tokens if step.outputs is None else step.tokens[step.outputs]
        return self._table[tokens % len(self._table)]


def simulated_decoder(device: Simulated, vocabulary: int, context: int = 2048) -> Decoder:
    """A decoder with captured steps on the device; its texts are those of a `Circle`."""
    model = Circle(vocabulary)
    facts = ModelFacts("oracle", 1, vocabulary, context, None, None)
    cache = KVCache(model.layer_shapes, context + 256, context + 256)
    return Decoder(CudaGraphs(model, cache, facts, context, capture=device.capture))
