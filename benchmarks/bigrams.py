"""What drafts gain from a model's own bigrams: tokens per step without, with some, and with all.

    python benchmarks/bigrams.py SMOLLM2 FILE.jsonl [-n 96]

Answers to a file of prompts, each by a decoder that has read nothing else, greedy and at
temperature 0.8: by the default's costs of steps here, and as if steps of 64 tokens cost no more
than those of one.
"""

from __future__ import annotations

from dataclasses import replace

from common import argument_parser, print_head, print_row, save

import ladecli
from ladecli import suites
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.drafting.bigrams import Bigrams
from ladecli.decoder.run.bigrams import TOKENS
from ladecli.decoder.step_cost import StepCost
from ladecli.events import TextStep
from ladecli.session.bigrams import bigrams_of
from ladecli.session.session import Session, Settings

GREEDY, SAMPLED = SamplingConfig(), SamplingConfig(temperature=0.8, top_p=0.95, seed=1)
FREE = StepCost((1, 64), (0,), ((1.0, 1.05),))


def tokens_per_step(session: Session, prompts: list[list[int]], settings: Settings) -> float:
    """Over all answers."""
    tokens = steps = 0
    for prompt in prompts:
        session.start_over()
        for event in session.stream(prompt, settings):
            if isinstance(event, TextStep):
                steps, tokens = steps + 1, tokens + len(event.token_ids)
    return tokens / steps


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("-n", type=int, default=96, help="tokens of an answer")
    args = parser.parse_args()
    model = ladecli.load(args.model, device="cpu")
    session = model.session
    rows = suites.load(args.prompts)
    prompts = [session.encode_chat([{"role": "user", "content": row.turns[0]}]) for row in rows]
    everything = bigrams_of(session, seconds=600.0)
    free = replace(model.lookahead, step_cost=FREE, budget=64)
    ways = [
        Settings("lookahead", config, sampling, args.n, ignore_eos=True)
        for config in (model.lookahead, free)
        for sampling in (GREEDY, SAMPLED)
    ]
    figures: list[tuple[int, list[float]]] = []
    print_head("bigrams of", "greedy", "drawn", "greedy, free", "drawn, free")
    for known in (0, TOKENS // 16, TOKENS // 4, TOKENS):
        session.know(Bigrams(everything.ids[:known], everything.shares[:known]))
        found = [tokens_per_step(session, prompts, settings) for settings in ways]
        figures.append((known, found))
        print_row(f"{known:,} tokens", *found)
    save(args, figures)


if __name__ == "__main__":
    main()
