"""Derive settings from a device's bandwidth and arithmetic by a roofline model.

A step reads the weights and the cached keys and values once, for any number of tokens, and
multiplies for every token; it takes about as long as the slower of the two.  (Williams et al.,
"Roofline: an insightful visual performance model", 2009.)  In an eager step, launching the kernels
can be slower than both; in a captured step, the small kernels between the products add their own
time.  Drafting adds host time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from ..decoder.config import CAPTURED_WIDTHS, WITHOUT_WINDOW, LookaheadConfig
from ..decoder.step_cost import StepCost
from ..models.device import Rates
from ..models.memory import ModelSpec

CONTEXTS = (1024, 4096, 16384)
SKINNY = 0.75
"""The rate of products with few rows, as a share of the rate of large products."""
SHARPNESS = 4
"""The order of the norm that joins the times of a step, and so the sharpness of the roofline's
knee; infinity would be the maximum."""
LAUNCH = 0.6e-3
"""Seconds per layer for launching the kernels of an unfused forward of any width.  Llama-2-7B
decodes 41 tokens per second that way on an A100, on which reading allows 150: 0.76 ms for each of
32 layers; hosts have become faster since."""
READING = 0.85
"""The rate at which steps read weights, as a share of the datasheet's bandwidth."""
CAPTURED, WIDER, TILES = 30e-6, 0.1e-6, 1e-3
"""Fitted on an H200 to 135 million, 1.5 and 8 billion parameters, like the following constants; see
benchmarks/README.md.  `CAPTURED`: seconds per layer of a captured step besides reading weights, for
attention, small kernels and the start of products.  `WIDER`: additional seconds per further token.
`TILES`: relative increase of the reading time per further token, from another split of the work."""
BETWEEN, DRAFTED_BETWEEN, HOST = 0.12e-3, 0.16e-3, 6.5e-6
"""Seconds for which the device waits for the host between two plain steps; additional seconds if a
step has drafts; and additional seconds for each further token."""
READ_OUT = 15.0
"""Bytes per logit that a step with drafts reads and writes to choose and rank tokens."""
MAX_COST_RATIO = 1.25
"""The widest step of a budget costs at most this many times the narrowest step with a draft."""


def step_seconds(
    rates: Rates, shape: ModelSpec, width: int, context: int, *, captured: bool
) -> float:
    """Return the seconds of a step of `width` tokens after `context` tokens.

    A captured step is a CUDA graph; others launch their kernels one by one.
    """
    if shape.weights == "int8":
        captured = False  # bitsandbytes waits for the device in the middle of a step
    attention = 4.0 * context * shape.layers * shape.heads * shape.head_size
    operations = width * (2.0 * shape.active + attention)
    moved = shape.weight_bytes * _share_used(shape, width) + context * shape.cache_bytes
    if shape.weights == "nf4" and width > 1:
        # For more than one token, bitsandbytes unpacks the weights into memory first.
        moved += 2 * shape.value_bytes * shape.parameters * _share_used(shape, width)
    reading = moved / (READING * rates.bandwidth)
    multiplying = operations / (SKINNY * rates.arithmetic)
    launching = 0.0 if captured else LAUNCH * shape.layers
    times = (reading, multiplying, launching)
    slowest = float(sum(t**SHARPNESS for t in times) ** (1.0 / SHARPNESS))
    if not captured:
        return slowest + HOST * (width - 1)
    further = width - 1
    per_layer = CAPTURED + WIDER * further
    return slowest * (1.0 + TILES * further) + per_layer * shape.layers + HOST * further


def derive(rates: Rates, shape: ModelSpec, *, captured: bool) -> LookaheadConfig:
    """Return the costs of steps, and a matching budget; arguments as for `step_seconds`.

    The costs include the time between two steps.
    """

    def costs(context: int) -> tuple[float, ...]:
        seconds = [
            step_seconds(rates, shape, width, context, captured=captured)
            + READ_OUT * shape.vocabulary * width / rates.bandwidth
            + BETWEEN
            + DRAFTED_BETWEEN * (width > 1)
            for width in CAPTURED_WIDTHS
        ]
        # Three digits, since the estimate is no better.
        return tuple(accumulate((round(s / seconds[0], 3) for s in seconds), max))

    return fit_settings(StepCost(CAPTURED_WIDTHS, CONTEXTS, tuple(map(costs, CONTEXTS))))


def fit_settings(cost: StepCost) -> LookaheadConfig:
    """Return the settings for a cost curve, with the widest budget that is cheap.

    If the first draft token is expensive, as with weights that must be unpacked, the budget is
    relative to that cost, since plain steps stay possible at any budget.
    """
    context = cost.contexts[0]
    limit = MAX_COST_RATIO * cost.at(2, context)
    budget = max((w for w in CAPTURED_WIDTHS if w > 1 and cost.at(w, context) <= limit), default=2)
    return LookaheadConfig(budget=budget, sources=WITHOUT_WINDOW, step_cost=cost)


def for_experts(cost: StepCost, shape: ModelSpec) -> StepCost:
    """Return the cost curve of a mixture of experts, of which wider steps read more weights, from
    the curve of dense models."""
    more = [_share_used(shape, width) / _share_used(shape, 1) for width in cost.widths]
    rows = (tuple(c * m for c, m in zip(row, more, strict=True)) for row in cost.costs)
    return replace(cost, costs=tuple(rows))


def _share_used(shape: ModelSpec, width: int) -> float:
    """Return the share of the weights that a step of `width` tokens uses."""
    share = shape.active / shape.parameters
    # Every further token may use other experts; the worst case is a random choice.
    return share + (1.0 - share) * (1.0 - (1.0 - share) ** (width - 1))
