"""Whether a model fits into the memory that is free, told before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .decoder.config import (
    CAPTURED_WIDTHS,
    COMPILED_WIDTHS,
    GROWTH,
    NEARLY_ALL,
    PREFILL_CHUNK,
    captured_width,
)
from .errors import LoadError, UsageError
from .shape import FULL, PACKED, ModelShape

LEAST_CONTEXT = 1024
"""A model that has no room for so many tokens is of no use."""
SPARE = 0.03
"""Share of the free memory that is left to allocators and libraries."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that decoding takes.

    Attributes:
        weights: of the model.
        cache: keys and values of the longest text, at the worst moment.
        step: what one step holds beside them.
    """

    weights: float
    cache: float
    step: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.cache + self.step


def estimate(
    shape: ModelShape,
    *,
    context: int,
    width: int = 1,
    attention: str = "sdpa",
    captured: bool = False,
    compiled: bool = False,
) -> Need:
    """What decoding takes.

    Args:
        shape: of the model.
        context: the most tokens of a text.
        width: the most tokens of a step.
        attention: the backend; `reference` holds the scores of all heads.
        captured: whether steps are CUDA graphs, whose memory nobody else can use; they are padded.
        compiled: whether those are compiled by torch, and padded to fewer widths.
    """
    widths = COMPILED_WIDTHS if compiled else CAPTURED_WIDTHS
    if captured:
        width = captured_width(width, widths)
    # A chunk of the prompt has no logits but one row; every draft token has one.
    chunk = min(PREFILL_CHUNK, context)
    tokens = max(chunk, width)
    each_state = (6 * shape.hidden + 3 * shape.inner) * shape.value_bytes
    states = tokens * each_state
    logits = width * shape.vocabulary * (shape.value_bytes + 4)
    # A mask of booleans, and what it adds to the scores of each head that shares a key head.
    groups = shape.heads // shape.kv_heads
    each = 1 + groups * shape.value_bytes
    if attention == "reference":
        each = 1 + 4 * groups + 8 * shape.heads  # scores and weights in float32
    scores = tokens * (context + tokens) * each
    if captured:
        # Beside those of a chunk: what the widest step computes, and what all of them write to.
        # They repeat their mask for each such head.
        states += width * each_state
        logits += max(width, widths[-1]) * shape.vocabulary * shape.value_bytes
        scores += width * (context + width) * (each + shape.value_bytes)
    slots = _cache_slots(context, width)
    return Need(shape.weight_bytes, slots * shape.cache_bytes, states + logits + scores)


def _cache_slots(context: int, width: int) -> float:
    """Slots of the cache at the worst moment: as it grows, when the old one and the new one exist
    together.  The first one has room for a chunk and a step."""
    most = _whole(context + max(GROWTH, width))
    first = min(_whole(min(PREFILL_CHUNK, context) + width), most)
    return most + (0 if first == most else max(NEARLY_ALL * most, first))


def _whole(slots: int) -> int:
    return -(-slots // GROWTH) * GROWTH


def usable(free: float) -> float:
    """The bytes of free memory that decoding may take."""
    return free * (1.0 - SPARE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What there shall be room for.

    Attributes:
        longest: the most tokens that the model was made for.
        wanted: the most that a text shall have; None for as many as fit.
        width: the most tokens of a step.
        window: of them, those that no budget can leave out.
        attention: the backend.
        captured, compiled: see `estimate`.
    """

    longest: int
    wanted: int | None = None
    width: int = 1
    window: int = 1
    attention: str = "sdpa"
    captured: bool = False
    compiled: bool = False

    @property
    def context(self) -> int:
        """The longest text, if there is room for it."""
        return min(self.wanted or self.longest, self.longest)


def room(
    name: str,
    shape: ModelShape,
    free: float,
    asked: Asked,
    *,
    where: str = "this machine",
    kind: str = "cpu",
) -> tuple[int, str | None]:
    """The most tokens that a text may have, and what to tell the user if that is not all.

    Args:
        name: of the model, for messages.
        shape: of the model.
        free: bytes of memory.
        asked: what there shall be room for.
        where: the device, for messages.
        kind: of device.

    Raises:
        LoadError: the weights do not fit, or leave no room for a text.
        UsageError: the wanted context does not fit; the message says which one would.
    """
    free = usable(free)
    context, width = asked.context, asked.width

    def fits(context: int, steps: int = width) -> bool:
        return needed_by(shape, asked, context, steps).total <= free

    if fits(context):
        return context, None
    least = min(context, LEAST_CONTEXT)
    if not fits(least, 1):
        raise LoadError(_too_large(name, shape, free, least, where, kind))
    if not fits(least):
        narrower = next(w for w in (64, 32, 16, 8, 4, 1) if w < width and fits(least, w))
        no_window = "--sources context,recycled " if narrower < asked.window else ""
        raise UsageError(
            f"steps of {width} tokens of {name} do not fit into the {told(free)} that can"
            f" be used on {where}; {no_window}--budget {narrower} does"
        )
    most = _most_tokens(shape, free, asked)
    needed = needed_by(shape, asked, context, width)
    beside = (
        f"{context:,} tokens of context need {told(needed.cache + needed.step)} beside the weights"
        f" of {told(needed.weights)}, and {told(free)} can be used on {where}"
    )
    hint = _roomier(shape, free, asked, most, kind)
    if asked.wanted is not None:
        raise UsageError(f"{beside}; --max-context {most} fits{hint}")
    return most, f"{beside}: texts end at {most:,} tokens{hint}"


