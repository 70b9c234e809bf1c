"""What drafting costs on the host by budget and by the length of the text, without a model.

    python benchmarks/host_time.py

A text with the repetitiveness of natural language is "decoded" along a fixed path: the strategy
proposes, the step is laid out as a GPU takes it, the walk accepts what agrees with the path, and
the strategy learns, with made-up logits that favour what follows elsewhere in the text.

This is what a GPU waits for, from the arrival of a step's results to the launch of the next one,
without the packing and unpacking of numbers.  Medians per step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from common import conditions

from ladecli.decoder import bits, layout
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.observation import Observation
from ladecli.decoder.strategies import State, make_strategy
from ladecli.decoder.successors import Successors
from ladecli.decoder.verify import walk

T = TypeVar("T")

VOCABULARY = 8000
STEPS = 300
PARTS = ("propose", "layout", "verify", "observe")


def text_of(length: int, rng: random.Random) -> list[int]:
    """Zipf-distributed words, of which every fourth or so begins a phrase used before."""
    weights = [1.0 / (rank + 3) for rank in range(VOCABULARY)]
    text = rng.choices(range(VOCABULARY), weights, k=60)
    while len(text) < length:
        if rng.random() < 0.4:
            start = rng.randrange(len(text) - 10)
            text += text[start : start + rng.randint(2, 9)]
        else:
            text += rng.choices(range(VOCABULARY), weights, k=4)
    return text[:length]


class Echo:
    """Stands for a model: behind a token it ranks what followed that token in the text."""

    def __init__(self, text: list[int], rng: random.Random) -> None:
        self._after: dict[int, list[int]] = defaultdict(list)
        for first, second in itertools.pairwise(text):
            self._after[first].append(second)
        self._rng = rng

    def ranked(self, token: int) -> dict[int, float]:
        followers = list(dict.fromkeys(reversed(self._after.get(token, [0]))))[:4]
        followers += [self._rng.randrange(VOCABULARY) for _ in range(4 - len(followers))]
        return dict(zip(followers, (0.5, 0.2, 0.1, 0.05), strict=False))


def measure(budget: int, length: int) -> dict[str, float]:
    """Median microseconds of each part of a step, and of the critical ones together."""
    rng = random.Random(0)
    text = text_of(length + 4 * STEPS, rng)
    echo = Echo(text, rng)
    strategy = make_strategy("lookahead", LookaheadConfig(5, 3, 5, budget))
    state = State(text[:length], length)
    strategy.begin(state)
    taken: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        done = work()
        taken[part].append(time.perf_counter() - began)
        return done

    for _ in range(STEPS):
        tokens, at = state.tokens, len(state.tokens)
        if at + budget >= len(text):
            break
        state.room = state.draft_depth = budget
        draft = timed("propose", partial(strategy.propose, state))
        step = timed("layout", partial(laid_out, tokens[-1:], at - 1, draft))
        # A model's step leaves none of this in the caches.
        sum(range(20000))
        choose = partial(following, text, at)
        verdict = timed("verify", partial(walk, draft.tree, choose))
        # Not the decoder's: what the model would have said.
        rows = [echo.ranked(step.tokens[row]) for row in step.outputs]
        best = [next(iter(row)) for row in rows]
        tokens += [token.id for token in verdict.tokens]
        seen = Observation(draft, tokens, verdict, best, Successors.of(rows))
        timed("observe", partial(strategy.observe, state, seen))
    parts = {part: 1e6 * statistics.median(times) for part, times in taken.items()}
    return {part: parts[part] for part in PARTS} | {"all": sum(parts[part] for part in PARTS)}


def laid_out(pending: list[int], position: int, draft: layout.Draft) -> layout.StepLayout:
    """A step with its mask in the form that goes to a GPU."""
    step = layout.build(pending, position, draft)
    assert bits.packed(step.rows, -(-len(step.tokens) // 32))
    return step


def following(text: list[int], start: int, _row: int, path: Sequence[int]) -> int:
    """What stands in the text behind a path that starts at `start`."""
    return text[start + len(path)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    print(f"{conditions(1)}; microseconds, the best of {args.rounds} rounds\n")
    head = " | ".join((*PARTS, "all"))
    print(f"| budget | text | {head} |\n" + "|---" * 7 + "|")
    figures: dict[str, Any] = {}
    for budget in (16, 32, 64):
        for length in (128, 1024, 4096, 16384):
            rounds = [measure(budget, length) for _ in range(args.rounds)]
            parts = min(rounds, key=lambda parts: parts["all"])
            shown = " | ".join(f"{parts[name]:.0f}" for name in parts)
            print(f"| {budget} | {length} | {shown} |", flush=True)
            figures[f"{budget}, {length}"] = parts
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
