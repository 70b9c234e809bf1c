"""Verdicts and assumptions in words: what an estimate comes to, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..memory import LEAST_CONTEXT, told, usable
from ..profiles import tera
from ..profiles.derive import (
    GRAPH_LAUNCH,
    HOST,
    LAUNCH,
    SHARPNESS,
    SKINNY,
    SMALL_KERNEL,
    SMALL_KERNELS,
)
from ..profiles.user import short
from . import growth as grown
from . import links
from .cost import LOOKAHEAD, PLAIN, SUMS, TENSOR, exchanged, sums, uneven
from .gpus import Gpu
from .growth import BEYOND
from .links import Link
from .outlook import PAYS, Outlook, Row
from .request import MOST, PER_NODE

ESTIMATED = "estimated, not measured"
_TITLES = {
    LOOKAHEAD: "Lookahead parallelism (the model and {} tokens on each GPU)",
    TENSOR: "Tensor parallelism with lookahead (the model split)",
    PLAIN: "Tensor parallelism, plain decoding (the model split)",
}
_NAMES = {
    LOOKAHEAD: "lookahead parallelism",
    TENSOR: "tensor parallelism with lookahead",
    PLAIN: "tensor parallelism, plain decoding",
}
_ONE = {
    LOOKAHEAD: "lookahead",
    TENSOR: "lookahead",
    PLAIN: "plain decoding",
}
"""What the modes are called on one GPU, where nothing is parallel."""
_KERNELS = "kernels"
_TOKENS = "tokens per step"
"""How the assumptions begin that others refer to."""
_MUCH = 0.25
"""Kernels that read no weights are worth a word from this share of a step on."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned for, by its names.

    Attributes:
        model: its name.
        gpu: the kind of GPU.
        budget_from: where the budget is from.
        notes: what else is to be said of the model.
        named: whether the user named it, or its size.
    """

    model: str
    gpu: Gpu
    budget_from: str
    notes: tuple[str, ...] = ()
    named: bool = True


def heading(subject: Subject, outlook: Outlook) -> str:
    """What was estimated, in one line."""
    shape = outlook.setup.shape
    size = f"{short(shape.parameters)} parameters, {told(shape.weight_bytes)}"
    model = subject.model if subject.named else f"{subject.model}, since no model was named,"
    return (
        f"{model} in {shape.weights} ({size}) on {subject.gpu.profile.description}"
        f"{_spread(outlook)}: {ESTIMATED}"
    )


def _spread(outlook: Outlook) -> str:
    """How many nodes the GPUs take, where that is not what everybody would think."""
    fabric = outlook.setup.fabric
    gpus = outlook.asked or outlook.rows[LOOKAHEAD][-1].gpus
    nodes = fabric.nodes(gpus)
    so_many = f"{gpus}" if outlook.asked else f"up to {gpus}"
    if nodes > 1:
        each = "1 GPU" if fabric.per_node == 1 else f"{fabric.per_node} GPUs"
        return f", {so_many} of them in {nodes} nodes of {each}"
    return f", {so_many} of them in one node" if gpus > PER_NODE else ""


def title(outlook: Outlook, mode: str) -> str:
    """What stands above the table of a mode."""
    return _TITLES[mode].format(outlook.setup.budget)


def verdict(outlook: Outlook, mode: str) -> str:
    """Where more GPUs stop paying in a mode, in one line."""
    stop, name = outlook.stop(mode), _NAMES[mode]
    if stop is None:
        alone = mode == LOOKAHEAD
        return f"{name}: {'one GPU cannot hold the model' if alone else 'fits on none of these'}"
    first = outlook.possible(mode)[0].gpus
    if stop.beyond is None or stop.gain is None:
        return f"{name}: {_throughout(outlook, mode, first, stop.gpus)}"
    gain = _gain(stop.gpus, stop.beyond, stop.gain)
    if stop.gpus == 1:
        return f"{name}: a second GPU does not pay: {gain}"
    if stop.gpus == first:
        return f"{name}: {counted(first)} hold the model, and more do not pay: {gain}"
    return f"{name}: pays up to {counted(stop.gpus)}: {gain}"


def _throughout(outlook: Outlook, mode: str, first: int, last: int) -> str:
    """That more GPUs pay wherever they are possible, from `first` to `last`; and why no others."""
    shape = outlook.setup.shape
    why = None if mode == LOOKAHEAD else uneven(shape, 2 * last)
    if any(uneven(shape, gpus) is None for gpus in range(last + 1, MOST + 1)):
        why = None  # an odd number, which the table lacks
    ends = ", as far as this table goes" if why is None else ""
    if first < last:
        return f"pays up to {counted(last)}{ends}" + (f": {why}" if why else "")
    if first == 1:
        return f"on one GPU only{ends}" + (f": {why}" if why else "")
    others = f", and {why}" if why else ""
    return f"possible on {counted(first)} only{ends}: fewer cannot hold the model{others}"


def _gain(low: int, high: int, gain: float) -> str:
    """What going from `low` GPUs to `high` brings, where that is too little to pay."""
    if round(gain, 3) <= 0:
        than = "" if low == 1 else f" than {low}"
        return f"{high} are {'no faster' if round(gain, 3) == 0 else 'slower'}{than}"
    each = "" if high == 2 * low else " for each doubling"
    # Rounded down, so that no gain that is too small reads like one that pays.
    percent = math.floor(gain * 1000) / 10
    return (
        f"going from {low} to {high} brings only {percent:.1f}% more tokens per"
        f" second{each}, and it takes {PAYS:.0%} to pay"
    )


def best(outlook: Outlook) -> str:
    """The fastest that can be had, in one line."""
    found = outlook.best()
    if found is None or outlook.baseline is None:
        return "it fits on none of these"
    speed = found.step.speed
    ratio = speed / outlook.baseline.step.speed
    name = (_ONE if found.gpus == 1 else _NAMES)[found.mode]
    said = f"{name}, {speed:.3g} tokens/s"
    if (found.mode, found.gpus) != (outlook.baseline.mode, outlook.baseline.gpus):
        said += f", {ratio:.2f}× {baseline(outlook)}"
    if found.mode == PLAIN:
        said += "; drafts do not pay"
    if outlook.asked is None:
        return f"fastest here, on {counted(found.gpus)}: {said}"
    if found.gpus < outlook.asked:
        fewer = "one is" if found.gpus == 1 else f"{found.gpus} are"
        return f"with {counted(outlook.asked)}, {fewer} faster than all {outlook.asked}: {said}"
    return f"with {counted(outlook.asked)}: {said}"


def caveats(subject: Subject, outlook: Outlook) -> list[str]:
    """What the fastest leans on most, each in a line that refers to the assumption's number."""
    found = outlook.best()
    if found is None:
        return []
    numbers = {
        start: number
        for number, text in enumerate(assumptions(subject, outlook), start=1)
        for start in (_KERNELS, _TOKENS)
        if text.startswith(start)
    }
    growth, layers = outlook.setup.growth, outlook.setup.shape.layers
    said = [
        f"{_TOKENS}: as measured on a small model, {growth.rows[-1].model} ({growth.text!r});"
        f" see {numbers[_TOKENS]}"
    ]
    one_by_one = found.gpus > 1 and found.mode != LOOKAHEAD
    one_by_one |= outlook.setup.shape.weights == "int8"
    share = (LAUNCH if one_by_one else GRAPH_LAUNCH) * layers / found.step.seconds
    what = f"launching {_KERNELS} is" if one_by_one else f"small {_KERNELS} take"
    if share > _MUCH:
        said.append(
            f"{what} {share:.0%} of such a step, which more GPUs do not shorten; see"
            f" {numbers[_KERNELS]}"
        )
    return said


