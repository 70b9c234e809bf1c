"""Drafts on disk: what one session learned about drafting, for the next one.

The file is JSON, bound to the tokenizer whose ids it is made of.  Reading or losing it changes the
speed of an answer and never its text.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from . import outputs
from .decoder.drafting.memory import DraftMemory
from .decoder.errors import DraftStateError
from .errors import UsageError

FORMAT = "lade-pool/2"


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


def load(path: Path, tokenizer: str, vocabulary: int) -> DraftMemory:
    """The drafts in a file; fresh ones where it does not exist yet.

    Args:
        path: the file.
        tokenizer: the `fingerprint` of the tokenizer in use.
        vocabulary: how many ids the model knows.

    Raises:
        UsageError: the file is damaged, no pool, or of another tokenizer.
    """
    if not path.exists():
        return DraftMemory()
    pool = _read(path)
    if pool.get("tokenizer") != tokenizer:
        raise UsageError(
            f"--pool-file {path} was made with another tokenizer; use one file for each model"
        )
    try:
        return DraftMemory.from_dict(pool["drafts"], vocabulary)
    except (DraftStateError, KeyError) as error:
        raise _damaged(path, error) from error


def save_drafts(path: Path, drafts: DraftMemory, tokenizer: str) -> None:
    """Write the file, whole or not at all.

    Raises:
        LadeError: it cannot be written; what was there before is still there.
    """
    pool = {"format": FORMAT, "tokenizer": tokenizer, "drafts": drafts.to_dict()}
    outputs.write_whole(path, json.dumps(pool, separators=(",", ":")).encode(), "--pool-file")


def _read(path: Path) -> dict[str, Any]:
    """The content of a file that is a pool of this format."""
    try:
        pool = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not isinstance(pool, dict) or pool.get("format") != FORMAT:
        raise UsageError(f"--pool-file {path} is not a pool of this version; choose another file")
    return pool


def _damaged(path: Path, error: Exception) -> UsageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"--pool-file {path} cannot be read ({reason}); choose another or delete it")
