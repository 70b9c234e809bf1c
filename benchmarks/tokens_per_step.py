"""Tokens per step of the paper's algorithm and of all sources, against one another.

    python benchmarks/tokens_per_step.py --model MODEL --prompts FILE.jsonl

Greedy, or as -t and its like say, end tokens ignored; every output is compared with plain
decoding's.
"""

from __future__ import annotations

import json

import torch
from common import Run, arguments, conditions, decode, prompts_of, ratio

from ladecli import models
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.load import load_decoder

PAPER = ("trajectory",)
SETTINGS = {
    "paper 5,3,5": LookaheadConfig(5, 3, 5, sources=PAPER),
    "paper 7,5,7": LookaheadConfig(7, 5, 7, sources=PAPER),
    "paper 15,5,15": LookaheadConfig(15, 5, 15, sources=PAPER),
    "paper 20,7,20": LookaheadConfig(20, 7, 20, sources=PAPER),
    "all sources, budget 60": LookaheadConfig(5, 3, 5, 60),
    "all sources, budget 16": LookaheadConfig(2, 3, 2, 16),
}
# What a prototype of the paper's algorithm had on stories260K with 16 story prompts.
TARGETS = {"paper 5,3,5": 1.55, "paper 7,5,7": 1.87, "paper 15,5,15": 2.20, "paper 20,7,20": 2.48}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--targets", action="store_true", help="compare with the prototype's")
    parser.add_argument("-t", "--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    args = parser.parse_args()
    sampling = SamplingConfig(
        args.temperature,
        args.top_k,
        args.top_p,
        repetition_penalty=args.repetition_penalty,
        seed=1,
    )
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)

    def decoded(strategy: str, config: LookaheadConfig) -> list[Run]:
        return [decode(decoder, p, strategy, config, args.new_tokens, sampling) for p in prompts]

    expected = [run.ids for run in decoded("autoregressive", LookaheadConfig())]
    print(f"{args.model}, {len(prompts)} prompts, {args.new_tokens} tokens, {sampling}")
    print(f"{conditions(args.threads)}\n")
    print("| drafts | tokens per step | width | output | target |\n|---|---|---|---|---|")
    figures = {}
    for name, config in SETTINGS.items():
        runs = decoded("lookahead", config)
        rate, width = ratio(runs)
        equal = "equal" if [run.ids for run in runs] == expected else "DIFFERS"
        target = f"{TARGETS[name]:.2f}" if args.targets and name in TARGETS else ""
        print(f"| {name} | {rate:.2f} | {width:.1f} | {equal} | {target} |", flush=True)
        figures[name] = {"tokens_per_step": rate, "width": width, "output": equal}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
