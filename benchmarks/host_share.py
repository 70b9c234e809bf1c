"""What the host adds to a step of a GPU: whole generations on a device that only takes its time.

    python benchmarks/host_share.py

A model decodes a text once, its steps "captured", and what each step says is written down.  Then
the text is decoded again, and instead of computing, every step takes as long as a GPU would and
says what it said: what a step takes beyond that is the host's.  The host spins meanwhile, as it
does when it waits for CUDA.  Tokens are drawn at temperature 1: the demo's most probable text ends
in a loop, of which long drafts are accepted at once.

The device begins as soon as it is asked to: what the stand-in itself does to play a step falls into
the device's time, as does whatever the host does while a GPU is at work.  What CUDA takes to launch
a graph is not measured here, and what is sent to the device is a copy within the host's memory.
Draft, learn and rest are those of passes with a stopwatch, which takes its time, too; host is that
of passes without it.

Whatever runs after a wait of milliseconds may run slower than before it: clocks go down, and others
on the same core take its caches.  That belongs to the machine.  So everything is measured a second
time on a device that takes no time ("without the wait"), and a piece of plain Python beside it, for
comparison.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from common import DEMO_PROMPTS, conditions
from torch import Tensor

from ladecli.decoder import engine
from ladecli.decoder.capture import Captured, Work
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.strategies import make_strategy
from ladecli.models import load

PROMPT = DEMO_PROMPTS[1]
TOKENS = 400


class Tape:
    """Stands for CUDA graphs: computes and records, or plays what it recorded.

    Args:
        seconds: that a step takes when it is played.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._said: list[tuple[Tensor, ...]] = []
        self._place = -1
        self._until = 0.0

    def capture(self, work: Work) -> Captured:
        return Recorded(self, work, work())

    def rewind(self, *, play: bool) -> None:
        """Begin again: play from the start, or record anew."""
        self._place = 0 if play else -1
        if not play:
            self._said.clear()

    def run(self, work: Work, outputs: tuple[Tensor, ...]) -> None:
        if self._place >= 0:
            self._until = time.perf_counter() + self._seconds
        with torch.inference_mode():
            if self._place < 0:
                said = tuple(each.clone() for each in work())
                self._said.append(said)
            else:
                said = self._said[self._place]
                self._place += 1
            for output, new in zip(outputs, said, strict=True):
                output.copy_(new)

    def wait(self) -> None:
        while time.perf_counter() < self._until:
            pass


class Recorded:
    """Work of a tape."""

    def __init__(self, tape: Tape, work: Work, outputs: tuple[Tensor, ...]) -> None:
        self._tape = tape
        self._work = work
        self.outputs = outputs

    def replay(self) -> None:
        self._tape.run(self._work, self.outputs)


def yardstick(wait: float) -> float:
    """Seconds that a piece of plain Python takes after a wait, spent as `Tape.wait` spends it."""
    taken: list[float] = []
    for _ in range(200):
        until = time.perf_counter() + wait
        while time.perf_counter() < until:
            pass
        began = time.perf_counter()
        sum(pair[1] for pair in {i: (i, 2 * i) for i in range(300)}.values())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(loaded: Any, budget: int, device: float, rounds: int) -> dict[str, float]:
    """What the host adds to a step, in microseconds."""
    tape = Tape(device)
    decoder = Decoder(loaded.model, capture=tape)
    prompt = [int(token) for token in loaded.tokenizer(PROMPT)["input_ids"]]
    name = "lookahead" if budget > 1 else "autoregressive"
    config = LookaheadConfig()
    if budget > 1:
        config = LookaheadConfig(5, 3, 5, budget, widths=decoder.runner.widths(budget))

    def steps(*, timed: bool = False) -> list[Step]:
        strategy = make_strategy(name, config)
        sampling = SamplingConfig(temperature=1.0, seed=1)
        events = decoder.generate(prompt, strategy, sampling, Limits(TOKENS), timed=timed)
        # The first ones read the prompt, or are captured.
        return [event for event in events if isinstance(event, Step)][2:]

    steps()
    tape.rewind(play=False)
    steps()
    gc.collect()
    gc.freeze()
    beyond: list[float] = []
    parts: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        tape.rewind(play=True)
        beyond.append(statistics.median(step.seconds - device for step in steps()))
        tape.rewind(play=True)
        found = steps(timed=True)
        for part in found[0].parts or ():
            parts[part].append(statistics.median((step.parts or {})[part] for step in found))
    parts["forward"] = [seconds - device for seconds in parts["forward"]]
    host = min(beyond)
    shown = {part: 1e6 * min(times) for part, times in parts.items()}
    return {
        "width": statistics.mean(step.width for step in found),
        "tokens": statistics.mean(len(step.tokens) for step in found),
        "host": 1e6 * host,
        **shown,
        "rest": sum(shown.values()) - shown["draft"] - shown["learn"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device-ms", type=float, default=3.3, help="of a step on the GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # A tape does not compute, which a trial would find out.
    engine.try_capture = lambda *_: None  # type: ignore[assignment]
    loaded = load(args.model)
    wait = args.device_ms / 1000
    slowed = yardstick(wait) / yardstick(0.0)
    print(f"{conditions(1)}; a step takes the device {args.device_ms} ms, after which plain Python")
    print(f"takes {slowed:.1f} times as long; draft, learn and rest without the wait\n")
    head = ("budget", "width", "tokens", "host µs", "share", "without the wait", "share")
    print(f"| {' | '.join((*head, 'draft', 'learn', 'rest'))} |\n{'|---' * (len(head) + 3)}|")
    figures: dict[str, Any] = {"slowed": slowed}
    for budget in (1, 16, 32, 64):
        waited, found = (measure(loaded, budget, each, args.rounds) for each in (wait, 0.0))
        shares = [each["host"] / (each["host"] + 1e6 * wait) for each in (waited, found)]
        print(
            f"| {budget} | {found['width']:.1f} | {found['tokens']:.2f} |"
            f" {waited['host']:.0f} | {shares[0]:.1%} | {found['host']:.0f} | {shares[1]:.1%} |"
            f" {found['draft']:.0f} | {found['learn']:.0f} | {found['rest']:.0f} |",
            flush=True,
        )
        figures[str(budget)] = {"waited": waited, "at once": found, "shares": shares}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