def baseline(outlook: Outlook) -> str:
    """What speed-ups are over, in words."""
    least = outlook.baseline
    if least is None or least.gpus == 1:
        return "plain decoding on one GPU"
    return f"plain decoding on {least.gpus} GPUs, the fewest that hold it"


def why_not(outlook: Outlook, row: Row) -> str | None:
    """Why a row of a table is impossible; None where it is not."""
    if row.problem is not None or row.step is not None or row.needed is None:
        return row.problem
    room = told(outlook.setup.room)
    return f"each GPU needs {told(row.needed)}, and {room} can be used"


def assumptions(subject: Subject, outlook: Outlook) -> list[str]:
    """What the estimates rest on, each in a sentence."""
    return [
        *_of_steps(subject, outlook),
        *_of_links(outlook),
        *_of_drafts(subject, outlook),
        f"one text at a time (batch 1), behind {outlook.setup.context:,} tokens of context",
        f"more GPUs pay while twice as many bring at least {PAYS:.0%} more tokens per second",
    ]


def _of_steps(subject: Subject, outlook: Outlook) -> list[str]:
    setup = outlook.setup
    rates, shape = setup.rates, setup.shape
    reading = (shape.weight_bytes + setup.context * shape.cache_bytes) / rates.bandwidth
    memory = "unknown, so whether it fits is not checked"
    if setup.memory is not None:
        memory = f"{told(setup.memory)}, of which {told(usable(setup.memory))} can be used"
    return [
        *subject.notes,
        f"a GPU reads {rates.bandwidth / 1e9:.0f} GB/s and multiplies {tera(rates.arithmetic)}"
        f" TFLOP/s in {shape.compute} ({rates.source}); narrow products reach {SKINNY:.0%} of the"
        f" rate; reading and multiplying overlap (a norm of order {SHARPNESS})",
        f"{_KERNELS} of a step are one CUDA graph, in which the small ones take"
        f" {GRAPH_LAUNCH * 1e3:.2f} ms for each of {shape.layers} layers, in all"
        f" {GRAPH_LAUNCH * shape.layers * 1e3:.1f} ms ({SMALL_KERNELS} a layer,"
        f" {SMALL_KERNEL * 1e6:.0f} µs each: an estimate that no GPU has confirmed); where a model"
        f" is split, and in int8, they are launched one by one, {LAUNCH * 1e3:.1f} ms a layer, in"
        f" all {LAUNCH * shape.layers * 1e3:.1f} ms, however it is split; reading weights and keys"
        f" for a plain step takes {reading * 1e3:.3g} ms on one GPU",
        f"memory of a GPU: {memory}, with {setup.context:,} tokens of context"
        + ("" if setup.context >= LEAST_CONTEXT else " (a model is of little use with so few)"),
    ]


