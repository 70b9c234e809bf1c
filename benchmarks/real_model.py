"""Tokens per step of a real chat model, by category, greedy and sampled, and what ideas are worth.

    python benchmarks/real_model.py MODEL FOLDER --half report --json FILE

FOLDER holds mt_bench.jsonl (both turns are held), humaneval.jsonl and gsm8k.jsonl.  A seed chooses
the prompts and deals them into two halves: what is tuned is tuned on one, and reported of the
other.  Every text is compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from common import Run, conditions, decode, print_head, print_row, ratio, rows_of, save

from ladecli import models
from ladecli.decoder.config import SOURCES, WITHOUT_WINDOW, LookaheadConfig, SamplingConfig
from ladecli.decoder.drafting import ngram_model, tree_search
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategies import lookahead, make_strategy
from ladecli.decoder.strategy import Draft, Room, State, StepResult, Strategy
from ladecli.session.chat_template import ChatTemplate

FILES = ("mt_bench", "humaneval", "gsm8k")


def _no_noise(_sampling: SamplingConfig) -> None:
    """In the place of `GumbelNoise`."""


# Values of constants that switch an idea off.
IDEAS: dict[str, tuple[tuple[ModuleType, str, Any], ...]] = {
    "prior": ((ngram_model, "PRIOR_SUCCESSORS", 0),),
    "six successors": (
        (ngram_model, "MAX_SUCCESSORS", 4),
        (tree_search, "MAX_CHILDREN", 5),
        (lookahead, "MAX_CHILDREN", 5),
        (lookahead, "MAX_SUCCESSORS", 4),
    ),
    "noise": ((lookahead, "GumbelNoise", _no_noise), (lookahead, "SAMPLED_SUCCESSORS", 6)),
}
GREEDY = ("prior", "six successors")  # the ideas that greedy decoding has use for


class Drafting(NamedTuple):
    """Settings, and the ideas that they go without."""

    config: LookaheadConfig
    without: tuple[str, ...] = ()


class Measured(NamedTuple):
    """A way to choose tokens, and what is measured with it."""

    sampling: SamplingConfig
    drafting: dict[str, Drafting]


def at(budget: int, ideas: Sequence[str]) -> dict[str, Drafting]:
    """Without a window: no idea, each of some alone, all but each, and all of them."""
    config = LookaheadConfig(budget=budget, sources=WITHOUT_WINDOW)
    found = {f"{budget}, no idea": Drafting(config, tuple(IDEAS))}
    for name in ideas:
        others = tuple(each for each in IDEAS if each != name)
        found[f"{budget}, {name} alone"] = Drafting(config, others)
        if len(ideas) > 2:  # of two, without one is the other alone
            found[f"{budget}, without {name}"] = Drafting(config, (name,))
    found[f"{budget}, all"] = Drafting(config)
    return found


PAPER = {
    f"paper {w},5,{w}": Drafting(LookaheadConfig(w, 5, w, sources=("trajectory",))) for w in (7, 15)
}
# Probes are single tokens after the text, each of which asks for what follows a guess.
WINDOW = {
    f"64, all and {name}": Drafting(LookaheadConfig(*window, 64, SOURCES))
    for name, window in {"a window 5,3": (5, 3, 5), "probes 8,2": (8, 2, 8)}.items()
}
MEASURED = {
    "greedy": Measured(SamplingConfig(), at(64, GREEDY) | at(16, GREEDY)),
    "greedy, with a window": Measured(SamplingConfig(), WINDOW | PAPER),
    "temperature 0.7, top-p 0.9": Measured(
        SamplingConfig(temperature=0.7, top_p=0.9, seed=1), at(32, ())
    ),
    "temperature 1.0": Measured(SamplingConfig(temperature=1.0, seed=1), at(32, tuple(IDEAS))),
}


@contextlib.contextmanager
def switched_off(ideas: tuple[str, ...]) -> Iterator[None]:
    """Drafting without some ideas."""
    constants = [constant for idea in ideas for constant in IDEAS[idea]]
    before = [getattr(module, name) for module, name, _ in constants]
    for module, name, value in constants:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(constants, before, strict=True):
            setattr(module, name, value)


class Timed(Strategy):
    """A strategy, and the seconds of CPU that it took."""

    def __init__(self, strategy: Strategy) -> None:
        self.name = strategy.name
        self.seconds = 0.0
        self._strategy = strategy

    def begin(self, state: State) -> None:
        self._strategy.begin(state)

    def propose(self, state: State, room: Room) -> Draft:
        began = time.thread_time()
        draft = self._strategy.propose(state, room)
        self.seconds += time.thread_time() - began
        return draft

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        began = time.thread_time()
        self._strategy.observe(state, draft, result)
        self.seconds += time.thread_time() - began


def chosen(folder: Path, each: int, seed: int, half: str) -> list[tuple[str, list[str]]]:
    """File and turns of `each` prompts of every file: those of one half, or of both."""
    found = []
    for name in FILES:
        rows = rows_of(folder / f"{name}.jsonl", None)
        random.Random(seed).shuffle(rows)
        parts = {"tune": slice(0, each, 2), "report": slice(1, each, 2), "both": slice(0, each)}
        found += [(name, row.get("turns") or [row["prompt"]]) for row in rows[parts[half]]]
    return found


class Holder:
    """Holds conversations with one model."""

    def __init__(self, model: str, new_tokens: int) -> None:
        self.loaded = models.load(model)
        self.decoder = load_decoder(self.loaded.model)
        self.new_tokens = new_tokens

    def held(
        self, turns: list[str], name: str, config: LookaheadConfig, sampling: SamplingConfig
    ) -> tuple[Run, float]:
        """All answers of a conversation, whose drafts are remembered from turn to turn, and the
        seconds that drafting took."""
        messages: list[dict[str, str]] = []
        drafts = DraftStore()
        ids: list[int] = []
        steps = fed = 0
        seconds = 0.0
        ends = frozenset(self.loaded.defaults.stop_ids)
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            prompt = ChatTemplate(self.loaded.tokenizer).encode(messages)
            strategy = Timed(make_strategy(name, config, drafts))
            run = decode(self.decoder, prompt, strategy, config, self.new_tokens, sampling, ends)
            ids, steps, fed = ids + run.ids, steps + run.steps, fed + run.fed
            seconds += strategy.seconds
            answer = self.loaded.tokenizer.decode(run.ids, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": answer})
        return Run(ids, steps, fed), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="with the prompts")
    parser.add_argument("--each", type=int, default=20, help="prompts of each file, both halves")
    parser.add_argument("--half", choices=("tune", "report", "both"), default="report")
    parser.add_argument("--only", choices=MEASURED, action="append", help="repeatable")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("-n", "--new-tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prompts = chosen(args.folder, args.each, args.seed, args.half)
    holder = Holder(args.model, args.new_tokens)
    print(f"{Path(args.model).name}, {len(prompts)} prompts, {args.new_tokens} tokens;")
    print(conditions(args.threads))
    figures: dict[str, Any] = {"conditions": conditions(args.threads), "prompts": len(prompts)}
    for way in args.only or MEASURED:
        sampling, drafting = MEASURED[way]
        print(f"\n{way}\n")
        print_head("drafts", "tokens per step", "width", "host µs", "output", *FILES)
        figures[way] = {}
        plain = LookaheadConfig()
        expected = [
            holder.held(turns, "autoregressive", plain, sampling)[0].ids for _, turns in prompts
        ]
        for name, (config, without) in drafting.items():
            with switched_off(without):
                held = [holder.held(turns, "lookahead", config, sampling) for _, turns in prompts]
            runs = [run for run, _ in held]
            rate, width = ratio(runs)
            host = 1e6 * sum(seconds for _, seconds in held) / sum(run.steps for run in runs)
            equal = "equal" if [run.ids for run in runs] == expected else "DIFFERS"
            by_file = {
                file: ratio(
                    [run for run, (kind, _) in zip(runs, prompts, strict=True) if kind == file]
                )[0]
                for file in FILES
            }
            print_row(name, rate, f"{width:.1f}", f"{host:.0f}", equal, *by_file.values())
            row = {"tokens_per_step": rate, "width": width, "host_us": host, "output": equal}
            figures[way][name] = row | by_file
            save(args, figures)


if __name__ == "__main__":
    main()
