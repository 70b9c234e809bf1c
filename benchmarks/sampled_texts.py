"""Whether sampled texts are the same with and without drafts: plain decoding and lookahead.

    python benchmarks/sampled_texts.py --model MODEL --prompts FILE.jsonl --limit 60 -n 96

Each text has a seed of its own; every budget must give token for token what plain decoding gives
with that seed.  The exit code is 1 if any text differs.
"""

from __future__ import annotations

import json
import sys

import torch
from common import arguments, conditions, decode, prompts_of

from ladecli import models
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.load import load_decoder

BUDGETS = {
    "budget 8, context": LookaheadConfig(3, 3, 4, 8, ("context",)),
    "budget 24, context and recycled": LookaheadConfig(3, 3, 4, 24, ("context", "recycled")),
    "budget 60, all sources": LookaheadConfig(5, 3, 5, 60),
}
SAMPLINGS = {
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.0": {"temperature": 1.0},
}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="samplings whose names hold this")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)
    texts = [prompts[number % len(prompts)] for number in range(args.limit)]
    print(f"{args.model}, {len(texts)} texts of {args.new_tokens} tokens")
    print(f"{conditions(args.threads)}\n\n| sampling | drafts | texts | differ | tokens per step |")
    print("|---|---|---|---|---|")
    figures = []
    for name, options in SAMPLINGS.items():
        if args.only not in name:
            continue
        different = dict.fromkeys(BUDGETS, 0)
        tokens, steps = dict.fromkeys(BUDGETS, 0), dict.fromkeys(BUDGETS, 0)
        for seed, prompt in enumerate(texts):
            sampling = SamplingConfig(**options, seed=seed)
            asked = args.new_tokens, sampling, loaded.stop_ids
            plain = decode(decoder, prompt, "autoregressive", LookaheadConfig(), *asked)
            for budget, config in BUDGETS.items():
                decoder.forget(keep_memory=True)
                run = decode(decoder, prompt, "lookahead", config, *asked)
                different[budget] += run.ids != plain.ids
                tokens[budget] += len(run.ids)
                steps[budget] += run.steps
        for budget in BUDGETS:
            rate = tokens[budget] / steps[budget]
            row = name, budget, len(texts), different[budget], round(rate, 3)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
            figures.append(row)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(any(row[3] for row in figures))


if __name__ == "__main__":
    main()
