"""What joins GPUs, and what an exchange between them takes, by NCCL's cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from .. import toml
from ..errors import UsageError

WITHIN, BETWEEN = "within", "between"
GIVEN = "given by --link"
_TOO_MANY = (
    "--link {} names more than one link for one place; give one within a node, and with a comma"
    " one between nodes"
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way in which GPUs pass bytes on.

    Attributes:
        start: seconds before the first hop.
        share: of a link's bandwidth that it reaches.
    """

    start: float
    share: float


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two GPUs, or two nodes.

    Attributes:
        name: of its kind.
        bandwidth: bytes per second in one direction.
        hops: seconds of a hop, for each of the protocols.
        source: where the bandwidth is from.
    """

    name: str
    bandwidth: float
    hops: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """All that joins some GPUs.

    Attributes:
        per_node: GPUs of a node; nodes are filled one after the other.
        within: what joins those of one node.
        between: what joins nodes.
        protocols: of which an exchange takes the faster.
        staging: seconds that numbers take to a GPU and back.
    """

    per_node: int
    within: Link
    between: Link
    protocols: tuple[Protocol, ...]
    staging: float

    def nodes(self, gpus: int) -> int:
        """Nodes that so many GPUs take."""
        return math.ceil(gpus / self.per_node)

    def gather(self, size: float, gpus: int) -> float:
        """Seconds until all GPUs have what each of them gives, by a ring.

        Args:
            size: bytes that one gives.
            gpus: that take part; one alone has nothing to wait for.
        """
        crossing = self.nodes(gpus) - 1
        return self._path(size * (gpus - 1), gpus, gpus - 1 - crossing, crossing)

    def reduce(self, size: float, gpus: int) -> float:
        """Seconds until all GPUs have the sum of what each gives, by a ring or a tree.

        Args:
            size: bytes that one gives.
            gpus: that take part.
        """
        nodes, steps = self.nodes(gpus), 2 * (gpus - 1)
        crossing = min(2 * nodes if nodes > 1 else 0, steps)
        ring = self._path(size * steps / gpus, gpus, steps - crossing, crossing)
        depth = 2 * math.ceil(math.log2(nodes))
        tree = self._path(2 * size, gpus, 2 * (min(self.per_node, gpus) - 1), depth)
        return min(ring, tree)

    def _path(self, size: float, gpus: int, inside: int, crossing: int) -> float:
        """Seconds of so many hops, and of the bytes that pass through each link."""
        if gpus == 1:
            return 0.0
        used = [self.within] if min(self.per_node, gpus) > 1 else []
        used += [self.between] if self.nodes(gpus) > 1 else []
        bandwidth = min(link.bandwidth for link in used)
        return min(
            protocol.start
            + inside * self.within.hops[number]
            + crossing * self.between.hops[number]
            + size / (protocol.share * bandwidth)
            for number, protocol in enumerate(self.protocols)
        )


def fabric(profile: str, per_node: int, counts: Sequence[int], wanted: str | None) -> Fabric:
    """What joins GPUs of a profile.

    Args:
        profile: its name.
        per_node: GPUs of a node.
        counts: numbers of GPUs that will be asked about.
        wanted: what the user wants: "nvlink", "infiniband", GB/s, or two with a comma, within a
            node and between nodes; None for what such GPUs usually have.

    Raises:
        UsageError: nothing of this name joins GPUs there.
    """
    data = _data()
    several = max(counts) > per_node
    chosen = {WITHIN: _usual(profile), BETWEEN: _named(data, "ethernet")}
    words = [word.strip().lower() for word in wanted.split(",")] if wanted is not None else []
    if len(words) > 2:
        raise UsageError(_TOO_MANY.format(wanted))
    # Of two numbers the first is within a node; one alone is the slowest link that there is.
    places = (WITHIN, BETWEEN) if len(words) > 1 else (BETWEEN if several else WITHIN,)
    given: dict[str, Link] = {}
    for word, place in zip(words, places, strict=False):
        place, link = _wanted(word, place, profile)
        if place == BETWEEN and not several:
            raise UsageError(
                f"--link {word} is between nodes, and {max(counts)} GPUs in nodes of {per_node} are"
                " one node; add --nodes or --gpus-per-node"
            )
        given[place] = link
    if len(given) < len(words):
        raise UsageError(_TOO_MANY.format(wanted))
    chosen |= given
    protocols = tuple(Protocol(each["start"], each["share"]) for each in data["protocol"])
    return Fabric(per_node, chosen[WITHIN], chosen[BETWEEN], protocols, data["exchange"]["staging"])


def told(bandwidth: float) -> str:
    """A bandwidth for people."""
    return f"{bandwidth / 1e9:.3g} GB/s"


def sources() -> tuple[str, str]:
    """Where the figures of exchanges are from, and those of staging."""
    exchange = _data()["exchange"]
    return exchange["figures"], exchange["source"]


@cache
def _data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("links.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = toml.loads(text)
    return found


def _named(data: dict[str, Any], name: str) -> Link:
    found = next(each for each in data["link"] if each["name"] == name)
    return Link(name, found["bandwidth"], tuple(found["hops"]), found["source"])


def _usual(profile: str) -> Link:
    """What GPUs of a profile have within a node."""
    data = _data()
    own = data["gpu"].get(profile)
    if own is None:
        return _lanes(profile)
    return replace(_named(data, own["link"]), bandwidth=own["bandwidth"])


def _lanes(profile: str) -> Link:
    """The PCI Express of GPUs of a profile."""
    data = _data()
    link = _named(data, "pcie")
    if profile not in data["pcie"]:
        return link
    source = "16 lanes of the generation that these GPUs have"
    return replace(link, bandwidth=data["pcie"][profile], source=source)


def _wanted(word: str, place: str, profile: str) -> tuple[str, Link]:
    """One link that the user names, and its place; a number's is `place`."""
    data = _data()
    names = {each["name"]: each["place"] for each in data["link"]}
    usual = _usual(profile)
    if word in names:
        link = {usual.name: usual, "pcie": _lanes(profile)}.get(word) or _named(data, word)
        return names[word], link
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"unknown link {word!r}; use {', '.join(names)}, a number of GB/s, or two with a comma:"
            " within a node, between nodes"
        )
    model = usual if place == WITHIN else _named(data, "ethernet")
    return place, replace(model, name="link", bandwidth=number * 1e9, source=GIVEN)
