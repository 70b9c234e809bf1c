"""Answers of earlier runs, from which drafts are made.  Each model has a file with their token ids.

The files hold answers, not prompts.  They change the speed of later answers, never their text.
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

MAX_BYTES = 2 << 20
"""The size limit of a file, at four bytes per token; the oldest answers are dropped first."""
MAX_RECALLED = 1 << 12
"""The most tokens of earlier answers that drafts learn before an answer.  Learning them takes some
hundredths of a second."""
MIN_ANSWER = 16
"""Answers with fewer tokens than this are not kept."""
VOCABULARY_SAMPLE = 256
"""The most tokens of a vocabulary that identify a tokenizer."""
_ID, _MOST_IDS = "<i4", 1 << 20
_END = b"\xff" * 4  # after each answer; ids are too small for their bytes to contain it


class AnswerMemory:
    """The answers that one model gave in this run and in earlier ones.

    Args:
        session: of the model; its drafts learn from the answers.
        request: names the model, and turns the memory on or off.
        say: shows a line to the user.
    """

    def __init__(
        self, session: Session, request: MemoryOptions, say: Callable[[str], object]
    ) -> None:
        self._session, self._say = session, say
        self._path = _path(session, request) if request.memory else None
        self._answers: list[bytes] | None = None  # the oldest first; None before they are read

    def recall(self, prompt: Sequence[int]) -> None:
        """Teach drafts the answers that share the most and the rarest tokens with a prompt."""
        import numpy as np

        if self._answers is None:
            self._answers = self._read()
        answers = [np.frombuffer(tokens, _ID) for tokens in self._answers]
        if not answers:
            return
        # The tokens of each answer that also occur in the prompt, without repetitions.
        ids, lengths = np.concatenate(answers), [*map(len, answers)]
        shared = np.isin(ids, np.unique(prompt))
        owners = np.repeat(np.arange(len(answers)), lengths)[shared]
        owners, tokens = np.divmod(np.unique(owners * _MOST_IDS + ids[shared]), _MOST_IDS)
        worth = np.log(1 + len(answers) / np.bincount(tokens)[tokens])
        likeness = np.bincount(owners, worth, len(answers))
        room = MAX_RECALLED
        for index in np.lexsort((-np.arange(len(answers)), -likeness)):  # of equals, the newest
            if room >= MIN_ANSWER:
                self._session.add_draft_ids(answers[index][:room].tolist(), expected=False)
            room -= lengths[index]

    def keep(self, answer: Sequence[int]) -> None:
        """Add an answer to the file, which other programs may have changed meanwhile.

        If the file cannot be written, a line says so, and no further answers are kept.
        """
        import numpy as np

        if self._path is None or len(answer) < MIN_ANSWER:
            return
        new = np.array(answer, _ID).tobytes()
        answers = [known for known in self._read() if known != new] + [new]
        while sum(map(len, answers)) + len(_END) * len(answers) > MAX_BYTES:
            del answers[0]
        self._answers = answers
        first = not self._path.exists()
        try:
            with contextlib.suppress(OSError):  # the write below reports the error
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
        """Return the answers in the file; none if there is no file, or it is damaged."""
        import numpy as np

        if self._path is None:
            return []
        with contextlib.suppress(OSError, ValueError):  # there is no file, or it ends within an id
            *parts, _ = files.read(self._path).split(_END)
            answers = [*filter(None, parts)]
            ids = np.frombuffer(b"".join(answers), _ID)
            if not len(ids) or 0 <= ids.min() <= ids.max() < self._session.decoder.facts.vocabulary:
                return answers
        return []


def _path(session: Session, request: MemoryOptions) -> Path:
    """Return the path of a model's file, which depends on the model's names and its tokenizer."""
    tokenizer = session.loaded.tokenizer
    ids = range(0, len(tokenizer), len(tokenizer) // VOCABULARY_SAMPLE + 1)
    names = absolute(request.name), request.gguf_file, *map(absolute, request.adapters)
    key = repr((names, len(tokenizer), tokenizer.convert_ids_to_tokens([*ids])))
    name = re.sub(r"[^\w.-]+", "-", Path(request.name).name)[:40]
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return user_state_path("lade", appauthor=False) / "answers" / f"{name}-{digest}.ids"
