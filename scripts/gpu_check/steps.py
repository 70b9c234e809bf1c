"""What one step takes: by width, by context, by attention backend, and by how it is run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from ladecli.decoder import layout
from ladecli.decoder.attention import BACKENDS
from ladecli.decoder.capture import Capture
from ladecli.decoder.config import CAPTURED_WIDTHS, GROWTH
from ladecli.decoder.errors import DecoderError
from ladecli.decoder.graphs import GraphRunner
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.readout import Wanted
from ladecli.decoder.runner import Runner
from ladecli.decoder.sources.recycled import SUCCESSORS
from ladecli.decoder.tree import TokenTree

from .clock import Clock, bursts, middle, wholes
from .journal import LeftOut
from .shapes import Subject
from .watching import Watch, sure, watch_for


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        widths, contexts: of steps.
        rounds, repeats: each arm is timed in so many turns, and on the device so often in each.
        tokens: of a generated text.
        long: tokens of the prompt for which memory is measured.
        budget: of lookahead.
        copy_bytes, product: sizes for the ceilings of the machine.
        prompts: of the suite that are answered end to end.
        texts: that are looked through for differences.
    """

    widths: tuple[int, ...] = (1, 8, 16, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (128, 1024, 4096, 16384)
    rounds: int = 5
    repeats: int = 4
    tokens: int = 128
    long: int = 4096
    budget: int = 64
    copy_bytes: int = 4 << 30
    product: int = 8192
    prompts: int = 8
    texts: int = 18

    @property
    def room(self) -> int:
        """Tokens that a model must have room for."""
        return max(*self.contexts, self.long) + 2 * GROWTH


SMALL = Scale((1, 4), (16, 40), 1, 1, 8, 32, 20, 1 << 16, 32, 1, 1)
"""For the rehearsal on a CPU."""


def backends() -> list[str]:
    """The attention backends that are there to be fast."""
    return [name for name in BACKENDS if name != "reference"]


def step_of(width: int, context: int, vocabulary: int) -> StepLayout:
    """A step of a random tree behind a text of so many tokens."""
    rng, tree = random.Random(width), TokenTree()
    for node in range(width - 1):
        # Mostly behind the last ones, as paths of a draft go on.
        parent = rng.randrange(max(-1, node - 6), node)
        tree.grow(parent, rng.randrange(vocabulary), "context")
    return layout.build([rng.randrange(vocabulary)], context, layout.Draft(tree))


def wanted(width: int) -> Wanted:
    """What lookahead asks of a step, and plain decoding of its own; nobody looks at logits."""
    return Wanted(SUCCESSORS if width > 1 else 0, logits=False)


@torch.inference_mode()
def fill(runner: Runner, context: int, room: int, generator: torch.Generator) -> None:
    """Have a cache hold `context` tokens of random keys and values, and room for more."""
    cache = runner.cache
    cache.reserve(context + room)
    if cache.tensors is None:
        # The first step says what shape keys have.
        runner.forward(layout.build_chunk([0], 0))
    tensors = cache.tensors
    if tensors is None:
        raise RuntimeError("the layers are on several devices")
    for tensor in tensors:
        tensor[:, :, :, :context].normal_(generator=generator)
    cache.length = context


def whole_step(runner: Runner, step: StepLayout) -> object:
    """A step as the loop runs it, from its layout to what it shows."""
    return runner.start(step, wanted(len(step.tokens))).result()


class Bench:
    """Steps of one model with one attention backend.

    Args:
        subject: the model.
        attention: name of the backend.
        clock: of its device.
        scale: how much is measured.
    """

    def __init__(self, subject: Subject, attention: str, clock: Clock, scale: Scale) -> None:
        self._subject = subject
        self._attention = attention
        self._clock = clock
        self._scale = scale
        self._vocabulary = subject.facts.vocabulary
        self._watch: Watch = watch_for(subject.model)
        cache = KVCache(subject.facts.layers, scale.room)
        self._runner = GraphRunner(subject.model, cache, attention, self._watch)
        self._generator = torch.Generator(subject.device).manual_seed(0)

    def begin(self) -> None:
        """Fill the cache for the first time, with a step that no graph was captured of.

        Raises:
            DecoderError: the backend does not work here.
        """
        fill(self._runner, self._scale.contexts[0], CAPTURED_WIDTHS[-1], self._generator)

    def captures(self, data: dict[str, Any]) -> None:
        """Seconds that each width takes to be captured the first time, kernels compiled with it."""
        context = self._scale.contexts[0]
        data["capture_seconds"] = {}
        for width in CAPTURED_WIDTHS:
            if width <= self._scale.widths[-1]:
                self._captured(width, context)
                data["capture_seconds"][width] = self._watch.seconds[-1]
        data["capture_total"] = sum(data["capture_seconds"].values())
        data["given_up"] = self._runner.given_up

    def grid(self, data: dict[str, Any]) -> None:
        """Seconds of a step, on the device and as a whole, for each context and width.

        Rows are written as they are known.
        """
        scale, clock = self._scale, self._clock
        data |= {"widths": scale.widths, "contexts": [], "device_seconds": [], "seconds": []}
        for context in scale.contexts:
            fill(self._runner, context, CAPTURED_WIDTHS[-1], self._generator)
            arms = {width: self._captured(width, context) for width in scale.widths}
            found = bursts(arms, clock, scale.rounds, scale.repeats)
            steps = {
                width: partial(whole_step, self._runner, step_of(width, context, self._vocabulary))
                for width in scale.widths
            }
            whole = wholes(steps, clock, 2 * scale.rounds)
            data["contexts"].append(context)
            data["device_seconds"].append([middle(found[width]) for width in scale.widths])
            data["seconds"].append([middle(whole[width]) for width in scale.widths])

    def _captured(self, width: int, context: int) -> Callable[[], None]:
        """Run a step once, and say how to launch it again."""
        self._watch.last = None
        whole_step(self._runner, step_of(width, context, self._vocabulary))
        if self._runner.attention != self._attention:
            raise RuntimeError(f"steps run {self._runner.given_up}")
        return sure(self._watch.last, self._runner.trouble)

    def close(self) -> None:
        """Give the memory back."""
        self._runner.forget()
        self._runner.cache.release()
        self._watch.last = None


@contextmanager
def steps_of(subject: Subject, attention: str, clock: Clock, scale: Scale) -> Iterator[Bench]:
    """A bench whose memory is given back.

    Raises:
        LeftOut: there is no such backend here.
    """
    try:
        bench = Bench(subject, attention, clock, scale)
        bench.begin()
    except DecoderError as error:
        raise LeftOut(str(error)) from None
    try:
        yield bench
    finally:
        bench.close()


def best_backend(found: dict[str, dict[str, Any]]) -> str | None:
    """The backend whose steps take the least time in all, by what `Bench.grid` found of each.

    Only those count that were measured as far as any other.
    """
    rows = {name: data.get("seconds", []) for name, data in found.items()}
    most = max(map(len, rows.values()), default=0)
    sums = {
        # In plain steps of the first: long texts shall not weigh more than short ones.
        name: sum(
            sum(row) / min(each[i][0] for each in rows.values() if len(each) > i)
            for i, row in enumerate(those)
        )
        for name, those in rows.items()
        if len(those) == most > 0
    }
    return min(sums, key=sums.__getitem__, default=None)


def costs(data: dict[str, Any], host: float = 0.0) -> list[list[float]]:
    """Rows of step costs in plain steps, by what `Bench.grid` found; they never fall.

    Args:
        data: of one backend.
        host: seconds of drafting for each token of a step.
    """
    rows: list[list[float]] = []
    for seconds in data["seconds"]:
        over = [s + host * (w - 1) for s, w in zip(seconds, data["widths"], strict=True)]
        rows.append([*accumulate((round(each / over[0], 3) for each in over), max)])
    return rows


def plain(
    subject: Subject, attention: str, clock: Clock, scale: Scale, data: dict[str, Any]
) -> None:
    """Seconds of a plain step: as transformers' operations come, captured, lean, and both."""
    context, generator = scale.contexts[0], torch.Generator(subject.device).manual_seed(0)
    step = step_of(1, context, subject.facts.vocabulary)

    def runner_of(capture: Capture | None) -> Runner:
        cache = KVCache(subject.facts.layers, scale.room)
        runner: Runner = Runner(subject.model, cache, attention)
        if capture is not None:
            runner = GraphRunner(subject.model, cache, attention, capture)
        fill(runner, context, GROWTH, generator)
        return runner

    arms: list[tuple[str, bool, Runner]] = []
    forms = [("", False)] + ([("lean ", True)] if subject.lean is not None else [])
    for word, lean in forms:
        subject.be_lean(lean)
        arms.append((f"{word}eager", lean, runner_of(None)))
        watch = watch_for(subject.model)
        runner = runner_of(watch)
        whole_step(runner, step)
        # A graph keeps what it was captured with, whatever modules are now.
        arms.append((f"{word}captured", lean, runner))
        device = sure(watch.last, getattr(runner, "trouble", None))
        times = bursts({"device": device}, clock, scale.rounds, scale.repeats)
        data[f"{word}captured device_seconds"] = middle(times["device"])
    found: dict[str, list[float]] = {name: [] for name, *_ in arms}
    for _ in range(scale.rounds * scale.repeats):
        for name, lean, runner in arms:
            subject.be_lean(lean)
            found[name].append(clock.whole(partial(whole_step, runner, step)))
    data |= {name: middle(seconds) for name, seconds in found.items()}
    subject.be_lean(True)


def compiled(
    subject: Subject, attention: str, clock: Clock, scale: Scale, data: dict[str, Any]
) -> None:
    """Seconds of steps that torch compiled before they were captured, beside those it did not.

    Raises:
        RuntimeError: they were not compiled.
    """
    context, generator = scale.contexts[0], torch.Generator(subject.device).manual_seed(0)
    subject.be_lean(True)
    arms: dict[str, Callable[[], object]] = {}
    devices: dict[str, Callable[[], None]] = {}
    for name in ("captured", "compiled"):
        cache, watch = KVCache(subject.facts.layers, scale.room), watch_for(subject.model)
        runner = GraphRunner(subject.model, cache, attention, watch, compiled=name == "compiled")
        fill(runner, context, CAPTURED_WIDTHS[-1], generator)
        for width in (1, scale.budget):
            step = step_of(width, context, subject.facts.vocabulary)
            whole_step(runner, step)
            data[f"{name} {width}: capture_seconds"] = watch.seconds[-1]
            devices[f"{name} {width}: device_seconds"] = sure(watch.last, runner.trouble)
            arms[f"{name} {width}"] = partial(whole_step, runner, step)
        if runner.uncompiled is not None:
            raise RuntimeError(runner.uncompiled)
    found = bursts(devices, clock, scale.rounds, scale.repeats)
    whole = wholes(arms, clock, 2 * scale.rounds)
    data |= {name: middle(seconds) for name, seconds in (*found.items(), *whole.items())}


def share_of_bandwidth(read_bytes: float, bandwidth: float, seconds: float) -> float:
    """The time that reading the weights takes at a bandwidth, as a share of a step's."""
    return read_bytes / bandwidth / seconds


def cost_at(data: dict[str, Any], width: int, context: int, key: str = "seconds") -> float | None:
    """A measured step in plain steps behind the same text; None where it was not measured."""
    contexts: Sequence[int] = data.get("contexts", [])
    widths: Sequence[int] = data.get("widths", [])
    if context not in contexts or width not in widths:
        return None
    row = data[key][list(contexts).index(context)]
    return float(row[list(widths).index(width)] / row[list(widths).index(1)])
