"""Answers by a JSON schema: tokens per step and CPU time, with forced tokens as drafts and without.

    python benchmarks/schemas.py MODEL [--budget 16]

The schema stands nowhere in the prompt, and every answer starts with fresh drafts and no cache.
`plain` masks plain decoding, `lookahead` drafts as without a schema, and `forced` begins with what
the schema forces, and drafts nothing that it forbids.  All three must give the same text.  The cost
of a step is flat with --budget, and the profile's without.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from common import argument_parser, print_head, print_row, save

import ladecli
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.decoder.strategy import Draft, Room, State, Strategy
from ladecli.session.grammar import AnswerGrammar, Grammar, grammar_tokenizer

ASKED = "Give an example of a {} as JSON."
MODES, LENGTH = ("plain", "lookahead", "forced"), 200


class Blind(Lookahead):
    """Drafts as if there were no schema."""

    def propose(self, state: State, room: Room) -> Draft:
        return super().propose(replace(state, grammar=None), room)


def cells(figures: Mapping[str, Counter[str]]) -> Iterator[float]:
    """Tokens per step and CPU time of each mode."""
    for mode in MODES:
        yield from (figures[mode]["tokens"] / figures[mode]["steps"], figures[mode]["cpu"])


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", type=int)
    args = parser.parse_args()
    model = ladecli.load(args.model)
    session, decoder, config = model.session, model.session.decoder, model.lookahead
    if args.budget:
        config = LookaheadConfig(budget=args.budget, sources=WITHOUT_WINDOW)
    tokenizer, ends = session.loaded.tokenizer, session.loaded.defaults.stop_ids
    known = grammar_tokenizer(tokenizer, decoder.facts.vocabulary, ends)
    totals: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
    print_head("schema", "tokens", *(f"{m} {f}" for m in MODES for f in ("tokens/step", "CPU s")))
    for line in Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines():
        name, schema = json.loads(line).values()
        ids = session.encode_chat([{"role": "user", "content": ASKED.format(name)}])
        texts, row = [], dict[str, Counter[str]]()
        for mode in MODES:
            decoder.forget(keep_memory=True)
            grammar = AnswerGrammar(Grammar.from_schema(schema), known, None, ids)
            drafts = {"lookahead": Blind, "forced": Lookahead}.get(mode)
            strategy = drafts(config, DraftStore()) if drafts else Strategy()
            limits, began = Limits(LENGTH, ends, grammar.commit), time.process_time()
            events = [*decoder.generate(ids, strategy, limits=limits, grammar=grammar)]
            seconds = time.process_time() - began
            steps = [event for event in events if isinstance(event, Step)]
            tokens = [token for step in steps for token in step.tokens]
            texts.append([token.id for token in tokens])
            forced = sum(token.source == "forced" for token in tokens)
            row[mode] = Counter(tokens=len(tokens), steps=len(steps), forced=forced, cpu=seconds)
            totals[mode] += row[mode]
        assert texts[0] == texts[1] == texts[2], name
        if len(texts[0]) < LENGTH:
            json.loads(tokenizer.decode(texts[0], skip_special_tokens=True))
        print_row(name, len(texts[0]), *cells(row))
    print_row("all", totals["plain"]["tokens"], *cells(totals))
    print(f"drafts that the schema forced: {totals['forced']['forced']} tokens")
    save(args, totals)


if __name__ == "__main__":
    main()
