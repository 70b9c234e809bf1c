"""Speed on a CPU side by side, interleaved prompt by prompt.

    python benchmarks/speed.py --model MODEL --prompts FILE.jsonl

Every figure is a ratio of CPU times of the same prompt in the same round, so that a machine that
drifts or is shared hits all alike; of a prompt's rounds the median counts.  `generate` is that of
transformers with `do_sample=False`, on a copy of the model that is as it was loaded; all outputs
are compared with it.  Lookahead is what the CPU profile says.  After the table stand the cost of a
step by width, and how near a plain step is to what the machine reads per second.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import arguments, conditions, decode, opened, print_head, print_row, save, spread
from real_model import IDEAS, switched_off

from ladecli import models, profiles
from ladecli.decoder import layout
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree

WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Method = Callable[[list[int]], list[int]]


def generate(model: Any, new: int, ends: frozenset[int]) -> Method:
    """transformers' own greedy decoding."""

    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=sorted(ends) or None,
            pad_token_id=0,
        )
        return [int(i) for i in out[0, len(prompt) :]]

    return run


def step_costs(decoder: Decoder, length: int, rounds: int = 30) -> list[float]:
    """Median CPU seconds of a forward by width, after `length` cached tokens, interleaved."""
    runner, cache = decoder.runner, decoder.cache
    decoder.forget()
    runner.run(layout.build_chunk([5] * length, 0))
    cache.keep(range(length))
    steps = []
    for width in WIDTHS:
        tree = TokenTree()
        for token in range(width - 1):
            tree.add([token], "benchmark", width)
        steps.append(layout.build([5], length, Draft(tree)))
    times: list[list[float]] = [[] for _ in WIDTHS]
    for _ in range(rounds):
        for step, taken in zip(steps, times, strict=True):
            began = time.thread_time()
            runner.run(step)
            taken.append(time.thread_time() - began)
    return [statistics.median(taken) for taken in times]


def read_bandwidth() -> float:
    """Bytes per second that one thread reads: the sum of a tensor beyond all caches."""
    data = torch.ones(1 << 27)
    times = []
    for _ in range(5):
        began = time.thread_time()
        data.sum()
        times.append(time.thread_time() - began)
    return data.numel() * 4 / min(times)


def ratios(slow: list[list[float]], fast: list[list[float]]) -> list[float]:
    """For each prompt, the median over its rounds of how many times as fast."""
    return [
        statistics.median(a / b for a, b in zip(*rounds, strict=True))
        for rounds in zip(slow, fast, strict=True)
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ideas", action="store_true", help="lookahead without them, too")
    parser.add_argument("--end-tokens", action="store_true", help="let end tokens end texts")
    args = parser.parse_args()
    stock = models.load(args.model)
    loaded, decoder, prompts = opened(args)
    default = profiles.select(None, loaded.device, loaded.spec).lookahead
    ends = loaded.defaults.stop_ids if args.end_tokens else frozenset()
    new = args.new_tokens

    def own(strategy: str) -> Method:
        return lambda prompt: decode(decoder, prompt, strategy, default, new, ends=ends).ids

    methods: dict[str, Method] = {
        "generate": generate(stock.model, new, ends),
        "plain": own("autoregressive"),
        "lookahead": own("lookahead"),
    }
    if args.ideas:

        def without(prompt: list[int]) -> list[int]:
            with switched_off(tuple(IDEAS)):
                return methods["lookahead"](prompt)

        methods["no idea"] = without
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in methods}
    equal = dict.fromkeys(methods, True)
    for method in methods.values():
        method(prompts[0][:8])  # warm-up
    order, dice = list(methods), random.Random(0)
    for _ in range(args.rounds):
        for number, prompt in enumerate(prompts):
            found: dict[str, list[int]] = {}
            dice.shuffle(order)
            for name in order:
                gc.collect()
                decoder.forget(keep_memory=True)
                began = time.thread_time()
                found[name] = methods[name](prompt)
                seconds[name][number].append(time.thread_time() - began)
            for name, ids in found.items():
                equal[name] &= ids == found["generate"]

    print_head("method", "over generate", "in all", "over plain", "lowest prompt", "output")
    figures: dict[str, Any] = {
        "conditions": conditions(args.threads),
        "model": Path(args.model).name,
    }
    for name in methods:
        over = ratios(seconds["generate"], seconds[name])
        plain = ratios(seconds["plain"], seconds[name])
        # All texts together: long answers count as they do for a user.
        whole = sum(map(statistics.median, seconds["generate"]))
        total = whole / sum(map(statistics.median, seconds[name]))
        same = "equal" if equal[name] else "DIFFERS"
        print_row(name, spread(over), total, spread(plain), min(plain), same)
        figures[name] = {
            "over_generate": statistics.median(over),
            "over_generate_in_all": total,
            "over_plain": statistics.median(plain),
            "lowest_over_plain": min(plain),
            "output": same,
        }
    if args.ideas:
        gained = ratios(seconds["no idea"], seconds["lookahead"])
        print(f"\nLookahead over itself without ideas: {spread(gained)}, lowest {min(gained):.2f}")
        figures["over_no_idea"], figures["lowest_over_no_idea"] = spread(gained), min(gained)
    costs = step_costs(decoder, 128)
    print("\nCost of a forward by width, after 128 tokens, in plain steps:")
    print_head(*map(str, WIDTHS))
    print_row(*(cost / costs[0] for cost in costs))
    size, bandwidth = 4.0 * loaded.spec.active, read_bandwidth()
    share = size / costs[0] / bandwidth
    print(
        f"\nA plain step takes {costs[0] * 1e3:.2f} ms for {size / 1e6:.0f} MB of weights:"
        f" {size / costs[0] / 1e9:.1f} GB/s, {share:.0%} of the {bandwidth / 1e9:.1f} GB/s that"
        " one thread reads here."
    )
    figures["forward_cost"] = dict(zip(WIDTHS, (c / costs[0] for c in costs), strict=True))
    figures["share_of_bandwidth"] = share
    save(args, figures)


if __name__ == "__main__":
    main()
