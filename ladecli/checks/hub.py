"""What `lade doctor` looks at around the hub: whether it answers, the token, and the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from ..library import hub_cache
from ..memory import told
from ..visualize import counted
from .findings import NOTE, WARNING, Finding


def reach(offline: str | None) -> Iterator[Finding]:
    """Whether models can be downloaded.

    Args:
        offline: what says that the hub shall not be asked, "flag --offline"; None for nothing.
    """
    from huggingface_hub import constants

    from ..library import hub

    said = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"offline, by {offline}"
    if constants.HF_HUB_OFFLINE or offline is not None:
        value = f"{said}: only models on this machine can be used"
        yield Finding("hub", value, NOTE, "unset it to download", {"offline": True})
    elif hub.hub_answers():
        yield Finding("hub", "can be reached", data={"offline": False})
    else:
        value = "cannot be reached: only models on this machine can be used"
        yield Finding("hub", value, WARNING, "check the network", {"offline": True})


def token() -> Iterator[Finding]:
    """Whether there is a token of the hub; never what it is."""
    from huggingface_hub import get_token

    present = get_token() is not None
    data = {"present": present}
    if present:
        yield Finding("token", "there is one", data=data)
    else:
        yield Finding("token", "none; gated models need one", NOTE, "hf auth login", data)


def cache() -> Iterator[Finding]:
    """Where downloads go, and what lies there."""
    folder = hub_cache.location()
    models = hub_cache.entries(folder)
    size = sum(entry.bytes for entry in models)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    held = f"{counted(len(models), 'model')}, {told(size)}, in" if models else "no models in"
    value = f"{held} {folder}; {told(free)} free on its disk"
    data = {"folder": str(folder), "models": len(models), "bytes": size, "free_bytes": free}
    if not os.access(there, os.W_OK):
        value = f"{folder} cannot be written to, so nothing can be downloaded"
        yield Finding("cache", value, WARNING, "set HF_HOME to a folder of yours", data)
        return
    yield Finding("cache", value, data=data)
