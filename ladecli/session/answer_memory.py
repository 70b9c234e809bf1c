"""Answers of earlier runs, from which drafts are made: token ids in a file for each model.

The files hold what models wrote, and nothing that they were asked.  Reading or losing one changes
the speed of an answer and never its text.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from .. import files
from ..errors import LadeError
from ..models.find import absolute

if TYPE_CHECKING:
    from ..options.answer import MemoryOptions
    from .session import Session

KEPT = 1 << 19
"""The newest tokens that a file keeps, this many; they take 2 MB."""
RECALLED = 1 << 12
"""The most tokens that drafts learn before one answer, which takes some hundredths of a second."""
SHORTEST = 16
"""The tokens of the shortest answer that is worth a place."""
SAMPLED = 256
"""The tokens of a vocabulary by which one tokenizer is told from another."""
_FOUR_BYTES, _END = "i", -1  # of ids in an array, and what stands after each answer


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
        self._answers: list[array[int]] | None = None  # the oldest first; None before it is read

    def recall(self, prompt: Sequence[int]) -> None:
        """Let drafts know the answers that share the most, and the rarest, tokens with a prompt."""
        if self._answers is None:
            self._answers = self._read()
        answers, asked = self._answers, {*prompt}
        shared = [asked.intersection(answer) for answer in answers]
        counts = Counter(chain.from_iterable(shared))
        worth = {token: math.log(1 + len(answers) / count) for token, count in counts.items()}
        likeness = [sum(map(worth.__getitem__, tokens)) for tokens in shared]
        room = RECALLED
        # The newest comes first among equals.
        for index in sorted(range(len(answers)), key=lambda i: (-likeness[i], -i)):
            if room >= SHORTEST:
                self._session.add_draft_ids(answers[index][:room].tolist())
            room -= len(answers[index])

    def keep(self, answer: Sequence[int]) -> None:
        """Keep an answer, beside those that other programs have kept meanwhile.

        If the file cannot be written, a line says so, and nothing else is kept.
        """
        if self._path is None or len(answer) < SHORTEST:
            return
        new = array(_FOUR_BYTES, answer)
        answers = [known for known in self._read() if known != new] + [new]
        while sum(map(len, answers)) + len(answers) > KEPT:
            del answers[0]
        self._answers, end = answers, array(_FOUR_BYTES, [_END])
        first = not self._path.exists()
        try:
            with contextlib.suppress(OSError):  # writing says what is wrong
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = b"".join((known + end).tobytes() for known in answers)
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

    def _read(self) -> list[array[int]]:
        """Return the answers in the file; none if there is no such file, or it is damaged."""
        ids = array(_FOUR_BYTES)
        with contextlib.suppress(OSError):
            data = b"" if self._path is None else files.read(self._path)
            ids.frombytes(data[: len(data) // ids.itemsize * ids.itemsize])
        if ids and not _END <= min(ids) <= max(ids) < self._session.decoder.facts.vocabulary:
            return []
        answers, start = [], 0
        for _ in range(ids.count(_END)):
            end = ids.index(_END, start)
            answers.append(ids[start:end])
            start = end + 1
        return answers


def _path(session: Session, request: MemoryOptions) -> Path:
    """Return the file of a model: its name and its tokenizer decide."""
    tokenizer = session.loaded.tokenizer
    ids = range(0, len(tokenizer), len(tokenizer) // SAMPLED + 1)
    names = absolute(request.name), request.gguf_file, *map(absolute, request.adapters)
    key = repr((names, len(tokenizer), tokenizer.convert_ids_to_tokens([*ids])))
    name = re.sub(r"[^\w.-]+", "-", Path(request.name).name)[:40]
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return user_state_path("lade", appauthor=False) / "answers" / f"{name}-{digest}.ids"
