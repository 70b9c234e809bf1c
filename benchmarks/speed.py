"""Wall time of decoding strategies side by side, interleaved prompt by prompt.

    python benchmarks/speed.py --model MODEL --prompts FILE.jsonl

Every figure is a ratio of times of the same prompt in the same round, so that a machine that
drifts hits all alike; of a prompt's rounds the median counts.  `transformers` is its own
`generate(do_sample=False)`; all outputs are compared with it.  Behind the table stands what a
step costs by width, and what of it is spent outside the model.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import arguments, conditions, decode, prompts_of, spread

from ladecli import models, profiles
from ladecli.decoder import layout
from ladecli.decoder.attention import bind
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.engine import Decoder
from ladecli.decoder.tree import TokenTree

Strategy = Callable[[list[int]], list[int]]


def transformers_generate(model: Any, new: int) -> Strategy:
    """transformers' own greedy decoding, end tokens ignored."""

    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return [int(i) for i in out[0, len(prompt) :]]

    return run


def lade(decoder: Decoder, strategy: str, config: LookaheadConfig, new: int) -> Strategy:
    return lambda prompt: decode(decoder, prompt, strategy, config, new).ids


def step_costs(decoder: Decoder, length: int, widths: list[int], rounds: int = 40) -> list[float]:
    """Median seconds of a forward by width, behind `length` cached tokens, interleaved."""
    steps = []
    for width in widths:
        tree = TokenTree()
        tree.add([5] * (width - 1), "benchmark", width)
        steps.append(layout.build([5], length, layout.Draft(tree)))
    times: list[list[float]] = [[] for _ in widths]
    for _ in range(rounds):
        for step, taken in zip(steps, times, strict=True):
            decoder.cache.length = length
            began = time.perf_counter()
            decoder.runner.forward(step)
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]


def ratios(slow: list[list[float]], fast: list[list[float]]) -> list[float]:
    """For each prompt, the median over its rounds of how many times as fast."""
    return [
        statistics.median(a / b for a, b in zip(*rounds, strict=True))
        for rounds in zip(slow, fast, strict=True)
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Two copies: one keeps transformers' own attention.
    stock, loaded = models.load(args.model), models.load(args.model)
    decoder = Decoder(loaded.model)
    room = decoder.max_context - args.new_tokens
    prompts = [p[-room:] for p in prompts_of(args.prompts, loaded.tokenizer, args.limit)]
    default = profiles.select("cpu", loaded.device, loaded.shape).lookahead
    new = args.new_tokens
    strategies: dict[str, Strategy] = {
        "transformers generate": transformers_generate(stock.model, new),
        "autoregressive": lade(decoder, "autoregressive", default, new),
        "prompt-lookup": lade(decoder, "prompt-lookup", default, new),
        "lookahead, paper 5,3,5": lade(
            decoder, "lookahead", LookaheadConfig(5, 3, 5, sources=("trajectory",)), new
        ),
        "lookahead, default": lade(decoder, "lookahead", default, new),
    }
    others = {"text alone": ("context",), "text and recycled": ("context", "recycled")}
    for name, sources in others.items():
        if sources != default.sources:
            config = dataclasses.replace(default, sources=sources)
            strategies[f"lookahead, {name}"] = lade(decoder, "lookahead", config, new)
    assert bind(loaded.model), "the decoder's copy runs the step attention"

    print(f"{args.model}, {len(prompts)} prompts, {new} tokens; {conditions(args.threads)}\n")
    # By strategy and prompt, one time for each round.
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in strategies}
    equal = dict.fromkeys(strategies, True)
    for name in strategies:
        strategies[name](prompts[0])  # warm-up
    for _ in range(args.rounds):
        for number, prompt in enumerate(prompts):
            said: dict[str, list[int]] = {}
            for name, strategy in strategies.items():
                gc.collect()
                began = time.perf_counter()
                said[name] = strategy(prompt)
                seconds[name][number].append(time.perf_counter() - began)
            first = next(iter(said.values()))
            for name, ids in said.items():
                equal[name] &= ids == first

    print("| strategy | speed over generate | speed over autoregressive | lowest prompt | output |")
    print("|---|---|---|---|---|")
    figures: dict[str, Any] = {
        "conditions": conditions(args.threads),
        "model": Path(args.model).name,
    }
    for name in strategies:
        over = ratios(seconds["transformers generate"], seconds[name])
        own = ratios(seconds["autoregressive"], seconds[name])
        same = "equal" if equal[name] else "DIFFERS"
        print(f"| {name} | {spread(over)} | {spread(own)} | {min(own):.2f} | {same} |")
        figures[name] = {
            "over_generate": statistics.median(over),
            "over_autoregressive": statistics.median(own),
            "lowest_over_autoregressive": min(own),
            "output": same,
        }

    widths = [1, 2, 4, 8, 16, 32, 48, 64]
    costs = step_costs(decoder, 150, widths)
    print("\nCost of a step by width, behind 150 tokens, in plain steps:")
    print("| width | " + " | ".join(map(str, widths)) + " |")
    print("|---" * (len(widths) + 1) + "|")
    print("| cost | " + " | ".join(f"{cost / costs[0]:.2f}" for cost in costs) + " |")
    weights = sum(p.numel() for p in loaded.model.parameters())
    # What the arithmetic of a plain step takes where nothing is dispatched: one large product.
    square, product = 1024, None
    a = torch.randn(64, square)
    b = torch.randn(square, square)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        product = a @ b
        times.append(time.perf_counter() - began)
    assert product is not None
    arithmetic = min(times) * weights / (64 * square * square)
    share = arithmetic / costs[0]
    print(
        f"\nA plain step takes {costs[0] * 1e3:.2f} ms; its {weights:,} multiplications take"
        f" {arithmetic * 1e3:.3f} ms where a matrix product is large ({share:.0%}): the rest is"
        " dispatch and memory."
    )
    figures["step_cost"] = dict(zip(widths, (c / costs[0] for c in costs), strict=True))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
