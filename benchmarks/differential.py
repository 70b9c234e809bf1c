"""Does every entry point give the text of transformers' `generate`, for models of any kind?

    python benchmarks/differential.py --models 100 --json benchmarks/results/differential.json
    python benchmarks/differential.py --first 17 --models 1     # one model again

Small random models in float32, with all kinds of rotary frequencies, sliding windows, penalties and
stop strings, and texts that are broken off and continued; see `tests/support/differential.py`.
The extra `test` is needed.  It exits with 1 if an answer differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import argument_parser, print_head, print_row, save

from tests.support import differential


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--models", type=int, default=100, help="with five cases each")
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, families, ropes = time.monotonic(), set(), Counter[str]()
    answers = differences = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ.update({f"XDG_{each}_HOME": place for each in ("CONFIG", "STATE", "CACHE")})
        for number in range(args.first, args.first + args.models):
            with differential.quietly():
                outcome = differential.run(number, Path(place) / "model")
            families.add(outcome.family)
            ropes[outcome.rope] += 1
            answers += outcome.compared
            differences += len(outcome.faults)
            for fault in outcome.faults:
                print(f"{number}, {outcome.family}, {outcome.rope}: {fault}", flush=True)
    found = {
        "first": args.first,
        "models": args.models,
        "cases": args.models * differential.TURNS,
        "families": sorted(families),
        "ropes": dict(sorted(ropes.items())),
        "answers": answers,
        "differences": differences,
        "seconds": round(time.monotonic() - began),
    }
    print_head("models", "cases", "families", "answers", "differences", "seconds")
    print_row(args.models, found["cases"], len(families), answers, differences, found["seconds"])
    save(args, found)
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
