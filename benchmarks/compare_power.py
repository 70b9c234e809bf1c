"""Does `lade bench compare` find a planted slowdown, and call two runs of the same thing equal?

Every try measures four times, each in a process of its own: A, the same again, with lookahead
alone slowed down, and with all of our own decoding slowed down, transformers' untouched.  The
slowdown is planted where the benchmark's clock sees it: each event of an answer comes later by a
share of the time that it took.  A is then compared with the other three.

The last line is what these tries show of PROCESS, which `comparing/change.py` assumes.

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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ladecli.bench import record
from ladecli.bench.comparing.change import FASTER, PROCESS, SLOWER, UNCLEAR, hodges_lehmann
from ladecli.bench.comparing.compare import compare
from ladecli.bench.comparing.pairing import pair_up, per_token
from ladecli.bench.comparing.values import Comparison
from ladecli.bench.result import Result

CASES = {"same": "", "lookahead": "lookahead", "ours": "lookahead,autoregressive"}
"""Contenders to slow down, by case."""
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
        found: dict[str, list[Comparison]] = {case: [] for case in CASES}
        same: list[tuple[Result, Result]] = []
        for number in range(1, args.tries + 1):
            before = record.read(measured(args, folder / f"{number}-before.json", ""))
            for case, whom in CASES.items():
                after = record.read(measured(args, folder / f"{number}-{case}.json", whom))
                if case == "same":
                    same.append((before, after))
                found[case].append(compare(before, after))
                print(f"try {number}, {case}: {found[case][-1].verdict}", file=sys.stderr)
    figures = [row for case in CASES for row in rows(case, found[case])]
    print_table(figures)
    equal = sum(each.verdict == "equal" for each in found["same"])
    print(f"\nthe same thing called equal: {equal} of {args.tries}")
    print(f"PROCESS from these tries: {spread(same):.4f}; assumed: {PROCESS}")
    if args.json:
        conditions = {
            key: value for key, value in vars(args).items() if key not in ("json", "keep")
        }
        data = {"conditions": conditions, "called_equal": equal, "rows": figures}
        data["process"] = spread(same)
        args.json.write_text(json.dumps(data, indent=1) + "\n")


def measured(args: argparse.Namespace, path: Path, whom: str) -> Path:
    """Measure in a process of its own, unless that was done."""
    if path.exists():
        return path
    bench = ["bench", args.model, "--prompts", "builtin", "--limit", str(args.limit)]
    bench += ["-n", str(args.new_tokens), "--repeat", str(args.repeat), "--json", "-q"]
    bench += ["--strategies", "autoregressive,lookahead,hf"]
    command = [sys.executable, __file__, SLOWED, whom, str(args.slowdown), *bench]
    env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    path.write_bytes(done.stdout)
    return path


def rows(case: str, found: list[Comparison]) -> Iterator[dict[str, Any]]:
    """For each contender how often it was called what, and the changes that were estimated."""
    for name in [each.name for each in found[0].judged]:
        changes = [
            each.change for one in found for each in one.judged if each.name == name and each.change
        ]
        verdicts = Counter(change.verdict for change in changes)
        values = [change.ratio.value - 1.0 for change in changes]
        yield {
            "case": case,
            "contender": name,
            "planted": name in CASES[case].split(","),
            "verdicts": dict(verdicts),
            "change_mean": statistics.mean(values),
            "change_sd": statistics.stdev(values) if len(values) > 1 else None,
        }


def print_table(figures: list[dict[str, Any]]) -> None:
    print("| case | contender | planted | slower | equal | unclear | faster | change (mean ± sd) |")
    print("|---|---|---|---|---|---|---|---|")
    for row in figures:
        counts = [row["verdicts"].get(word, 0) for word in (SLOWER, "equal", UNCLEAR, FASTER)]
        sd = "" if row["change_sd"] is None else f" ± {row['change_sd']:.1%}"
        cells = [row["case"], row["contender"], "yes" if row["planted"] else "no", *counts]
        print("|", " | ".join(map(str, cells)), "|", f"{row['change_mean']:+.1%}{sd} |")


def spread(same: list[tuple[Result, Result]]) -> float:
    """How much one contender's speed differs from process to process, beyond what answers show.

    A change is of two contenders in two processes each, so it has twice this spread.
    """
    middles = [
        hodges_lehmann(values)
        for before, after in same
        for values in pair_up(before, after).samples(per_token).values()
    ]
    beyond = [value**2 - (error or 0.0) ** 2 for value, error in middles]
    return math.sqrt(max(statistics.mean(beyond), 0.0)) / 2.0


def slowed(whom: str, share: float, arguments: list[str]) -> None:
    """Be `lade`, with the answers of some contenders slowed down."""
    from ladecli.__main__ import run_and_exit
    from ladecli.bench.contenders import Own
    from ladecli.session import Session

    names, at_work = whom.split(","), [""]
    answer, stream = Own.answer, Session.stream

    def answers(self: Own, *given: Any) -> Any:
        at_work[0] = self.contender.name
        return answer(self, *given)

    def streams(self: Session, *given: Any, **named: Any) -> Iterator[Any]:
        events = stream(self, *given, **named)
        return later(events, share) if at_work[0] in names else events

    Own.answer, Session.stream = answers, streams  # type: ignore[method-assign]
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
