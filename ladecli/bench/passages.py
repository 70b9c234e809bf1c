"""Long texts of exact lengths: what a step costs behind so many tokens."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..decoder.errors import PromptError

if TYPE_CHECKING:
    from ..session import Session

MODULES = ("argparse", "statistics", "textwrap", "tarfile", "mailbox", "difflib", "configparser")
"""Their source is a long text that is on every machine, and repeats itself as texts do."""


class Passage:
    """A prompt of so many tokens, cut out of a longer text.

    Attributes:
        room: tokens of the prompt and of its answer.
        id: "4096/1".
        category: the length.
        shared: always true: contenders find the prompt read already, which takes as long for all.
        identity: the ids.
        cut: always None.
    """

    shared = True

    def __init__(self, number: int, ids: Sequence[int], longest: int, new_tokens: int = 1) -> None:
        self.room = len(ids) + new_tokens
        self.category = str(len(ids))
        self.id = f"{self.category}/{number}"
        self._ids = self.identity = list(ids)
        self._longest = longest
        self.cut: str | None = None

    def first(self) -> list[int]:
        """The ids of the prompt.

        Raises:
            PromptError: the context has no room for them.
        """
        if len(self._ids) > self._longest:
            raise PromptError(f"the context has room for {self._longest:,} tokens of a prompt")
        return self._ids

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        """The only turn."""
        answer(1, self._ids)


def passages(session: Session, lengths: Sequence[int], each: int, new_tokens: int) -> list[Passage]:
    """So many passages of every length, which begin at different places of the text.

    Args:
        session: whose tokenizer counts.
        lengths: in tokens.
        each: how many of every length.
        new_tokens: of an answer, for which the context must have room.
    """
    ids = session.encode("\n".join(inspect.getsource(importlib.import_module(m)) for m in MODULES))
    # Where a passage begins does not depend on how long it is, nor on what others there are.
    starts = [number * len(ids) // each for number in range(each)]
    while len(ids) < starts[-1] + max(lengths):
        ids = ids + ids
    longest = session.decoder.max_context - new_tokens
    return [
        Passage(number, ids[start : start + length], longest, new_tokens)
        for length in sorted(lengths)
        for number, start in enumerate(starts, start=1)
    ]
