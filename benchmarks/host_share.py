"""What the host adds to a step of a GPU: whole generations on a device that only takes its time.

    python benchmarks/host_share.py

A model decodes a text once, its steps "captured", and what each step says is written down.  Then
the text is decoded again, and instead of computing, every step takes as long as a GPU would and
says what it said: what a step takes beyond that is the host's.  The host spins meanwhile, as it
does when it waits for CUDA.  Tokens are drawn at temperature 1: the demo's most probable text ends
in a loop, of which long drafts are accepted at once.
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

    @torch.inference_mode()
    def run(self, work: Work, outputs: tuple[Tensor, ...]) -> None:
        if self._place < 0:
            said = tuple(each.clone() for each in work())
            self._said.append(said)
        else:
            said = self._said[self._place]
            self._place += 1
            self._until = time.perf_counter() + self._seconds
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


def measure(loaded: Any, budget: int, device: float, rounds: int) -> dict[str, float]:
    """What the host adds to a step, in microseconds, and as a share of the step."""
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
    for _ in range(rounds):
        tape.rewind(play=True)
        beyond.append(statistics.median(step.seconds - device for step in steps()))
    tape.rewind(play=True)
    found = steps(timed=True)
    parts: dict[str, list[float]] = defaultdict(list)
    for step in found:
        for part, seconds in (step.parts or {}).items():
            parts[part].append(seconds)
    parts["forward"] = [seconds - device for seconds in parts["forward"]]
    host = min(beyond)
    width = statistics.mean(step.width for step in found)
    shown = {part: 1e6 * statistics.median(times) for part, times in parts.items()}
    taken = statistics.mean(len(step.tokens) for step in found)
    return {
        "width": width,
        "tokens": taken,
        "host": 1e6 * host,
        "share": host / (host + device),
        **shown,
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
    print(f"{conditions(1)}; a step takes the device {args.device_ms} ms\n")
    head = ("budget", "width", "tokens", "host µs", "share", "of them draft", "learn", "rest")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    figures: dict[str, Any] = {}
    for budget in (1, 16, 32, 64):
        found = measure(loaded, budget, args.device_ms / 1000, args.rounds)
        rest = found["host"] - found["draft"] - found["learn"]
        print(
            f"| {budget} | {found['width']:.1f} | {found['tokens']:.2f} | {found['host']:.0f} |"
            f" {found['share']:.1%} |"
            f" {found['draft']:.0f} | {found['learn']:.0f} | {rest:.0f} |",
            flush=True,
        )
        figures[str(budget)] = found
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
