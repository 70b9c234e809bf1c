"""The Hugging Face cache on this machine: which models lie there, and in what state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MODELS = "models--"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the cache.

    Attributes:
        name: OWNER/NAME, or NAME alone.
        folder: of its files: revision main, or else the newest; None where there is none.
        bytes: on disk, of all revisions.
        problem: why there is no folder, or None.
    """

    name: str
    folder: Path | None
    bytes: int
    problem: str | None = None


def location() -> Path:
    """Where the hub's own client keeps its cache: HF_HUB_CACHE and HF_HOME have their say."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def entries(cache: Path) -> list[Entry]:
    """The models of a cache by name; data sets and everything else are left out.

    The hub's own scan gives nothing but a warning for what is incomplete; this reads the folders
    themselves, so that such models can be told, too.
    """
    found = [
        _entry(path) for path in _children(cache) if path.name.startswith(_MODELS) and path.is_dir()
    ]
    return sorted(found, key=lambda entry: entry.name.lower())


def size(folder: Path) -> int:
    """Bytes of all files below a folder; what links point to counts where it lies itself."""
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return sum(map(_size_of, files))


def _entry(path: Path) -> Entry:
    name = path.name.removeprefix(_MODELS).replace("--", "/")
    folder = _snapshot(path)
    problem = None
    if folder is None:
        unfinished = any((path / "blobs").glob("*.incomplete"))
        problem = (
            f"the download broke off; `hf download {name}` finishes it"
            if unfinished
            else "nothing was downloaded; a gated model needs `hf auth login` first"
        )
    return Entry(name, folder, size(path), problem)


def _size_of(file: Path) -> int:
    try:
        # Of a link that is the length of its path: some dozen bytes.
        return file.lstat().st_size
    except OSError:  # gone while we looked
        return 0


def _snapshot(path: Path) -> Path | None:
    """The folder that loading would take, if one holds anything."""
    snapshots = path / "snapshots"
    try:
        main = (path / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    if main and any(_children(snapshots / main)):
        return snapshots / main
    filled = [
        folder for folder in _children(snapshots) if folder.is_dir() and any(_children(folder))
    ]
    return max(filled, key=lambda folder: folder.stat().st_mtime, default=None)


def _children(path: Path) -> Iterator[Path]:
    """What lies in a folder; nothing where there is none, or it cannot be read."""
    try:
        yield from sorted(path.iterdir())
    except OSError:
        return
