"""Tokens per step of the paper's algorithm and of all sources, and what each source is worth.

    python benchmarks/tokens_per_step.py --model MODEL --prompts FILE.jsonl --ablation

Greedy, end tokens ignored; every output is compared with plain decoding's.  With --ablation each
source is also used alone and left out, and prompts of several categories have a column for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from common import (
    Run,
    arguments,
    conditions,
    decode,
    opened,
    print_head,
    print_row,
    ratio,
    rows_of,
    save,
)

from ladecli.decoder.config import SOURCES, LookaheadConfig

PAPER = ("trajectory",)
SETTINGS = {
    f"paper {w},{n},{w}": LookaheadConfig(w, n, w, sources=PAPER)
    for w, n in ((5, 3), (7, 5), (15, 5), (20, 7))
}


def within(budget: int, names: Mapping[str, tuple[str, ...]]) -> dict[str, LookaheadConfig]:
    """Settings with these sources, within a budget; a narrow one has a narrow window."""
    window = (5, 3, 5) if budget > 16 else (2, 3, 2)
    return {
        f"{name}, budget {budget}": LookaheadConfig(*window, budget, sources)
        for name, sources in names.items()
    }


# The trajectory alone is the paper's algorithm.
ALONE = {f"{source} alone": (source,) for source in SOURCES if source != "trajectory"}
WITHOUT = {f"without {s}": tuple(t for t in SOURCES if t != s) for s in SOURCES}


def settings(*, ablation: bool) -> dict[str, LookaheadConfig]:
    """The settings to compare, by name."""
    names = {"all sources": SOURCES} | (ALONE | WITHOUT if ablation else {})
    return SETTINGS | within(16, names) | within(60, names)


def categories(args: Any) -> dict[str, list[int]]:
    """Numbers of the prompts by category; none where there are less than two."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows_of(args.prompts, args.limit) if args.prompts else []):
        found[row.get("category", "all")].append(number)
    return found if args.ablation and len(found) > 1 else {}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--ablation", action="store_true", help="each source alone and left out")
    args = parser.parse_args()
    _, decoder, prompts = opened(args)
    groups = categories(args)

    def decoded(strategy: str, config: LookaheadConfig) -> list[Run]:
        return [decode(decoder, p, strategy, config, args.new_tokens) for p in prompts]

    expected = [run.ids for run in decoded("autoregressive", LookaheadConfig())]
    print_head("drafts", "tokens per step", "width", "output", *groups)
    figures: dict[str, Any] = {"conditions": conditions(args.threads)}
    for name, config in settings(ablation=args.ablation).items():
        runs = decoded("lookahead", config)
        rate, width = ratio(runs)
        equal = "equal" if [run.ids for run in runs] == expected else "DIFFERS"
        by_group = {
            group: ratio([runs[n] for n in numbers])[0] for group, numbers in groups.items()
        }
        print_row(name, rate, f"{width:.1f}", equal, *by_group.values())
        figures[name] = {"tokens_per_step": rate, "width": width, "output": equal} | by_group
    save(args, figures)


if __name__ == "__main__":
    main()
