"""`lade plan`: estimate decoding speed on more GPUs, and where more of them stop paying.

Nothing is measured or loaded.  A step takes as long as the slower of reading and multiplying, plus
kernel launches (`profiles.derive`), plus exchanges between GPUs (latency and bandwidth).  It yields
the tokens per step that benchmarks/ranks.py measured.  Figures of links, models and tokens per step
are in planner.toml.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from . import memory, profiles, screen, split, toml
from .decoder.drafting.ngram_model import MAX_SUCCESSORS
from .decoder.parallel.messages import MessageFormat
from .errors import LoadError, UsageError
from .options import PlanRequest
from .profiles.derive import GRAPH_LAUNCH, HOST, LAUNCH, Rates, step_seconds
from .profiles.recognise import NamedDevice, recognise
from .profiles.schema import Profile
from .profiles.user import read_all, short
from .screen import NONE, Column, Table
from .shape import FULL, ModelShape
from .terminal import Terminal
from .visualize import counted, printable

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
MOST_GPUS = 1024
GPUS_PER_NODE = 8
CONTEXT, MOST_CONTEXT = 1024, 10_000_000
DEFAULT_SIZE = "7b"
PAYS = 0.10
"""More GPUs pay while twice as many bring at least this share more tokens per second."""
FIGURES = (
    *("step_seconds", "computing_seconds", "drafting_seconds", "talking_seconds"),
    *("sent_bytes", "tokens_per_step", "tokens_per_second"),
)
"""Figures of a possible row, under their names in JSON."""

COLUMNS = (
    *(Column("mode", number=False), Column("GPUs"), Column("ms/step")),
    *(Column("tokens/step", weight=2), Column("tokens/s"), Column("speed-up", weight=1)),
    Column("efficiency", weight=3),
)


@cache
def _data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("planner.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = toml.loads(text)
    return found


@dataclass(frozen=True, slots=True)
class Links:
    """The links within and between nodes: rows of planner.toml with a name."""

    gpus_per_node: int
    within: dict[str, Any]
    between: dict[str, Any]

    def nodes(self, gpus: int) -> int:
        """Nodes that a number of GPUs takes."""
        return math.ceil(gpus / self.gpus_per_node)

    def all_gather(self, size: float, gpus: int) -> float:
        """Seconds until every GPU has the `size` bytes of each of the others."""
        return self._seconds(size * (gpus - 1), gpus, 1)

    def all_reduce(self, size: float, gpus: int) -> float:
        """Seconds until every GPU has the sum of `size` bytes: to one of them, and back."""
        return self._seconds(2 * size * (gpus - 1) / gpus, gpus, 2)

    def _seconds(self, size: float, gpus: int, passes: int) -> float:
        """A chain through each node and a tree over nodes: start, hops, bytes over bandwidth."""
        if gpus == 1:
            return 0.0
        local, remote = min(gpus, self.gpus_per_node) - 1, math.ceil(math.log2(self.nodes(gpus)))
        used = [link for link, hops in ((self.within, local), (self.between, remote)) if hops]
        hops = local * self.within["hops"][0] + remote * self.between["hops"][0]
        bandwidth = _data()["share"] * min(link["bandwidth"] for link in used)
        return float(_data()["start"] + passes * hops + size / bandwidth)


def links_of(profile: str, request: PlanRequest) -> Links:
    """The links that GPUs of a profile usually have, or those that --link names.

    Raises:
        UsageError: a link is unknown, named twice, or between nodes where there is one node.
    """
    own = _data()["gpus"].get(profile, {})
    last, per_node = request.counts[-1], request.per_node
    several = last > per_node
    places = {kind: place for place, rows in _data()["links"].items() for kind in rows}

    def known(kind: str) -> dict[str, Any]:
        row = {"name": kind, **_data()["links"][places[kind]][kind]}
        return row | ({"bandwidth": own[kind]} if kind in own else {})

    links = {"within": known("nvlink" if "nvlink" in own else "pcie"), "between": known("ethernet")}
    given = set()
    words = request.link.lower().split(",") if request.link is not None else []
    for n, word in enumerate(map(str.strip, words)):
        # One number is the slowest link that there is; of two, the first is within a node.
        place = "between" if n or (several and len(words) == 1) else "within"
        if word in places:
            place, link = places[word], known(word)
        elif (speed := _positive(word)) is not None:
            link = links[place] | {"name": "link", "bandwidth": 1e9 * speed, "source": "--link"}
        else:
            raise UsageError(
                f"unknown link {word!r}; use {', '.join(places)}, a number of GB/s, or two with a"
                " comma: within a node, between nodes"
            )
        if place in given:
            raise UsageError(f"--link {request.link} names two links {place} nodes; give one")
        if place == "between" and not several:
            raise UsageError(
                f"--link {word} is between nodes, and {last} GPUs in nodes of {per_node} are one"
                " node; add --nodes or --gpus-per-node"
            )
        links[place] = link
        given.add(place)
    return Links(per_node, **links)


def _positive(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def measurements(text: str | None) -> dict[str, Any]:
    """Tokens per step measured on a text, None for the default: a row of ranks for each budget."""
    texts = _data()["texts"]
    text = next(iter(texts)) if text is None else text
    if text not in texts:
        raise UsageError(f"unknown text {text!r}; tokens per step are known for {', '.join(texts)}")
    return {"text": text, **texts[text]}


def tokens_per_step(measured: dict[str, Any], ranks: int, width: int) -> float:
    """Tokens per step of `ranks` that feed `width` tokens each.

    Linear in the logarithms between measurements.  Beyond the widest nothing is added; beyond the
    most ranks, every doubling brings half of what the one before brought.
    """
    beyond = 1 - 0.5 ** max(math.log2(ranks / measured["ranks"][-1]), 0.0)
    values = [
        np.interp(math.log2(ranks), np.log2(measured["ranks"]), row) + beyond * (row[-1] - row[-2])
        for row in measured["tokens_per_step"]
    ]
    return float(np.interp(math.log2(width), np.log2([1, *measured["budgets"]]), [1.0, *values]))


@dataclass(frozen=True, slots=True)
class _NamedGpu:
    label: str
    memory: int
    kind: str = "cuda"
    threads: int = 0


def find_gpu(name: str | None, terminal: Terminal) -> tuple[Profile, float | None]:
    """The profile of a kind of GPU, and its bytes of memory, None if unknown.

    Args:
        name: of a profile, or what a driver calls the GPU; None for the GPU of this machine.
        terminal: for progress.

    Raises:
        UsageError: no profile with rates knows it, or there is none here.
    """
    every = [*map(profiles.shipped, profiles.shipped_names()), *read_all()[0]]
    # Apple's GPUs cannot be joined; `gpu` stands for unknown ones, and is no kind to suggest.
    known = {p.name: p for p in every if p.hardware and not p.tuned and p.name != "apple"}
    kinds = sorted(known.keys() - {"gpu"})
    device: NamedDevice
    if name is None:
        with terminal.progress("looking at this machine"):
            from .device import detect

            device = detect()
        if device.kind != "cuda":
            raise UsageError(f"no GPU is here to plan for; name one by --gpu: {', '.join(kinds)}")
    else:
        size = re.search(r"(\d+)\s*gb", name, re.IGNORECASE)
        device = _NamedGpu(name.strip(), int(size[1]) * 10**9 if size else 0)
    profile = known.get(device.label.lower()) or recognise(device, known.values())
    if profile is None:
        near = difflib.get_close_matches(device.label.lower(), kinds, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise UsageError(f"unknown GPU {device.label!r}{hint} --gpu takes {', '.join(kinds)}")
    return profile, float(device.memory) or min(profile.memory, default=None)


def known_model(size: str, dtype: str, quantize: str) -> tuple[str, ModelShape]:
    """Name and shape of a well-known model by its size ("7b") or name ("llama-3-8b").

    Raises:
        UsageError: no such model is known.
    """
    models, sizes = _data()["models"], _data()["sizes"]
    word = size.strip().lower().rpartition("/")[2].replace("llama-3.1-", "llama-3-")
    number = _positive(word.removesuffix("b"))
    name = sizes.get(word if number is None else f"{number:g}b", word)
    if name not in models:
        raise UsageError(
            f"unknown model size {size!r}; known: {', '.join(sizes)}, and {', '.join(models)}"
        )
    parameters, layers, hidden, inner, heads, kv_heads, vocabulary, *experts = models[name]
    active = experts[0] if experts else parameters
    weight_bytes = parameters * (4 if dtype == "float32" else 2)
    numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
    shape = ModelShape(parameters, active, dtype, weight_bytes, dtype, *numbers)
    forms = dict(memory.smaller_forms(shape, "cuda"))
    return name, forms.get(f"--quantize {quantize}", shape)


def find_model(
    request: PlanRequest, gpu: Profile, terminal: Terminal
) -> tuple[str, ModelShape, tuple[str, ...]]:
    """Name, shape and notices of the model as a GPU would hold it; no weights are read."""
    if request.model is None or request.model_size is not None:
        rates = gpu.hardware.rates if gpu.hardware else {}
        half = "float16" if "float16" in rates and "bfloat16" not in rates else "bfloat16"
        dtype = half if request.dtype == "auto" else request.dtype
        name, shape = known_model(request.model_size or DEFAULT_SIZE, dtype, request.quantize)
        usual = f"no model was named: {name} stands for one of {DEFAULT_SIZE}"
        return name, shape, (() if request.model_size else (usual,))
    with terminal.progress(f"looking at {request.model}"):
        from . import models

        options = replace(request.load_options(), device="cpu")
        if request.dtype != "auto":
            planned = models.plan(request.model, options)
        else:  # which means float32 on a CPU, and the stored type on a GPU
            planned = models.plan(request.model, replace(options, dtype="bfloat16"))
            stored = str(planned.config.get_text_config(decoder=True).dtype).rpartition(".")[2]
            stored = stored if stored in FULL else "float32"
            if stored != planned.shape.compute:
                planned = models.plan(request.model, replace(options, dtype=stored))
    return request.model, planned.shape, planned.notices


@dataclass(frozen=True, slots=True)
class Row:
    """A step in one mode on a number of GPUs, under its names in JSON.

    Attributes:
        why_not: why that is impossible; None where it is possible.
        needed_bytes: memory that each GPU needs; None where the model cannot be split.
        drafting_seconds: of the host, for the drafts of the other GPUs.
        talking_seconds: of exchanges, to which each GPU contributes `sent_bytes`.
    """

    mode: str
    gpus: int
    nodes: int
    why_not: str | None
    needed_bytes: float | None
    computing_seconds: float
    drafting_seconds: float
    talking_seconds: float
    sent_bytes: float
    tokens_per_step: float

    @property
    def possible(self) -> bool:
        """Whether the model fits and can be split so."""
        return self.why_not is None

    @property
    def step_seconds(self) -> float:
        """Seconds of the step."""
        return self.computing_seconds + self.drafting_seconds + self.talking_seconds

    @property
    def tokens_per_second(self) -> float:
        """Speed of one text."""
        return self.tokens_per_step / self.step_seconds


@dataclass(frozen=True)
class Plan:
    """What is asked for, on what it is estimated, and the estimates.

    Attributes:
        measured: tokens per step, see `measurements`.
        memory: bytes of one GPU; None if unknown.
        notes: what else there is to say of the model.
    """

    request: PlanRequest
    measured: dict[str, Any]
    gpu: Profile
    memory: float | None
    links: Links
    model: str
    shape: ModelShape
    notes: tuple[str, ...]

    @cached_property
    def rates(self) -> Rates:
        """The rates of one GPU."""
        assert self.gpu.hardware is not None  # `find_gpu` leaves others out
        return self.gpu.hardware.rates_for(self.shape.compute)

    @cached_property
    def budget(self) -> int:
        """The most tokens in a step of each GPU: as asked for, or of the GPU's profile."""
        profile = profiles.choose(self.gpu, self.shape).lookahead
        return self.request.lookahead(profile).step_limit

    @property
    def usable(self) -> float:
        """Bytes of one GPU that decoding may take."""
        return math.inf if self.memory is None else memory.usable(self.memory)

    @property
    def reductions(self) -> int:
        """All-reduces in a step of a split model: two for each layer, one for the embeddings."""
        return 2 * self.shape.layers + 1

    def indivisible(self, gpus: int) -> str | None:
        """Why the model cannot be split over a number of GPUs; None where it can."""
        if gpus > 1 and self.shape.weights not in FULL:
            return f"weights in {self.shape.weights} cannot be split"
        heads = split.uneven_heads(self.shape, gpus)
        return heads and f"{heads} cannot be split over {counted(gpus, 'GPU')}"

    def row(self, mode: str, gpus: int) -> Row:
        """A step in a mode on a number of GPUs: plain where drafts do not pay."""
        plain = self._row(mode, gpus, 1)
        wide = plain if mode == PLAIN else self._row(mode, gpus, self.budget)
        return wide if wide.tokens_per_second >= plain.tokens_per_second else plain

    def _row(self, mode: str, gpus: int, width: int) -> Row:
        tensor = mode != LOOKAHEAD
        widest = 1 if mode == PLAIN else self.budget  # messages and memory are sized for it
        shape = split.evenly(self.shape, gpus) if tensor else self.shape
        talking = sent = drafting = 0.0
        if gpus > 1:
            sent = exchange_bytes(widest)
            talking = self.links.all_gather(sent, gpus) + _data()["staging"]
        if gpus > 1 and tensor:
            states = width * shape.hidden * shape.value_bytes
            logits = width * shape.vocabulary * shape.value_bytes / gpus
            talking += self.reductions * self.links.all_reduce(states, gpus)
            talking += self.links.all_gather(logits, gpus)
            sent += self.reductions * states + logits
        elif width > 1:
            drafting = HOST * width * (gpus - 1)  # every rank grows the tree of all ranks
        # Ranks of a split model wait for one another within a step, which is then no CUDA graph.
        captured = gpus == 1 or not tensor
        needed = memory.estimate(shape, context=self.request.context, width=widest).total
        indivisible = self.indivisible(gpus) if tensor else None
        why_not = indivisible
        if not indivisible and needed > self.usable:
            why_not = (
                f"needs {memory.told(needed)} on each GPU, which has {memory.told(self.usable)}"
            )
        return Row(
            mode,
            gpus,
            self.links.nodes(gpus),
            why_not,
            None if indivisible else needed,
            step_seconds(self.rates, shape, width, self.request.context, captured=captured),
            drafting,
            talking,
            sent,
            tokens_per_step(self.measured, 1 if tensor else gpus, width),
        )

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """The estimates by mode, the fewest GPUs first."""
        return {mode: [self.row(mode, gpus) for gpus in self.request.counts] for mode in MODES}

    def possible(self, mode: str) -> list[Row]:
        """The rows of a mode that are possible."""
        return [row for row in self.rows[mode] if row.possible]

    def smallest(self, mode: str) -> Row | None:
        """A mode on the fewest GPUs that hold the model, if any number does."""
        rows = (self.row(mode, gpus) for gpus in range(1, MOST_GPUS + 1))
        return next((row for row in rows if row.possible), None)

    @cached_property
    def baseline(self) -> Row:
        """Plain decoding on the fewest GPUs that hold the model."""
        found = self.smallest(PLAIN)
        assert found is not None  # whatever can be `best` needs no less memory
        return found

    @cached_property
    def best(self) -> Row:
        """The fastest of all possible rows with at most the number of GPUs asked for.

        Of equals, the one on the fewest GPUs, and plain decoding before drafts.

        Raises:
            UsageError: none is possible.
        """
        most = self.request.gpus or MOST_GPUS
        rows = [row for mode in MODES for row in self.possible(mode) if row.gpus <= most]
        if not rows:
            raise UsageError(self.too_large())
        return max(rows, key=lambda row: (row.tokens_per_second, -row.gpus, row.mode == PLAIN))

    def too_large(self) -> str:
        """Why one GPU cannot hold the model, and what would help, in one line."""
        fewest = self.smallest(TENSOR)
        more = f"; or split it: --gpus {fewest.gpus}" if fewest else ""
        asked = memory.Asked(self.request.context, self.request.context, self.budget)
        where = f"one {self.gpu.name}"
        try:
            memory.room(self.model, self.shape, self.memory or 0.0, asked, where=where, kind="cuda")
        except (LoadError, UsageError) as error:
            return str(error).replace("--max-context", "--context") + more
        raise AssertionError("a model that one GPU holds was refused")

    def speedup(self, row: Row) -> float:
        """Tokens per second over those of the baseline."""
        return row.tokens_per_second / self.baseline.tokens_per_second

    def efficiency(self, row: Row) -> float:
        """Tokens per second of each GPU over those of the mode's first possible row."""
        first = self.possible(row.mode)[0]
        return row.tokens_per_second / first.tokens_per_second * first.gpus / row.gpus

    def stops(self, mode: str) -> dict[str, Any] | None:
        """The most GPUs that pay, and the gain of a doubling up to the next number."""
        rows = self.possible(mode)
        # An odd number is no doubling of anything, unless it is all there is.
        doubled = [row for row in rows if row.gpus & (row.gpus - 1) == 0]
        rows = doubled if len(doubled) > 1 else rows
        for row, following in pairwise(rows):
            ratio = following.tokens_per_second / row.tokens_per_second
            gain = float(ratio ** (1 / math.log2(following.gpus / row.gpus))) - 1
            if gain < PAYS:
                return {"gpus": row.gpus, "beyond": following.gpus, "gain": gain}
        return {"gpus": rows[-1].gpus, "beyond": None, "gain": None} if rows else None

    def verdict(self, mode: str) -> str:
        """Where more GPUs stop paying in a mode, in one line."""
        stops, rows = self.stops(mode), self.rows[mode]
        if stops is None:
            return f"{MODES[mode]}: {rows[-1].why_not}"
        pays = f"{MODES[mode]}: pays up to {counted(stops['gpus'], 'GPU')}"
        if stops["beyond"] is None:
            later = (row.why_not for row in rows if row.gpus > stops["gpus"])
            return f"{pays}; {next(later, 'more were not estimated')}"
        # Rounded down: a gain that is too small must not read like one that pays.
        gain = math.floor(1000 * stops["gain"]) / 10
        return f"{pays}; going to {stops['beyond']} brings {gain:+.1f}% tokens/s for each doubling"

    def conclusion(self) -> str:
        """The fastest way in one line."""
        best, asked = self.best, self.request.gpus
        limit = f" with up to {counted(asked, 'GPU')}" if asked else ""
        name = f"{MODES[best.mode]} on {counted(best.gpus, 'GPU')}"
        if best.gpus == 1:
            plain = "plain decoding on one GPU, since drafts do not pay"
            name = plain if best.tokens_per_step == 1 else "lookahead on one GPU"
        return (
            f"fastest{limit}: {name}, {best.tokens_per_second:.3g} tokens/s,"
            f" {self.speedup(best):.2f}× plain decoding on {counted(self.baseline.gpus, 'GPU')}"
        )

    def caveats(self) -> list[str]:
        """What the conclusion depends on most."""
        return [f"tokens per step are those of a small model, {self.measured['model']}"]

    def assumptions(self) -> list[str]:
        """What the estimates depend on, a sentence each."""
        shape, rates, links, measured = self.shape, self.rates, self.links, self.measured
        origin = "as asked for" if self.request.budget else f"profile {self.gpu.name}"
        joined = [("within a node", links.within)] if links.gpus_per_node > 1 else []
        joined += (
            [("between nodes", links.between)] if links.nodes(self.request.counts[-1]) > 1 else []
        )
        return [
            *self.notes,
            f"a GPU reads {rates.bandwidth / 1e9:.0f} GB/s and multiplies"
            f" {rates.arithmetic / 1e12:.3g} TFLOP/s in {shape.compute} ({rates.source}); decoding"
            f" may take {memory.told(self.usable) if self.memory else 'any amount'} of its memory",
            f"a step is one CUDA graph, with {GRAPH_LAUNCH * shape.layers * 1e3:.1f} ms of small"
            " kernels; where the model is split, and in int8, kernels are launched one by one:"
            f" {LAUNCH * shape.layers * 1e3:.1f} ms, however it is split (not measured on a GPU)",
            *(
                f"{place}: {link['name']}, {link['bandwidth'] / 1e9:.3g} GB/s in each direction,"
                f" {link['hops'][0] * 1e6:.3g} µs a hop ({link['source']})"
                for place, link in joined
            ),
            f"ranks exchange {memory.told(exchange_bytes(self.budget))} after every step, and a"
            f" split model needs {self.reductions} all-reduces in it, which nothing hides",
            f"a step feeds {self.budget} tokens on each GPU ({origin}), or one token where drafts"
            " do not pay",
            f"tokens per step are those of {measured['model']} on the text {measured['text']!r}"
            f" with up to {measured['ranks'][-1]} ranks of {measured['budgets'][-1]} tokens"
            f" ({measured['origin']}); --text takes {', '.join(_data()['texts'])}",
            f"one text at a time (batch 1), after {self.request.context:,} tokens of context",
            f"more GPUs pay while twice as many bring {PAYS:.0%} more tokens per second",
        ]

    def as_object(self) -> dict[str, Any]:
        """The object that --json prints; seconds, bytes and shares of 1."""

        def chosen(row: Row) -> dict[str, Any]:
            keys = ("mode", "gpus", "step_seconds", "tokens_per_second")
            return {key: getattr(row, key) for key in keys}

        return {
            "schema": SCHEMA,
            "estimated": True,
            "model": {"name": self.model, **asdict(self.shape)},
            "gpu": {
                "name": self.gpu.name,
                "description": self.gpu.description,
                "memory_bytes": self.memory,
                **asdict(self.rates),
            },
            "links": asdict(self.links),
            "budget": self.budget,
            "context": self.request.context,
            "text": self.measured["text"],
            "asked": self.request.gpus,
            "exchange_bytes": exchange_bytes(self.budget),
            "pays_from": PAYS,
            "baseline": chosen(self.baseline),
            "modes": {mode: self._mode_object(mode) for mode in MODES},
            "best": chosen(self.best),
            "caveats": self.caveats(),
            "assumptions": self.assumptions(),
        }

    def _mode_object(self, mode: str) -> dict[str, Any]:
        keys = ("gpus", "nodes", "possible", "why_not", "needed_bytes")
        rows = [
            {
                **{key: getattr(row, key) for key in keys},
                **{key: getattr(row, key) if row.possible else None for key in FIGURES},
                "speedup": self.speedup(row) if row.possible else None,
                "efficiency": self.efficiency(row) if row.possible else None,
            }
            for row in self.rows[mode]
        ]
        return {"rows": rows, "stops": self.stops(mode), "verdict": self.verdict(mode)}

    def _cells(self, row: Row) -> tuple[str, ...]:
        if not row.possible:
            why = "does not fit" if row.needed_bytes else "indivisible"
            return (row.mode, str(row.gpus), why, *[NONE] * 4)
        return (
            row.mode,
            str(row.gpus),
            f"{row.step_seconds * 1e3:.1f}",
            f"{row.tokens_per_step:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{self.speedup(row):.2f}",
            f"{self.efficiency(row):.0%}",
        )

    def show(self, console: Console) -> None:
        """Print a table of all modes, the assumptions, and the conclusion last."""
        size = f"{short(self.shape.parameters)} parameters, {memory.told(self.shape.weight_bytes)}"
        heading = f"{self.model} in {self.shape.weights} ({size}) on {self.gpu.description}"
        screen.line(console, printable(f"{heading}: estimated, not measured"), "bold")
        console.print()
        cells = [self._cells(row) for rows in self.rows.values() for row in rows]
        screen.print_table(Table("Estimates", COLUMNS, tuple(cells)), console)
        console.print()
        screen.line(console, "Assumptions", "bold")
        for text in self.assumptions():
            screen.line(console, printable(f"- {text}"))
        console.print()
        for mode in MODES:
            screen.line(console, self.verdict(mode))
        screen.line(console, *self.caveats())
        screen.line(console, self.conclusion(), "bold")


def exchange_bytes(width: int) -> int:
    """Bytes of the message of a rank after a step; the size of the model does not matter."""
    # Numbers of 4 bytes; plain decoding remembers no successors.
    form = MessageFormat(width + 1, MAX_SUCCESSORS) if width > 1 else MessageFormat(1, 0)
    return 4 * form.length


def run(request: PlanRequest) -> int:
    """Estimate lookahead and tensor parallelism, and print both; the exit code is 0.

    Raises:
        UsageError: an option is out of range or unknown, or the model fits on no such GPUs.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    request.check()
    terminal = Terminal(request.color)
    measured = measurements(request.text)  # refused before the GPU and the model are looked for
    gpu, size = find_gpu(request.gpu, terminal)
    links = links_of(gpu.name, request)
    model, shape, notes = find_model(request, gpu, terminal)
    plan = Plan(request, measured, gpu, size, links, model, shape, notes)
    _ = plan.best  # refused before anything is printed
    if request.json:
        print(json.dumps(plan.as_object(), ensure_ascii=False))
    else:
        plan.show(terminal.console(sys.stdout))
    return 0
