"""Helpers of the scripts: tables, files of figures, and scenarios that record violations.

Importing this module limits torch to one thread (unless OMP_NUM_THREADS is set), turns the hub off,
and makes the tests' helpers importable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parents[1]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(ROOT))


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with --json, described by the first line of `description`."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser


def save(args: argparse.Namespace, figures: object) -> None:
    """Write the figures to --json, if it was given."""
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def print_row(*cells: object) -> None:
    """Print a row of a Markdown table; a float has two decimals."""
    shown = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"| {' | '.join(shown)} |", flush=True)


def print_head(*names: str) -> None:
    """Print the header of a Markdown table."""
    print_row(*names)
    print("|---" * len(names) + "|")


class Report:
    """The figures and the violations of a run."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.faults: list[str] = []

    def row(self, name: str, figures: dict[str, Any]) -> None:
        """Add the figures of one part."""
        self.figures[name] = figures
        print_row(name, ", ".join(f"{key} {value}" for key, value in figures.items()))

    def holds(self, condition: object, what: str) -> None:
        """Record a violation if a condition is false."""
        if not condition:
            self.faults.append(what)
            print(f"FAULT: {what}", file=sys.stderr, flush=True)

    def ends(self, done: CompletedProcess[str], what: str, codes: Sequence[int] = (0,)) -> None:
        """Record a program that ended with another exit code."""
        self.holds(done.returncode in codes, f"{what}: {done.returncode}, {done.stderr[-300:]}")


Scenario = Callable[[Report, argparse.Namespace, Path], None]
"""Adds to the report, using an empty folder."""


def run_parts(parser: argparse.ArgumentParser, parts: Mapping[str, Scenario]) -> int:
    """Run the parts of --only, by default all; return 1 if there is a violation."""
    parser.add_argument("--only", action="append", choices=parts, help="this part alone")
    parser.add_argument("--quick", action="store_true", help="few of everything")
    args = parser.parse_args()
    report = Report()
    print_head("part", "figures")
    for name in args.only or parts:
        with tempfile.TemporaryDirectory() as place:
            parts[name](report, args, Path(place))
    save(args, report.figures)
    print(f"\n{len(report.faults)} faults", *report.faults, sep="\n")
    return int(bool(report.faults))
