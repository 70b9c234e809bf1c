"""What watching a reply costs: decoding with the live view over decoding without any.

    python benchmarks/view.py

Both arms consume the same events of `Session.stream`, prompt by prompt in turns.  One draws them
on a pseudo-terminal that another process reads, as a terminal does; the other collects the text
and writes it at the end.  The clock runs from the first step's event to the end of the reply, so
that reading the prompt does not count.  Decoded are the demo model and a random Llama, made so
large that its plain step takes the time given.

The second table has what the view takes for each event in the course of a long reply: as it draws
when events come every 5 ms, and if it drew every one of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch
from common import arguments, conditions, prompts_of, spread
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from ladecli import models, profiles
from ladecli.decoder.drafting.memory import DraftMemory
from ladecli.events import Ended, Piece, TextEvent, TextStep
from ladecli.live import LiveView
from ladecli.markdown import MarkdownRenderer
from ladecli.models import LoadedModel
from ladecli.session import Session, Settings
from ladecli.visualize import ViewState

REPLY = """## What it does

The function reads the **whole file** and returns a `list` of lines, *without* their ends:

1. It opens the file, and it closes the file again, also when something goes wrong in between.
2. It splits the text.

```python
def lines_of(path):
    with open(path) as file:  # closed in any case
        return file.read().splitlines()
```

"""
"""What the long reply of the second table says again and again."""


@contextlib.contextmanager
def pseudo_terminal() -> Iterator[TextIO]:
    """A terminal to write to, read by another process: it shares no lock with us."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        ["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        os.close(ours)
        # Once the last writer is gone, the reader ends too.
        with open(theirs, "w", encoding="utf-8") as stream:
            yield stream


def view_on(stream: TextIO, plain_step: float, clock: Callable[[], float]) -> LiveView:
    console = Console(
        file=stream, force_terminal=True, color_system="256", width=100, height=40, highlight=False
    )
    state = ViewState(plain_step, 2048)
    return LiveView(console, state, MarkdownRenderer(markdown=True, colours=True), clock=clock)


def watched(events: Iterator[TextEvent], stream: TextIO, plain_step: float) -> float:
    """Seconds of a reply with the view."""
    view, began = view_on(stream, plain_step, time.perf_counter), 0.0
    for event in events:
        if not began and isinstance(event, TextStep):
            began = time.perf_counter()
        view.show(event)
    view.finish()
    return time.perf_counter() - began


def unwatched(events: Iterator[TextEvent], stream: TextIO) -> float:
    """Seconds of a reply that is written when it is complete."""
    text, began = list[str](), 0.0
    for event in events:
        match event:
            case TextStep():
                began = began or time.perf_counter()
                text += [piece.text for piece in event.pieces]
            case Ended():
                text.append(event.rest)
    stream.write("".join(text) + "\n")
    stream.flush()
    return time.perf_counter() - began


def random_llama(loaded: LoadedModel, target: float) -> LoadedModel:
    """A Llama for the same tokenizer, with as many layers as make a step of `target` seconds."""

    def made(layers: int) -> LoadedModel:
        torch.manual_seed(0)
        shape = LlamaConfig(
            vocab_size=loaded.model.config.vocab_size,
            hidden_size=512,
            intermediate_size=1408,
            num_attention_heads=8,
            num_key_value_heads=4,
            num_hidden_layers=layers,
            max_position_embeddings=2048,
        )
        return dataclasses.replace(
            loaded, name=f"random Llama, {layers} layers", model=LlamaForCausalLM(shape).eval()
        )

    few, many = (plain_step_of(Session(made(layers))) for layers in (2, 6))
    layer = (many - few) / 4
    return made(max(round((target - few) / layer) + 2, 1))


def plain_step_of(session: Session) -> float:
    """Median seconds of a plain step."""
    settings = Settings("autoregressive", max_new_tokens=40, ignore_eos=True)
    events = session.stream([5, 6, 7], settings)
    return statistics.median([e.seconds for e in events if isinstance(e, TextStep)][1:])