def _of_links(outlook: Outlook) -> list[str]:
    setup = outlook.setup
    fabric, shape = setup.fabric, setup.shape
    first, last = fabric.protocols[0], fabric.protocols[-1]
    figures, staging = links.sources()
    several = max(row.nodes for row in outlook.rows[LOOKAHEAD]) > 1
    joined = [f"within a node of {counted(fabric.per_node)}, {_joined(fabric.within, 'GPU')}"]
    if fabric.per_node == 1:
        joined = []
    if several:
        joined.append(f"between nodes, {_joined(fabric.between, 'node')}")
    return [
        *joined,
        "exchanges go round a ring, and sums through a tree where that is faster; they start"
        f" within {first.start * 1e6:.2g} to {last.start * 1e6:.2g} µs and reach"
        f" {first.share:.0%} to {last.share:.0%} of a link's bandwidth ({figures}); nothing of it"
        " is hidden behind computing",
        f"ranks agree on every step: {told(exchanged(setup.budget))} from each rank, whatever the"
        f" model's size, and {fabric.staging * 1e6:.0f} µs to the GPU and back ({staging})",
        f"tensor parallelism adds up {sums(shape)} times a step ({SUMS} for each layer, one for the"
        " embeddings) and gathers the logits; all weights are split but for norms",
    ]


def _joined(link: Link, place: str) -> str:
    passing = f"{link.hops[0] * 1e6:.3g} µs from {place} to {place}"
    return f"{link.name}: {links.told(link.bandwidth)} in each direction, {passing} ({link.source})"


def _of_drafts(subject: Subject, outlook: Outlook) -> list[str]:
    setup = outlook.setup
    growth = setup.growth
    first = growth.rows[-1]
    others = [name for name in grown.shipped() if name != growth.text]
    other = f" (--text takes {', '.join(others)} too)" if others else ""
    wide = ""
    if setup.budget > growth.widest:
        wide = f"; nothing wider than {growth.widest} was measured: {setup.budget} counts as that"
    beyond = ""
    if any(row.gpus > growth.most_ranks for row in outlook.rows[LOOKAHEAD]):
        beyond = (
            f"; beyond {growth.most_ranks} ranks, every doubling is taken to bring {BEYOND:.0%} of"
            " what the one before brought"
        )
    return [
        f"every step feeds {setup.budget} tokens on each GPU ({subject.budget_from}), or one where"
        " drafts do not pay",
        f"{_TOKENS} are those of {first.model} on the text {growth.text!r} ({first.origin});"
        f" other texts and models differ{other}{wide}{beyond}",
        "in lookahead parallelism, a GPU that lacks the keys of accepted tokens feeds them again,"
        " in places of that width; and every process drafts for all GPUs,"
        f" {HOST * 1e6:.1f} µs for each token",
    ]


def counted(gpus: int) -> str:
    """So many GPUs, in words."""
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"
