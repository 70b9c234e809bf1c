"""`lade plan`: estimate decoding speed on more GPUs, and where more of them stop paying.

Nothing is measured or loaded.  A step takes as long as the slower of reading and multiplying, plus
kernel launches (`profiles.derive`), plus exchanges between GPUs.  It yields the tokens per step
that were measured with simulated ranks (`specs.catalogue`).
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

from rich.console import Console

from .. import profiles
from ..decoder.config import MESSAGE_BYTES
from ..errors import UsageError, counted
from ..options.commands import PlanRequest
from ..profiles import Profile, user
from ..profiles.derive import HOST, LAUNCH, READING, step_seconds
from ..specs import catalogue, memory
from ..specs import device as machine
from ..specs.memory import FULL, ModelSpec
from ..view import screen
from ..view.terminal import Terminal

SCHEMA = "lade-plan/1"
LOOKAHEAD, TENSOR, PLAIN = "lookahead", "tensor", "tensor-plain"
MODES = {
    LOOKAHEAD: "lookahead parallelism",
    TENSOR: "tensor parallelism with lookahead",
    PLAIN: "tensor parallelism, plain decoding",
}
"""Drafts dealt out to whole models; the model split; the model split, one token per step."""
PAYS = 0.10
"""More GPUs pay while twice as many bring at least this share more tokens per second."""
STAGING = 60e-6
"""Seconds to the GPU and back; assumed: two small copies, for which the host waits."""
Row: TypeAlias = dict[str, Any]
"""A step in one mode on a number of GPUs, as JSON has it."""
FIGURES = (
    *("computing_seconds", "drafting_seconds", "talking_seconds", "step_seconds"),
    *("sent_bytes", "tokens_per_step", "tokens_per_second", "speedup", "efficiency"),
)
"""Of a row, None where it is impossible.  A step's seconds are those of the GPUs' computing, of the
host's drafting for the other GPUs, and of talking, in which each GPU sends `sent_bytes`."""
_speed = itemgetter("tokens_per_second")


def run(request: PlanRequest) -> int:
    """Estimate lookahead and tensor parallelism, and print both; the exit code is 0.

    Raises:
        UsageError: an option is unknown, or the model fits on no such GPUs.
    """
    found = estimate(request)
    if request.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _show(found, Terminal(request.color).console(sys.stdout))
    return 0


def estimate(request: PlanRequest) -> dict[str, Any]:
    """The object that --json prints: seconds, bytes and shares of 1; errors as for `run`."""
    gpu, size = find_gpu(request.gpu)
    assert gpu.hardware is not None  # `find_gpu` leaves others out
    links = catalogue.find_links(gpu.name, request.link, request.per_node, request.counts[-1])
    dtype = gpu.hardware.half if request.dtype == "auto" else request.dtype
    model, spec = catalogue.find_model(request.model_size, dtype, request.quantize)
    rates = gpu.hardware.rates_for(spec.compute)
    budget = request.drafts.lookahead(profiles.choose(gpu, spec).lookahead).step_limit
    usable = math.inf if size is None else memory.usable(size)
    cluster = Cluster(rates, usable, links, spec, budget, request.context)
    rows = {mode: [cluster.row(mode, gpus) for gpus in request.counts] for mode in MODES}
    possible = {mode: [row for row in of if row["possible"]] for mode, of in rows.items()}
    most = request.gpus or math.inf
    affordable = [row for of in possible.values() for row in of if row["gpus"] <= most]
    if not affordable:
        raise UsageError(
            f"with {request.context:,} tokens of context {model} {rows[PLAIN][0]['why_not']}; take"
            " more --gpus, --quantize 4bit, a smaller --context or a smaller model"
        )
    plain = possible[PLAIN][0]  # on the fewest GPUs that hold the model
    # Of equals, the one on the fewest GPUs, and plain decoding before drafts.
    best = max(affordable, key=lambda r: (_speed(r), -r["gpus"], r["mode"] == PLAIN))
    for of in possible.values():
        for row in of:
            row["speedup"] = _speed(row) / _speed(plain)
            row["efficiency"] = _speed(row) / _speed(of[0]) * of[0]["gpus"] / row["gpus"]
    keys = ("mode", "gpus", "step_seconds", "tokens_per_second")
    about = {"name": gpu.name, "description": gpu.description}
    found = {
        "schema": SCHEMA,
        "model": {"name": model, **asdict(spec)},
        "gpu": {**about, "memory_bytes": size, **asdict(rates)},
        "links": asdict(links),
        "budget": budget,
        "context": request.context,
        "asked": request.gpus,
        "pays_from": PAYS,
        "baseline": {key: plain[key] for key in keys},
        "modes": {mode: {"rows": of, **_verdict(mode, of)} for mode, of in rows.items()},
        "best": {key: best[key] for key in keys},
    }
    named = f"--model-size {request.model_size} is read as {model}"
    return {**found, "assumptions": [named, *_assumptions(found)]}


