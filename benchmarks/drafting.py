"""The host's time for drafting, and tokens per step compared with other methods on a model.

    python benchmarks/drafting.py
    python benchmarks/drafting.py --model MODEL --prompts FILE [--tokens 96] [--every 1]

Without a model, by budget and length of the text: a text as repetitive as natural language is
replayed.  The strategy proposes, the walk accepts tokens that agree with the text, and the strategy
learns, with successors that favour tokens that followed the same token elsewhere.  The figures are
medians of the CPU time of this thread per step, in microseconds.  The last line is the memory of a
full store, after texts without repetitions.

With a model, tokens per step of greedy answers with budgets of 16 and 64 tokens, if wide steps cost
nearly nothing.  Each answer starts with empty drafts.  Methods that lade lacks are implemented here
in the shortest form that their papers describe, without their authors' tuning.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
from common import argument_parser, print_head, print_row, save

import ladecli
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
from ladecli.decoder.drafting.constants import CONSTANTS
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft, Room, State, StepResult, Strategy
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.suites import read_rows

VOCABULARY = 8000
STEPS = 300
IDS = 128_000
"""The size of a large vocabulary, to fill the memory."""
NEARLY_FREE = StepCost((1, 64), (0,), ((1.0, 1.05),))
"""The cost of steps if reading the weights takes all of the time."""
PAPER = {16: LookaheadConfig(4, 3, 4), 64: LookaheadConfig(8, 5, 8)}
"""The paper's window, by the most tokens of a step."""
SHARES = (0.5, 0.17, 0.09, 0.06, 0.04, 0.03, 0.02, 0.02)
"""For the tree of Token Recycling, the assumed share of each rank among a token's successors."""
LONGEST, FACTOR = 24, 4
"""Of suffix decoding: tokens of the longest suffix, and nodes of a tree for each token of it."""


