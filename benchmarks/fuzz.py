"""Does a damaged file ever lead to an internal error, a hang, or another text?

    python benchmarks/fuzz.py --cases 30000 --json benchmarks/results/fuzz.json
    python benchmarks/fuzz.py --kind model --first 17 --cases 1     # one case again

Config files, profiles, chats, traces, prompts, templates, adapters, models and GGUF files are
changed at random and read by the program; see `fuzzing.py`.  This needs the extra `test`.  The exit
code is 1 if a case fails; `--keep FOLDER` keeps the files of failed cases.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import fuzzing
import torch
from common import argument_parser, print_head, print_row, save


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--cases", type=int, default=30_000, help="of all kinds together")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", action="append", help="these kinds alone")
    parser.add_argument("--keep", type=Path, help="a folder for the files of failing cases")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(HOME=place, HF_HOME=place, XDG_CACHE_HOME=place)
        return fuzz(args, Path(place))


def fuzz(args: argparse.Namespace, place: Path) -> int:
    """Run the cases, and print the results."""
    every = fuzzing.fuzz_targets(place / "base")
    kinds = {name: kind for name, kind in every.items() if name in (args.kind or every)}
    total = sum(kind.share for kind in kinds.values())
    figures: dict[str, dict[str, int]] = {}
    print_head("kind", "cases", "accepted", "compared with generate", "failed", "seconds")
    for name, kind in kinds.items():
        began, count = time.monotonic(), round(args.cases * kind.share / total)
        counts = Counter(cases=0, accepted=0, compared=0, failed=0)
        for number in range(args.first, args.first + count):
            outcome = fuzzing.run(kinds, name, number, place / "case")
            counts["cases"] += 1
            counts["accepted"] += outcome.code == 0
            counts["compared"] += outcome.compared
            if outcome.fault is not None:
                counts["failed"] += 1
                print_fault(outcome)
                if args.keep:
                    keep(place / "case", args.keep / outcome.name.replace(" ", "-"))
        figures[name] = {**counts, "seconds": round(time.monotonic() - began)}
        print_row(name, *figures[name].values())
    rows = [*figures.values()]
    print_row("all", *(sum(row[key] for row in rows) for key in (*counts, "seconds")))
    save(args, figures)
    return int(any(row["failed"] for row in rows))


def print_fault(outcome: fuzzing.Outcome) -> None:
    """Print the fault of a case."""
    print(f"{outcome.name}: {outcome.fault}", file=sys.stderr)
    print(f"  {outcome.arguments}\n  {outcome.err[-500:]!r}", file=sys.stderr, flush=True)


def keep(folder: Path, kept: Path) -> None:
    """Copy the files of a case."""
    with contextlib.suppress(shutil.Error):  # pipes
        shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
