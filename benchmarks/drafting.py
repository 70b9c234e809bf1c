"""What drafting costs on the host, by budget and length of the text, without a model.

    python benchmarks/drafting.py

A text as repetitive as natural language is replayed: the strategy proposes, the walk accepts what
agrees with the text, and the strategy learns, with successors that favour what followed the same
token elsewhere.  Medians of the CPU time of this thread per step, in microseconds.  The last line
is the memory of what has learned all it can hold: texts in which nothing comes twice.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import defaultdict

import psutil
from common import print_head, print_row

from ladecli.decoder.config import WITHOUT_WINDOW, LookaheadConfig
from ladecli.decoder.drafting.ngram_model import CONTEXTS, SAMPLED_SUCCESSORS
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Room, State, StepResult
from ladecli.decoder.tree import TokenTree

VOCABULARY = 8000
STEPS = 300
IDS = 128_000
"""Of a large vocabulary, for what fills memory."""


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


def measure(budget: int, length: int) -> tuple[float, float, float]:
    """Microseconds to propose and to observe, and tokens per step."""
    rng = random.Random(0)
    text = text_of(length + 4 * STEPS, rng)
    followers: dict[int, dict[int, None]] = defaultdict(dict)
    for first, second in itertools.pairwise(text):
        followers[first] = {second: None, **followers[first]}

    def row_of(token: int) -> dict[int, float]:
        tokens = [*followers[token], *(rng.randrange(VOCABULARY) for _ in range(6))]
        return dict(zip(tokens, (0.5, 0.2, 0.1, 0.05, 0.03, 0.02), strict=False))

    strategy = make_strategy("lookahead", LookaheadConfig(budget=budget, sources=WITHOUT_WINDOW))
    state, room = State(text[:length], length), Room(depth=budget, reach=budget)
    strategy.begin(state)
    proposing, observing = [], []
    while len(proposing) < STEPS and len(state.tokens) + budget < len(text):
        start = len(state.tokens)
        began = time.thread_time()
        draft = strategy.propose(state, room)
        proposing.append(time.thread_time() - began)
        tree = draft.tree
        nodes, new = tree.walk(lambda _, path, start=start: text[start + len(path)])
        rows = [row_of(token) for token in (text[start - 1], *tree.tokens)]
        state.tokens += [token.id for token in new]
        best = [next(iter(row)) for row in rows]
        result = StepResult(nodes, new, best, rows)
        began = time.thread_time()
        strategy.observe(state, draft, result)
        observing.append(time.thread_time() - began)
    times = (1e6 * statistics.median(part) for part in (proposing, observing))
    return *times, (len(state.tokens) - length) / len(proposing)


def full_memory() -> tuple[float, float]:
    """Megabytes that a store of drafts takes after texts of four and eight times its contexts."""
    rng, store, process = random.Random(0), DraftStore(), psutil.Process()
    began, found = process.memory_info().rss, []
    for _ in range(2):
        for _ in range(4 * CONTEXTS // 32):
            text = rng.choices(range(IDS), k=32)
            store.context.begin(text)
            for end in range(4, len(text)):
                tokens = rng.choices(range(IDS), k=SAMPLED_SUCCESSORS)
                store.model.recycle(text[:end], TokenTree(), [dict.fromkeys(tokens, rng.random())])
        found.append((process.memory_info().rss - began) / 1e6)
    return found[0], found[1]


def main() -> None:
    print_head("budget", "text", "propose", "observe", "both", "tokens/step")
    for budget, length in itertools.product((16, 32, 64), (128, 1024, 4096)):
        propose, observe, accepted = min(measure(budget, length) for _ in range(3))
        times = [round(each) for each in (propose, observe, propose + observe)]
        print_row(budget, length, *times, accepted)
    print("\nfull: {:.0f} MB, and {:.0f} MB after as much again".format(*full_memory()))


if __name__ == "__main__":
    main()
