"""How large a model is, what decoding takes, and whether that fits.  No torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..decoder.config import CAPTURED_WIDTHS, GROWTH, NEARLY_ALL, PREFILL_CHUNK
from ..errors import LoadError, UsageError, counted

FULL = ("float32", "float16", "bfloat16")
"""Types of weights that are multiplied as they are stored."""
PACKED = {"8bit": ("int8", 1.0), "4bit": ("nf4", 0.5 + 4 / 64)}
"""What bitsandbytes makes of a weight: its type, and bytes, with a scale for 64 of them."""
LEAST_CONTEXT = 1024
"""Tokens of context without which a model is of no use."""
SPARE = 0.03
"""Share of the free memory that is left to allocators and libraries."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What memory and speed depend on; known before any weight is read."""

    parameters: float  # of the whole model; tied ones count once
    active: float  # parameters that one token meets: fewer with a mixture of experts
    weights: str  # a name of FULL, "nf4", "int8", or a checkpoint's own method ("gptq")
    weight_bytes: float
    compute: str  # a name of FULL: the type of activations, keys and values
    layers: int
    hidden: int
    inner: int  # numbers inside a feed-forward block
    heads: int  # of queries
    kv_heads: int
    head_size: int
    vocabulary: int
    # Weights that bitsandbytes can pack: those of linear layers but the last, 0 where they are
    # quantised already; None for all but the embeddings and the last layer.
    linear: float | None = None
    # Numbers that latent attention (DeepSeek) caches per token and layer; else None.
    latent: int | None = None
    # Numbers that all layers cache of a token; None where all of them do, and have as many heads.
    cached: float | None = None

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation, key or value."""
        return 4 if self.compute == "float32" else 2

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        alike = self.layers * (self.latent or 2 * self.kv_heads * self.head_size)
        return int((alike if self.cached is None else self.cached) * self.value_bytes)

    def exactness(self, *, invariant: bool = False) -> str:
        """Say what holds for a text under any strategy; `invariant` is whether steps are
        batch-invariant."""
        if invariant:
            return "bit for bit the logits of plain decoding, and so its text"
        if self.weights == "float32":
            return "token for token the text of plain decoding"
        if self.weights in FULL:
            why = f"{self.weights} rounds steps of different widths differently"
        else:
            why = f"{self.weights} kernels for one token and for several round differently"
        return f"the text of plain decoding except at near-ties: {why}"

    def shard(self, ranks: int, *, whole: float = 0.0, heads: bool = True) -> ModelSpec:
        """Return the part of one rank under tensor parallelism: `whole` parameters are on every
        rank, and with `heads` each rank has its own attention heads."""
        held = whole + (self.parameters - whole) / ranks
        met = min(whole, self.active)
        return replace(
            self,
            parameters=held,
            active=met + (self.active - met) / ranks,
            weight_bytes=self.weight_bytes * held / self.parameters,
            heads=math.ceil(self.heads / ranks) if heads else self.heads,
            kv_heads=math.ceil(self.kv_heads / ranks) if heads else self.kv_heads,
            cached=self.cached and self.cached / (ranks if heads and not self.latent else 1),
            inner=math.ceil(self.inner / ranks),
            linear=0.0,  # bitsandbytes cannot split its weights
        )


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that decoding takes."""

    weights: float
    cache: float  # keys and values of the longest text
    step: float  # what the largest step holds beside them, or the cache while it is copied

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.cache + self.step


def usable(free: float) -> float:
    """Return the bytes of free memory that decoding may take."""
    return free * (1.0 - SPARE)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """A context and a way of running steps, which need memory."""

    longest: int  # tokens of context that the model is made for
    context_option: int | None = None  # --max-context; None for as many tokens as fit
    width: int = 1  # the most tokens of a step
    attention: str = "sdpa"
    captured: bool = False  # whether steps are CUDA graphs
    chunk: int = PREFILL_CHUNK  # the most tokens of a prompt that are read at once
    in_float32: bool = False  # whether activations, keys and values are, whatever the weights

    @property
    def context(self) -> int:
        """The most tokens of a text, if there is room for it."""
        return min(self.context_option or self.longest, self.longest)

    @property
    def least(self) -> int:
        """Tokens of context without which the model is of no use."""
        return min(self.context, LEAST_CONTEXT)

    def need(self, spec: ModelSpec, context: int | None = None) -> MemoryNeed:
        """Return what decoding texts of at most `context` tokens takes, within about 10 %; all of
        the request's by default."""
        context = self.context if context is None else context
        if self.in_float32:
            spec = replace(spec, compute="float32")
        width = max(self.width, CAPTURED_WIDTHS[-1]) if self.captured else self.width
        slots = context + max(GROWTH, width)
        copied = GROWTH  # the cache doubles, and is allocated whole after NEARLY_ALL of it
        while 2 * copied <= NEARLY_ALL * slots:
            copied *= 2
        # Activations, and the mask as booleans and as a term of the scores of the heads that share
        # a key head; the reference holds scores and probabilities of all heads in float32.
        groups = spec.heads // spec.kv_heads
        score = 1 + groups * spec.value_bytes
        cached: float = spec.cache_bytes
        if self.attention == "reference":
            score = 1 + 4 * groups + 8 * spec.heads
        if self.attention == "invariant":  # scores, keys and values in float32
            score, cached = 4 * groups + 4 * spec.heads, cached * 4 / spec.value_bytes
        row = (6 * spec.hidden + 3 * spec.inner) * spec.value_bytes + context * score
        # Every token of a step has logits, in float32 as well; of the prompt only the last one.
        logits = spec.vocabulary * (spec.value_bytes + (4 if spec.value_bytes < 4 else 0))
        prefill, step = min(self.chunk, context) * row + logits, width * (row + logits)
        others = max(prefill, copied * cached)
        # Captured steps are CUDA graphs, which keep their memory.
        held = others + step if self.captured else max(others, step)
        return MemoryNeed(spec.weight_bytes, slots * cached, held)

    def fitting(self, spec: ModelSpec, room: float) -> int:
        """Return the longest context that fits into bytes of memory; 0 if that is of no use."""
        if self.need(spec).total <= room:
            return self.context
        lengths = range(self.least, self.context, 64)
        fitting = bisect_right(lengths, room, key=lambda n: self.need(spec, n).total)
        return lengths[fitting - 1] // 64 * 64 if fitting else 0


