"""Whether several processes yield, token for token, the text of one: a grid of settings.

    python scripts/check_ranks.py --ranks 2,3,4 --model MODEL --prompts FILE.jsonl

Each number of ranks is a torchrun of its own, over gloo on the CPU.  The exit code is 1 if any text
differs.  `--json FILE` keeps the table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ladecli import models
from ladecli.decoder.config import SOURCES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.load import load_decoder
from ladecli.decoder.run.executor import Executor
from ladecli.decoder.run.ranks.executors import LookaheadParallel
from ladecli.decoder.run.ranks.transport import DistributedTransport
from ladecli.decoder.strategies import make_strategy

WINDOWS = ((2, 3, 2), (5, 3, 5), (7, 5, 7), (15, 5, 15), (10, 2, 4))
"""W, N and G; each is tried with the paper's sources and with all, and with two budgets."""
BUDGETS = (None, 40)
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "sampled": SamplingConfig(temperature=0.8, top_k=40, top_p=0.95, seed=11),
}
PROMPTS = ("def ", "# Return the largest item of the list.\ndef largest(items):\n", "Once upon")


def settings() -> Iterator[LookaheadConfig]:
    """The grid."""
    choices = (("trajectory",), ("context", "recycled"), SOURCES)
    for (w, n, g), sources, budget in itertools.product(WINDOWS, choices, BUDGETS):
        if sources != ("trajectory",) or budget is None:
            room = budget is None or budget >= LookaheadConfig(w, n, g).window_cells
            yield LookaheadConfig(w, n, g, budget if room else None, sources)


def main() -> int:
    """Run the grid for each number of ranks; returns 1 if any text differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompts", type=Path, help="JSONL with `prompt`; a few if absent")
    parser.add_argument("--limit", type=int, default=3, help="the most prompts")
    parser.add_argument("--cells", type=int, help="the most settings")
    parser.add_argument("-n", "--new-tokens", type=int, default=60)
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return rank(args)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        for size in args.ranks.split(","):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", size, __file__, *sys.argv[1:], "--json", str(found)),
            ]
            done = subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, check=False)
            if done.returncode:
                return done.returncode
            rows.append(json.loads(found.read_text()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["different"] for row in rows))


def rank(args: argparse.Namespace) -> int:
    """One rank's part of the grid."""
    transport = DistributedTransport(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(1)
    transport.connect()
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    texts: Sequence[str] = PROMPTS
    if args.prompts:
        lines = args.prompts.read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["prompt"] for line in lines if line]
    prompts = [list(loaded.tokenizer(text)["input_ids"]) for text in texts[: args.limit]]

    def text(
        strategy: str, c: LookaheadConfig, prompt: list[int], how: str, run: Executor | None = None
    ) -> list[int]:
        chosen = make_strategy(strategy, c, DraftStore())
        limits = Limits(args.new_tokens)
        events = decoder.generate(prompt, chosen, SAMPLINGS[how], limits, executor=run)
        return [t.id for event in events if isinstance(event, Step) for t in event.tokens]

    compared = different = tokens = 0
    ranks = LookaheadParallel(decoder.local, transport)
    for how, prompt in itertools.product(SAMPLINGS, prompts):
        expected = text("autoregressive", LookaheadConfig(), prompt, how)
        for config in itertools.islice(settings(), args.cells):
            # Every cell starts cold, so that it reads its prompt on all ranks.
            decoder.forget()
            found = text("lookahead", config, prompt, how, ranks)
            compared += 1
            tokens += len(found)
            if found != expected:
                different += 1
                print(f"rank {transport.rank}: {how}, {config}: another text", file=sys.stderr)
    different = sum(transport.gather(different))
    if transport.rank == 0:
        row = {"model": Path(args.model).name, "ranks": transport.size, "texts": compared}
        row |= {"tokens": tokens, "different": different}
        print(f"{transport.size} ranks: {compared} texts, {tokens} tokens, {different} different")
        args.json.write_text(json.dumps(row))
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
