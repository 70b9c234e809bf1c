"""What the leader tells its followers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..decoder.errors import RankError

if TYPE_CHECKING:
    from ..decoder.draft_state import DraftState
    from ..decoder.parallel.processes import Processes
    from ..decoder.parallel.together import Branches, Copies
    from ..session import Settings


@dataclass(frozen=True, slots=True)
class Task:
    """An answer that all ranks shall decode.

    Attributes:
        prompt: token ids.
        settings: how to decode it.
        drafts: what the leader knows about drafting; None for what the follower knows itself,
            which is the same if both have learned from the same answers.
    """

    prompt: tuple[int, ...]
    settings: Settings
    drafts: DraftState | None


class Crew:
    """The followers, as the leader sees them.

    Args:
        processes: the ranks.
        group: the same, as they decode.
        split: whether they hold a part of the model each, so that every answer needs all of
            them.
    """

    def __init__(
        self, processes: Processes, group: Branches | Copies, *, split: bool = False
    ) -> None:
        self._processes = processes
        self._group = group
        self._split = split
        self._known: DraftState | None = None

    def takes_part(self, settings: Settings) -> bool:
        """Whether an answer is decoded by all ranks, or by the leader alone."""
        return self._split or settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, drafts: DraftState
    ) -> Iterator[None]:
        """Let the followers decode an answer while this one does; they are told on entry.

        Args:
            prompt: token ids.
            settings: how to decode it.
            drafts: what the leader knows, and will go on learning.

        Raises:
            RankError: a rank is gone.
        """
        if not self.takes_part(settings):
            yield
            return
        news = None if drafts is self._known else drafts
        # A word that is broken off, or an answer, leaves followers with other drafts than these.
        self._known = None
        begun, meeting = self._group.begun, self._processes.meeting
        try:
            self._processes.tell(Task(tuple(prompt), settings, news))
            yield
        except GeneratorExit:
            self._known = drafts
            raise
        except RankError as error:
            raise meeting.explained(error) from error
        except BaseException as error:
            if self._group.begun == begun:
                # Followers wait for the rest of a word, or for an answer to begin.
                said = "the ranks were interrupted before they began; start them again"
                raise meeting.losing(said) from error
            raise
        self._known = drafts
