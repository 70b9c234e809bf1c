"""What models expect after single tokens (`decoder.backends.bigrams`), from one load to the next.

Every load of a model asks for some more, until enough is known.  A file that cannot be read, or
written, costs the next load the same time again, and nothing else.
"""

from __future__ import annotations

import contextlib
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from platformdirs import user_cache_path

from .. import files
from ..decoder.backends.bigrams import find_bigrams, fingerprint, nothing
from ..decoder.drafting.ngram_model import BIGRAMS, Bigrams
from ..errors import LadeError

if TYPE_CHECKING:
    from .session import Session

SHARE, MOST = 0.2, 1.0
"""How much longer a load takes for it: this share of its time, but at most this many seconds."""
START = 4
"""Tokens that stand for the start of an answer, such as `<|im_start|>assistant`: with all of a
template before them, tokens are expected that would answer an empty question."""


def bigrams_of(session: Session, seconds: float) -> Bigrams:
    """What is known of a session's model, and what is found out in about `seconds` more."""
    name = fingerprint(session.loaded.model)
    if name is None:
        return nothing()
    path = user_cache_path("lade", appauthor=False) / "bigrams" / f"{name}.npz"
    known = _read(path, session.decoder.facts.vocabulary)
    found = find_bigrams(session.decoder, _start(session), known, seconds)
    if len(found.ids) > len(known.ids):
        _write(path, found)
    return found


def _start(session: Session) -> list[int]:
    """What stands before the first token of an answer."""
    with contextlib.suppress(LadeError):  # a template may want more than an empty question
        question = [{"role": "user", "content": ""}]
        if session.has_template and (ids := session.encode_chat(question)):
            return ids[-START:]
    with contextlib.suppress(LadeError):
        return session.encode("\n")[-START:] or [0]
    return [0]


def _read(path: Path, vocabulary: int) -> Bigrams:
    try:
        with np.load(BytesIO(files.read(path)), allow_pickle=False) as arrays:
            ids, shares = arrays["ids"].astype(np.int32), arrays["shares"].astype(np.float16)
        fits = ids.shape == shares.shape == (len(ids), BIGRAMS) and len(ids) <= vocabulary
        usable = fits and ((ids >= 0) & (ids < vocabulary)).all() and (shares >= 0).all()
    except Exception:  # NumPy and zipfile have one for each kind of damage
        usable = False
    return Bigrams(ids, shares) if usable else nothing()


def _write(path: Path, bigrams: Bigrams) -> None:
    data = BytesIO()
    np.savez(data, **bigrams._asdict())
    with contextlib.suppress(LadeError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data.getvalue(), "what a model expects")
