"""What the attention of one layer takes by backend, width of the step and length of the text.

    python benchmarks/attention.py

Backends take turns, and the least of many runs counts.  A step's mask is made once for all of
its layers, so each run is a step of several; a lone token needs no mask.  The rule by which `flash`
leaves small steps to `sdpa` is off: what it would have chosen is said beside the figures.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import torch
from common import conditions
from torch import Tensor

from ladecli.decoder.attention import BACKENDS, StepAttention, flash

SHAPES = ((8, 4, 8), (8, 8, 32), (32, 8, 128))
"""Query heads, key heads, size of a head: stories260K's, and two larger ones."""
LAYERS = 4
SECONDS = 0.3
"""For each line of the table, about."""
FEWEST = 3


def seconds(backends: list[str], inputs: tuple[Tensor, ...], count: int) -> dict[str, float]:
    """The least seconds a layer takes with each backend."""
    prefix = inputs[1].shape[2] - count
    visible = torch.ones((count, count), dtype=torch.bool).tril() if count > 1 else None
    positions = torch.arange(prefix, prefix + count)
    least = dict.fromkeys(backends, float("inf"))
    end, runs = time.perf_counter() + SECONDS, 0
    while runs < FEWEST or time.perf_counter() < end:
        for name in backends:
            backend = BACKENDS[name]
            began = time.perf_counter()
            step = StepAttention(backend, visible, positions, prefix, prefix + count - 1)
            for _ in range(LAYERS):
                backend(*inputs, step, 0.3, None, None)
            least[name] = min(least[name], (time.perf_counter() - began) / LAYERS)
        runs += 1
    return least


def drawn(shape: tuple[int, int, int], prefix: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as a model with a cache hands them to a backend."""
    heads, key_heads, depth = shape
    slots = torch.randn(2, 1, key_heads, prefix + count + 64, depth)
    key, value = slots[:, :, :, : prefix + count]
    return torch.randn(1, count, heads, depth).transpose(1, 2), key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", default="sdpa,flash")
    parser.add_argument("--widths", default="1,8,16,32,64")
    parser.add_argument("--contexts", default="128,1024,4096,16384,32768")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    backends = args.backends.split(",")
    widths, contexts = ([int(x) for x in each.split(",")] for each in (args.widths, args.contexts))
    rule = flash.PAYS_FROM, flash.PAYS_BY
    print(f"{conditions(args.threads)}; µs a layer, of {LAYERS}\n")
    print(
        f"| heads | text | width | {' | '.join(backends)} | {backends[0]} over last | two parts |"
    )
    print("|---|---|---|" + "---|" * (len(backends) + 2))
    rows = []
    with torch.inference_mode():
        for shape, context, count in product(SHAPES, contexts, widths):
            inputs = drawn(shape, context, count)
            flash.PAYS_FROM, flash.PAYS_BY = rule
            pays = count > 1 and flash.pays(shape[0], count, shape[2], context)
            flash.PAYS_FROM = flash.PAYS_BY = 0
            taken = seconds(backends, inputs, count)
            ratio = taken[backends[0]] / taken[backends[-1]]
            heads = ",".join(map(str, shape))
            times = " | ".join(f"{taken[name] * 1e6:.0f}" for name in backends)
            chosen = "yes" if pays else "no"
            print(
                f"| {heads} | {context} | {count} | {times} | {ratio:.2f} | {chosen} |", flush=True
            )
            rows.append({"shape": shape, "context": context, "width": count, "pays": pays, **taken})
    if args.json:
        figures = {"conditions": conditions(args.threads), "rows": rows}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
