"""Is the speed-up that a chat shows the one that /compare measures?

    python benchmarks/live_speed.py MODEL --json benchmarks/results/live-speed.json

Ten replies, each followed by /compare, through `lade chat` on a pipe: in a chat of their own, where
the figure is an estimate by the profile's curve, and in one chat, where it is known from the
/compare before.  Wanted: within a tenth, and never above tokens per step.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from common import save

MESSAGES = (
    "Why does the sea have tides?",
    "Write the numbers from 1 to 40, separated by commas.",
    "Write a Python function that reverses a linked list.",
    "Name ten fruits, one in each line.",
    "Explain recursion to a child.",
    "Repeat this sentence five times: the quick brown fox jumps over the lazy dog.",
    "What is the difference between a list and a tuple in Python?",
    "Write a short story about a lighthouse.",
    "Translate 'good morning, how are you?' into French, Spanish and Italian.",
    "Give me a recipe for pancakes, with a list of ingredients and steps.",
)
_SHOWN = re.compile(r"([\d.]+) tokens per step.*?(≈?)([\d.]+)× plain")
_COMPARED = re.compile(r"same text · ([\d.]+)× as fast as plain decoding")


class Row(NamedTuple):
    """One reply: what was shown, how that was known, and what /compare measured."""

    message: str
    tokens_per_step: float
    shown: float
    estimated: bool
    compared: float

    @property
    def off(self) -> float:
        """By what part the shown figure is off."""
        return self.shown / self.compared - 1.0


def chat(model: str, messages: tuple[str, ...], new: int) -> list[Row]:
    """The replies to messages of one chat."""
    lines = [line for message in messages for line in (message, "/compare", "/reset")]
    command = [sys.executable, "-m", "ladecli", "chat", model, "--stats", "-n", str(new)]
    done = subprocess.run(
        [*command, "--temperature", "0"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    # A statistics line may be broken between figures where the screen is narrow.
    err = done.stderr.replace("\n·", " ·")
    shown, compared = _SHOWN.findall(err), _COMPARED.findall(err)
    assert len(shown) == len(compared) == len(messages), err
    return [
        Row(message, float(per_step), float(times), bool(about), float(truth))
        for message, (per_step, about, times), truth in zip(messages, shown, compared, strict=True)
    ]


def table(title: str, rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        f"### {title}",
        "",
        "| reply | tokens per step | shown | /compare | off |",
        "|---" * 5 + "|",
    ]
    for row in rows:
        figures = f"{'≈' if row.estimated else ''}{row.shown:.1f} | {row.compared:.2f}"
        lines.append(f"| {row.message} | {row.tokens_per_step:.2f} | {figures} | {row.off:+.0%} |")
    off = [abs(row.off) for row in rows]
    lines.append("")
    lines.append(f"Off by {statistics.median(off):.0%} in the median, {max(off):.0%} at most.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=160, help="tokens of a reply, at most")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    alone = [row for message in MESSAGES for row in chat(args.model, (message,), args.n)]
    together = chat(args.model, MESSAGES, args.n)
    print(
        table("Each in a chat of its own", alone), "", table("All in one chat", together), sep="\n"
    )
    save(args, {"alone": [r._asdict() for r in alone], "together": [r._asdict() for r in together]})
    return int(any(row.shown > row.tokens_per_step + 0.05 for row in (*alone, *together)))


if __name__ == "__main__":
    sys.exit(main())
