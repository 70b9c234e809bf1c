"""A catalogue of models, links between GPUs and gains of ranks, for estimates.

The figures are in catalogue.toml.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ..errors import UsageError
from ..files import parse_toml
from .memory import ModelSpec, smaller_forms

# An exchange takes a start, the hops on its way, and its bytes at a share of the bandwidth.  Hops
# lie between those of NCCL's protocols for few bytes and for many (its src/graph/tuning.cc).
START = 7e-6
SHARE = 0.65  # assumed: eight A100 reach some 230 of 300 GB/s in nccl-tests
USUAL_SIZE = "7b"
"""Of the model that stands for others where none is named."""


@cache
def data() -> dict[str, Any]:
    """The content of catalogue.toml."""
    text = resources.files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def find_model(size: str, dtype: str, quantize: str) -> tuple[str, ModelSpec]:
    """Name and shape of a well-known model by its size ("7b") or name ("llama-3-8b")."""
    models, sizes, word = data()["models"], data()["sizes"], size.strip().lower()
    name = str(sizes.get(word) or sizes.get(f"{word}b", word))
    if name not in models:
        raise UsageError(
            f"unknown model size {size!r}; known: {', '.join(sizes)}, and {', '.join(models)}"
        )
    parameters, layers, hidden, inner, heads, kv_heads, vocabulary, *experts = models[name]
    active = experts[0] if experts else parameters
    weight_bytes = parameters * (4 if dtype == "float32" else 2)
    numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
    shape = ModelSpec(parameters, active, dtype, weight_bytes, dtype, *numbers)
    return name, dict(smaller_forms(shape, "cuda")).get(f"--quantize {quantize}", shape)


@dataclass(frozen=True, slots=True)
class Links:
    """The links within and between nodes: rows of catalogue.toml with a name."""

    gpus_per_node: int
    within: dict[str, Any]
    between: dict[str, Any]

    def all_gather(self, size: float, gpus: int) -> float:
        """Seconds until every GPU has the `size` bytes of each of the others."""
        return self._seconds(size * (gpus - 1), gpus, 1)

    def all_reduce(self, size: float, gpus: int) -> float:
        """Seconds until every GPU has the sum of `size` bytes: to one of them, and back."""
        return self._seconds(2 * size * (gpus - 1) / gpus, gpus, 2)

    def _seconds(self, size: float, gpus: int, passes: int) -> float:
        """A chain through each node and a tree over nodes: start, hops, bytes over bandwidth."""
        nodes = math.ceil(gpus / self.gpus_per_node)
        hops = ((self.within, min(gpus, self.gpus_per_node) - 1), (self.between, math.log2(nodes)))
        latency = sum(link["hops"][0] * math.ceil(number) for link, number in hops)
        bandwidth = SHARE * min(link["bandwidth"] for link, number in hops if number)
        return float(START + passes * latency + size / bandwidth)


def find_links(gpu: str, given: str | None, gpus_per_node: int, gpus: int) -> Links:
    """The links that GPUs of a kind (a profile's name) usually have, or those of --link."""
    own, links = data()["gpus"].get(gpu, {}), data()["links"]
    known = {
        kind: {"name": kind, **row, "bandwidth": own.get(kind, row["bandwidth"])}
        for kinds in links.values()
        for kind, row in kinds.items()
    }
    found = {"within": known["nvlink" if "nvlink" in own else "pcie"], "between": known["ethernet"]}
    words = given.lower().replace(" ", "").split(",") if given else []
    # One number is the slowest link that there is; of two, the first is within a node.
    places = ["within", "between"] if len(words) > 1 or gpus <= gpus_per_node else ["between"]
    for n, word in enumerate(words):
        if word in known:
            found["within" if word in links["within"] else "between"] = known[word]
        elif n < len(places) and re.fullmatch(r"\d*\.?\d+", word) and float(word) > 0:
            speed = {"name": "link", "bandwidth": 1e9 * float(word), "source": "--link"}
            found[places[n]] = {**found[places[n]], **speed}
        else:
            raise UsageError(
                f"unknown link {word!r}; use {', '.join(known)}, a number of GB/s, or two with a"
                " comma: within a node, between nodes"
            )
    return Links(gpus_per_node, **found)


def tokens_per_step(ranks: int, width: int) -> float:
    """Tokens per step of `ranks` that feed `width` tokens each.

    Linear in the logarithms between measurements.  Beyond the widest nothing is added; beyond the
    most ranks, every doubling brings half of what the one before brought.
    """
    import numpy as np

    measured = data()["measured"]
    beyond = 1 - 0.5 ** max(math.log2(ranks / measured["ranks"][-1]), 0.0)
    values = [
        np.interp(math.log2(ranks), np.log2(measured["ranks"]), row) + beyond * (row[-1] - row[-2])
        for row in measured["tokens_per_step"]
    ]
    return float(np.interp(math.log2(width), np.log2([1, *measured["budgets"]]), [1.0, *values]))