def _verdict(mode: str, rows: list[Row]) -> dict[str, Any]:
    """The most GPUs that pay and the gain of the doubling that does not, also in one line."""
    powers = [row for row in rows if row["possible"] and row["gpus"].bit_count() == 1]
    if not powers:
        return {"stops": None, "verdict": f"{MODES[mode]}: {rows[-1]['why_not']}"}
    gains = ((row, twice, _speed(twice) / _speed(row) - 1) for row, twice in pairwise(powers))
    row, twice, gain = next((each for each in gains if each[2] < PAYS), (powers[-1], None, None))
    if twice and gain is not None:
        # Rounded down: a gain that is too small must not read like one that pays.
        why = f"going to {twice['gpus']} brings {math.floor(1000 * gain) / 10:+.1f}% tokens/s"
    else:
        later = (each["why_not"] for each in rows if each["gpus"] > row["gpus"])
        why = next(later, None) or "more were not estimated"
    return {
        "stops": {"gpus": row["gpus"], "beyond": twice and twice["gpus"], "gain": gain},
        "verdict": f"{MODES[mode]}: pays up to {counted(row['gpus'], 'GPU')}; {why}",
    }


def _assumptions(found: dict[str, Any]) -> list[str]:
    """What the estimates depend on, a sentence each."""
    gpu, model, measured = found["gpu"], found["model"], catalogue.data()["measured"]
    joined = (
        f"{place} nodes: {link['name']}, {link['bandwidth'] / 1e9:.3g} GB/s in each direction,"
        f" {link['hops'][0] * 1e6:.3g} µs a hop ({link['source']})"
        for place in ("within", "between")
        for link in (found["links"][place],)
    )
    return [
        f"a GPU reads {READING} of {gpu['bandwidth'] / 1e9:.0f} GB/s and computes"
        f" {gpu['arithmetic'] / 1e12:.3g} TFLOP/s in {model['compute']} ({gpu['source']})",
        *joined,
        f"a step feeds {found['budget']} tokens on each GPU, or one where drafts do not pay, after"
        f" {found['context']:,} tokens of context; one text at a time",
        f"tokens per step are those of a small model: {measured['model']}, {measured['origin']},"
        f" up to {measured['ranks'][-1]} ranks",
        "a split model's steps are no CUDA graphs: launching their kernels alone takes"
        f" {LAUNCH * model['layers'] * 1e3:.0f} ms, on any number of GPUs",
        f"more GPUs pay while twice as many bring {PAYS:.0%} more tokens per second",
    ]


def _show(found: dict[str, Any], console: Console) -> None:
    """Print the conclusion, then the table of all modes and the assumptions."""
    model, best, plain = found["model"], found["best"], found["baseline"]
    size = memory.format_bytes(model["weight_bytes"])
    size = f"{user.short(model['parameters'])} parameters, {size}"
    what = f"{model['name']} in {model['weights']} ({size}) on {found['gpu']['description']}"
    screen.line(console, f"{what}: estimated, not measured")
    name = MODES[best["mode"]] if best["gpus"] > 1 else "lookahead"
    name = "plain decoding, since drafts do not pay," if best == plain else name
    conclusion = (
        f"fastest: {name} on {counted(best['gpus'], 'GPU')}, {_speed(best):.4g} tokens/s,"
        f" {_speed(best) / _speed(plain):.2f}× plain decoding on {counted(plain['gpus'], 'GPU')}"
    )
    screen.line(console, conclusion, "bold")
    rows = []
    for each in found["modes"].values():
        screen.line(console, each["verdict"])
        rows += [(row["mode"], str(row["gpus"]), *_cells(row)) for row in each["rows"]]
    console.print()
    columns = (
        screen.Column("mode", number=False),
        screen.Column("GPUs"),
        screen.Column("ms/step", weight=3),
        screen.Column("tokens/step", weight=2),
        screen.Column("tokens/s"),
        screen.Column("speed-up", weight=1),
        screen.Column("efficiency", weight=4),
    )
    screen.print_table(screen.Table("Ways to decode", columns, tuple(rows)), console)
    console.print()
    screen.line(console, "Assumptions", "bold")
    for text in found["assumptions"]:
        screen.line(console, f"- {text}")


