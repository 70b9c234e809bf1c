"""Does `lade bench compare` find a planted slowdown, and call two runs of the same thing equal?

Every try measures four times, each in a process of its own: A, the same again, with lookahead
alone slowed down, and with all of our own decoding slowed down, transformers' untouched.  The
slowdown is planted where the benchmark's clock sees it: each event of an answer comes later by a
share of the time that it took.  A is then compared with the other three.

The last line says how far two runs of the same thing were apart, beside the MARGIN of
`ladecli/bench/compare.py` within which no change is called one.

    python benchmarks/compare_power.py --tries 10 --keep power --json power.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ladecli.bench.compare import MARGIN, compare
from ladecli.bench.result import read
from ladecli.bench.statistics import EQUAL, FASTER, SLOWER, UNCLEAR

CASES = {"same": "", "lookahead": "lookahead", "ours": "lookahead,autoregressive"}
"""Strategies to slow down, by case."""
SLOWED = "slowed"
"""Argument that makes this file the program that is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--limit", type=int, default=18, help="rows of the builtin suite")
    parser.add_argument("-n", "--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--slowdown", type=float, default=0.10, help="share of the time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for results; those there are not redone")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
        for number in range(1, args.tries + 1):
            before = read(measured(args, folder / f"{number}-before.json", ""))
            for case, slow in CASES.items():
                after = read(measured(args, folder / f"{number}-{case}.json", slow))
                found[case].append(compare(before, after))
                print(f"try {number}, {case}: {found[case][-1]['verdict']}", file=sys.stderr)
    figures = [row for case in CASES for row in rows(case, found[case])]
    print_table(figures)
    equal = sum(each["verdict"] == EQUAL for each in found["same"])
    print(f"\nthe same thing called equal: {equal} of {args.tries}")
    changes = [
        each["change"]["ratio"] - 1.0
        for one in found["same"]
        for each in one["contenders"]
        if each["change"]
    ]
    spread = math.sqrt(statistics.mean(change**2 for change in changes))
    print(f"standard deviation of the same thing: {spread:.1%}; margin: {MARGIN:.0%}")
    if args.json:
        conditions = {
            key: value for key, value in vars(args).items() if key not in ("json", "keep")
        }
        data = {"conditions": conditions, "called_equal": equal, "rows": figures}
        data["same_sd"] = spread
        args.json.write_text(json.dumps(data, indent=1) + "\n")


def measured(args: argparse.Namespace, path: Path, slow: str) -> Path:
    """Measure in a process of its own, unless that was done."""
    if path.exists():
        return path
    bench = ["bench", args.model, "--prompts", "builtin", "--limit", str(args.limit)]
    bench += ["-n", str(args.new_tokens), "--repeat", str(args.repeat), "--json", "-q"]
    bench += ["--strategies", "autoregressive,lookahead,hf"]
    command = [sys.executable, __file__, SLOWED, slow, str(args.slowdown), *bench]
    env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    path.write_bytes(done.stdout)
    return path


def rows(case: str, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each method how often it was called what, and the changes that were estimated."""
    changes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        for each in one["contenders"]:
            if each["change"]:
                changes[each["contender"]].append(each["change"])
    for name, its in changes.items():
        values = [change["ratio"] - 1.0 for change in its]
        yield {
            "case": case,
            "contender": name,
            "planted": name in CASES[case].split(","),
            "verdicts": dict(Counter(change["verdict"] for change in its)),
            "change_mean": statistics.mean(values),
            "change_sd": statistics.stdev(values) if len(values) > 1 else None,
        }


def print_table(figures: list[dict[str, Any]]) -> None:
    print("| case | method | planted | slower | equal | unclear | faster | change (mean ± sd) |")
    print("|---|---|---|---|---|---|---|---|")
    for row in figures:
        counts = [row["verdicts"].get(word, 0) for word in (SLOWER, EQUAL, UNCLEAR, FASTER)]
        sd = "" if row["change_sd"] is None else f" ± {row['change_sd']:.1%}"
        cells = [row["case"], row["contender"], "yes" if row["planted"] else "no", *counts]
        print("|", " | ".join(map(str, cells)), "|", f"{row['change_mean']:+.1%}{sd} |")


def slowed(slow: str, share: float, arguments: list[str]) -> None:
    """Be `lade`, with the answers of some strategies slowed down."""
    from ladecli.__main__ import run_and_exit
    from ladecli.session import Session

    stream = Session.stream

    def streams(self: Session, prompt: Any, settings: Any, *rest: Any, **named: Any) -> Any:
        events = stream(self, prompt, settings, *rest, **named)
        return later(events, share) if settings.strategy in slow.split(",") else events

    Session.stream = streams  # type: ignore[method-assign]
    sys.argv = ["lade", *arguments]
    run_and_exit()


def later(
    events: Iterator[Any], share: float, clock: Callable[[], float] = time.perf_counter
) -> Any:
    """The same events, each later by a share of the time that it took."""
    while True:
        began = clock()
        event = next(events, None)
        until = clock() + share * (clock() - began)
        while clock() < until:
            pass
        if event is None:
            return
        yield event


if __name__ == "__main__":
    if sys.argv[1:2] == [SLOWED]:
        slowed(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        main()
