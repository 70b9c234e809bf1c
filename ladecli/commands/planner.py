"""`lade plan`: estimate decoding speed on more GPUs, and where more of them stop paying.

Nothing is measured or loaded.  A step takes as long as the slower of reading and multiplying, plus
kernel launches (`profiles.derive`), plus exchanges between GPUs.  It yields the tokens per step
that benchmarks/ranks.py measured.  Those and well-known models are in planner.toml.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib import resources
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from .. import profiles
from ..decoder.config import MESSAGE_BYTES
from ..errors import UsageError
from ..files import toml
from ..options import PlanRequest
from ..profiles import user
from ..profiles.derive import HOST, LAUNCH, step_seconds
from ..profiles.recognise import recognise
from ..profiles.schema import Profile
from ..specs import memory
from ..specs.device import Rates
from ..specs.memory import FULL, ModelSpec
from ..view import screen
from ..view.terminal import Terminal
from ..visualize import counted
from .links import Links, links_of

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "lade-plan/1"
LOOKAHEAD, TENSOR, PLAIN = "lookahead", "tensor", "tensor-plain"
MODES = {
    LOOKAHEAD: "lookahead parallelism",
    TENSOR: "tensor parallelism with lookahead",
    PLAIN: "tensor parallelism, plain decoding",
}
"""Drafts dealt out to whole models; the model split; the model split, one token per step."""
DEFAULT_SIZE = "7b"
PAYS = 0.10
"""More GPUs pay while twice as many bring at least this share more tokens per second."""

STAGING = 60e-6
"""Seconds to the GPU and back; assumed: two small copies, for which the host waits."""


@cache
def _data() -> dict[str, Any]:
    """What planner.toml holds."""
    text = resources.files(__package__).joinpath("planner.toml").read_text(encoding="utf-8")
    return dict(toml.loads(text))


def tokens_per_step(ranks: int, width: int) -> float:
    """Tokens per step of `ranks` that feed `width` tokens each.

    Linear in the logarithms between measurements.  Beyond the widest nothing is added; beyond the
    most ranks, every doubling brings half of what the one before brought.
    """
    import numpy as np

    measured = _data()["measured"]
    beyond = 1 - 0.5 ** max(math.log2(ranks / measured["ranks"][-1]), 0.0)
    values = [
        np.interp(math.log2(ranks), np.log2(measured["ranks"]), row) + beyond * (row[-1] - row[-2])
        for row in measured["tokens_per_step"]
    ]
    return float(np.interp(math.log2(width), np.log2([1, *measured["budgets"]]), [1.0, *values]))


def known_model(size: str, dtype: str, quantize: str = "none") -> tuple[str, ModelSpec]:
    """Name and shape of a well-known model by its size ("7b") or name ("llama-3-8b")."""
    models, sizes = _data()["models"], _data()["sizes"]
    word = size.strip().lower()
    name = sizes.get(word) or sizes.get(f"{word}b", word)
    if name not in models:
        raise UsageError(
            f"unknown model size {size!r}; known: {', '.join(sizes)}, and {', '.join(models)}"
        )
    parameters, layers, hidden, inner, heads, kv_heads, vocabulary, *experts = models[name]
    active = experts[0] if experts else parameters
    weight_bytes = parameters * (4 if dtype == "float32" else 2)
    numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
    shape = ModelSpec(parameters, active, dtype, weight_bytes, dtype, *numbers)
    forms = dict(memory.smaller_forms(shape, "cuda"))
    return name, forms.get(f"--quantize {quantize}", shape)


def find_gpu(name: str | None, terminal: Terminal) -> tuple[Profile, float | None]:
    """The profile of a GPU, and its bytes of memory if known.

    The name is a profile's or what a driver calls the GPU; None is the GPU of this machine.
    """
    every = profiles.every(user.read_all()[0]).values()
    # Apple's GPUs cannot be joined.
    known = {p.name: p for p in every if p.hardware and not p.tuned and p.name != "apple"}
    kinds = ", ".join(sorted(known.keys() - {"gpu"}))  # which stands for unknown ones
    if name is None:
        with terminal.progress("looking at this machine"):
            from ..specs.device import detect

            device = detect()
        if device.kind != "cuda":
            raise UsageError(f"no GPU is here to plan for; name one by --gpu: {kinds}")
        name, size = device.label, float(device.memory)
    else:
        given = re.search(r"(\d+)\s*gb", name, re.IGNORECASE)
        size = float(given[1]) * 1e9 if given else 0.0
    profile = known.get(name.lower()) or recognise("cuda", name, size, known.values())
    if profile is None:
        raise UsageError(f"unknown GPU {name!r}; --gpu takes {kinds}")
    return profile, size or min(profile.memory, default=None)


def find_model(
    request: PlanRequest, gpu: Profile, terminal: Terminal
) -> tuple[str, ModelSpec, tuple[str, ...]]:
    """Name, shape and notices of the model as a GPU would hold it; no weights are read."""
    auto = request.dtype == "auto"
    if request.model is None or request.model_size is not None:
        half = gpu.hardware.half if gpu.hardware else "bfloat16"
        dtype = half if auto else request.dtype
        size = request.model_size or DEFAULT_SIZE
        name, shape = known_model(size, dtype, request.quantize)
        notes = [f"--model-size {size} is read as {name}"] if name != size else []
        if request.model_size is None:
            notes = [f"no model was named: {name} stands for one of {DEFAULT_SIZE}"]
        return name, shape, tuple(notes)
    with terminal.progress(f"looking at {request.model}"):
        from .. import models

        # By itself a CPU would take float32, and a GPU takes the type that is stored.
        options = replace(request, device="cpu", dtype="bfloat16" if auto else request.dtype)
        planned = models.plan(request.model, options)
        stored = str(planned.config.get_text_config(decoder=True).dtype).rpartition(".")[2]
        if auto and stored != "bfloat16":
            dtype = stored if stored in FULL else "float32"
            planned = models.plan(request.model, replace(options, dtype=dtype))
    return request.model, planned.spec, planned.notices


@dataclass(frozen=True, slots=True)
class Row:
    """A step in one mode on a number of GPUs, under its names in JSON; NaN where impossible."""

    mode: str
    gpus: int
    nodes: int
    why_not: str | None = None
    needed_bytes: float | None = None  # on each GPU; None where the model cannot be split
    step_seconds: float = math.nan
    computing_seconds: float = math.nan
    drafting_seconds: float = math.nan  # of the host, for the drafts of the other GPUs
    talking_seconds: float = math.nan  # of exchanges
    sent_bytes: float = math.nan  # by each GPU in them
    tokens_per_step: float = math.nan
    tokens_per_second: float = math.nan


@dataclass(frozen=True)
class Plan:
    """What is asked for, on what it is estimated, and the estimates."""

    request: PlanRequest
    gpu: Profile
    memory: float | None  # bytes of one GPU; None if unknown
    links: Links
    model: str
    spec: ModelSpec
    notes: tuple[str, ...]  # about the model

    @cached_property
    def rates(self) -> Rates:
        """The rates of one GPU."""
        assert self.gpu.hardware is not None  # `find_gpu` leaves others out
        return self.gpu.hardware.rates_for(self.spec.compute)

    @cached_property
    def budget(self) -> int:
        """The most tokens in a step of each GPU: as asked for, or of the GPU's profile."""
        profile = profiles.choose(self.gpu, self.spec).lookahead
        return self.request.lookahead(profile).step_limit

    @property
    def usable(self) -> float:
        """Bytes of one GPU that decoding may take."""
        return math.inf if self.memory is None else memory.usable(self.memory)

    def needed(self, spec: ModelSpec, width: int) -> float:
        """Bytes of one GPU that decoding with steps of `width` tokens takes."""
        return memory.estimate(spec, context=self.request.context, width=width).total

    def row(self, mode: str, gpus: int, width: int) -> Row:
        """A step of `width` tokens on each GPU, in a mode on a number of GPUs."""
        whole, links = self.spec, self.links
        place = (mode, gpus, math.ceil(gpus / links.gpus_per_node))
        split = gpus > 1 and mode != LOOKAHEAD
        if split and whole.weights not in FULL:
            return Row(*place, f"weights in {whole.weights} cannot be split")
        if split and whole.kv_heads % gpus:
            heads = counted(whole.kv_heads, "key/value head")
            return Row(*place, f"{heads} cannot be split over {counted(gpus, 'GPU')}")
        spec = whole.shard(gpus) if split else whole
        needed = self.needed(spec, 1 if mode == PLAIN else self.budget)
        if needed > self.usable:
            usable = memory.told(self.usable)
            why_not = f"needs {memory.told(needed)} on each GPU, which has {usable}"
            return Row(*place, why_not, needed)
        # A split model runs through transformers' forward, and its steps are no CUDA graphs; in
        # lookahead parallelism every rank grows the tree of all ranks.
        ranks = 1 if split else gpus
        context = self.request.context
        computing = step_seconds(self.rates, spec, width, context, captured=not split)
        drafting = HOST * width * (ranks - 1) if width > 1 else 0.0
        talking = sent = 0.0
        if gpus > 1:
            sent = MESSAGE_BYTES
            talking = links.all_gather(sent, gpus) + STAGING
        if split:
            # An all-reduce after attention and feed-forward of each layer and the embeddings.
            reductions = 2 * whole.layers + 1
            states = width * whole.hidden * whole.value_bytes
            logits = width * whole.vocabulary * whole.value_bytes / gpus
            talking += reductions * links.all_reduce(states, gpus) + links.all_gather(logits, gpus)
            sent += reductions * states + logits
        step, tokens = computing + drafting + talking, tokens_per_step(ranks, width)
        parts = (computing, drafting, talking, sent)
        return Row(*place, None, needed, step, *parts, tokens, tokens / step)

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """The estimates by mode, the fewest GPUs first: plain steps where drafts do not pay."""

        def fastest(mode: str, gpus: int) -> Row:
            widths = (1,) if mode == PLAIN else (1, self.budget)
            rows = (self.row(mode, gpus, width) for width in widths)
            return max(rows, key=lambda row: row.tokens_per_second)

        return {mode: [fastest(mode, gpus) for gpus in self.request.counts] for mode in MODES}

    def possible(self, mode: str) -> list[Row]:
        """The rows of a mode that are possible."""
        return [row for row in self.rows[mode] if not row.why_not]

    @cached_property
    def best(self) -> Row:
        """The fastest possible row with at most the number of GPUs asked for; else UsageError.

        Of equals, it is the one on the fewest GPUs, and plain decoding before drafts.
        """
        most = self.request.gpus or math.inf
        rows = [row for mode in MODES for row in self.possible(mode) if row.gpus <= most]
        if rows:
            return max(rows, key=lambda row: (row.tokens_per_second, -row.gpus, row.mode == PLAIN))
        raise UsageError(
            f"{self.model} needs {memory.told(self.needed(self.spec, self.budget))} with"
            f" {self.request.context:,} tokens of context, and {memory.told(self.usable)} can be"
            f" used on one {self.gpu.name}; take more --gpus, --quantize 4bit, a smaller --context"
            " or a smaller model"
        )

    @property
    def baseline(self) -> Row:
        """Plain decoding on the fewest GPUs that hold the model."""
        return self.possible(PLAIN)[0]

    def stops(self, mode: str) -> dict[str, Any] | None:
        """The most GPUs that pay, and the gain of the doubling that does not."""
        rows = [row for row in self.possible(mode) if row.gpus.bit_count() == 1]
        for row, twice in pairwise(rows):
            gain = twice.tokens_per_second / row.tokens_per_second - 1
            if gain < PAYS:
                return {"gpus": row.gpus, "beyond": twice.gpus, "gain": gain}
        return {"gpus": rows[-1].gpus, "beyond": None, "gain": None} if rows else None

    def verdict(self, mode: str) -> str:
        """Where more GPUs stop paying in a mode, in one line."""
        stops, rows = self.stops(mode), self.rows[mode]
        if stops is None:
            return f"{MODES[mode]}: {rows[-1].why_not}"
        if stops["beyond"]:
            # Rounded down: a gain that is too small must not read like one that pays.
            gain = math.floor(1000 * stops["gain"]) / 10
            why = f"going to {stops['beyond']} brings {gain:+.1f}% tokens/s"
        else:
            later = (row.why_not for row in rows if row.gpus > stops["gpus"])
            why = next(later, None) or "more were not estimated"
        return f"{MODES[mode]}: pays up to {counted(stops['gpus'], 'GPU')}; {why}"

    @property
    def conclusion(self) -> str:
        """The fastest way in one line."""
        best, plain = self.best, self.baseline
        name = MODES[best.mode] if best.gpus > 1 else "lookahead"
        if best == plain:
            name = "plain decoding, since drafts do not pay,"
        gain = best.tokens_per_second / plain.tokens_per_second
        return (
            f"fastest: {name} on {counted(best.gpus, 'GPU')}, {best.tokens_per_second:.4g}"
            f" tokens/s, {gain:.2f}× plain decoding on {counted(plain.gpus, 'GPU')}"
        )

    @property
    def assumptions(self) -> list[str]:
        """What the estimates depend on, a sentence each."""
        rates, measured, links = self.rates, _data()["measured"], self.links
        usable = memory.told(self.usable) if self.memory else "any amount"
        joined = (
            f"{place}: {link['name']}, {link['bandwidth'] / 1e9:.3g} GB/s in each direction,"
            f" {link['hops'][0] * 1e6:.3g} µs a hop ({link['source']})"
            for place, link in (("within a node", links.within), ("between", links.between))
        )
        return [
            *self.notes,
            f"a GPU reads {rates.bandwidth / 1e9:.0f} GB/s and computes"
            f" {rates.arithmetic / 1e12:.3g} TFLOP/s in {self.spec.compute} ({rates.source});"
            f" decoding may take {usable} of its memory",
            *joined,
            f"a step feeds {self.budget} tokens on each GPU, or one where drafts do not pay, after"
            f" {self.request.context:,} tokens of context; one text at a time",
            f"tokens per step are those of a small model: {measured['model']},"
            f" {measured['origin']}, up to {measured['ranks'][-1]} ranks",
            "a split model's steps are no CUDA graphs: launching their kernels alone takes"
            f" {LAUNCH * self.spec.layers * 1e3:.0f} ms, on any number of GPUs",
            f"more GPUs pay while twice as many bring {PAYS:.0%} more tokens per second",
        ]

    def figures(self, row: Row) -> dict[str, Any]:
        """A row for JSON, which has no NaN, with its speed compared."""
        found = {key: None if value != value else value for key, value in asdict(row).items()}
        speedup = efficiency = None
        if not row.why_not:
            first, speed = self.possible(row.mode)[0], row.tokens_per_second
            speedup = speed / self.baseline.tokens_per_second
            efficiency = speed / first.tokens_per_second * first.gpus / row.gpus
        compared = {"speedup": speedup, "efficiency": efficiency}
        return {**found, "possible": not row.why_not, **compared}

    def as_object(self) -> dict[str, Any]:
        """The object that --json prints; seconds, bytes and shares of 1."""
        keys = ("mode", "gpus", "step_seconds", "tokens_per_second")
        gpu = {"name": self.gpu.name, "description": self.gpu.description}
        return {
            "schema": SCHEMA,
            "model": {"name": self.model, **asdict(self.spec)},
            "gpu": {**gpu, "memory_bytes": self.memory, **asdict(self.rates)},
            "links": asdict(self.links),
            "budget": self.budget,
            "context": self.request.context,
            "asked": self.request.gpus,
            "pays_from": PAYS,
            "baseline": {key: getattr(self.baseline, key) for key in keys},
            "modes": {
                mode: {
                    "rows": list(map(self.figures, rows)),
                    "stops": self.stops(mode),
                    "verdict": self.verdict(mode),
                }
                for mode, rows in self.rows.items()
            },
            "best": {key: getattr(self.best, key) for key in keys},
            "assumptions": self.assumptions,
        }


