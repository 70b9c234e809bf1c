"""What must be equal on all ranks, and what rank 0 decides for them.

All ranks call each of these functions, in the same order; `RankError` where a rank is gone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..options import Request

if TYPE_CHECKING:
    from ..decoder.parallel.transport import DistributedTransport
    from ..device import Device
    from ..session import Session

_LEADERS = frozenset(
    {"system", "pool_file", "color", "stats", "trace", "svg", "html", "quiet", "offline", "origins"}
)
"""Options that only the leader acts on."""


def shared_options(request: Request) -> dict[str, Any]:
    """The options that all ranks must be given alike, by the names of their fields."""
    names = (each.name for each in fields(Request) if each.name not in _LEADERS)
    return {name: getattr(request, name) for name in names}


def compare(ranks: DistributedTransport, fingerprint: Mapping[str, object]) -> None:
    """Gather every rank's fingerprint.

    Raises:
        RankError: two differ; the message names the rank and the first difference.
    """
    found = ranks.gather_objects(dict(fingerprint))
    for rank, other in enumerate(found):
        for name, value in found[0].items():
            if other.get(name) != value:
                raise ranks.lose(
                    f"rank {rank} has {name} {other.get(name)} and rank 0 has {value}; all ranks"
                    " need the same"
                )


def greet(ranks: DistributedTransport, request: Request, device: Device) -> str | None:
    """Compare versions, options and devices before anything is loaded.

    Returns:
        A line for the user about devices of different speed, or None.

    Raises:
        RankError: they differ.
    """
    packages = {"lade": "ladecli", "torch": "torch", "transformers": "transformers"}
    versions = {name: importlib.metadata.version(package) for name, package in packages.items()}
    options = {name.replace("_", "-"): value for name, value in shared_options(request).items()}
    versions["Python"] = platform.python_version()
    compare(ranks, versions | options | {"device": device.kind})
    labels = ranks.gather_objects(device.label)
    for rank, label in enumerate(labels):
        if label != labels[0]:
            return (
                f"rank {rank} has a {label} and rank 0 a {labels[0]}: each step takes as long as"
                " on the slower one"
            )
    return None


def leaders_word(ranks: DistributedTransport, text: str) -> str:
    """Rank 0's text, whatever the others have."""
    return str(ranks.gather_objects(text)[0])


def least_context(ranks: DistributedTransport, context: int | None, dtype: str) -> int:
    """The context, in tokens, for which all ranks have room.

    Args:
        context: for which this rank has room; None for any.
        dtype: of this rank's weights.

    Raises:
        RankError: the types differ.
    """
    compare(ranks, {"dtype": dtype})
    contexts = ranks.gather_objects(context)
    return min((each for each in contexts if each is not None), default=sys.maxsize)


def compare_models(ranks: DistributedTransport, session: Session, *, split: bool) -> None:
    """Make sure that all ranks have loaded the same model.

    Args:
        session: with the model.
        split: whether each rank holds another part of the weights.

    Raises:
        RankError: they have not.
    """
    from .. import pool_file
    from ..decoder.parallel.fingerprint import weights_digest

    loaded = session.loaded
    config = loaded.model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # the same model in another folder
        config.pop(name, None)
    text = json.dumps(config, sort_keys=True, default=str)
    fingerprint = {
        "a model configuration": hashlib.sha256(text.encode()).hexdigest()[:8],
        "a tokenizer": pool_file.fingerprint(loaded.tokenizer)[:8],
        "weights": "" if split else weights_digest(loaded.model)[:8],
        "max-context": session.decoder.max_context,
    }
    compare(ranks, fingerprint)
