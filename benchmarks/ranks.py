"""Tokens per step by the number of ranks, at a constant width per rank (lookahead parallelism).

    python benchmarks/ranks.py --model MODEL --prompts FILE.jsonl

Ranks are simulated by threads of one process: what each feeds, what they tell one another and the
text are those of real ranks, times are not.  Greedy, end tokens ignored; every rank's output is
compared with plain decoding's.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from common import arguments, decode, opened, print_head, print_row, save

from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.load import load_decoder, new_cache
from ladecli.decoder.run.ranks.executors import LookaheadParallel
from ladecli.decoder.run.ranks.partition import partition
from ladecli.decoder.run.runner import Runner
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree
from ladecli.decoder.window import LookaheadWindow

RANKS = (1, 2, 4, 8)
PAPER = ("trajectory",)
# The budget is that of every rank anyway; the paper's window grows as its width allows.
SETTINGS = {
    "paper, from (7,5,7)": LookaheadConfig(7, 5, 7, sources=PAPER),
    "paper, from (15,5,15)": LookaheadConfig(15, 5, 15, sources=PAPER),
    "all sources, budget 16": LookaheadConfig(2, 3, 2, 16),
    "all sources, budget 32": LookaheadConfig(5, 3, 5, 32),
    "all sources, budget 60": LookaheadConfig(5, 3, 5, 60),
    "all sources, budget 128": LookaheadConfig(5, 3, 5, 128),
}


def widest(window: int, ngram: int, size: int) -> int:
    """Tokens of the widest rank in a full step of the paper's algorithm with G = W."""
    rows = LookaheadWindow(window, ngram, [1])
    while not rows.filled:
        rows.advance(1, [1] * len(rows.rows[0]))
    tree = TokenTree()
    for guess in range(window):
        tree.add([guess, *range(ngram - 2)], "trajectory", 10**6)
    _, shares = partition(Draft(tree, rows.block(1)), [0] * size)
    parts = [(share.draft.tree, share.draft.window) for share in shares]
    return max(1 + len(tree) + (len(part.tokens) if part else 0) for tree, part in parts)


def grown(config: LookaheadConfig, size: int) -> LookaheadConfig:
    """The paper's settings with the largest W = G for which no rank feeds more than one alone."""
    alone, window = widest(config.window, config.ngram, 1), config.window
    while widest(window + 1, config.ngram, size) <= alone:
        window += 1
    return replace(config, window=window, guesses=window)


@dataclass(frozen=True)
class Rank:
    """What one rank did with one prompt."""

    ids: list[int]
    widths: list[int]
    sent: int


@dataclass(frozen=True)
class Measured:
    """What some ranks did with all prompts.

    Attributes:
        drafts: name of the settings.
        ranks: how many there were.
        window: W, of all of them together.
        tokens_per_step: of them all.
        widest: tokens that the widest rank fed per step behind the first, mean.
        bytes: that each rank told the others per step.
        equal: whether every rank's text was plain decoding's.
    """

    drafts: str
    ranks: int
    window: int
    tokens_per_step: float
    widest: float
    bytes: float
    equal: bool


class Threads:
    """A transport between threads of this process.

    Attributes:
        sent: bytes that this rank sent.
    """

    def __init__(self, rank: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.sent = rank, len(table), 0
        self._table, self._barrier = table, barrier

    def gather(self, message: Any) -> Any:
        self.sent += len(pickle.dumps(message))
        self._table[self.rank] = message
        self._barrier.wait(60)
        found = [*self._table]
        self._barrier.wait(60)  # all have read before one writes again
        return found


def simulate(size: int, work: Callable[[Threads], Rank]) -> list[Rank]:
    """What `work` returns on every rank."""
    table: list[Any] = [None] * size
    barrier = threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(work, Threads(rank, table, barrier)) for rank in range(size)]
        return [rank.result() for rank in ranks]


class Simulation:
    """Ranks in one process.

    Args:
        model: that all of them decode.
        prompts: token ids.
        new_tokens: of an answer.
    """

    def __init__(self, model: Any, prompts: list[list[int]], new_tokens: int) -> None:
        first = load_decoder(model)
        forward = first.runner.model
        self._decoders = [
            Decoder(Runner(forward, new_cache(forward, first.max_context)), first.facts)
            for _ in range(max(RANKS))
        ]
        self._limits = Limits(new_tokens)
        plain, decoder = LookaheadConfig(), self._decoders[0]
        texts = [decode(decoder, p, "autoregressive", plain, new_tokens).ids for p in prompts]
        self._tasks = list(zip(prompts, texts, strict=True))

    def measure(self, name: str, config: LookaheadConfig, size: int) -> Measured:
        """Decode all prompts with some ranks."""
        tokens = steps = fed = sent = 0
        equal = True
        for prompt, text in self._tasks:
            ranks = simulate(size, lambda t, p=prompt: self._generate(t, p, config))
            equal = equal and all(rank.ids == text for rank in ranks)
            tokens += len(text)
            steps += len(ranks[0].widths)
            # All wait for the widest; the first step has the prompt.
            fed += sum(map(max, zip(*(rank.widths[1:] for rank in ranks), strict=True)))
            sent += ranks[0].sent
        return Measured(
            name,
            size,
            config.window,
            tokens / steps,
            fed / (steps - len(self._tasks)),
            sent / steps if size > 1 else 0.0,
            equal,
        )

    def _generate(self, transport: Threads, prompt: list[int], config: LookaheadConfig) -> Rank:
        decoder = self._decoders[transport.rank]
        strategy = make_strategy("lookahead", config, DraftStore())
        executor = LookaheadParallel(decoder.local, transport)
        events = decoder.generate(prompt, strategy, None, self._limits, executor=executor)
        steps = [event for event in events if isinstance(event, Step)]
        ids = [token.id for step in steps for token in step.tokens]
        return Rank(ids, [step.width for step in steps], transport.sent)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="settings whose names hold this")
    args = parser.parse_args()
    loaded, _, prompts = opened(args)
    simulation = Simulation(loaded.model, prompts, args.new_tokens)
    print_head("drafts", "ranks", "W", "tokens per step", "gain", "widest rank", "bytes", "output")
    figures: list[Measured] = []
    for name, config in SETTINGS.items():
        if args.only not in name:
            continue
        for size in RANKS:
            shared = grown(config, size) if config.sources == PAPER else config
            found = simulation.measure(name, shared, size)
            figures.append(found)
            alone = next(each for each in figures if each.drafts == name)
            rate, output = found.tokens_per_step, "equal" if found.equal else "DIFFERS"
            gain = rate / alone.tokens_per_step
            print_row(name, size, found.window, rate, gain, found.widest, found.bytes, output)
    save(args, [asdict(each) for each in figures])


if __name__ == "__main__":
    main()
