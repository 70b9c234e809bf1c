"""The size of a model, the memory that decoding needs, and the context that fits.  No torch."""

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
"""The type of a weight packed by bitsandbytes, and its bytes, with a scale per 64 weights."""
LEAST_CONTEXT = 1024
"""With fewer tokens of context, a model is not usable."""
SPARE = 0.03
"""The share of free memory that is left to allocators and libraries."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of a model on which memory and speed depend, known before any weight is read."""

    parameters: float  # of the whole model; tied ones count once
    active: float  # parameters that one token uses: fewer with a mixture of experts
    weights: str  # a name of FULL, "nf4", "int8", or a checkpoint's own method ("gptq")
    weight_bytes: float
    compute: str  # a name of FULL: the type of activations, keys and values
    layers: int
    hidden: int
    inner: int  # width of a feed-forward block
    heads: int  # of queries
    kv_heads: int
    head_size: int
    vocabulary: int
    # Weights that bitsandbytes can pack: those of linear layers except the last, 0 if they are
    # quantised already; None for all except the embeddings and the last layer.
    linear: float | None = None
    # Values that latent attention (DeepSeek) caches per token and layer; else None.
    latent: int | None = None
    # Values that all layers together cache per token; None if every layer caches the same number.
    cached: float | None = None

    @property
    def value_bytes(self) -> int:
        """The bytes of one activation, key or value."""
        return 4 if self.compute == "float32" else 2

    @property
    def cache_bytes(self) -> int:
        """The bytes of the keys and values of one token."""
        equal = self.layers * (self.latent or 2 * self.kv_heads * self.head_size)
        return int((equal if self.cached is None else self.cached) * self.value_bytes)

    def exactness(self, *, invariant: bool = False) -> str:
        """Describe how exactly texts equal those of plain decoding; `invariant` is True if steps
        are batch-invariant."""
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
        parameters = whole + (self.parameters - whole) / ranks
        active_whole = min(whole, self.active)
        return replace(
            self,
            parameters=parameters,
            active=active_whole + (self.active - active_whole) / ranks,
            weight_bytes=self.weight_bytes * parameters / self.parameters,
            heads=math.ceil(self.heads / ranks) if heads else self.heads,
            kv_heads=math.ceil(self.kv_heads / ranks) if heads else self.kv_heads,
            cached=self.cached and self.cached / (ranks if heads and not self.latent else 1),
            inner=math.ceil(self.inner / ranks),
            linear=0.0,  # bitsandbytes cannot split its weights
        )


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes that decoding needs."""

    weights: float
    cache: float  # keys and values of the longest text
    step: float  # of the largest step, or of a copy of the cache while it grows

    @property
    def total(self) -> float:
        """The sum."""
        return self.weights + self.cache + self.step


def usable(free: float) -> float:
    """Return the bytes of free memory that decoding may use."""
    return free * (1.0 - SPARE)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The requested context and the settings of steps, which determine the memory."""

    longest: int  # tokens of context that the model supports
    context_option: int | None = None  # --max-context; None for as many tokens as fit
    width: int = 1  # the most tokens of a step
    attention: str = "sdpa"
    captured: bool = False  # steps are CUDA graphs
    chunk: int = PREFILL_CHUNK  # the most tokens of a prompt that are read at once
    in_float32: bool = False  # activations, keys and values are in float32

    @property
    def context(self) -> int:
        """The most tokens of a text, if memory has room for them."""
        return min(self.context_option or self.longest, self.longest)

    @property
    def least(self) -> int:
        """The context in tokens below which the model is not usable."""
        return min(self.context, LEAST_CONTEXT)

    def need(self, spec: ModelSpec, context: int | None = None) -> MemoryNeed:
        """Return the memory for texts of at most `context` tokens (default: the request's context),
        to about 10 %."""
        context = self.context if context is None else context
        if self.in_float32:
            spec = replace(spec, compute="float32")
        width = max(self.width, CAPTURED_WIDTHS[-1]) if self.captured else self.width
        slots = context + max(GROWTH, width)
        copied = GROWTH  # the cache doubles in size, up to NEARLY_ALL of its final size
        while 2 * copied <= NEARLY_ALL * slots:
            copied *= 2
        # Activations, and the mask both as booleans and as summands of the scores of the heads that
        # share a key head; the reference keeps scores and probabilities of all heads in float32.
        groups = spec.heads // spec.kv_heads
        score = 1 + groups * spec.value_bytes
        cached: float = spec.cache_bytes
        if self.attention == "reference":
            score = 1 + 4 * groups + 8 * spec.heads
        if self.attention == "invariant":  # scores, keys and values in float32
            score, cached = 4 * groups + 4 * spec.heads, cached * 4 / spec.value_bytes
        row = (6 * spec.hidden + 3 * spec.inner) * spec.value_bytes + context * score
        # Every token of a step has logits, also in float32; of a prompt, only the last token.
        logits = spec.vocabulary * (spec.value_bytes + (4 if spec.value_bytes < 4 else 0))
        prefill, step = min(self.chunk, context) * row + logits, width * (row + logits)
        others = max(prefill, copied * cached)
        # CUDA graphs keep their memory.
        temporary = others + step if self.captured else max(others, step)
        return MemoryNeed(spec.weight_bytes, slots * cached, temporary)

    def fitting(self, spec: ModelSpec, room: float) -> int:
        """Return the longest context that fits into `room` bytes; 0 if it is not usable."""
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
    """Return the most tokens of a text in `free` bytes, and a notice if there are fewer than in the
    request.

    `where` and `name` are the device and the model, for messages; `kind` is of the device.

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
        sizes = ((flag, request.need(form, request.least).total) for flag, form in forms)
        fitting = (f"{flag} needs {format_bytes(size)}" for flag, size in sizes if size <= free)
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

    Weights that do not fit on the GPUs stay in the processor's memory or on the disk, and are
    copied in every step.  `gpus` and `processor` are free bytes; without GPUs, the processor
    computes.
    """
    where = counted(len(gpus), "GPU") if gpus else "this machine"
    kind, free = ("cuda", sum(gpus)) if gpus else ("cpu", processor)
    if request.fitting(spec, usable(free)):
        return room(name, spec, free, request, where=where, kind=kind)
    # Half of the memory is for texts; the other half is for weights that are copied in and out.
    bare = replace(spec, parameters=0.0, weight_bytes=0.0, linear=0.0)
    context, shorter = room(name, bare, free / 2, request, where=where, kind=kind)
    stay = "the processor's memory or the disk" if gpus else "the disk"
    notice = (
        f"the weights of {format_bytes(spec.weight_bytes)} do not fit on {where}: every step reads"
        f" the rest from {stay}, which is slow"
    )
    return context, f"{notice}; {shorter}" if shorter else notice


