"""What measuring costs: answers as `lade bench` times them over answers that nobody times.

    python benchmarks/measuring.py

Both arms decode the same prompts in turns.  One lets go of every event, and looks at the clock at
the first step and at the end; the other is `lade bench`'s own way: marks for every step, text,
counts, and memory and garbage before and after.  Compared are the seconds after the first step;
wanted: less than 2 % more.
"""

from __future__ import annotations

import gc
import json
import time

import torch
from common import arguments, conditions, prompts_of, spread

from ladecli import models, profiles
from ladecli.bench.result import Method
from ladecli.bench.runners import OwnRunner
from ladecli.device import peak_memory, watch_peak
from ladecli.events import TextStep
from ladecli.session import Session, Settings


def bare(session: Session, prompt: list[int], settings: Settings) -> float:
    """Seconds after the first step, with two looks at the clock."""
    session.start_over()
    began = 0.0
    for event in session.stream(prompt, settings):
        if not began and isinstance(event, TextStep):
            began = time.perf_counter()
    return time.perf_counter() - began


def timed(session: Session, prompt: list[int], player: OwnRunner) -> float:
    """The same as `lade bench` has it."""
    player.begin()
    gc.collect()
    watch_peak(session.loaded.device)
    answer = player.answer(prompt, lambda: False)
    peak_memory(session.loaded.device)
    return sum(answer.step_seconds)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    session = Session(loaded)
    room = session.decoder.max_context - args.new_tokens
    prompts = [p[-room:] for p in prompts_of(args.prompts, loaded.tokenizer, args.limit)]
    lookahead = profiles.select("cpu", loaded.device, loaded.shape).lookahead
    print(f"{args.model}, {len(prompts)} prompts, {args.new_tokens} tokens, {args.rounds} rounds;")
    print(f"{conditions(args.threads)}\n")
    print("| strategy | timed over bare: of all prompts | of each: median (quartiles) |")
    print("|---|---|---|")
    figures: dict[str, object] = {"conditions": conditions(args.threads)}
    gc.freeze()
    for name in ("autoregressive", "lookahead"):
        settings = Settings(name, lookahead, max_new_tokens=args.new_tokens, ignore_eos=True)
        player = OwnRunner(Method(name, name), session, settings)
        taken: list[tuple[list[float], list[float]]] = [([], []) for _ in prompts]
        bare(session, prompts[0], settings)
        for turn in range(args.rounds):
            for prompt, (ours, theirs) in zip(prompts, taken, strict=True):
                # Who comes second finds warmer caches.
                for arm in (0, 1) if turn % 2 else (1, 0):
                    if arm:
                        ours.append(timed(session, prompt, player))
                    else:
                        theirs.append(bare(session, prompt, settings))
        # The fastest of many: whatever disturbs a run makes it slower.
        over = [min(ours) / min(theirs) for ours, theirs in taken]
        whole = sum(min(ours) for ours, _ in taken) / sum(min(theirs) for _, theirs in taken)
        print(f"| {name} | {whole:.4f} | {spread(over)} |")
        figures[name] = {"all": whole, "by_prompt": over}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
