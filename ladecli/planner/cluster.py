"""What `lade plan` knows of GPUs that are not here: links, well-known models, tokens per step.

The figures are in cluster.toml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from .. import memory, toml
from ..errors import UsageError
from ..memory import ModelSpec

# An exchange takes a start, the hops on its way, and its bytes at a share of the bandwidth.  Hops
# lie between those of NCCL's protocols for few bytes and for many (its src/graph/tuning.cc).
START = 7e-6
SHARE = 0.65
"""Assumed: eight A100 reach some 230 of 300 GB/s in nccl-tests."""
STAGING = 60e-6
"""Seconds to the GPU and back; assumed: two small copies, for which the host waits."""


@cache
def _data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("cluster.toml").read_text(encoding="utf-8")
    return dict(toml.loads(text))


@dataclass(frozen=True, slots=True)
class Links:
    """The links within and between nodes: rows of cluster.toml with a name."""

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
        local, remote = min(gpus, self.gpus_per_node) - 1, math.ceil(math.log2(nodes))
        used = [link for link, hops in ((self.within, local), (self.between, remote)) if hops]
        latency = local * self.within["hops"][0] + remote * self.between["hops"][0]
        bandwidth = SHARE * min(link["bandwidth"] for link in used)
        return float(START + passes * latency + size / bandwidth)


def links_of(gpu: str, words: str | None, gpus: int, per_node: int) -> Links:
    """The links that GPUs of a kind usually have, or others.

    Args:
        gpu: name of a profile.
        words: what --link says: kinds of links, GB/s of one, or of both with a comma.
        gpus: the most of them.
        per_node: GPUs of a node.

    Raises:
        UsageError: a link is unknown, or between nodes where there is one node.
    """
    own = _data()["gpus"].get(gpu, {})
    known = {
        kind: {"name": kind, **row, "bandwidth": own.get(kind, row["bandwidth"])}
        for kinds in _data()["links"].values()
        for kind, row in kinds.items()
    }
    links = {"within": known["nvlink" if "nvlink" in own else "pcie"], "between": known["ethernet"]}
    given = [word.strip() for word in words.lower().split(",")] if words is not None else []
    for n, word in enumerate(given):
        # One number is the slowest link that there is; of two, the first is within a node.
        place = "between" if n or (gpus > per_node and len(given) == 1) else "within"
        if link := known.get(word):
            place = "within" if word in _data()["links"]["within"] else "between"
        elif speed := _positive(word):
            link = links[place] | {"name": "link", "bandwidth": 1e9 * speed, "source": "--link"}
        else:
            raise UsageError(
                f"unknown link {word!r}; use {', '.join(known)}, a number of GB/s, or two with a"
                " comma: within a node, between nodes"
            )
        if place == "between" and gpus <= per_node:
            raise UsageError(
                f"--link {word} is between nodes, and {gpus} GPUs in nodes of {per_node} are one"
                " node; add --nodes or --gpus-per-node"
            )
        links[place] = link
    return Links(per_node, **links)


def _positive(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def measurements(text: str | None) -> dict[str, Any]:
    """Tokens per step measured on a text, None for the default: a row of ranks for each budget."""
    texts = _data()["texts"]
    text = next(iter(texts)) if text is None else text
    if text not in texts:
        raise UsageError(f"unknown text {text!r}; tokens per step are known for {', '.join(texts)}")
    return {"text": text, **texts[text]}


def tokens_per_step(measured: dict[str, Any], ranks: int, width: int) -> float:
    """Tokens per step of `ranks` that feed `width` tokens each.

    Linear in the logarithms between measurements.  Beyond the widest nothing is added; beyond the
    most ranks, every doubling brings half of what the one before brought.
    """
    beyond = 1 - 0.5 ** max(math.log2(ranks / measured["ranks"][-1]), 0.0)
    values = [
        np.interp(math.log2(ranks), np.log2(measured["ranks"]), row) + beyond * (row[-1] - row[-2])
        for row in measured["tokens_per_step"]
    ]
    return float(np.interp(math.log2(width), np.log2([1, *measured["budgets"]]), [1.0, *values]))


def known_model(size: str, dtype: str, quantize: str = "none") -> tuple[str, ModelSpec]:
    """Name and shape of a well-known model by its size ("7b") or name ("llama-3-8b").

    Raises:
        UsageError: no such model is known.
    """
    models, sizes = _data()["models"], _data()["sizes"]
    word = size.strip().lower()
    name = sizes.get(word) or sizes.get(f"{word}b", word)
    if name not in models:
        raise UsageError(
            f"unknown model size {size!r}; known: {', '.join(sizes)}, and {', '.join(models)}"
        )
    parameters, layers, hidden, inner, heads, kv_heads, vocabulary, *experts = models[name]
    active = experts[0] if experts else parameters
    weight_bytes = parameters * (4 if dtype == "float32" else 2)
    numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
    shape = ModelSpec(parameters, active, dtype, weight_bytes, dtype, *numbers)
    forms = dict(memory.smaller_forms(shape, "cuda"))
    return name, forms.get(f"--quantize {quantize}", shape)
