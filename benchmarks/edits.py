"""Tokens per step of a real chat model where its answer is known but for some edits.

    python benchmarks/edits.py MODEL humaneval.jsonl --json FILE

"in the prompt": a function stands there and is to be renamed.  "handed over": the model answers
the problem, and drafts know the answer as it was before three of a hundred tokens changed.  Every
text is compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from common import Run, conditions, decode, print_head, print_row, ratio, rows_of, save

from ladecli import models
from ladecli.decoder.config import WITHOUT_WINDOW, LookaheadConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategies import make_strategy
from ladecli.session.chat_template import ChatTemplate

CONFIG = LookaheadConfig(budget=64, sources=WITHOUT_WINDOW)
CHANGED = 0.03
RENAME = (
    "```python\n{code}\n```\n\nThe same with `{name}` renamed to `{name}_v2`, and nothing else"
    " changed:\n\n```python\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("file", type=Path, help="rows with a prompt and its entry_point")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("-n", "--new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loaded = models.load(args.model)
    decoder, tokenizer = load_decoder(loaded.model), loaded.tokenizer
    rng = random.Random(args.seed)
    rows = rng.sample(rows_of(args.file, None), args.limit)
    figures: dict[str, object] = {"conditions": conditions(1), "prompts": len(rows)}

    def answered(prompt: list[int], strategy: str, store: DraftStore) -> Run:
        chosen, ends = make_strategy(strategy, CONFIG, store), frozenset(loaded.defaults.stop_ids)
        return decode(decoder, prompt, chosen, CONFIG, args.new_tokens, None, ends)

    print_head("the answer", "tokens per step", "least", "width", "output")
    for where in ("in the prompt", "handed over"):
        runs, equal = [], True
        for row in rows:
            store = DraftStore()
            if where == "in the prompt":
                text = RENAME.format(code=row["prompt"].strip(), name=row["entry_point"])
                prompt = tokenizer(text)["input_ids"]
            else:
                chat = [{"role": "user", "content": row["prompt"]}]
                prompt = ChatTemplate(tokenizer).encode(chat)
            plain = answered(prompt, "autoregressive", store)
            if where == "handed over":
                store.learn_text(
                    [rng.randrange(1000) if rng.random() < CHANGED else id for id in plain.ids]
                )
            runs.append(answered(prompt, "lookahead", store))
            equal = equal and runs[-1].ids == plain.ids
        (rate, width), least = ratio(runs), min(ratio([run])[0] for run in runs)
        print_row(where, rate, least, f"{width:.1f}", "equal" if equal else "DIFFERS")
        figures[where] = {"tokens_per_step": rate, "least": least, "width": width, "equal": equal}
    save(args, figures)


if __name__ == "__main__":
    main()