def _cells(row: Row) -> tuple[str, ...]:
    """The figures of a row, or why there are none."""
    if not row["possible"]:
        why = "does not fit" if row["needed_bytes"] else "indivisible"
        return (why, *[screen.NONE] * 4)
    return (
        f"{row['step_seconds'] * 1e3:.1f}",
        f"{row['tokens_per_step']:.2f}",
        f"{row['tokens_per_second']:.1f}",
        f"{row['speedup']:.2f}",
        f"{row['efficiency']:.0%}",
    )


# What it is estimated for.


def find_gpu(name: str | None) -> tuple[Profile, float | None]:
    """The profile of a GPU, and its bytes of memory if known.

    The name is a profile's or what a driver calls the GPU; None is the GPU of this machine.
    """
    every = profiles.every(user.read_all()[0]).values()
    # Apple's GPUs cannot be joined.
    known = {p.name: p for p in every if p.hardware and not p.tuned and p.name != "apple"}
    kinds = ", ".join(sorted(known.keys() - {"gpu"}))  # which stands for unknown ones
    if name is None:
        device = machine.detect()
        if device.kind != "cuda":
            raise UsageError(f"no GPU is here to plan for; name one by --gpu: {kinds}")
        name, size = device.label, float(device.memory)
    else:
        given = re.search(r"(\d+)\s*gb", name, re.IGNORECASE)
        size = float(given[1]) * 1e9 if given else 0.0
    profile = known.get(name.lower()) or profiles.recognise(name, size, known.values())
    if profile is None:
        raise UsageError(f"unknown GPU {name!r}; --gpu takes {kinds}")
    return profile, size or min(profile.memory, default=None)


# The estimates.


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs of one kind, and what they decode."""

    rates: machine.Rates  # of one GPU
    usable: float  # bytes of one GPU that decoding may take
    links: catalogue.Links
    spec: ModelSpec
    budget: int  # the most tokens in a step of each GPU
    context: int

    def row(self, mode: str, gpus: int) -> Row:
        """The fastest step of a mode on a number of GPUs: a plain one where drafts do not pay."""
        split, spec = gpus > 1 and mode != LOOKAHEAD, self.spec
        widths = (1,) if mode == PLAIN else (1, self.budget)
        needed = why = None
        if split and spec.weights not in FULL:
            why = f"weights in {spec.weights} cannot be split"
        elif split and spec.kv_heads % gpus:
            why = f"{counted(spec.kv_heads, 'key/value head')} cannot be split over {gpus} GPUs"
        else:
            spec = spec.shard(gpus) if split else spec
            needed = memory.Asked(self.context, width=widths[-1]).need(spec).total
            if needed > self.usable:
                usable = memory.format_bytes(self.usable)
                why = f"needs {memory.format_bytes(needed)} on each GPU, which has {usable}"
        nodes = math.ceil(gpus / self.links.gpus_per_node)
        row = {"mode": mode, "gpus": gpus, "nodes": nodes, "possible": not why, "why_not": why}
        steps = [] if why else [self._figures(spec, split, gpus, width) for width in widths]
        fastest = max(steps, key=_speed, default={})
        return {**row, "needed_bytes": needed, **dict.fromkeys(FIGURES), **fastest}

    def _figures(self, spec: ModelSpec, split: bool, gpus: int, width: int) -> Row:
        """The figures of a possible step; `spec` is what one GPU holds of the model."""
        whole, links = self.spec, self.links
        # A split model runs through transformers' forward, and its steps are no CUDA graphs; in
        # lookahead parallelism every rank grows the tree of all ranks.
        ranks = 1 if split else gpus
        computing = step_seconds(self.rates, spec, width, self.context, captured=not split)
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
        step, tokens = computing + drafting + talking, catalogue.tokens_per_step(ranks, width)
        figures = (computing, drafting, talking, step, sent, tokens, tokens / step)
        return dict(zip(FIGURES, figures, strict=False))
