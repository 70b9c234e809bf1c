"""Tokens per step of edits: a model writes a file again with something changed.

    python benchmarks/edits.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --json FILE

`edits.jsonl` has files, requests and the replacements that fulfil them; half of its rows are to
tune on, and half to report.  There are five kinds of answers:

- dictated: the file with the replacements made, as a model without mistakes would write it, while
  drafts see what this model finds probable.
- in JSON: the same as an agent writes it, as a string among the arguments of a tool call.
- escaped: the same, and drafts know the file as a JSON string, as they do in `lade serve`.
- own: the model's own greedy answer.
- handed over: the model answers a request without the file, and drafts know its answer as it was
  before three of a hundred tokens changed.

Steps have 64 tokens, and wide ones are nearly free.  The model's own answers are compared with
those of plain decoding.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import argument_parser, print_head, print_row, save

import ladecli
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from ladecli.session.session import Session

EDITS = Path(__file__).with_name("edits.jsonl")
CONFIG = LookaheadConfig(
    budget=64, sources=WITHOUT_WINDOW, step_cost=StepCost((1, 64), (0,), ((1.0, 1.05),))
)
KINDS = ("dictated", "in JSON", "escaped", "own", "handed over")
CHANGED = 0.03
"""The share of tokens that are changed in an answer that is handed over."""


def decode(
    decoder: Decoder,
    prompt: list[int],
    store: DraftStore,
    new: int,
    stops: frozenset[int],
    script: list[int] | None = None,
    strategy: str = "lookahead",
) -> tuple[list[int], int, float]:
    """Return the answer, its steps, and the host's microseconds in each for drafts."""

    def dictate(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert script is not None
        scores[0, script[ids.shape[1] - len(prompt)]] = torch.inf
        return scores

    limits = Limits(len(script)) if script else Limits(new, stops)
    chosen, spent = make_strategy(strategy, CONFIG, store), 0.0

    def timed(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal spent
            began = time.thread_time()
            try:
                return part(*args)
            finally:
                spent += time.thread_time() - began

        return run

    for name in ("propose", "observe"):
        setattr(chosen, name, timed(getattr(chosen, name)))
    events = decoder.generate(prompt, chosen, None, limits, [dictate] if script else [])
    steps = [event for event in events if isinstance(event, Step)]
    ids = [token.id for step in steps for token in step.tokens]
    return ids, len(steps), 1e6 * spent / len(steps)


def fulfilled(row: dict[str, Any]) -> str:
    """Return the file with the replacements made."""
    text = row["file"]
    for old, new in row["changes"]:
        text = text.replace(old, new)
    return f"```{row['language']}\n{text}```"


def as_tool_call(row: dict[str, Any]) -> str:
    """Return the call by which an agent writes the file with the replacements made."""
    text = fulfilled(row).split("\n", 1)[1].removesuffix("```")
    call = {"name": "write_file", "arguments": {"path": "file", "content": text}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def answers(session: Session, row: dict[str, Any], kind: str, new: int) -> tuple[int, int, float]:
    """Return tokens, steps and the host's microseconds per step of one answer."""
    file = f"```{row['language']}\n{row['file']}```"
    request = f"{row['request']} Answer with the whole file and nothing else.\n\n{file}"
    stops, store, decoder = (
        frozenset(session.loaded.defaults.stop_ids),
        DraftStore(),
        session.decoder,
    )
    if kind == "handed over":
        request = f"Write an example of a file for which somebody may ask: {row['request']}"
    prompt = session.encode_chat([{"role": "user", "content": request}])
    if kind in ("dictated", "in JSON", "escaped"):
        script = session.encode(fulfilled(row) if kind == "dictated" else as_tool_call(row))
        if kind == "escaped":
            escaped = json.dumps(row["file"], ensure_ascii=False)[1:-1]
            store.learn_text(session.encode(escaped))
        ids, steps, host = decode(decoder, prompt, store, new, stops, script)
        assert ids == script
        return len(ids), steps, host
    plain = decode(decoder, prompt, DraftStore(), new, stops, strategy="autoregressive")[0]
    if kind == "handed over":
        draw = random.Random(28)
        changed = [draw.randrange(1000) if draw.random() < CHANGED else id for id in plain]
        store.learn_text(changed)
    ids, steps, host = decode(decoder, prompt, store, new, stops)
    assert ids == plain, f"{row['edit']}: another text"
    return len(ids), steps, host


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--half", action="append", choices=("tune", "report"))
    parser.add_argument("-n", "--new-tokens", type=int, default=400)
    args = parser.parse_args()
    session = ladecli.load(args.model, dtype="float32").session
    rows = [json.loads(line) for line in EDITS.read_text(encoding="utf-8").splitlines()]
    figures: dict[str, Any] = {}
    print_head("answer", "edit", "tokens", "steps", "tokens per step", "host, µs a step")
    for kind in args.kind or KINDS:
        for half in args.half or ("tune", "report"):
            all_tokens = all_steps = all_host = 0.0
            for row in rows:
                if row["half"] == half:
                    tokens, steps, host = answers(session, row, kind, args.new_tokens)
                    print_row(kind, row["edit"], tokens, steps, tokens / steps, round(host))
                    all_tokens, all_steps = all_tokens + tokens, all_steps + steps
                    all_host += host * steps
            rate = all_tokens / all_steps
            print_row(
                kind,
                f"all to {half}",
                int(all_tokens),
                int(all_steps),
                rate,
                round(all_host / all_steps),
            )
            figures[f"{kind}, {half}"] = round(rate, 2)
    save(args, figures)


if __name__ == "__main__":
    main()
