"""What `lade tune` finds, against the shipped profile and plain decoding, on other prompts.

    python benchmarks/tuned.py --model MODEL --prompts FILE.jsonl

It tunes as often as --tunings says, each time from the profile that --start names, and then decodes
prompts that tuning has not seen with every setting found, interleaved prompt by prompt.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import arguments, conditions, decode, prompts_of, spread
from speed import ratios

from ladecli import models, profiles
from ladecli.decoder.config import LookaheadConfig
from ladecli.options import TuneRequest
from ladecli.session import Session
from ladecli.tune import sample_prompts, tune

PLAIN = "autoregressive"


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tunings", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--start", default="cpu", help="the profile to tune from")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    session = Session(loaded)
    # Forced: a profile that was tuned earlier must not stand for the shipped one.
    shipped = profiles.select("cpu", loaded.device, loaded.shape)
    request = TuneRequest(model=args.model, profile=args.start, seconds=args.seconds)
    print(f"{Path(args.model).name}; {conditions(args.threads)}\n")
    settings: dict[str, tuple[str, LookaheadConfig]] = {
        "plain decoding": (PLAIN, LookaheadConfig()),
        "shipped profile": ("lookahead", shipped.lookahead),
    }
    if args.start != "cpu":
        start = profiles.select(args.start, loaded.device, loaded.shape)
        settings[f"profile {args.start}"] = ("lookahead", start.lookahead)
    found: list[dict[str, Any]] = []
    for number in range(1, args.tunings + 1):
        report = tune(session, request, sample_prompts(None))
        agrees = report.outcome is not None and report.outcome.agrees
        print(f"tuning {number}, {report.seconds:.1f} s: {report.verdict}")
        print("  " + ("; ".join(report.caveats) or "repeats agree"))
        settings[f"tuned {number}"] = ("lookahead", report.setting)
        found.append({"seconds": report.seconds, "verdict": report.verdict, "agrees": agrees})

    new = args.new_tokens
    room = session.decoder.max_context - new
    prompts = [p[-room:] for p in prompts_of(args.prompts, loaded.tokenizer, args.limit)]
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in settings}
    equal = True
    for turn in range(args.rounds):
        for number, prompt in enumerate(prompts):
            said = []
            for name, (strategy, config) in _rotated(settings, turn + number):
                began = time.perf_counter()
                said.append(decode(session.decoder, prompt, strategy, config, new).ids)
                seconds[name][number].append(time.perf_counter() - began)
            equal &= all(ids == said[0] for ids in said)
    print(
        f"\n{len(prompts)} prompts that tuning has not seen, {new} tokens, outputs"
        f" {'equal' if equal else 'DIFFER'}\n"
    )
    print("| setting | speed over plain | over the shipped profile | lowest prompt |")
    print("|---|---|---|---|")
    rows = {}
    for name in settings:
        over = ratios(seconds["plain decoding"], seconds[name])
        against = ratios(seconds["shipped profile"], seconds[name])
        print(f"| {name} | {spread(over)} | {spread(against)} | {min(over):.2f} |")
        rows[name] = {
            "over_plain": statistics.median(over),
            "over_shipped": statistics.median(against),
            "lowest_over_plain": min(over),
        }
    if args.json:
        figures = {
            "model": Path(args.model).name,
            "conditions": conditions(args.threads),
            "tunings": found,
            "settings": rows,
            "outputs_equal": equal,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def _rotated(settings: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    """Each time another one first: who goes first finds the caches of the prompt before."""
    items = list(settings.items())
    first = turn % len(items)
    return items[first:] + items[:first]


if __name__ == "__main__":
    main()
