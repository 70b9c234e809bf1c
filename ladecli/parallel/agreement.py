"""What ranks settle before they decode: all of them call each of these, in the same order."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from .greeting import likeness, unlike

if TYPE_CHECKING:
    from ..decoder.parallel.processes import Processes
    from ..session import Session


def leaders_word(processes: Processes, text: str) -> str:
    """What the leader says, whatever the others do.

    Raises:
        RankError: a rank failed.
    """
    return processes.collect(text)[0]


def compare_models(processes: Processes, session: Session, *, split: bool) -> None:
    """Make sure that all ranks have loaded the same model; they all call this.

    Args:
        processes: the ranks.
        session: with the model.
        split: whether each rank holds another part of it.

    Raises:
        RankError: they have not, or a rank failed.
    """
    if words := unlike(processes.collect(likeness(session, split=split))):
        raise processes.meeting.losing(words)


def least_context(processes: Processes, context: int | None, dtype: str) -> int:
    """The context for which all ranks have room; they all call this, before any loads weights.

    Args:
        processes: the ranks.
        context: for which this one has room; None for whatever others have.
        dtype: in which it will compute.

    Raises:
        RankError: they would compute in different types, or a rank failed.
    """
    said = [json.loads(text) for text in processes.collect(json.dumps([context, dtype]))]
    for rank, (_, other) in enumerate(said):
        if other != said[0][1]:
            words = (
                f"rank {rank} would compute in {other} and rank 0 in {said[0][1]}; give all ranks"
                " the same --dtype"
            )
            raise processes.meeting.losing(words)
    return min((room for room, _ in said if room is not None), default=sys.maxsize)
