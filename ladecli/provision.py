"""What memory has room for, found out before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import device_map, memory
from .parallel.place import place_of

if TYPE_CHECKING:
    from .decoder.config import LookaheadConfig
    from .models import Plan
    from .options import Request


@dataclass(frozen=True, slots=True)
class Provision:
    """Room for decoding.

    Attributes:
        context: the most tokens of a text; None for what the model was made for.
        notice: what the user should know of it.
        beside: what decoding takes beside the weights.
        pack: whether weights of a CPU may be stored twice, for speed.
    """

    context: int | None
    notice: str | None
    beside: memory.Need
    pack: bool = True

    def among(self, least: int) -> Provision:
        """The same with other ranks, the least roomy of which has so much context."""
        if self.context is None or least >= self.context:
            return self
        notice = f"texts end at {least:,} tokens: another rank has no room for more"
        return replace(self, context=least, notice=notice)


def provide(
    request: Request,
    planned: Plan,
    settings: LookaheadConfig,
    attention: str = "sdpa",
    captured: bool = False,
) -> Provision:
    """The most tokens of context that memory has room for.

    Args:
        request: what the user asked for.
        planned: the model.
        settings: of lookahead, where that decodes.
        attention: the backend.
        captured: whether steps are CUDA graphs.

    Raises:
        LoadError: the model does not fit.
        UsageError: a context or steps that were asked for do not; the message says what does.
    """
    from . import placement
    from .device import free_memory

    plain = request.strategy == "autoregressive"
    width = 1 if plain else settings.step_limit
    asked = memory.Asked(
        longest=planned.facts.context,
        wanted=request.max_context,
        width=width,
        window=1 if plain else settings.window_cells,
        attention=attention,
        captured=captured and request.device_map is None,
        compiled=request.compile,
    )
    device, part = planned.device, planned.part
    # Processes that compute on the same device share its memory.
    free = free_memory(device) / (1 if device.kind == "cuda" else place_of(request).local_size)
    if request.device_map is None:
        context, notice = memory.room(
            planned.name, part, free, asked, where=device.label, kind=device.kind
        )
    elif request.device_map in device_map.WORDS:
        context, notice = memory.spread(
            planned.name,
            planned.shape,
            [free_memory(gpu) for gpu in placement.gpus()],
            free_memory(placement.processor()),
            asked,
        )
    else:  # a map of the user's own, who will have reasons
        context, notice = request.max_context or planned.facts.context, None
    beside = memory.needed_by(part, asked, context, width)
    # Transposed weights for steps of one token, and packed ones for wider steps.
    twice = 2 * beside.weights + beside.cache + beside.step
    pack = request.device_map is None and twice <= memory.usable(free)
    return Provision(context, notice, beside, pack)
