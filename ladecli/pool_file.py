"""Drafts on disk: what one session learned about drafting, for the next one.

The file is in the safetensors format: arrays and a few strings, nothing that could run.  It is
bound to the tokenizer, whose ids it is made of, and carries a digest, so that a damaged file is
noticed.  Reading or losing it changes the speed of an answer and never its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from . import outputs
from .decoder.draft_state import DraftState
from .decoder.errors import DraftStateError
from .errors import UsageError

FORMAT = "lade-pool"
VERSION = "1"


def fingerprint(tokenizer: Any) -> str:
    """What tells tokenizers apart: a digest of the vocabulary, ids included."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def check(path: Path) -> None:
    """Refuse what can be refused before a model is loaded.

    Raises:
        UsageError: the file is no pool, or there is nowhere to write one.
    """
    if path.exists():
        _read(path)
    outputs.check(path, "--pool-file")


def load(path: Path, tokenizer: str, vocabulary: int) -> DraftState:
    """The drafts in a file; fresh ones where it does not exist yet.

    Args:
        path: the file.
        tokenizer: the `fingerprint` of the tokenizer in use.
        vocabulary: how many ids the model knows.

    Raises:
        UsageError: the file is damaged, no pool, or of another tokenizer.
    """
    if not path.exists():
        return DraftState()
    arrays, about = _read(path)
    if about.get("tokenizer") != tokenizer:
        raise UsageError(
            f"--pool-file {path} was made with another tokenizer; use one file for each model"
        )
    try:
        return DraftState.from_arrays(arrays, vocabulary)
    except DraftStateError as error:
        raise _damaged(path, error) from error


def save_drafts(path: Path, drafts: DraftState, tokenizer: str) -> None:
    """Write the file, whole or not at all.

    Raises:
        LadeError: it cannot be written; what was there before is still there.
    """
    arrays = drafts.to_arrays()
    about = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer}
    about["digest"] = _digest(arrays)
    outputs.write_whole(path, save(arrays, metadata=about), "--pool-file")


def _read(path: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """Arrays and strings of a file that is what it says it is."""
    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
    if about.get("format") != FORMAT:
        raise UsageError(f"--pool-file {path} is not a pool of lade's; choose another file")
    if about.get("version") != VERSION:
        raise UsageError(
            f"--pool-file {path} has version {about.get('version')} and this program reads"
            f" {VERSION}; choose another file"
        )
    if about.get("digest") != _digest(arrays):
        raise _damaged(path, ValueError("its content does not fit its digest"))
    return arrays, about


def _digest(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _damaged(path: Path, error: Exception) -> UsageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"--pool-file {path} cannot be read ({reason}); choose another or delete it")
