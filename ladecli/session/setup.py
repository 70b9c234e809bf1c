"""How a model is decoded: profile, attention, CUDA graphs and room, decided once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .. import placement, profiles
from ..decoder.config import check_attention
from ..errors import UsageError
from ..options.declare import CONFIG_FILE, config_path
from ..specs import memory
from .place import place_of

if TYPE_CHECKING:
    from ..decoder.config import LookaheadConfig
    from ..decoder.run.ranks.transport import DistributedTransport
    from ..models import Plan
    from ..options import Request
    from ..specs.device import Device
    from ..specs.memory import ModelSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention backend, and why it was chosen."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is decoded, decided before its weights are read.

    Attributes:
        no_graphs: why steps are not captured as CUDA graphs; None where they are.
        choice: what the profile says; None where no profile was asked.
        context: the most tokens of a text; None for what the model was made for.
        beside: memory that decoding takes beside the weights.
        pack: whether weights on a CPU may be stored twice, for speed.
        kernels: whether Triton kernels may be used.
        short: a line for the user where memory has no room for all of the context, or None.
        effects: lines about options that do nothing, or more than they say.
    """

    attention: Attention = Attention("auto", "the fastest one here")
    no_graphs: str | None = None
    choice: profiles.Choice | None = None
    context: int | None = None
    beside: memory.Need | None = None
    pack: bool = True
    kernels: bool = True
    short: str | None = None
    effects: tuple[str, ...] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines for the user."""
        told = self.choice.notices if self.choice is not None else ()
        return *told, *self.effects, *([self.short] if self.short else [])


def decide(request: Request, planned: Plan, ranks: DistributedTransport | None = None) -> Setup:
    """How a model is decoded; of several ranks, each calls this.

    Raises:
        LoadError: the model does not fit into memory.
        UsageError: a context or steps that were asked for do not; the message says what does.
    """
    device, shape = planned.device, planned.part
    attention = attention_of(request, device, shape)
    if ranks is not None:  # each may have found another one a little faster
        attention = ranks.broadcast(attention)
    no_graphs = why_no_graphs(request, device)
    choice = choice_for(request, device, shape)
    base = choice.base(request.wants_paper)
    settings, effects = request.lookahead(base), request.side_effects(base)
    most = planned.facts.context
    # In the config file it is a limit for all models.
    if request.origins.get("max_context") != CONFIG_FILE and (request.max_context or 0) > most:
        effects.append(
            f"--max-context {request.max_context:,} is more than {planned.name} has: texts end at"
            f" {most:,} tokens"
        )
    context, notice, beside = _room(request, planned, settings, attention.name, no_graphs is None)
    if ranks is not None:
        least = min(ranks.gather(context or sys.maxsize))
        if least < (context or least):
            context, notice = least, f"texts end at {least:,} tokens: another rank has less room"
    # Transposed weights for steps of one token, and packed ones for wider steps.
    twice = 2 * beside.weights + beside.cache + beside.step
    pack = request.device_map is None and twice <= memory.usable(_free(request, device))
    return Setup(
        attention=attention,
        no_graphs=no_graphs,
        choice=choice,
        context=context,
        beside=beside,
        pack=pack,
        kernels=request.kernels,
        short=notice,
        effects=tuple(effects),
    )


def _room(
    request: Request, planned: Plan, settings: LookaheadConfig, attention: str, captured: bool
) -> tuple[int | None, str | None, memory.Need]:
    """The most tokens of context that memory has room for, a notice, and what decoding takes."""
    from ..specs.device import free_memory

    plain = request.strategy == "autoregressive"
    width = 1 if plain else settings.step_limit
    asked = memory.Asked(
        longest=planned.facts.context,
        wanted=request.max_context,
        width=width,
        attention=attention,
        captured=captured and request.device_map is None,
    )
    name, device, part = planned.name, planned.device, planned.part
    if request.device_map is None:
        free, where = _free(request, device), device.label
        context, notice = memory.room(name, part, free, asked, where=where, kind=device.kind)
    else:
        gpus = [free_memory(gpu) for gpu in placement.gpus()]
        processor = free_memory(placement.processor())
        context, notice = memory.spread(name, planned.spec, gpus, processor, asked)
    return context, notice, asked.need(part, context)


def _free(request: Request, device: Device) -> float:
    """Bytes of memory for this process: processes that compute on the same device share it."""
    from ..specs.device import free_memory

    return free_memory(device) / (1 if device.kind == "cuda" else place_of(request).local_size)


def attention_of(request: Request, device: Device, shape: ModelSpec) -> Attention:
    """The attention backend that a request comes to for a model on a device."""
    if request.attention != "auto":
        return Attention(request.attention, "as asked for")
    if shape.latent is not None:
        return Attention("sdpa", "keys and values of this model differ in size")
    if device.kind != "cuda":
        return Attention("sdpa", f"the fastest one on {device.label}")
    if not request.kernels:
        return Attention("sdpa", "Triton kernels are switched off")
    from ..decoder.model.attention import choose_backend
    from ..specs.device import in_torch

    name = choose_backend("auto", *in_torch(device, shape.compute))
    why = "the split-KV kernel, for half precision" if name == "triton" else "no other works here"
    return Attention(name, why)


def why_no_graphs(request: Request, device: Device) -> str | None:
    """Why steps are not captured as CUDA graphs, as far as a device tells; None where they are."""
    if request.cuda_graphs is False:
        return "switched off"
    if device.kind != "cuda":
        return f"they need a CUDA GPU, and the model runs on {device.label}"
    if request.parallel_mode == "tensor":
        return "the ranks of a model that is split wait for one another within every step"
    return None


def check_options(request: Request, device: Device) -> None:
    """Refuse an attention backend, or CUDA graphs, that were asked for and cannot be on a device,
    as far as that shows without torch."""
    why = why_no_graphs(request, device)
    if request.cuda_graphs and why is not None:
        origin = request.origins.get("cuda_graphs", "cuda_graphs").removeprefix("flag ")
        if origin == CONFIG_FILE:
            origin = f"cuda-graphs in {config_path()}"
        raise UsageError(f"no CUDA graphs: {why}; leave {origin} out")
    check_attention(request.attention, device.kind)


def check_device(request: Request, device: Device, shape: ModelSpec) -> None:
    """The same where the device is known for sure, and the model."""
    check_options(request, device)
    if request.attention in ("flash", "triton"):  # which do not work everywhere
        from ..decoder.model.attention import choose_backend
        from ..specs.device import in_torch

        choose_backend(request.attention, *in_torch(device, shape.compute))


def choice_for(request: Request, device: Device, shape: ModelSpec) -> profiles.Choice:
    """What the profile of the request, or of a device, says for a model."""
    from ..decoder.faults import attempt
    from ..specs.device import measure_rates

    select = partial(
        profiles.select,
        request.profile,
        device,
        shape,
        attention=attention_of(request, device, shape).name,
        captured=why_no_graphs(request, device) is None,
    )
    measure = partial(measure_rates, device, shape.compute)
    # A device that is too full to be measured gets cautious settings.
    return attempt(select, measure=measure) or select()
