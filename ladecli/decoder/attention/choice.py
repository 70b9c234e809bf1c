"""Which attention backend is the fastest here: tried out on a GPU, by a measured rule elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from .. import layout
from ..capture import CudaCapture, Work, check_alive
from ..errors import ConfigError, DecoderError, DeviceLostError
from ..kv_cache import KVCache
from ..runner import without_plans
from ..static_step import StaticCache, StaticStep, StepInputs
from ..tree import TokenTree
from . import BACKENDS
from .step import StepAttention

TEXT, WIDTH = 4096, 64
"""Tokens of the text and of the step that backends are tried with."""
SECONDS = 0.1
"""Each backend is timed for about so long, beside what it takes to compile it."""
LEAST_BYTES = 128 << 20
"""Keys and values that are read at least before any are read again: in the caches of a GPU they
would come faster than those of a model's many layers do."""
_SMALL = 16, 2
"""The same, to see whether a backend works at all."""
CANDIDATES = ("sdpa", "flash", "triton")
"""Those to choose from; of two that are equally fast, the first."""
EQUAL = 0.97
"""A backend that takes more of the time of another one is no faster than that."""
OFF = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest difference from `reference` that is taken for rounding, relative to its largest value."""

Clock = Callable[[Work], float]
"""Runs work, and says how many seconds it takes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and what speaks for it.

    Attributes:
        name: a name of `BACKENDS`.
        why: in words.
    """

    name: str
    why: str


@lru_cache(maxsize=16)
def choose(
    device: str,
    dtype: str,
    heads: int,
    key_heads: int,
    head_size: int,
    *,
    captured: bool = True,
    clock: Clock | None = None,
) -> Choice:
    """The backend that "auto" comes to for the layers of a model; asked again, it says the same.

    Args:
        device: as torch names it, "cuda:0" for example.
        dtype: of activations, "bfloat16" for example.
        heads: query heads.
        key_heads: heads of keys and values.
        head_size: numbers in a head.
        captured: whether steps are CUDA graphs; what is fast in a graph may be slow to launch.
        clock: times work; None for a clock on a GPU, and for a rule elsewhere.

    Raises:
        DeviceLostError: a backend has met a fault there that the process cannot get over.
    """
    kind = torch.device(device).type
    if clock is None and kind == "cpu":
        # Two parts save up to a quarter of wide steps' attention behind 16k tokens and more, where
        # no wide step pays on a CPU; before that they bring nothing (benchmarks/attention.py).
        return Choice("sdpa", "on a CPU no other is faster for steps that pay there")
    if clock is None and kind != "cuda":
        return Choice("sdpa", f"the only one that is made for {kind}")
    clock = clock or partial(_seconds_on_gpu, torch.device(device), captured)
    found, out = _raced((device, dtype, heads, key_heads, head_size, captured), clock)
    if kind == "cuda":
        torch.cuda.empty_cache()  # models are loaded next
    if not found:
        return Choice("sdpa", f"none could be tried: {'; '.join(out)}")
    best = next(iter(found))
    for name, seconds in found.items():
        if seconds < EQUAL * found[best]:
            best = name
    ranked = sorted(found.items(), key=lambda item: (item[0] != best, item[1]))
    times = ", ".join(f"{name} {1e6 * seconds:.0f} µs" for name, seconds in ranked)
    said = f"the fastest of those tried here: {times} a layer, {WIDTH} tokens behind {TEXT:,}"
    return Choice(best, "; ".join([said, *out]))


def _raced(
    numbers: tuple[str, str, int, int, int, bool], clock: Clock
) -> tuple[dict[str, float], list[str]]:
    """Seconds of a layer by backend; and which are out, and why."""
    found: dict[str, float] = {}
    out: list[str] = []
    try:
        with torch.inference_mode():
            trial = _Trial(*numbers, TEXT, WIDTH)
            for name in (each for each in CANDIDATES if each in BACKENDS):
                seconds = _tried(trial, name, clock)
                if isinstance(seconds, str):
                    out.append(f"{name} is out: {seconds}")
                else:
                    found[name] = seconds
    except DeviceLostError:
        raise
    except Exception as error:  # no room, or no such device
        out.append(_line(error))
    return found, out


def _tried(trial: _Trial, name: str, clock: Clock) -> float | str:
    """Seconds that a backend takes for one layer; or why it cannot be used."""
    try:
        trial.check(name)
        return clock(trial.work(name)) / trial.layers
    except Exception as error:  # whatever a kernel says: there are others
        check_alive(trial.device, error)
        return _line(error)


def check_usable(name: str, device: str, dtype: str, heads: int, key_heads: int, size: int) -> None:
    """Refuse a backend that cannot work for the layers of a model; a small step shows it.

    Args:
        name: of the backend.
        device, dtype, heads, key_heads: as `choose` has them.
        size: numbers in a head.

    Raises:
        ConfigError: there is no such backend, or it cannot work; the message says why.
    """
    try:
        with torch.inference_mode():
            trial = _Trial(device, dtype, heads, key_heads, size, False, *_SMALL)
            trial.check(name)
    except DecoderError as error:
        kind = torch.device(device).type
        if name == "triton" and kind != "cuda":
            raise ConfigError(
                f"attention 'triton' needs a CUDA GPU, and the device is {kind};"
                " use --attention auto"
            ) from None
        raise ConfigError(str(error)) from error
    except Exception as error:
        raise ConfigError(
            f"attention {name!r} does not work here: {_line(error)}; use --attention sdpa"
        ) from error


class _Trial:
    """A step of random numbers behind a text of them, in as many layers as no GPU's caches hold.

    It is made and used in inference mode.

    Args:
        device, dtype, heads, key_heads, size, captured: as `choose` has them.
        text, width: tokens of both.

    Attributes:
        device: as torch has it.
    """

    def __init__(
        self,
        device: str,
        dtype: str,
        heads: int,
        key_heads: int,
        size: int,
        captured: bool,
        text: int,
        width: int,
    ) -> None:
        self.device = place = torch.device(device)
        self._scaling = size**-0.5
        self._captured = captured
        kind = getattr(torch, dtype)
        draw = partial(torch.randn, device=place, dtype=kind)
        # The trial of a name alone needs no more than one layer.
        bytes_each = 2 * text * key_heads * size * kind.itemsize
        self.layers = min(16, max(2, -(-LEAST_BYTES // bytes_each))) if text == TEXT else 1
        # A static step may have room for a longer text; all that is there is handed over.
        self._cache = KVCache(self.layers, 2 * text)
        self._cache.reserve(2 * text)
        for layer in range(self.layers):
            shape = (1, key_heads, text, size)
            self._cache.update(draw(shape), draw(shape), layer)
        self._cache.keep(range(text))
        self._query = draw((1, heads, width, size))
        self._own = draw((1, key_heads, width, size)), draw((1, key_heads, width, size))
        tree = TokenTree()
        for branch in range(width):
            tree.add([branch, branch, branch], "trial", limit=width - 1)
        self._layout = layout.build([0], text, layout.Draft(tree))
        self._inputs = StepInputs(width, place)
        self._inputs.fill(self._layout, text, None, ())
        self._inputs.send()
        self._expected: Tensor | None = None

    def work(self, name: str) -> Work:
        """What all layers compute of a step's attention, and write, with a backend."""
        backend, cache = BACKENDS[name], self._cache
        static = StaticCache(cache, self._inputs, cache.slots)
        # Made once, as in a model, whose layers share what is made for a step.
        step: StepAttention = StaticStep(backend, self._inputs, static, cache.slots)
        if not self._captured:
            visible = torch.from_numpy(self._layout.visible).to(self._query.device)
            step = StepAttention(
                backend, visible, step.positions, cache.length, max(self._layout.positions)
            )
        writes = static if self._captured else cache

        def run() -> tuple[Tensor, ...]:
            out = self._query
            with without_plans(out.device):
                for layer in range(self.layers):
                    key, value = writes.update(*self._own, layer)
                    out = backend(self._query, key, value, step, self._scaling, None, None)
            return (out,)

        return run

    def check(self, name: str) -> None:
        """Run a backend, and compare it with `reference`.

        Raises:
            ConfigError: there is no such backend.
            RuntimeError: it says something else.
        """
        if name not in BACKENDS:
            raise ConfigError(f"unknown attention {name!r}; use one of {', '.join(BACKENDS)}")
        if self._expected is None:
            self._expected = self.work("reference")()[0].float()
        (found,) = self.work(name)()
        off = float((found.float() - self._expected).abs().max() / self._expected.abs().max())
        if not off <= OFF[found.dtype]:
            raise RuntimeError(f"off by {off:.1g} of the largest value")


def _seconds_on_gpu(device: torch.device, captured: bool, work: Work) -> float:
    """Seconds of work, run as steps are: in a graph, or kernel by kernel."""
    run = CudaCapture(device).capture(work).replay if captured else work

    def seconds(times: int) -> float:
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(times):
            run()
        torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / times

    once = seconds(3)
    return seconds(max(3, min(200, int(SECONDS / once))))


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
