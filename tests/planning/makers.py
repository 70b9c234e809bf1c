"""What planner tests are made of: setups whose every figure a test may choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ladecli.planning import gpus, growth, links, typical
from ladecli.planning.cost import Setup

TABLE = """
[[measured]]
text = "tests"
model = "none"
budget = 16
ranks = [1, 2, 4]
tokens_per_step = [2.0, 2.5, 2.75]
origin = "made up"

[[measured]]
text = "tests"
model = "none"
budget = 64
ranks = [1, 2, 4]
tokens_per_step = [3.0, 4.0, 5.0]
origin = "made up"
"""


def setup_of(
    gpu: str = "a100",
    size: str = "7b",
    *,
    per_node: int = 8,
    link: str | None = None,
    quantize: str = "none",
    **fields: Any,
) -> Setup:
    """A setup for a GPU and a size, with tokens per step that are made up."""
    kind = gpus.named(gpu)
    _, shape = typical.typical(size, quantize=quantize)
    fabric = links.fabric(kind.name, per_node, [1024], link)
    made = Setup(
        shape,
        kind.hardware.rates_for(shape.compute),
        kind.memory,
        64,
        1024,
        fabric,
        growth.parse(TABLE)["tests"],
    )
    return replace(made, **fields)