def room(
    name: str,
    spec: ModelSpec,
    free: float,
    request: MemoryRequest,
    *,
    where: str = "this machine",
    kind: str = "cpu",
) -> tuple[int, str | None]:
    """Return the most tokens that a text may have in `free` bytes, and a notice if those are fewer
    than the request's.

    `where` is the device and `name` the model, for messages; `kind` is of device.

    Raises:
        LoadError: the weights do not fit, or leave no room for a text.
        UsageError: --max-context does not fit; the message names one that does.
    """
    free = usable(free)
    most = request.fitting(spec, free)
    if most == request.context:
        return most, None
    if not most:
        needed = request.need(spec, request.least).total
        forms = smaller_forms(spec, kind)
        ways = ((flag, request.need(form, request.least).total) for flag, form in forms)
        fitting = (f"{flag} needs {format_bytes(size)}" for flag, size in ways if size <= free)
        fix = next(fitting, "take a smaller model, or free some memory")
        raise LoadError(
            f"{name} needs {format_bytes(needed)}, {format_bytes(needed - free)} more than the"
            f" {format_bytes(free)} that can be used on {where}; {fix}"
        )
    need = request.need(spec)
    line = (
        f"{request.context:,} tokens of context need {format_bytes(need.cache + need.step)} beside"
        f" the weights of {format_bytes(need.weights)}, and {format_bytes(free)} can be used on"
        f" {where}"
    )
    if request.context_option is not None:
        raise UsageError(f"{line}; --max-context {most} fits")
    return most, f"{line}: texts end at {most:,} tokens"


def spread(
    name: str, spec: ModelSpec, gpus: Sequence[float], processor: float, request: MemoryRequest
) -> tuple[int, str | None]:
    """Return the same as `room` for a model that is spread over devices.

    Weights for which GPUs have no room stay in the processor's memory or on the disk, and are
    copied in every step.  `gpus` and `processor` are free bytes; without GPUs the processor
    computes.
    """
    where = counted(len(gpus), "GPU") if gpus else "this machine"
    kind, free = ("cuda", sum(gpus)) if gpus else ("cpu", processor)
    if request.fitting(spec, usable(free)):
        return room(name, spec, free, request, where=where, kind=kind)
    # Half of it for texts, so that there is room for weights that come and go.
    bare = replace(spec, parameters=0.0, weight_bytes=0.0, linear=0.0)
    context, shorter = room(name, bare, free / 2, request, where=where, kind=kind)
    stay = "the processor's memory or the disk" if gpus else "the disk"
    notice = (
        f"the weights of {format_bytes(spec.weight_bytes)} do not fit on {where}: every step reads"
        f" the rest from {stay}, which is slow"
    )
    return context, f"{notice}; {shorter}" if shorter else notice


def smaller_forms(spec: ModelSpec, kind: str) -> list[tuple[str, ModelSpec]]:
    """Return options that make a model smaller, each with its spec, the largest first."""
    forms = []
    if spec.weights == "float32":
        half = spec.weight_bytes - 2 * spec.parameters
        form = replace(spec, weights="bfloat16", compute="bfloat16", weight_bytes=half)
        forms.append(("--dtype bfloat16", form))
    linear = spec.linear
    if linear is None:
        linear = max(spec.parameters - 2 * spec.vocabulary * spec.hidden, 0.0)
    if linear and spec.weights in FULL and kind != "mps":  # for which bitsandbytes has no kernels
        # By itself a CPU would go back to float32 where packed weights leave room for that.
        kept = " --dtype bfloat16" if kind == "cpu" and spec.compute == "bfloat16" else ""
        for flag, (weights, bytes_each) in PACKED.items():
            size = linear * bytes_each + (spec.parameters - linear) * spec.value_bytes
            form = replace(spec, weights=weights, weight_bytes=size)
            forms.append((f"--quantize {flag}{kept}", form))
    return forms


def format_bytes(size: float) -> str:
    """Return a number of bytes for people: "13.5 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:  # no size is 1000 of a unit
            number = size / scale
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:,.0f} {unit}"
    return f"{size:.0f} bytes"