def throughput(args: Any, loaded: LoadedModel, stream: TextIO) -> dict[str, Any]:
    """By prompt, the median over rounds of the throughput with the view over that without."""
    session = Session(loaded)
    plain_step = plain_step_of(session)
    config = profiles.select("cpu", loaded.device, loaded.spec).lookahead
    settings = Settings(lookahead=config, max_new_tokens=args.new_tokens, ignore_eos=True)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)
    ratios: list[list[float]] = [[] for _ in prompts]
    plain: list[float] = []
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        arms: dict[bool, Callable[[Iterator[TextEvent]], float]] = {
            True: lambda events: watched(events, stream, plain_step),
            False: lambda events: unwatched(events, nowhere),
        }
        # The first round warms up.
        for round_number in range(args.rounds + 1):
            for prompt, found in zip(prompts, ratios, strict=True):
                seconds: dict[bool, float] = {}
                for arm in (True, False) if round_number % 2 else (False, True):
                    session.drafts = DraftMemory()
                    seconds[arm] = arms[arm](session.stream(prompt, settings))
                if round_number:
                    found.append(seconds[False] / seconds[True])
                    plain.append(seconds[False])
    by_prompt = [statistics.median(found) for found in ratios]
    return {
        "model": loaded.name,
        "plain_step_ms": 1e3 * plain_step,
        "tokens_per_second": args.new_tokens / statistics.median(plain),
        "ratio": statistics.median(by_prompt),
        "spread": spread(by_prompt),
        "lowest": min(by_prompt),
    }


def event_costs(every: bool, tokens: int, stream: TextIO) -> list[float]:
    """Mean microseconds that an event takes, by thousands of tokens; two tokens an event.

    Args:
        every: whether each event is drawn at once.
        tokens: of the reply.
        stream: the terminal.
    """
    skipped = 0.0
    view = view_on(stream, 0.005, lambda: time.perf_counter() + skipped)
    costs, times = [], []
    for at in range(0, tokens, 2):
        start = at * 4 % len(REPLY)
        pieces = Piece(REPLY[start : start + 4], "context"), Piece(REPLY[start + 4 : start + 8])
        event = TextStep(pieces, (1, 2), 16, 15, 0.005)
        skipped += 0.005
        began = time.perf_counter()
        view.show(event)
        if every:
            view.redraw()
        times.append(time.perf_counter() - began)
        if at % 1000 == 998:
            costs.append(1e6 * statistics.mean(times))
            times.clear()
    view.finish()
    return costs


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.set_defaults(limit=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain-step", type=float, default=5.0, help="of the random Llama, in ms")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    print(f"{args.new_tokens} tokens, {args.rounds} rounds; {conditions(args.threads)}\n")
    print("| model | plain step | tok/s without a view | with the view | lowest prompt |")
    print("|---|---|---|---|---|")
    figures: dict[str, Any] = {"conditions": conditions(args.threads), "throughput": []}
    with pseudo_terminal() as stream:
        for model in (loaded, random_llama(loaded, args.plain_step / 1e3)):
            row = throughput(args, model, stream)
            figures["throughput"].append(row)
            print(
                f"| {row['model']} | {row['plain_step_ms']:.1f} ms | {row['tokens_per_second']:.0f}"
                f" | {row['spread']} | {row['lowest']:.3f} |"
            )
        marks = (1000, 5000, 10_000, 15_000, 20_000)
        print("\nMicroseconds for an event of two tokens, the mean of 500 events:")
        print("| tokens said | " + " | ".join(map(str, marks)) + " |")
        print("|---" * (len(marks) + 1) + "|")
        for name, every in {"an event every 5 ms": False, "every event drawn": True}.items():
            costs = event_costs(every, max(marks), stream)
            figures[name] = costs
            cells = " | ".join(f"{costs[mark // 1000 - 1]:.0f}" for mark in marks)
            print(f"| {name} | {cells} |")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
