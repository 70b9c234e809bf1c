"""Choose profile, attention, CUDA graphs and context length, once for each model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import profiles
from ..decoder.backends.needs import check_attention
from ..decoder.config import chunk_on
from ..errors import UsageError
from ..models import device as machine
from ..models import memory, placement
from ..options.declare import CONFIG_FILE

if TYPE_CHECKING:
    from ..decoder.ranks.transport import DistributedTransport
    from ..models.device import Device
    from ..models.fit import PlannedModel
    from ..models.memory import ModelSpec
    from ..options.drafting import DraftOptions
    from ..options.model import SessionOptions, StepOptions


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention backend, and the reason for choosing it."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Decisions about decoding a model, made before its weights are read."""

    attention: Attention = Attention("auto", "the fastest one here")
    no_graphs_reason: str | None = None  # why steps are not captured; None if they are
    choice: profiles.Choice | None = None  # the profile's settings; None without one
    context: int | None = None  # the most tokens of a text; None for the model's own limit
    need: memory.MemoryNeed | None = None  # bytes that decoding takes, the weights included
    store_twice: bool = True  # weights on a CPU may be stored twice, for speed
    kernels: bool = True  # Triton kernels may be used
    memory_notice: str | None = None  # if memory has no room for all of the context
    effects: tuple[str, ...] = ()  # lines about options that do nothing

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines for the user."""
        of_profile = self.choice.notices if self.choice is not None else ()
        return *of_profile, *self.effects, *filter(None, [self.memory_notice])


def decide(
    options: SessionOptions,
    drafts: DraftOptions,
    planned: PlannedModel,
    ranks: DistributedTransport | None = None,
    sharing: int = 1,
) -> Setup:
    """Return the setup of a model; each of several `ranks`, `sharing` of them here, calls this.

    Raises:
        LoadError: the model does not fit into memory.
        UsageError: the requested context or steps do not fit; the message says which do.
    """
    device, shape, facts = planned.device, planned.part, planned.facts
    options, effects = _effective(options, planned)
    attention = choose_attention(options, device, shape)
    if ranks is not None:
        attention = ranks.gather(attention)[0]
    invariant = attention.name == "invariant"
    no_graphs = why_no_graphs(options, device, planned.placement.split > 1)
    choice = profiles.select(drafts.profile, device, shape, no_graphs is None)
    base = choice.base(drafts.wants_paper)
    request = memory.MemoryRequest(
        longest=facts.context if options.max_context is None else facts.most_context,
        context_option=options.max_context,
        width=1 if drafts.strategy == "autoregressive" else drafts.lookahead(base).step_limit,
        # On a GPU what is batch-invariant takes no float32.
        attention="triton" if invariant and device.kind == "cuda" else attention.name,
        captured=no_graphs is None and options.device_map is None,
        chunk=chunk_on(device.kind),
        in_float32=planned.in_float32,
    )
    free, context, notice = _find_room(planned, request, sharing)
    need = request.need(shape, context)
    # A head that shares the embedding's weight is stored again in its own layout.
    twice = 2 * need.weights + need.cache + need.step <= memory.usable(free)
    if ranks is not None:
        least, twice = map(min, zip(*ranks.gather((context, twice)), strict=True))
        if least < context:
            context, notice = least, f"texts end at {least:,} tokens: another rank has less room"
    return Setup(
        attention=attention,
        no_graphs_reason=no_graphs,
        choice=choice,
        context=context,
        need=need,
        store_twice=twice,
        kernels=options.kernels,
        memory_notice=notice,
        effects=(*effects, *drafts.without_effect(base)),
    )


def _effective(options: SessionOptions, planned: PlannedModel) -> tuple[SessionOptions, list[str]]:
    """Return the options, without a --batch-invariant that has no effect but cost, and a line about
    each option without effect."""
    lines = []
    if options.batch_invariant and (why := why_not_invariant(planned, options)) is not None:
        lines.append(f"--batch-invariant does nothing here: {why}")
        options = replace(options, batch_invariant=False)
    elif options.batch_invariant and planned.device.kind == "cuda":
        lines.append("--batch-invariant was tested in Triton's interpreter, not on a GPU")
    most, limit = planned.facts.most_context, options.max_context
    # A limit in the config file is for all models, so it may exceed this one's.
    if limit and limit > most and options.origins.get("max_context") != CONFIG_FILE:
        lines.append(
            f"--max-context {limit:,} is more than {planned.name} has: texts end at {most:,} tokens"
        )
    return options, lines


def _find_room(
    planned: PlannedModel, request: memory.MemoryRequest, sharing: int
) -> tuple[float, int, str | None]:
    """Return the bytes that are free on the model's one device (0 for several), the most tokens of
    context that memory has room for, and a notice; `sharing` is as for `decide`."""
    name, device = planned.name, planned.device
    if planned.placement.device_map is not None:
        return 0.0, *memory.spread(name, planned.spec, *placement.free_bytes(), request)
    free = machine.free_memory(device) / (1 if device.kind == "cuda" else sharing)
    room = memory.room(name, planned.part, free, request, where=device.label, kind=device.kind)
    return free, *room


def choose_attention(options: StepOptions, device: Device, shape: ModelSpec) -> Attention:
    """Choose the attention backend for a model on a device."""
    if options.batch_invariant:
        return Attention("invariant", "bitwise identical logits in every step, as requested")
    if options.attention != "auto":
        return Attention(options.attention, "as asked for")
    if shape.latent is not None:
        return Attention("sdpa", "keys and values of this model differ in size")
    if device.kind != "cuda":
        return Attention("sdpa", f"the fastest one on {device.label}")
    if not options.kernels:
        return Attention("sdpa", "Triton kernels are switched off")
    from ..decoder.backends.attention import choose_backend

    name = choose_backend("auto", *machine.in_torch(device, shape.compute))
    why = "the split-KV kernel, for half precision" if name == "triton" else "no other works here"
    return Attention(name, why)


def why_not_invariant(planned: PlannedModel, options: StepOptions) -> str | None:
    """Return why the steps of a model cannot be batch-invariant, judging by its configuration; None
    if they can be."""
    place, spec, device = planned.placement, planned.spec, planned.device
    if device.kind not in ("cpu", "cuda"):
        return f"it needs a CPU or a CUDA GPU, and the model runs on {device.label}"
    if not place.is_ours(planned.facts):
        return "the model runs through transformers' forward, not through ours"
    if device.kind == "cuda":
        return _why_not_on_gpu(spec.weights, options, device)
    from ..decoder.backends.cpu_layouts import packs, rows_alike

    if spec.weights not in memory.FULL and not place.own_int8:
        names = ", ".join(memory.FULL)
        return f"it is for weights in {names} or 8 bits of our own, and these are {spec.weights}"
    if not (packs(machine.in_torch(device, spec.compute)[1]) or rows_alike()):
        return f"products in {spec.compute} round by the number of tokens on this processor"
    return None


def _why_not_on_gpu(weights: str, options: StepOptions, device: Device) -> str | None:
    from ..decoder.backends.triton_attention import triton_available

    if weights not in ("bfloat16", "float16"):
        return f"on a GPU it is for weights in bfloat16 or float16, and these are {weights}"
    if not options.kernels:
        return "on a GPU it needs Triton kernels, which are switched off"
    if not triton_available(machine.in_torch(device, weights)[0]):
        return f"on a GPU it needs Triton kernels, which {device.label} does not run"
    return None


def why_no_graphs(options: StepOptions, device: Device, split: bool = False) -> str | None:
    """Return why steps are not captured as CUDA graphs, judging by the device; None if they are.

    `split` is True if each of several ranks holds a part of the model.
    """
    if options.cuda_graphs is False:
        return "switched off"
    if device.kind != "cuda":
        return f"they need a CUDA GPU, and the model runs on {device.label}"
    if split:
        return "the ranks of a model that is split wait for one another within every step"
    return None


def check_options(options: StepOptions, device: Device, split: bool = False) -> None:
    """Raise a UsageError if a device cannot have the requested attention backend or CUDA graphs;
    this checks only what is known without torch."""
    why = why_no_graphs(options, device, split)
    if options.cuda_graphs and why is not None:
        raise UsageError(f"no CUDA graphs: {why}; leave cuda-graphs out")
    check_attention("invariant" if options.batch_invariant else options.attention, device.kind)


def check_device(options: StepOptions, device: Device, shape: ModelSpec, split: bool) -> None:
    """Check the same options with torch, and the attention backend with this model."""
    check_options(options, device, split)
    if options.attention in ("flash", "triton"):  # which do not work everywhere
        from ..decoder.backends.attention import choose_backend

        choose_backend(options.attention, *machine.in_torch(device, shape.compute))
