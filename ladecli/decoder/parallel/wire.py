"""What a rank found in its share, as whole numbers: one message of fixed length per step.

Its length depends on the widest step and on the successors that are remembered, on nothing of
the model: tokens, no logits and no keys.  So a message is some kilobytes at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..checksum import checksum
from ..layout import Draft
from ..successors import NONE, NOTHING, Successors

Checks = tuple[int, int]
"""Checksums of a draft, and of what drafts are made from; or of what was asked for, and 0."""
HEAD = 6
"""Numbers before a message's tables: kind, two checksums, two figures, and a count."""


class Kind(IntEnum):
    """What a message says."""

    BEGIN = 1
    """A generation starts; how many tokens are cached here follows."""
    GO = 2
    """A forward begins."""
    FOUND = 3
    """The step ran; what it showed follows."""
    SHORT = 4
    """There was no memory for the step."""
    STOPPED = 5
    """Whoever reads the text has had enough of it."""
    FAILED = 6
    """Something went wrong on this rank, which gives up."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank has to say.

    Attributes:
        kind: which of these.
        figures: at the beginning, the tokens cached; where there was no memory, the pending
            tokens of the step, and its others.
        tokens: those of the walk down the rank's own tree, the bonus token last.
        best: the most probable token after each of its outputs.
        ranked: the most probable tokens after each of them.
    """

    kind: Kind
    figures: tuple[int, int] = (0, 0)
    tokens: Sequence[int] = ()
    best: Sequence[int] = ()
    ranked: Successors = NONE


@dataclass(frozen=True, slots=True)
class Wire:
    """The form of all messages of a generation.

    Attributes:
        outputs: the most outputs of a rank's step.
        successors: of every output that are told.
    """

    outputs: int
    successors: int

    @property
    def length(self) -> int:
        """Numbers of 4 bytes in a message."""
        return HEAD + 2 * self.outputs * (1 + self.successors)

    def pack(self, message: Message, checks: Checks) -> list[int]:
        """A message as whole numbers of 32 bits.

        Args:
            message: what there is to say.
            checks: what it goes with.
        """
        numbers = np.full(self.length, NOTHING, dtype=np.int32)
        head = (message.kind, *checks, *message.figures, len(message.tokens))
        numbers[:HEAD] = head
        tokens, best, ranked, shares = self._tables(numbers)
        tokens[: len(message.tokens)] = message.tokens
        best[: len(message.best)] = message.best
        shares[:] = 0.0
        count, most = message.ranked.tokens.shape
        ranked[:count, :most] = message.ranked.tokens
        shares[:count, :most] = message.ranked.probabilities
        told: list[int] = numbers.tolist()
        return told

    def unpack(self, told: Sequence[int], draft: Draft | None) -> tuple[Message, Checks]:
        """The message and the checksums that `pack` was given.

        Args:
            told: as it came.
            draft: what the rank fed in its step; None where the message is of no step.
        """
        outputs = draft.outputs if draft else 0
        numbers = np.array(told, dtype=np.int32)
        kind, first, second, pending, others, count = numbers[:HEAD].tolist()
        tokens, best, ids, shares = self._tables(numbers)
        asked = draft is not None and draft.successors > 0
        message = Message(
            Kind(kind),
            (pending, others),
            tokens[:count].tolist(),
            best[:outputs].tolist(),
            Successors(ids[:outputs], shares[:outputs]) if asked else NONE,
        )
        return message, (first, second)

    def _tables(
        self, numbers: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Views of the walk's tokens, the best tokens, the successors and their probabilities."""
        rows, count = self.outputs, self.successors
        tokens, best, rest = np.split(numbers[HEAD:], [rows, 2 * rows])
        ids, shares = np.split(rest, 2)
        return tokens, best, ids.reshape(rows, count), shares.view(np.float32).reshape(rows, count)


def draft_checksum(draft: Draft, length: int) -> int:
    """A checksum of a draft and of the length of the text that it stands behind."""
    window = draft.window.tokens if draft.window else []
    tree = draft.tree
    return checksum([length, draft.successors, len(tree), *tree.tokens, *tree.parents, *window])
