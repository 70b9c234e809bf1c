"""Messages between ranks: in every step one list of int32 numbers, of a fixed length.

The length depends on the widest step and on the successors asked for, not on the model: ranks send
tokens, never logits or keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..observation import Successors

_HEAD = 8
_NO_TOKEN = -1


class Kind(IntEnum):
    """What a message reports."""

    BEGIN = 1  # a generation begins; `numbers` has the tokens cached
    READY = 2  # a forward of all ranks begins
    RESULT = 3  # the step's result
    OUT_OF_MEMORY = 4  # `numbers` has the step's pending tokens, and its other tokens plus one
    STOPPED = 5  # the caller closed the generation on this rank
    FAILED = 6  # an error ended the generation on this rank


@dataclass(frozen=True, slots=True)
class Message:
    """One rank's message.

    Attributes:
        kind: what it reports.
        checks: checksums that must be equal on all ranks: of the request or the draft, and of the
            draft memory.
        numbers: depend on `kind`.
        tokens: of the accepted path through the rank's tree, the bonus token last.
        best, successors: after each of the rank's outputs; see `groups.StepResult`.
    """

    kind: Kind
    checks: tuple[int, int] = (0, 0)
    numbers: tuple[int, int] = (0, 0)
    tokens: Sequence[int] = ()
    best: Sequence[int] = ()
    successors: Successors = ()


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The format of all messages of a generation.

    Attributes:
        max_outputs: the most outputs of one rank's step.
        max_successors: the most successors of one output.
    """

    max_outputs: int
    max_successors: int

    @property
    def length(self) -> int:
        """Numbers, of 4 bytes each, in a message."""
        return _HEAD + 2 * self.max_outputs * (1 + self.max_successors)

    def pack(self, message: Message) -> list[int]:
        """A message as int32 numbers; probabilities go as the bits of a float32."""
        rows, columns = self.max_outputs, self.max_successors
        ids: list[int] = []
        shares: list[float] = []
        for row in message.successors:
            ids += _padded(row, columns)
            shares += [*row.values(), *[0.0] * (columns - len(row))]
        sizes = len(message.tokens), len(message.best), len(message.successors)
        bits = array("i", array("f", shares).tobytes())
        return [
            *(message.kind, *message.checks, *message.numbers, *sizes),
            *_padded(message.tokens, rows),
            *_padded(message.best, rows),
            *_padded(ids, rows * columns),
            *_padded(bits, rows * columns),
        ]

    def unpack(self, packed: Sequence[int]) -> Message:
        """The message that `pack` was given."""
        rows, columns = self.max_outputs, self.max_successors
        kind, first, second, pending, others, tokens, best, count = packed[:_HEAD]
        start = _HEAD + 2 * rows
        ids = packed[start : start + rows * columns]
        shares = array("f", array("i", packed[start + rows * columns :]).tobytes())
        successors = []
        for row in range(count):
            part = slice(row * columns, (row + 1) * columns)
            pairs = zip(ids[part], shares[part], strict=True)
            successors.append({token: share for token, share in pairs if token != _NO_TOKEN})
        return Message(
            Kind(kind),
            (first, second),
            (pending, others),
            packed[_HEAD : _HEAD + tokens],
            packed[_HEAD + rows : _HEAD + rows + best],
            successors,
        )


def _padded(numbers: Iterable[int], length: int) -> list[int]:
    found = list(numbers)
    return found + [_NO_TOKEN] * (length - len(found))
