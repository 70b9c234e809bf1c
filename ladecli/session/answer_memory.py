"""Answers of earlier runs, from which drafts are made: token ids in a file for each model.

The files hold what models wrote, and nothing that they were asked.  Reading or losing one changes
the speed of an answer and never its text.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from .. import files
from ..errors import LadeError
from ..models.find import absolute

if TYPE_CHECKING:
    from ..options.answer import MemoryOptions
    from .session import Session

KEPT = 2 << 20
"""Bytes of a file, which has the newest answers; four for each token."""
RECALLED = 1 << 12
"""The most tokens that drafts learn before one answer, which takes some hundredths of a second."""
SHORTEST = 16
"""The tokens of the shortest answer that is worth a place."""
SAMPLED = 256
"""The tokens of a vocabulary by which one tokenizer is told from another."""
_ID, _MOST_IDS = "<i4", 1 << 20
_END = b"\xff" * 4  # after each answer; ids are so small that no bytes of two of them look like it


class AnswerMemory:
    """The answers of one model, of this program and of earlier ones.

    Args:
        session: the model at work, whose drafts learn from them.
        request: which model it is, and whether answers are remembered at all.
        say: takes a line for the user.
    """

    def __init__(
        self, session: Session, request: MemoryOptions, say: Callable[[str], object]
    ) -> None:
        self._session, self._say = session, say
        self._path = _path(session, request) if request.memory else None
        self._answers: list[bytes] | None = None  # the oldest first; None before they are read

    def recall(self, prompt: Sequence[int]) -> None:
        """Let drafts know the answers that share the most, and the rarest, tokens with a prompt."""
        import numpy as np

        if self._answers is None:
            self._answers = self._read()
        answers = [np.frombuffer(known, _ID) for known in self._answers]
        if not answers:
            return
        # Each answer's tokens that the prompt has, once each.
        ids, lengths = np.concatenate(answers), [*map(len, answers)]
        asked = np.isin(ids, np.unique(prompt))
        owners = np.repeat(np.arange(len(answers)), lengths)[asked]
        owners, tokens = np.divmod(np.unique(owners * _MOST_IDS + ids[asked]), _MOST_IDS)
        worth = np.log(1 + len(answers) / np.bincount(tokens)[tokens])
        likeness = np.bincount(owners, worth, len(answers))
        room = RECALLED
        for index in np.lexsort((-np.arange(len(answers)), -likeness)):  # the newest among equals
            if room >= SHORTEST:
                self._session.add_draft_ids(answers[index][:room].tolist(), expected=False)
            room -= lengths[index]

    def keep(self, answer: Sequence[int]) -> None:
        """Keep an answer, beside those that other programs have kept meanwhile.

        If the file cannot be written, a line says so, and nothing else is kept.
        """
        import numpy as np

        if self._path is None or len(answer) < SHORTEST:
            return
        new = np.array(answer, _ID).tobytes()
        answers = [known for known in self._read() if known != new] + [new]
        while sum(map(len, answers)) + len(_END) * len(answers) > KEPT:
            del answers[0]
        self._answers = answers
        first = not self._path.exists()
        try:
            with contextlib.suppress(OSError):  # writing says what is wrong
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = b"".join(known + _END for known in answers)
            files.write(self._path, content, "the answers in", private=True)
        except LadeError as error:
            self._say(f"answers are not remembered: {error}")
            self._path = None
            return
        if first:
            self._say(
                f"answers are remembered in {self._path}, which makes later ones faster; delete it"
                " to forget them, and --no-memory keeps none"
            )

    def _read(self) -> list[bytes]:
        """Return the answers in the file; none if there is no such file, or it is damaged."""
        import numpy as np

        if self._path is None:
            return []
        with contextlib.suppress(OSError, ValueError):  # no file, and no number of whole ids
            *parts, _ = files.read(self._path).split(_END)
            answers = [*filter(None, parts)]
            ids = np.frombuffer(b"".join(answers), _ID)
            if not len(ids) or 0 <= ids.min() <= ids.max() < self._session.decoder.facts.vocabulary:
                return answers
        return []


def _path(session: Session, request: MemoryOptions) -> Path:
    """Return the file of a model: its name and its tokenizer decide."""
    tokenizer = session.loaded.tokenizer
    ids = range(0, len(tokenizer), len(tokenizer) // SAMPLED + 1)
    names = absolute(request.name), request.gguf_file, *map(absolute, request.adapters)
    key = repr((names, len(tokenizer), tokenizer.convert_ids_to_tokens([*ids])))
    name = re.sub(r"[^\w.-]+", "-", Path(request.name).name)[:40]
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return user_state_path("lade", appauthor=False) / "answers" / f"{name}-{digest}.ids"
