"""Whether sampled texts are the same with and without drafts: plain decoding and lookahead.

    python benchmarks/sampled_texts.py --model MODEL --prompts FILE.jsonl --limit 60 -n 96

Each text has a seed of its own; every budget must give token for token what plain decoding gives
with that seed.  The exit code is 1 if any text differs.
"""

from __future__ import annotations

import sys

from common import arguments, decode, opened, print_head, print_row, save

from ladecli.decoder.config import LookaheadConfig, SamplingConfig

BUDGETS = {
    "budget 8, context": LookaheadConfig(3, 3, 4, 8, ("context",)),
    "budget 24, context and recycled": LookaheadConfig(3, 3, 4, 24, ("context", "recycled")),
    "budget 60, all sources": LookaheadConfig(5, 3, 5, 60),
}
TEMPERATURES = (0.7, 1.0)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    loaded, decoder, prompts = opened(args)
    texts = [prompts[number % len(prompts)] for number in range(args.limit)]
    print_head("temperature", "drafts", "texts", "differ", "tokens per step")
    figures = []
    for temperature in TEMPERATURES:
        different = dict.fromkeys(BUDGETS, 0)
        tokens, steps = dict.fromkeys(BUDGETS, 0), dict.fromkeys(BUDGETS, 0)
        for seed, prompt in enumerate(texts):
            sampling = SamplingConfig(temperature, seed=seed)
            asked = args.new_tokens, sampling, loaded.defaults.stop_ids
            plain = decode(decoder, prompt, "autoregressive", LookaheadConfig(), *asked)
            for budget, config in BUDGETS.items():
                decoder.forget(keep_memory=True)
                run = decode(decoder, prompt, "lookahead", config, *asked)
                different[budget] += run.ids != plain.ids
                tokens[budget] += len(run.ids)
                steps[budget] += run.steps
        for budget in BUDGETS:
            rate = tokens[budget] / steps[budget]
            figures.append((temperature, budget, len(texts), different[budget], rate))
            print_row(*figures[-1])
    save(args, figures)
    sys.exit(any(row[3] for row in figures))


if __name__ == "__main__":
    main()
