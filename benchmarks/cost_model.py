"""Does the cost curve of `lade tune` predict steps of widths that it was not fitted on?

    python benchmarks/cost_model.py --model MODEL --prompts FILE.jsonl

All widths are measured in one run, taking turns.  A table of the widths that `lade tune`
measures is then asked for the others, and for a length of text that it has no row for; beside
it stands the other design, four constants by least squares (base, per token, per token of text,
and both).
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import torch
from common import arguments, conditions, prompts_of

from ladecli import models
from ladecli.decoder.load import load_decoder
from ladecli.decoder.step_cost import StepCost
from ladecli.tune.measure import WIDTHS, Curve, Tuner

HELD_OUT = (3, 6, 12, 20, 28, 40, 56)
CONTEXTS = (128, 512, 1024)
NO_ROW = 512
"""The length of text that the table has no row for."""


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)
    text = [token for prompt in prompts for token in prompt]
    widths = sorted({*WIDTHS, *HELD_OUT})
    curve = Tuner(decoder).measure_curve(text, args.seconds, widths, CONTEXTS)
    table, constants = table_of(curve), constants_of(curve)
    print(f"{Path(args.model).name}; {conditions(args.threads)}; {curve.steps} steps\n")
    print("| text | width | measured | table | error | four constants | error |")
    print("|---|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {"table": [], "four constants": []}
    for context, plain, row in zip(curve.cost.contexts, curve.plain, curve.cost.costs, strict=True):
        for width, cost in zip(widths, row, strict=True):
            if width in WIDTHS and (context != NO_ROW or width == 1):
                continue
            seen = cost * plain
            # A cost is relative to a plain step behind the same text.
            said = table.at(width, context) * plain
            other = predicted(constants, width, context)
            print(
                f"| {context} | {width} | {seen * 1e3:.2f} ms | {said * 1e3:.2f} |"
                f" {said / seen - 1:+.1%} | {other * 1e3:.2f} | {other / seen - 1:+.1%} |"
            )
            errors["table"].append(abs(said / seen - 1.0))
            errors["four constants"].append(abs(other / seen - 1.0))
    for name, found in errors.items():
        print(f"\n{name}: off by {statistics.median(found):.1%} (median), {max(found):.1%} at most")
    if args.json:
        figures = {
            "model": Path(args.model).name,
            "conditions": conditions(args.threads),
            **{
                name: {"median": statistics.median(e), "most": max(e)} for name, e in errors.items()
            },
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def table_of(curve: Curve) -> StepCost:
    """What `lade tune` would have measured: its widths, and no row for one of the texts."""
    cost = curve.cost
    columns = [index for index, width in enumerate(cost.widths) if width in WIDTHS]
    rows = [index for index, context in enumerate(cost.contexts) if context != NO_ROW]
    return StepCost(
        tuple(cost.widths[c] for c in columns),
        tuple(cost.contexts[r] for r in rows),
        tuple(tuple(cost.costs[r][c] for c in columns) for r in rows),
    )


def features(width: int, context: int) -> list[float]:
    return [1.0, width, context, width * context]


def constants_of(curve: Curve) -> np.ndarray:
    """Seconds: base, per token, per token of text, and both; fitted to what the table has."""
    table, points, seconds = table_of(curve), [], []
    for context, row in zip(table.contexts, table.costs, strict=True):
        plain = curve.plain[curve.cost.contexts.index(context)]
        for width, cost in zip(table.widths, row, strict=True):
            # Relative errors count: each point is divided by its own time.
            points.append([x / (cost * plain) for x in features(width, context)])
            seconds.append(1.0)
    return np.linalg.lstsq(np.array(points), np.array(seconds), rcond=None)[0]


def predicted(constants: np.ndarray, width: int, context: int) -> float:
    return float(np.dot(constants, features(width, context)))


if __name__ == "__main__":
    main()
