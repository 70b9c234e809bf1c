"""What the second turn of a conversation gains from the drafts of the first.

    python benchmarks/second_turn.py --prompts FILE.jsonl

Rows with two `turns` are conversations, put through the model's chat template where it has one;
of other rows each two make one.  The second turn is decoded with the drafts of the first and
without them: same prompt, same text, so only the number of steps differs.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import torch
from common import arguments, conditions

from ladecli import models, profiles
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.drafting.memory import DraftMemory
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.strategies import make_strategy
from ladecli.text import apply_chat_template


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.set_defaults(limit=40, new_tokens=120)
    args = parser.parse_args()
    if args.prompts is None:
        parser.error("--prompts is needed: conversations of two turns")
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder, tokenizer = Decoder(loaded.model), loaded.tokenizer
    conversations = read(args.prompts, args.limit)
    default = profiles.select("cpu", loaded.device, loaded.spec).lookahead
    settings = {"profile cpu": default, "all sources, budget 60": LookaheadConfig(5, 3, 5, 60)}
    print(f"{args.model}, {len(conversations)} conversations; {conditions(args.threads)}\n")
    print("| drafts | second turn alone | with the first turn's | better | same | worse |")
    print("|---|---|---|---|---|---|")
    figures: dict[str, Any] = {}
    for name, config in settings.items():
        pairs = []
        for first, second in conversations:
            drafts, ids = DraftMemory(), encode(tokenizer, [first])
            answer, _ = decode(decoder, ids, config, drafts, args.new_tokens)
            if getattr(tokenizer, "chat_template", None):
                said = tokenizer.decode(answer, skip_special_tokens=True)
                prompt = encode(tokenizer, [first, said, second])
            else:
                prompt = ids + answer + encode(tokenizer, [second])
            text, fresh = decode(decoder, prompt, config, DraftMemory(), args.new_tokens)
            again, kept = decode(decoder, prompt, config, drafts, args.new_tokens)
            assert text == again, "drafts changed the text"
            pairs.append((len(text) / fresh, len(text) / kept))
        alone, kept_rate = (statistics.mean(rates) for rates in zip(*pairs, strict=True))
        better = sum(b > a for a, b in pairs)
        worse = sum(b < a for a, b in pairs)
        same = len(pairs) - better - worse
        print(f"| {name} | {alone:.2f} | {kept_rate:.2f} | {better} | {same} | {worse} |")
        figures[name] = {"alone": alone, "kept": kept_rate, "better": better, "worse": worse}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def read(path: Any, limit: int) -> list[tuple[str, str]]:
    """Pairs of what the user says first and second."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if "turns" in rows[0]:
        return [(r["turns"][0], r["turns"][1]) for r in rows if len(r["turns"]) > 1][:limit]
    texts = [row["prompt"] for row in rows]
    # Each with the next and with the one after that: twice as many conversations.
    pairs = [(a, texts[(n + d) % len(texts)]) for d in (1, 2) for n, a in enumerate(texts)]
    return pairs[:limit]


def encode(tokenizer: Any, turns: list[str]) -> list[int]:
    """Ids of a conversation that waits for an answer."""
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer(turns[-1])["input_ids"])
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]
    return apply_chat_template(tokenizer, messages)


def decode(
    decoder: Decoder, prompt: list[int], config: LookaheadConfig, drafts: DraftMemory, new: int
) -> tuple[list[int], int]:
    """The text and how many steps it took; end tokens are ignored."""
    ids: list[int] = []
    steps = 0
    strategy = make_strategy("lookahead", config, drafts)
    for event in decoder.generate(prompt, strategy, None, Limits(new)):
        if isinstance(event, Step):
            ids += [token.id for token in event.tokens]
            steps += 1
    return ids, steps


if __name__ == "__main__":
    main()