def smaller_forms(spec: ModelSpec, kind: str) -> list[tuple[str, ModelSpec]]:
    """Return the options that make a model smaller, each with its spec, the largest first."""
    forms = []
    if spec.weights == "float32":
        half = spec.weight_bytes - 2 * spec.parameters
        form = replace(spec, weights="bfloat16", compute="bfloat16", weight_bytes=half)
        forms.append(("--dtype bfloat16", form))
    linear = spec.linear
    if linear is None:
        linear = max(spec.parameters - 2 * spec.vocabulary * spec.hidden, 0.0)
    if linear and spec.weights in FULL and kind != "mps":  # bitsandbytes has no kernels for mps
        # A CPU would change back to float32 by default if packed weights leave room for that.
        dtype = " --dtype bfloat16" if kind == "cpu" and spec.compute == "bfloat16" else ""
        for flag, (weights, bytes_each) in PACKED.items():
            size = linear * bytes_each + (spec.parameters - linear) * spec.value_bytes
            form = replace(spec, weights=weights, weight_bytes=size)
            forms.append((f"--quantize {flag}{dtype}", form))
    return forms


def format_bytes(size: float) -> str:
    """Return a number of bytes as text: "13.5 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:  # else rounding would give 1000 of the smaller unit
            number = size / scale
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:,.0f} {unit}"
    return f"{size:.0f} bytes"
