"""How a model is decoded: profile, attention, CUDA graphs and room, decided once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import profiles
from ..decoder.config import check_attention, chunk_on
from ..errors import UsageError
from ..options.declare import CONFIG_FILE
from ..specs import device as machine
from ..specs import memory, placement

if TYPE_CHECKING:
    from ..decoder.ranks.transport import DistributedTransport
    from ..models import PlannedModel
    from ..options.drafting import DraftOptions
    from ..options.model import SessionOptions, StepOptions
    from ..specs.device import Device
    from ..specs.memory import ModelSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention backend, and why it was chosen."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is decoded, decided before its weights are read."""

    attention: Attention = Attention("auto", "the fastest one here")
    no_graphs_reason: str | None = None  # why steps are not captured; None where they are
    choice: profiles.Choice | None = None  # what the profile says; None where none was asked
    context: int | None = None  # the most tokens of a text; None for what the model was made for
    need: memory.Need | None = None  # bytes that decoding takes, the weights included
    store_twice: bool = True  # whether weights on a CPU may be stored twice, for speed
    kernels: bool = True  # whether Triton kernels may be used
    memory_notice: str | None = None  # where memory has no room for all of the context
    effects: tuple[str, ...] = ()  # lines about options that do nothing, or more than they say

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
    """Decide how a model is decoded; several `ranks`, `sharing` of them here, each call this.

    Raises:
        LoadError: the model does not fit into memory.
        UsageError: a context or steps that were asked for do not; the message says what does.
    """
    device, shape, split = planned.device, planned.part, planned.placement.split > 1
    options, effects = _without_effect(options, planned)
    attention = choose_attention(options, device, shape)
    if ranks is not None:
        attention = ranks.gather(attention)[0]
    no_graphs = why_no_graphs(options, device, split)
    choice = choose_profile(drafts.profile, options, device, shape, split)
    base = choice.base(drafts.wants_paper)
    facts = planned.facts
    asked = memory.Asked(
        longest=facts.context if options.max_context is None else facts.most_context,
        wanted=options.max_context,
        width=1 if drafts.strategy == "autoregressive" else drafts.lookahead(base).step_limit,
        attention=attention.name,
        captured=no_graphs is None and options.device_map is None,
        chunk=chunk_on(device.kind),
        in_float32=_in_float32(planned),
    )
    free, context, notice = _find_room(planned, asked, sharing)
    need = asked.need(shape, context)
    # A head that shares the embedding's weight has another form beside it.
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
        effects=(*effects, *drafts.side_effects(base), *_limit_notice(options, planned)),
    )


def _without_effect(
    options: SessionOptions, planned: PlannedModel
) -> tuple[SessionOptions, list[str]]:
    """The options but for --batch-invariant where it does nothing, and a line that says so: its
    slower attention would give nothing for its time."""
    if not options.batch_invariant or (why := why_not_invariant(planned)) is None:
        return options, []
    line = f"--batch-invariant does nothing here: {why}"
    return replace(options, batch_invariant=False), [line]


def _limit_notice(options: SessionOptions, planned: PlannedModel) -> list[str]:
    """A line about a limit of the context that is none; in the config file it is for all models."""
    most, wanted = planned.facts.most_context, options.max_context
    if wanted is None or wanted <= most or options.origins.get("max_context") == CONFIG_FILE:
        return []
    return [
        f"--max-context {wanted:,} is more than {planned.name} has: texts end at {most:,} tokens"
    ]


def _in_float32(planned: PlannedModel) -> bool:
    """Whether a CPU keeps activations, keys and values of a model in float32, whatever its
    weights are."""
    from ..decoder.backends.cpu_layouts import computed_in

    place = planned.placement
    if planned.device.kind != "cpu" or not place.is_ours(planned.facts):
        return False
    plain = planned.spec.weights in memory.FULL
    return place.own_int8 or (plain and computed_in(planned.dtype).itemsize == 4)


def _find_room(
    planned: PlannedModel, asked: memory.Asked, sharing: int
) -> tuple[float, int, str | None]:
    """Bytes that are free on the model's one device (0 for several), the most tokens of context
    that memory has room for, and a notice; `sharing` is as for `decide`."""
    name, device = planned.name, planned.device
    if planned.placement.device_map is not None:
        return 0.0, *memory.spread(name, planned.spec, *placement.free_bytes(), asked)
    free = machine.free_memory(device) / (1 if device.kind == "cuda" else sharing)
    room = memory.room(name, planned.part, free, asked, where=device.label, kind=device.kind)
    return free, *room


def choose_attention(options: StepOptions, device: Device, shape: ModelSpec) -> Attention:
    """Choose the attention backend for a model on a device."""
    if options.batch_invariant:
        return Attention("invariant", "the same for a token in every step, as asked for")
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


def why_not_invariant(planned: PlannedModel) -> str | None:
    """Say why steps of a model are not batch-invariant, as far as its configuration tells; None
    where they can be."""
    from ..decoder.backends.cpu_layouts import packs, rows_alike

    place, spec = planned.placement, planned.spec
    if planned.device.kind != "cpu":
        return f"it is for a CPU, and the model runs on {planned.device.label}"
    if spec.weights not in memory.FULL and not place.own_int8:
        known = ", ".join(memory.FULL)
        return f"it is for weights in {known} or 8 bits of our own, and these are {spec.weights}"
    if not (packs(machine.in_torch(planned.device, spec.compute)[1]) or rows_alike()):
        return f"products in {spec.compute} round by the number of tokens on this processor"
    if not place.is_ours(planned.facts):
        return "the model runs through transformers' forward, not through ours"
    return None


def why_no_graphs(options: StepOptions, device: Device, split: bool = False) -> str | None:
    """Say why steps are not captured as CUDA graphs, as far as a device tells; None where they are.

    `split` is whether each of several ranks holds a part of the model.
    """
    if options.cuda_graphs is False:
        return "switched off"
    if device.kind != "cuda":
        return f"they need a CUDA GPU, and the model runs on {device.label}"
    if split:
        return "the ranks of a model that is split wait for one another within every step"
    return None


def check_options(options: StepOptions, device: Device, split: bool = False) -> None:
    """Refuse an attention backend, or CUDA graphs, that were asked for and cannot be on a device,
    as far as that shows without torch."""
    why = why_no_graphs(options, device, split)
    if options.cuda_graphs and why is not None:
        raise UsageError(f"no CUDA graphs: {why}; leave cuda-graphs out")
    check_attention("invariant" if options.batch_invariant else options.attention, device.kind)


def check_device(options: StepOptions, device: Device, shape: ModelSpec, split: bool) -> None:
    """The same where the device is known for sure, and the model."""
    check_options(options, device, split)
    if options.attention in ("flash", "triton"):  # which do not work everywhere
        from ..decoder.backends.attention import choose_backend

        choose_backend(options.attention, *machine.in_torch(device, shape.compute))


def choose_profile(
    name: str | None, options: StepOptions, device: Device, shape: ModelSpec, split: bool = False
) -> profiles.Choice:
    """Choose the settings for a model, by the profile of a name or by that of a device."""
    captured = why_no_graphs(options, device, split) is None
    return profiles.select(name, device, shape, captured)
