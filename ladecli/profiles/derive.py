"""Settings from a device's bandwidth and arithmetic, where nothing is measured: a roofline.

A step reads the weights and the cached keys and values once, however many tokens it has, and
multiplies for every token; it takes about as long as the slower of the two.  (Williams et al.,
"Roofline: an insightful visual performance model", 2009.)  In an eager step, launching the kernels
can be slower than both; in a captured step the small kernels between the products add their own
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
"""The share of the rate of large matrix products that products with few rows reach."""
SHARPNESS = 4
"""How sharp the knee is: the times are joined as a norm of this order; infinity is max."""
LAUNCH = 0.6e-3
"""Seconds per layer that launching the kernels of an unfused forward takes, whatever its width.
Llama-2-7B makes 41 tokens per second that way on an A100, where reading allows 150: 0.76 ms for
each of 32 layers; hosts have become faster since."""
READING = 0.85
"""The share of a bandwidth in a datasheet at which steps read weights; more of a copy's."""
CAPTURED, WIDER, TILES = 30e-6, 0.1e-6, 1e-3
"""Seconds per layer of a captured step in which no weights are read, for attention, small kernels
and the beginning of products; more seconds for each further token; and by how much of itself
reading takes longer for each, because products share their work out otherwise.  Fitted to 135
million, 1.5 and 8 billion parameters on an H200, like the following ones; see
benchmarks/README.md."""
BETWEEN, DRAFTED_BETWEEN, HOST = 0.12e-3, 0.16e-3, 6.5e-6
"""Seconds of the host in which the device waits between two plain steps, more of them where a step
has drafts, and for each further token of it."""
READ_OUT = 15.0
"""Bytes per logit that a step with drafts reads and writes to choose and to rank tokens."""
DEAR = 1.25
"""The widest step of a budget costs at most this many of the narrowest steps with a draft."""


def step_seconds(
    rates: Rates, shape: ModelSpec, width: int, context: int, *, captured: bool
) -> float:
    """Seconds of a step of `width` tokens after `context` tokens.

    A captured step is a CUDA graph; others launch their kernels one by one.
    """
    if shape.weights == "int8":
        captured = False  # bitsandbytes asks the device for outliers in the middle of a step
    attention = 4.0 * context * shape.layers * shape.heads * shape.head_size
    operations = width * (2.0 * shape.active + attention)
    moved = shape.weight_bytes * _met(shape, width) + context * shape.cache_bytes
    if shape.weights == "nf4" and width > 1:
        # bitsandbytes multiplies packed weights with one token only; for more it unpacks them
        # into memory, and the product reads them there.
        moved += 2 * shape.value_bytes * shape.parameters * _met(shape, width)
    reading = moved / (READING * rates.bandwidth)
    multiplying = operations / (SKINNY * rates.arithmetic)
    launching = 0.0 if captured else LAUNCH * shape.layers
    times = (reading, multiplying, launching)
    slowest = float(sum(t**SHARPNESS for t in times) ** (1.0 / SHARPNESS))
    if not captured:
        return slowest + HOST * (width - 1)
    further = width - 1
    each = CAPTURED + WIDER * further
    return slowest * (1.0 + TILES * further) + each * shape.layers + HOST * further


def derive(rates: Rates, shape: ModelSpec, *, captured: bool) -> LookaheadConfig:
    """Costs of steps, and a budget to match; arguments as for `step_seconds`.

    Beside what the device does for a step, they know what its user waits for between two.
    """

    def costs(context: int) -> tuple[float, ...]:
        seconds = [
            step_seconds(rates, shape, width, context, captured=captured)
            + READ_OUT * shape.vocabulary * width / rates.bandwidth
            + BETWEEN
            + DRAFTED_BETWEEN * (width > 1)
            for width in CAPTURED_WIDTHS
        ]
        # To three digits: the estimate is no better.
        return tuple(accumulate((round(s / seconds[0], 3) for s in seconds), max))

    return fit_settings(StepCost(CAPTURED_WIDTHS, CONTEXTS, tuple(map(costs, CONTEXTS))))


def fit_settings(cost: StepCost) -> LookaheadConfig:
    """The settings that go with a curve: as wide as is cheap.

    Plain steps stay possible at any budget, so where the first draft token is dear, as with
    weights that are unpacked for it, only drafts that are worth that much are tried.
    """
    context = cost.contexts[0]
    limit = DEAR * cost.at(2, context)
    budget = max((w for w in CAPTURED_WIDTHS if w > 1 and cost.at(w, context) <= limit), default=2)
    return LookaheadConfig(budget=budget, sources=WITHOUT_WINDOW, step_cost=cost)


def for_experts(cost: StepCost, shape: ModelSpec) -> StepCost:
    """A curve of dense models, for a mixture of experts, of which wider steps read more."""
    more = [_met(shape, width) / _met(shape, 1) for width in cost.widths]
    rows = (tuple(c * m for c, m in zip(row, more, strict=True)) for row in cost.costs)
    return replace(cost, costs=tuple(rows))


def _met(shape: ModelSpec, width: int) -> float:
    """The share of the weights that a step of `width` tokens meets."""
    share = shape.active / shape.parameters
    # With a mixture of experts every further token may meet others: at worst at random.
    return share + (1.0 - share) * (1.0 - (1.0 - share) ** (width - 1))
