"""What drafts know before an answer: the texts of `--draft-text`, and `--pool-file`, which keeps
what a session learned about drafting as JSON for the next one.

The file is bound to the tokenizer whose ids it holds.  Reading or losing it changes the speed of
an answer and never its text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..decoder.errors import DraftStateError
from ..errors import LadeError, UsageError

if TYPE_CHECKING:
    from ..decoder.drafting.store import DraftStore
    from ..options.answer import DraftFileOptions
    from .session import Session

FORMAT = "lade-pool/2"
OPTION = "--pool-file"


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer's vocabulary, ids included."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def check(request: DraftFileOptions) -> list[str]:
    """Refuse a file that is not a pool, or cannot be written; the texts of `--draft-text`.

    Raises:
        UsageError: the message names the file and the fix.
    """
    if request.pool_file:
        path = files.expanded(request.pool_file)
        _read(path)
        files.check(path, OPTION)
    return [files.read_text(name, "draft text") for name in request.draft_text or ()]


@contextlib.contextmanager
def keep_drafts(session: Session, name: str | None, texts: Sequence[str]) -> Iterator[None]:
    """Begin with the drafts of a file and with texts, and leave there what was learned, also
    after Ctrl-C.

    Args:
        session: whose drafts they are.
        name: of the file; None for none.
        texts: that answers may repeat.

    Raises:
        UsageError: the file is damaged, not a pool, or of another tokenizer.
        LadeError: it cannot be written; what was there before is still there.
    """
    if name:
        path, tokenizer = files.expanded(name), tokenizer_digest(session.loaded.tokenizer)
        session.drafts = load(path, tokenizer, session.decoder.facts.vocabulary)
    drafts = session.drafts
    for text in texts:
        session.add_draft_text(text)

    def save() -> None:
        # Ctrl-C can leave drafts half changed; the session starts new ones then, which know
        # less than the file does.
        if name and session.drafts is drafts and not drafts.broken:
            save_drafts(path, drafts, tokenizer)

    try:
        yield
    except BaseException:
        # The first error counts; a failure to save comes second.
        with contextlib.suppress(LadeError):
            save()
        raise
    save()


def load(path: Path, tokenizer: str, vocabulary: int) -> DraftStore:
    """The drafts in a file; fresh ones where it does not exist yet.

    Args:
        tokenizer: the `tokenizer_digest` of the one in use.
        vocabulary: token ids are below this.

    Raises:
        UsageError: the file is damaged, not a pool, or of another tokenizer.
    """
    from ..decoder.drafting.store import DraftStore

    pool = _read(path)
    if pool is None:
        return DraftStore()
    if pool.get("tokenizer") != tokenizer:
        raise UsageError(
            f"{OPTION} {path} was made with another tokenizer; use one file for each model"
        )
    try:
        return DraftStore.from_dict(pool["drafts"], vocabulary)
    except (DraftStateError, KeyError) as error:
        raise _damaged(path, " ".join(str(error).split())) from error


def save_drafts(path: Path, drafts: DraftStore, tokenizer: str) -> None:
    """Write the file, whole or not at all.

    Raises:
        LadeError: it cannot be written; what was there before is still there.
    """
    pool = {"format": FORMAT, "tokenizer": tokenizer, "drafts": drafts.to_dict()}
    files.write(path, json.dumps(pool, separators=(",", ":")), OPTION, private=True)


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a pool of this format; None where there is no file yet."""
    try:
        pool = json.loads(files.read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or "it is no JSON") from error
    if not isinstance(pool, dict) or pool.get("format") != FORMAT:
        raise UsageError(f"{OPTION} {path} is not a pool of this version; choose another file")
    return pool


def _damaged(path: Path, reason: str) -> UsageError:
    return UsageError(f"{OPTION} {path} cannot be read ({reason}); choose another or delete it")