def needed_by(shape: ModelShape, asked: Asked, context: int, width: int) -> Need:
    """What decoding takes with this context, and steps of this width, if all else is as asked."""
    return estimate(
        shape,
        context=context,
        width=width,
        attention=asked.attention,
        captured=asked.captured,
        compiled=asked.compiled,
    )


def _most_tokens(shape: ModelShape, free: float, asked: Asked) -> int:
    """The longest text, up to what is asked for, that usable memory has room for; 0 for none."""

    def fits(context: int) -> bool:
        return needed_by(shape, asked, context, asked.width).total <= free

    if fits(asked.context):
        return asked.context
    least = min(asked.context, LEAST_CONTEXT)
    return _largest(fits, least, asked.context) if fits(least) else 0


def _roomier(shape: ModelShape, free: float, asked: Asked, most: int, kind: str) -> str:
    """What to say of the smaller form that leaves room for the longest text, beyond `most`."""
    forms = smaller_forms(shape, kind)
    found = ((_most_tokens(form, free, asked), flag) for flag, form in forms)
    tokens, flag = max(found, default=(0, ""))
    return f"; {flag} leaves room for {tokens:,}" if tokens > most else ""


def spread(
    name: str, shape: ModelShape, gpus: Sequence[float], processor: float, asked: Asked
) -> tuple[int, str | None]:
    """As `room`, for a model that is spread over devices: weights for which GPUs have no room stay
    in the memory of the processor, or on the disk, and are copied in every step.

    Args:
        name: of the model, for messages.
        shape: of the model.
        gpus: bytes that are free on each; none where the processor computes.
        processor: bytes of its memory that are free.
        asked: what there shall be room for.

    Raises:
        LoadError, UsageError: as `room`, where texts do not fit even without any weights.
    """
    fast = sum(gpus) if gpus else processor
    where = "this machine" if not gpus else f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    if len(gpus) > 1:
        # Every GPU holds what a step takes.
        fast -= (len(gpus) - 1) * estimate(shape, context=1, width=asked.width).step
    kind = "cuda" if gpus else "cpu"
    least = estimate(shape, context=min(asked.context, LEAST_CONTEXT))
    if least.total <= usable(fast):
        return room(name, shape, fast, asked, where=where, kind=kind)
    # Half of it for texts, so that there is room for weights that come and go.
    bare = replace(shape, parameters=0.0, weight_bytes=0.0, linear=0.0)
    context, shorter = room(name, bare, fast / 2, asked, where=where, kind=kind)
    beside = needed_by(shape, asked, context, asked.width)
    left = shape.weight_bytes - max(usable(fast) - beside.cache - beside.step, 0.0)
    kept = "on the disk"
    if gpus:
        on_disk = left - usable(processor)
        more = f", {told(on_disk)} of them on the disk" if on_disk > 0 else ""
        kept = f"in the processor's memory{more}"
    notice = (
        f"{told(left)} of the {told(shape.weight_bytes)} of weights do not fit on {where} and stay"
        f" {kept}: every step reads them from there, which is slow"
    )
    return context, f"{notice}; {shorter}" if shorter else notice


def told(size: float) -> str:
    """A number of bytes for people."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # Half a step earlier, so that no size is 1000 of a unit; of the largest there may be more.
        if size >= 0.9995 * scale:
            number = size / scale
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:,.0f} {unit}"
    return f"{size:.0f} bytes"


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest context that fits, to one part in a hundred, between one that does and one
    that does not."""
    while high - low > max(low // 100, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low - low % 64 if low > 64 else low


def _too_large(name: str, shape: ModelShape, free: float, least: int, where: str, kind: str) -> str:
    """Why a model does not fit, with the first of the smaller forms that does."""
    needed = estimate(shape, context=least).total
    more = f"{told(needed - free)} more than the {told(free)} that can be used on {where}"
    line = f"{name} needs {told(needed)}, {more}"
    for flag, smaller in smaller_forms(shape, kind):
        needed = estimate(smaller, context=least).total
        if needed <= free:
            return f"{line}; {flag} needs {told(needed)}"
    return f"{line}; take a smaller model, or free some memory"


def smaller_forms(shape: ModelShape, kind: str = "cpu") -> list[tuple[str, ModelShape]]:
    """Options that make a model smaller, each with the shape that it gives.

    Args:
        shape: of the model as it is.
        kind: of device; bitsandbytes has no kernels for Apple's GPUs.
    """
    packed = shape.linear
    if packed is None:
        # Embeddings and the last layer stay as they are.
        packed = max(shape.parameters - 2 * shape.vocabulary * shape.hidden, 0.0)
    plain = shape.parameters - packed
    forms = []
    packable = ("nf4", "int8") if packed else ()
    if shape.compute == "float32" and shape.weights in ("float32", *packable):
        weights = "bfloat16" if shape.weights == "float32" else shape.weights
        halved = shape.parameters if shape.weights == "float32" else plain
        size = shape.weight_bytes - 2 * halved
        half = replace(shape, weights=weights, compute="bfloat16", weight_bytes=size)
        forms.append(("--dtype bfloat16", half))
    if packed and shape.weights in FULL and kind != "mps":
        # By itself a CPU would go back to float32 where packed weights leave room for that.
        kept = " --dtype bfloat16" if kind == "cpu" and shape.compute == "bfloat16" else ""
        for flag, (weights, bytes_each) in PACKED.items():
            size = packed * bytes_each + plain * shape.value_bytes
            form = replace(shape, weights=weights, weight_bytes=size)
            forms.append((f"--quantize {flag}{kept}", form))
    return forms
