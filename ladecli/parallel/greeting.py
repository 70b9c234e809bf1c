"""What must be equal on all ranks, and the line for what is not."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..settings import Request

if TYPE_CHECKING:
    from ..session import Session

_LEADERS = frozenset(
    {"system", "pool_file", "color", "stats", "trace", "svg", "html", "quiet", "offline", "origins"}
)
"""Options that only the leader acts on."""
COMPARED = tuple(each.name for each in fields(Request) if each.name not in _LEADERS)
"""Options that all ranks must have been given alike."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a rank says of itself before it loads anything.

    Attributes:
        versions: of what it runs, by name.
        asked: the options that it was given, by the names of their fields.
        kind: of its device: "cpu", "cuda" or "mps".
        label: of its device.
    """

    versions: Mapping[str, str]
    asked: Mapping[str, Any]
    kind: str
    label: str

    def to_text(self) -> str:
        """The greeting as one text."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def from_text(cls, text: str) -> Greeting:
        """The greeting that `to_text` made a text of."""
        return cls(**json.loads(text))


def versions() -> dict[str, str]:
    """What must be installed alike everywhere."""
    packages = {"lade": "ladecli", "torch": "torch", "transformers": "transformers"}
    installed = {name: importlib.metadata.version(package) for name, package in packages.items()}
    return {**installed, "Python": platform.python_version()}


def asked(request: Request) -> dict[str, Any]:
    """The options of a request that all ranks must have been given alike."""
    return {name: getattr(request, name) for name in COMPARED}


def disagreement(greetings: Sequence[Greeting]) -> str | None:
    """What is wrong between the ranks, in their order, or None."""
    first = greetings[0]
    for rank, other in enumerate(greetings):
        for name, version in first.versions.items():
            if other.versions.get(name) != version:
                return (
                    f"rank {rank} runs {name} {other.versions.get(name, 'not at all')} and rank 0"
                    f" {version}; install the same on all machines"
                )
        for name, value in first.asked.items():
            if (theirs := other.asked.get(name)) != value:
                return (
                    f"rank {rank} was given {_said(name, theirs)} and rank 0"
                    f" {_said(name, value)}; give all ranks the same"
                )
        if other.kind != first.kind:
            return (
                f"rank {rank} computes on {_where(other.kind)} and rank 0 on"
                f" {_where(first.kind)}; give all ranks the same --device"
            )
    return None


def remark(greetings: Sequence[Greeting]) -> str | None:
    """What the user should know of the ranks' devices, or None."""
    first = greetings[0]
    for rank, other in enumerate(greetings):
        if other.label != first.label:
            return (
                f"rank {rank} has a {other.label} and rank 0 a {first.label}: each step takes as"
                " long as on the slower one"
            )
    return None


def likeness(session: Session, *, split: bool) -> str:
    """What tells the models of ranks apart, as one text.

    Args:
        session: with the model.
        split: whether each rank holds another part of the weights.
    """
    from .. import pool_file
    from ..decoder.parallel.likeness import weights_digest

    loaded = session.loaded
    config = {
        name: value
        # The same model may lie in another folder there.
        for name, value in loaded.model.config.to_dict().items()
        if name not in ("_name_or_path", "transformers_version")
    }
    written = json.dumps(config, sort_keys=True, default=str).encode()
    said = {
        "configuration": hashlib.sha256(written).hexdigest(),
        "tokenizer": pool_file.fingerprint(loaded.tokenizer),
        "weights": "" if split else weights_digest(loaded.model),
        "context": str(session.decoder.max_context),
    }
    return json.dumps(said)


def unlike(texts: Sequence[str]) -> str | None:
    """What is wrong between the models of the ranks, given each one's `likeness`, or None."""
    said = [json.loads(text) for text in texts]
    for rank, theirs in enumerate(said):
        for name, value in said[0].items():
            if theirs[name] == value:
                continue
            if name == "context":
                return (
                    f"rank {rank} has room for {int(theirs[name]):,} tokens of context and rank 0"
                    f" for {int(value):,}; set --max-context to the smaller"
                )
            return (
                f"rank {rank} loaded a model with {name} {theirs[name][:8]} and rank 0 with"
                f" {value[:8]}; put the same model on all machines"
            )
    return None


def _said(name: str, value: Any) -> str:
    """An option and its value, as a user would say them."""
    name = name.replace("_", "-")
    if value is None:
        return f"no {name}"
    if isinstance(value, bool):
        return f"{name} {'on' if value else 'off'}"
    if isinstance(value, list):
        return f"{name} {', '.join(map(repr, value))}"
    return f"{name} {value}"


def _where(kind: str) -> str:
    return {"cpu": "the CPU", "cuda": "a GPU", "mps": "an Apple GPU"}.get(kind, kind)
