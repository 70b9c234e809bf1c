"""The repetition penalty: logits of tokens that the text already has are made worse.

Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation",
2019.  What a text has depends on the path that leads to an output, so of a step every row has a
penalty of its own.  All of it runs on the device and never waits for it, so a CUDA graph can hold
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

JOINED = 16
"""Tokens that a captured step can add to those that the text has; more are added before it."""
PART = 1 << 20
"""The most penalised logits that exist at a time, where no kernel of ours reads them: three tensors
of 4 MiB."""


def penalize(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Apply the penalty to one row.

    Args:
        scores: [vocabulary].
        seen: distinct ids, int64 [n].
        penalty: divides positive and multiplies negative scores.
    """
    scores = scores.clone()
    scores[seen] = _penalized(scores[seen], penalty)
    return scores


def penalize_rows(logits: Tensor, seen: Tensor, paths: Tensor, penalty: float) -> Tensor:
    """Apply the penalty to every row, in a copy.

    Args:
        logits: [rows, vocabulary].
        seen: ids of the text, int64 [n].
        paths: int64 [rows, m], tokens of the path to each row.
        penalty: see `penalize`.

    Returns:
        float32 [rows, vocabulary].
    """
    scores = logits.to(torch.float32, copy=True)
    for tokens in (seen.expand(len(logits), -1), paths):
        scores.scatter_(1, tokens, _penalized(logits.gather(1, tokens).float(), penalty))
    return scores


def _penalized(scores: Tensor, penalty: float) -> Tensor:
    # A GPU multiplies with the reciprocal of a plain number, and a kernel of ours would not.
    divisor = torch.full((), penalty, dtype=scores.dtype, device=scores.device)
    harsher = torch.minimum if penalty >= 1.0 else torch.maximum
    product = scores * divisor
    return harsher(product, scores / divisor, out=product)


class SeenIds:
    """The distinct tokens of a text, on a device.

    Args:
        device: of the logits.
    """

    def __init__(self, device: torch.device) -> None:
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self._start(())

    def _start(self, text: Sequence[int]) -> None:
        self._text, self._length = text, 0
        self._known, self._ids = set[int](), self._none

    def of(self, text: Sequence[int]) -> Tensor:
        """Its ids, int64 [n].

        Args:
            text: a list that only grows; another one is another text.
        """
        if text is not self._text:
            self._start(text)
        if new := {*text[self._length :]} - self._known:
            self._known |= new
            added = torch.tensor(sorted(new), device=self._ids.device)
            self._ids = torch.cat((self._ids, added))
        self._length = len(text)
        return self._ids


class SeenTokens:
    """Which tokens of the vocabulary a text has, on the device, for captured steps.

    Attributes:
        flags: bool [vocabulary]; None until `make`.
    """

    def __init__(self) -> None:
        self._text: Sequence[int] = ()
        self._told = 0
        self.flags: Tensor | None = None

    def make(self, logits: Tensor) -> Tensor:
        """The flags, which are made the first time.

        Args:
            logits: [..., vocabulary], on the device.
        """
        if self.flags is None:
            self.flags = logits.new_zeros(logits.shape[-1], dtype=torch.bool)
        return self.flags

    def joined(self, text: Sequence[int], most: int = JOINED) -> Sequence[int]:
        """What joined the text since the last time, for the step to add to the flags.

        Args:
            text: a list that only grows; another one is another text.
            most: if there are more tokens than these, all of them are added here; a step has
                room for `JOINED`.
        """
        if text is not self._text:
            self._text, self._told = text, 0
            if self.flags is not None:
                self.flags.zero_()
        if len(text) - self._told > most and self.flags is not None:
            new = torch.tensor(text[self._told :], device=self.flags.device)
            self.flags.index_fill_(0, new, True)
            self._told = len(text)
        return text[self._told :]

    def added(self) -> None:
        """A step has added what `joined` said."""
        self._told = len(self._text)


def present(flags: Tensor, paths: Tensor) -> Tensor:
    """Which tokens stand before each output.

    Args:
        flags: bool [vocabulary], of the text.
        paths: int64 [rows, n], tokens of the path to each output, in any number.

    Returns:
        bool [rows, vocabulary].
    """
    return flags.repeat(len(paths), 1).scatter_(1, paths, True)


class Penalized:
    """Rows of logits with the penalty: made in float32 where somebody looks, a part at a time,
    because all of them take twice the memory of the logits.

    Args:
        logits: [rows, vocabulary].
        present: bool [rows, vocabulary], what stands before each.
        penalty: see `penalize`.

    Attributes:
        logits, present, penalty: as above.
        shape, device: of the logits.
    """

    def __init__(self, logits: Tensor, present: Tensor, penalty: float) -> None:
        self.logits = logits
        self.present = present
        # Kernels are compiled for the type of a number, and have no use for an integer.
        self.penalty = float(penalty)
        self.shape = logits.shape
        self.device = logits.device

    def part(self, columns: slice) -> Tensor:
        """Those of some tokens, float32 [rows, columns]."""
        return self._of(self.logits[:, columns], self.present[:, columns])

    def gather(self, tokens: Tensor) -> Tensor:
        """Those of some tokens of each row, float32 [rows, n] like `tokens`."""
        return self._of(self.logits.gather(1, tokens), self.present.gather(1, tokens))

    def _of(self, logits: Tensor, present: Tensor) -> Tensor:
        scores = logits.float()
        penalized = _penalized(scores, self.penalty)
        return torch.where(present, penalized, scores, out=penalized)


Scores: TypeAlias = Tensor | Penalized
"""What tokens are chosen by, [rows, vocabulary]."""


def part(scores: Scores, columns: slice) -> Tensor:
    """Scores of some tokens, [rows, columns]."""
    return scores.part(columns) if isinstance(scores, Penalized) else scores[:, columns]


def gather(scores: Scores, tokens: Tensor) -> Tensor:
    """Scores of some tokens of each row, [rows, n] like `tokens`."""
    return scores.gather(tokens) if isinstance(scores, Penalized) else scores.gather(1, tokens)


def log_totals(scores: Scores) -> Tensor:
    """The logarithm of the sum of exp(score) of each row, [rows, 1]."""
    parts = _parts(scores, scores.shape[-1], 1)
    found = [each.logsumexp(dim=-1, keepdim=True) for each in parts]
    return torch.cat(found, dim=1).logsumexp(dim=-1, keepdim=True)


def maxima(scores: Scores, size: int) -> Tensor:
    """The greatest scores of groups of `size` neighbours, [rows, groups].

    Tokens that are left over belong to no group.
    """
    rows, vocabulary = scores.shape
    whole = vocabulary - vocabulary % size
    found = [each.reshape(rows, -1, size).amax(dim=-1) for each in _parts(scores, whole, size)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _parts(scores: Scores, columns: int, unit: int) -> Iterator[Tensor]:
    """The first columns in stretches of whole units; plain logits, which are there, in one."""
    most = columns
    if isinstance(scores, Penalized):
        most = max(PART // len(scores.logits) // unit, 1) * unit
    for start in range(0, columns, most):
        yield part(scores, slice(start, min(start + most, columns)))
