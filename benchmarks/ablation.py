"""Which draft source is worth what: each alone, each left out, all of them.

    python benchmarks/ablation.py --model MODEL --prompts FILE.jsonl

Greedy, end tokens ignored; every output is compared with plain decoding's.  Host time is what a
step takes beside the forward pass and what is read out of its logits: the medians of its parts.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import common
import torch
from common import Run, arguments, conditions, prompts_of, ratio

from ladecli import models
from ladecli.decoder.config import SOURCES, LookaheadConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategies import make_strategy

PAPER = ("trajectory",)
Times = defaultdict[str, list[float]]
"""Seconds that each part of a step took, step by step."""


def settings(budget: int) -> dict[str, LookaheadConfig]:
    """Every subset of the sources that answers a question, within one budget."""
    window = (5, 3, 5) if budget > 16 else (2, 3, 2)
    named = {f"{source} alone": (source,) for source in SOURCES}
    named |= {f"without {s}": tuple(t for t in SOURCES if t != s) for s in SOURCES}
    named["all"] = SOURCES
    # The n-gram model is what trajectory feeds here; on its own that name means the paper.
    del named["trajectory alone"]
    return {
        f"{name}, budget {budget}": LookaheadConfig(*window, budget, sources)
        for name, sources in named.items()
    }


SETTINGS = {
    "paper 7,5,7": LookaheadConfig(7, 5, 7, sources=PAPER),
    "paper 15,5,15": LookaheadConfig(15, 5, 15, sources=PAPER),
    **settings(16),
    "all, budget 32": LookaheadConfig(5, 3, 5, 32),
    **settings(60),
    "all, budget 64": LookaheadConfig(5, 3, 5, 64),
}


def decode(
    decoder: Decoder, prompt: list[int], config: LookaheadConfig, new: int, times: Times
) -> Run:
    """One greedy generation that goes on behind end tokens; adds what its parts took to `times`."""
    ids: list[int] = []
    steps = fed = 0
    strategy = make_strategy("lookahead", config)
    for event in decoder.generate(prompt, strategy, None, Limits(new), timed=True):
        if isinstance(event, Step):
            ids += [token.id for token in event.tokens]
            steps += 1
            fed += event.width
            for part, seconds in (event.parts or {}).items():
                times[part].append(seconds)
    return Run(ids, steps, fed)


def categories(path: Path | None, limit: int, each: int) -> dict[str, list[int]]:
    """Numbers of the prompts by category: at most `each` of one."""
    if path is None:
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    found: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows[:limit]):
        if len(found[row.get("category", "all")]) < each:
            found[row.get("category", "all")].append(number)
    return found


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=4, help="prompts of a category, at most")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)
    groups = categories(args.prompts, args.limit, args.each)
    if groups:
        chosen = sorted(n for numbers in groups.values() for n in numbers)
        prompts = [prompts[n] for n in chosen]
        groups = {name: [chosen.index(n) for n in numbers] for name, numbers in groups.items()}
    room = decoder.max_context - args.new_tokens
    prompts = [prompt[-room:] for prompt in prompts]
    new, plain = args.new_tokens, LookaheadConfig()
    expected = [common.decode(decoder, p, "autoregressive", plain, new).ids for p in prompts]

    print(f"{args.model}, {len(prompts)} prompts, {args.new_tokens} tokens")
    print(f"{conditions(args.threads)}\n")
    shown = list(groups) if len(groups) > 1 else []
    heads = ["tokens per step", "width", "host µs", "output", *shown]
    print("| drafts | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    figures: dict[str, Any] = {"conditions": conditions(args.threads)}
    for name, config in SETTINGS.items():
        times: Times = defaultdict(list)
        runs = [decode(decoder, prompt, config, new, times) for prompt in prompts]
        del times["forward"]
        parts = {part: 1e6 * statistics.median(taken) for part, taken in times.items()}
        host = sum(parts.values())
        rate, width = ratio(runs)
        equal = "equal" if [run.ids for run in runs] == expected else "DIFFERS"
        by_group = {group: ratio([runs[n] for n in groups[group]])[0] for group in shown}
        cells = [f"{rate:.2f}", f"{width:.1f}", f"{host:.0f}", equal]
        cells += [f"{value:.2f}" for value in by_group.values()]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        figures[name] = {"tokens_per_step": rate, "width": width, "output": equal}
        figures[name] |= {"host_us": parts | {"all": host}, **by_group}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
