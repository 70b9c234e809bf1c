"""Links between GPUs, as in links.toml, and what exchanges over them take."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..files import toml

if TYPE_CHECKING:
    from ..options import PlanRequest

# An exchange takes a start, the hops on its way, and its bytes at a share of the bandwidth.  Hops
# lie between those of NCCL's protocols for few bytes and for many (its src/graph/tuning.cc).
START = 7e-6
SHARE = 0.65  # assumed: eight A100 reach some 230 of 300 GB/s in nccl-tests


@dataclass(frozen=True, slots=True)
class Links:
    """The links within and between nodes: rows of links.toml with a name."""

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


def links_of(gpu: str, request: PlanRequest) -> Links:
    """The links that GPUs of a kind (a profile's name) usually have, or those of --link."""
    text = resources.files(__package__).joinpath("links.toml").read_text(encoding="utf-8")
    data = toml.loads(text)
    own, links = data["gpus"].get(gpu, {}), data["links"]
    known = {
        kind: {"name": kind, **row, "bandwidth": own.get(kind, row["bandwidth"])}
        for kinds in links.values()
        for kind, row in kinds.items()
    }
    found = {"within": known["nvlink" if "nvlink" in own else "pcie"], "between": known["ethernet"]}
    one_node = request.counts[-1] <= request.per_node
    given = request.link.lower().replace(" ", "").split(",") if request.link else []
    for n, word in enumerate(given):
        # One number is the slowest link that there is; of two, the first is within a node.
        place = "between" if n or not (one_node or len(given) > 1) else "within"
        if word in known:
            place = "within" if word in links["within"] else "between"
            found[place] = known[word]
        elif re.fullmatch(r"\d*\.?\d+", word) and float(word) > 0:
            speed = {"bandwidth": 1e9 * float(word), "source": "--link"}
            found[place] = found[place] | {"name": "link", **speed}
        else:
            raise UsageError(
                f"unknown link {word!r}; use {', '.join(known)}, a number of GB/s, or two with a"
                " comma: within a node, between nodes"
            )
        if place == "between" and one_node:
            raise UsageError(
                f"--link {word} is between nodes, and all GPUs are in one; add --nodes or"
                " --gpus-per-node"
            )
    return Links(request.per_node, **found)