def run(request: PlanRequest) -> int:
    """Estimate lookahead and tensor parallelism, and print both; the exit code is 0.

    Raises:
        UsageError: an option is unknown, or the model fits on no such GPUs.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    terminal = Terminal(request.color)
    gpu, size = find_gpu(request.gpu, terminal)
    links = links_of(gpu.name, request)
    plan = Plan(request, gpu, size, links, *find_model(request, gpu, terminal))
    _ = plan.best  # refused before anything is printed
    if request.json:
        print(json.dumps(plan.as_object(), ensure_ascii=False))
    else:
        _show(plan, terminal.console(sys.stdout))
    return 0


def _show(plan: Plan, console: Console) -> None:
    """Print the conclusion, then the table of all modes and the assumptions."""
    spec = plan.spec
    size = f"{user.short(spec.parameters)} parameters, {memory.told(spec.weight_bytes)}"
    model = f"{plan.model} in {spec.weights} ({size}) on {plan.gpu.description}"
    screen.line(console, f"{model}: estimated, not measured")
    screen.line(console, plan.conclusion, "bold")
    for text in map(plan.verdict, MODES):
        screen.line(console, text)
    console.print()
    titles = ("GPUs", "ms/step", "tokens/step", "tokens/s", "speed-up", "efficiency")
    columns = (screen.Column("mode", number=False), *map(screen.Column, titles))
    rows = []
    for row in chain(*plan.rows.values()):
        figures = plan.figures(row)
        cells = ["does not fit" if row.needed_bytes else "indivisible", *[screen.NONE] * 4]
        if not row.why_not:
            cells = [f"{row.step_seconds * 1e3:.1f}", f"{row.tokens_per_step:.2f}"]
            cells += [f"{row.tokens_per_second:.1f}", f"{figures['speedup']:.2f}"]
            cells += [f"{figures['efficiency']:.0%}"]
        rows.append((row.mode, str(row.gpus), *cells))
    screen.print_table(screen.Table("Ways to decode", columns, tuple(rows)), console)
    console.print()
    screen.line(console, "Assumptions", "bold")
    for text in plan.assumptions:
        screen.line(console, f"- {text}")