def text_of(length: int, rng: random.Random) -> list[int]:
    """Return Zipf-distributed words, about every fourth of which begins an earlier phrase."""
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
    """Return the microseconds to propose and to observe, and tokens per step."""
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
    """Return the megabytes of a draft store after texts of four and eight times its contexts."""
    rng, store, process = random.Random(0), DraftStore(), psutil.Process()
    began, sizes = process.memory_info().rss, []
    for _ in range(2):
        for _ in range(4 * CONSTANTS.max_contexts // 32):
            text = rng.choices(range(IDS), k=32)
            store.context.begin(text)
            for end in range(4, len(text)):
                tokens = rng.choices(range(IDS), k=CONSTANTS.sampled_successors)
                store.model.recycle(text[:end], TokenTree(), [dict.fromkeys(tokens, rng.random())])
        sizes.append((process.memory_info().rss - began) / 1e6)
    return sizes[0], sizes[1]


class TokenRecycling(Strategy):
    """The eight most probable successors of each token, in a fixed tree (Luo et al., 2024)."""

    def __init__(self, budget: int) -> None:
        self._successors: dict[int, list[int]] = {}
        self._shape: list[tuple[int, int]] = []  # of each node, its parent and its rank
        frontier = [(1.0, ROOT, 0)]
        while len(self._shape) < budget - 1:
            share, parent, rank = frontier.pop()
            node = len(self._shape)
            self._shape.append((parent, rank))
            if rank + 1 < len(SHARES):
                insort(frontier, (share * SHARES[rank + 1] / SHARES[rank], parent, rank + 1))
            insort(frontier, (share * SHARES[0], node, 0))

    def propose(self, state: State, room: Room) -> Draft:
        tree, nodes = TokenTree(), {ROOT: ROOT}
        for number, (parent, rank) in enumerate(self._shape):
            node = nodes.get(parent)
            if node is None or (node != ROOT and tree.depths[node] >= room.depth):
                continue
            last = state.tokens[-1] if node == ROOT else tree.tokens[node]
            if rank < len(known := self._successors.get(last, [])):
                nodes[number] = tree.grow(node, known[rank], "recycled")
        return Draft(tree, successors=len(SHARES))

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        current = state.tokens[-len(result.tokens) - 1]
        for token, row in zip((current, *draft.tree.tokens), result.successors, strict=False):
            self._successors[token] = [*row]


class SuffixDecoding(Strategy):
    """The most frequent continuations of a suffix of the text (Oliaro et al., 2024): of the suffix
    whose tree has the largest expected number of accepted tokens."""

    def __init__(self, budget: int) -> None:
        self._nodes = budget - 1
        self._places: dict[int, list[int]] = defaultdict(list)  # after each token of the text
        self._known = 0

    def propose(self, state: State, room: Room) -> Draft:
        text = state.tokens
        for place in range(self._known + 1, len(text)):
            self._places[text[place - 1]].append(place)
        self._known = len(text) - 1
        best, most = TokenTree(), 0.0
        places = self._places[text[-1]]
        for length in range(1, LONGEST + 1):
            if not places:
                break
            tree, expected = self._grow(text, places, min(self._nodes, FACTOR * length), room.depth)
            if expected >= most:
                best, most = tree, expected
            before = -length - 1
            places = [p for p in places if p > length and text[p + before] == text[before]]
        return Draft(best)

    def _grow(
        self, text: list[int], places: list[int], limit: int, depth: int
    ) -> tuple[TokenTree, float]:
        """Return the most frequent continuations of some places, and their expected tokens."""
        tree, expected, whole = TokenTree(), 0.0, len(places)
        frontier = [(1.0, 0, ROOT, 0, places)]  # share, order, parent, token, places before it
        while frontier:
            share, order, parent, token, positions = frontier.pop()
            node = ROOT
            if order:
                if len(tree) >= limit:
                    break
                node, expected = tree.grow(parent, token, "context"), expected + share
            below = 0 if node == ROOT else tree.depths[node]
            following: dict[int, list[int]] = defaultdict(list)
            for place in positions if below < depth else ():
                if place < len(text):
                    following[text[place]].append(place + 1)
            for number, (after, ends) in enumerate(following.items()):
                entry = len(ends) / whole, -1 - len(tree) * IDS - number, node, after, ends
                insort(frontier, entry)
        return tree, expected


Maker = Callable[[int], Strategy]
METHODS: dict[str, Maker] = {
    "lade": lambda budget: make_strategy(
        "lookahead", LookaheadConfig(budget=budget, sources=WITHOUT_WINDOW, step_cost=NEARLY_FREE)
    ),
    "Token Recycling": TokenRecycling,
    "suffix decoding": SuffixDecoding,
    "prompt lookup": lambda budget: make_strategy(
        "prompt-lookup", LookaheadConfig(1, 2, 1, budget)
    ),
    "paper's window": lambda budget: make_strategy(
        "lookahead", replace(PAPER[budget], sources=("trajectory",))
    ),
}


def beside_others(model: ladecli.Model, prompts: list[str], tokens: int) -> list[dict[str, object]]:
    """Print and return the tokens per step of each method."""
    session, rows = model.session, []
    ends = session.loaded.defaults.stop_ids
    print_head("method", *(f"{budget} tokens" for budget in PAPER))
    answers: list[list[int]] = []
    for name, method in METHODS.items():
        rates = []
        for budget in PAPER:
            steps = Counter[str]()
            for number, prompt in enumerate(prompts):
                ids = session.encode_chat([{"role": "user", "content": prompt}])
                session.decoder.forget(keep_memory=True)
                done = session.decoder.generate(ids, method(budget), limits=Limits(tokens, ends))
                taken = [event for event in done if isinstance(event, Step)]
                answer = [token.id for step in taken for token in step.tokens]
                answers += [answer] if number == len(answers) else []
                assert answer == answers[number], (name, budget, number)
                steps += Counter(tokens=len(answer), steps=len(taken))
            rates.append(steps["tokens"] / steps["steps"])
        print_row(name, *rates)
        rows.append({"method": name} | dict(zip(map(str, PAPER), rates, strict=True)))
    return rows


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", help="compare methods on this one")
    parser.add_argument("--prompts", help="a file of rows")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--every", type=int, default=1, help="take every N-th prompt")
    args = parser.parse_args()
    if args.model:
        rows = [*read_rows(args.prompts).values()][:: args.every]
        model = ladecli.load(args.model, dtype="float32")
        rates = beside_others(model, [row.turns[0] for row in rows], args.tokens)
        name, count = Path(args.model).name, f"{len(rows)} prompts, {args.tokens} tokens each"
        save(args, {"conditions": f"{name}, float32, {count}", "tokens per step": rates})
        return
    print_head("budget", "text", "propose", "observe", "both", "tokens/step")
    for budget, length in itertools.product((16, 32, 64), (128, 1024, 4096)):
        propose, observe, accepted = min(measure(budget, length) for _ in range(3))
        print_row(budget, length, *map(round, (propose, observe, propose + observe)), accepted)
    print("\nfull: {:.0f} MB, and {:.0f} MB after as much again".format(*full_memory()))


if __name__ == "__main__":
    main()
