"""Whether a model fits into the memory that is free, told before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .decoder.config import GROWTH, PARTLY, PREFILL_CHUNK
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


def estimate(shape: ModelShape, *, context: int, width: int = 1, attention: str = "sdpa") -> Need:
    """What decoding takes.

    Args:
        shape: of the model.
        context: the most tokens of a text.
        width: the most tokens of a step.
        attention: the backend; `reference` holds the scores of all heads.
    """
    # A chunk of the prompt has no logits but one row; every draft token has one.
    chunk = min(PREFILL_CHUNK, context)
    tokens = max(chunk, width)
    states = tokens * (6 * shape.hidden + 3 * shape.inner) * shape.value_bytes
    logits = width * shape.vocabulary * (shape.value_bytes + 4)
    if attention == "reference":
        each = 8 * shape.heads  # scores and weights in float32
    else:
        # A mask of booleans, the same as numbers, and those for each head that shares a key head.
        each = 1 + (1 + shape.heads // shape.kv_heads) * shape.value_bytes
    scores = tokens * (context + tokens) * each
    slots = _cache_slots(context, width)
    return Need(shape.weight_bytes, slots * shape.cache_bytes, states + logits + scores)


def _cache_slots(context: int, width: int) -> float:
    """Slots of the cache at the worst moment: as it grows, when the old one and the new one exist
    together.  The first one has room for a chunk and a step."""
    most = _whole(context + max(GROWTH, width))
    first = min(_whole(min(PREFILL_CHUNK, context) + width), most)
    return most + (0 if first == most else max(PARTLY * most, first))


def _whole(slots: int) -> int:
    return -(-slots // GROWTH) * GROWTH


def usable(free: float) -> float:
    """The bytes of free memory that decoding may take."""
    return free * (1.0 - SPARE)


def room(
    name: str,
    shape: ModelShape,
    free: float,
    *,
    longest: int,
    wanted: int | None,
    width: int,
    window: int = 1,
    attention: str = "sdpa",
    where: str = "this machine",
    kind: str = "cpu",
) -> tuple[int, str | None]:
    """The most tokens that a text may have, and what to tell the user if that is not all.

    Args:
        name: of the model, for messages.
        shape: of the model.
        free: bytes of memory.
        longest: the most tokens that the model was made for.
        wanted: what the user asked for; None for as many as fit.
        width: the most tokens of a step.
        window: of them, those that no budget can leave out.
        attention: the backend.
        where: the device, for messages.
        kind: of device.

    Raises:
        LoadError: the weights do not fit, or leave no room for a text.
        UsageError: the wanted context does not fit; the message says which one would.
    """

    def fits(context: int, steps: int = width, form: ModelShape = shape) -> bool:
        need = estimate(form, context=context, width=steps, attention=attention)
        return need.total <= usable(free)

    def room_of(form: ModelShape) -> int:
        """The most tokens that one form of the model leaves room for."""
        if fits(context, form=form):
            return context
        if not fits(least, form=form):
            return 0
        return _largest(lambda tokens: fits(tokens, form=form), least, context)

    context = min(wanted or longest, longest)
    if fits(context):
        return context, None
    least = min(context, LEAST_CONTEXT)
    if not fits(least, 1):
        raise LoadError(_too_large(name, shape, free, least, where, kind))
    if not fits(least):
        narrower = next(w for w in (64, 32, 16, 8, 4, 1) if w < width and fits(least, w))
        no_window = "--sources context,recycled " if narrower < window else ""
        raise UsageError(
            f"steps of {width} tokens of {name} do not fit into the {told(usable(free))} that can"
            f" be used on {where}; {no_window}--budget {narrower} does"
        )
    most = room_of(shape)
    roomier = max(((room_of(f), flag) for flag, f in smaller_forms(shape, kind)), default=(0, ""))
    hint = f"; {roomier[1]} leaves room for {roomier[0]:,}" if roomier[0] > most else ""
    needed = estimate(shape, context=context, width=width, attention=attention)
    beside = (
        f"{context:,} tokens of context need {told(needed.cache + needed.step)} beside the weights"
        f" of {told(needed.weights)}, and {told(usable(free))} can be used on {where}"
    )
    if wanted is not None:
        raise UsageError(f"{beside}; --max-context {most} fits{hint}")
    return most, f"{beside}: texts end at {most:,} tokens{hint}"


def told(size: float) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # Half a step earlier, so that no size is 1000 of a unit.
        if size >= 0.9995 * scale:
            return f"{size / scale:.3g} {unit}"
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
    needed, most = estimate(shape, context=least).total, usable(free)
    more = f"{told(needed - most)} more than the {told(most)} that can be used on {where}"
    line = f"{name} needs {told(needed)}, {more}"
    for flag, smaller in smaller_forms(shape, kind):
        needed = estimate(smaller, context=least).total
        if needed <= most:
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
