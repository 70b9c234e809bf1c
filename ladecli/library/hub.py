"""Names of models: folders, the bundled demo, the hub and its cache on this machine."""

from __future__ import annotations

import contextlib
import difflib
import socket
import urllib.parse
import urllib.request
from pathlib import Path

from huggingface_hub import constants as hub_constants
from huggingface_hub import errors as hub_errors
from huggingface_hub import try_to_load_from_cache

from ..errors import LoadError
from . import hub_cache

DEMO = "demo"


def resolve(name: str) -> str:
    """The folder or hub name behind what the user typed, checked as far as is cheap.

    Raises:
        LoadError: a folder that is no model, or a path that does not exist.
    """
    if name == DEMO:  # a folder of that name is ./demo
        return str(Path(__file__).parent.with_name("demo"))
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()
    if not looks_local:
        return name
    if path.is_file():
        raise LoadError(f"{name} is a file; give the folder that holds config.json")
    if not path.is_dir():
        raise LoadError(f"there is no model folder {name}{suggest(name)}")
    if not (path / "config.json").is_file():
        raise LoadError(f"{name} holds no config.json; give a folder in Hugging Face format")
    return str(path)


def on_this_machine(name: str) -> bool:
    """Whether the model needs no download, as far as its configuration tells."""
    source = resolve(name)
    if Path(source).is_dir():
        return True
    with contextlib.suppress(hub_errors.HFValidationError):
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    return True  # no name at all: `load` says so


def suggest(name: str) -> str:
    """A hint at the nearest models that are on this machine."""
    known = [DEMO]
    folder = Path(name).expanduser().parent
    with contextlib.suppress(OSError):
        cached = hub_cache.entries(hub_cache.location())
        known += [entry.name for entry in cached if entry.folder is not None]
    with contextlib.suppress(OSError):
        known += [str(p) for p in folder.iterdir() if (p / "config.json").is_file()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    listed = ", ".join(near or sorted(known)[:3])
    return f"; {'did you mean' if near else 'models on this machine'}: {listed}"


def hub_answers() -> bool:
    """Whether the hub can be reached.

    The hub's own client tries for half a minute before it gives up.  Asking first lets a
    cached model start at once without a network, and a missing one fail at once.
    """
    if urllib.request.getproxies():
        return True  # a proxy resolves names for us: only it can tell
    endpoint = urllib.parse.urlsplit(hub_constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True
