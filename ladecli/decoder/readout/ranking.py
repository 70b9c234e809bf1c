"""The most probable tokens of many rows of logits at once.

All of it runs on the device and never waits for it, so a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .penalty import Penalized, Scores, gather, log_totals, maxima, part
from .quick import may_rank, may_top, rank, top

GROUPS = (128, 64, 32, 16)
"""How many neighbours compete first, the best size first; all of them suit a GPU's reads."""
FEW = 12
"""Groups pay if so many of them stand for each token that is looked for."""
PART = 1 << 21
"""The most probabilities that exist at a time; 16 MiB with the copy of logits they come from."""


def leaders(logits: Scores, count: int, *, first: bool = False) -> tuple[Tensor, Tensor]:
    """The `count` greatest logits of each row, the greatest first, and their tokens.

    The k greatest numbers lie in the k groups with the greatest maxima.  So one pass over all
    logits finds the maxima of groups, and only few groups are looked into.

    Args:
        logits: [rows, vocabulary].
        count: from 1 to the vocabulary.
        first: whether the first token is to be that of `torch.argmax`, the lowest id among the
            best.  Which of other equal ones are taken, and in what order, is not defined.

    Returns:
        Logits as given and tokens, int64, [rows, count] each.
    """
    rows, vocabulary = logits.shape
    size = next((size for size in GROUPS if vocabulary >= FEW * size * count), 0)
    # Penalised ones do not exist yet: to make all of them takes more memory than to make a half.
    if not size and isinstance(logits, Penalized) and vocabulary >= 2 * GROUPS[-1] * count:
        size = GROUPS[-1]
    if not size:
        every = part(logits, slice(vocabulary))
        values, tokens = every.topk(count, dim=-1)
        return values, _led(tokens, every.argmax(dim=-1, keepdim=True)) if first else tokens
    whole = vocabulary - vocabulary % size
    groups = _groups(logits, size, count, first)
    every = torch.arange(vocabulary, device=logits.device)
    tokens = (groups[:, :, None] * size + every[:size]).flatten(1)
    if whole < vocabulary:
        tokens = torch.cat((tokens, every[whole:].expand(rows, -1)), dim=1)
    contenders = gather(logits, tokens)
    values, places = contenders.topk(count, dim=-1)
    tokens, every = tokens.gather(1, places), tokens
    if first:
        # The first best group stands first, and what no group holds, last: as by their ids.
        tokens = _led(tokens, every.gather(1, contenders.argmax(dim=-1, keepdim=True)))
    return values, tokens


def _groups(scores: Scores, size: int, count: int, first: bool) -> Tensor:
    """The groups of `size` neighbours with the greatest maxima, int64 [rows, count]."""
    if isinstance(scores, Penalized) and may_top(scores, size):
        found = top(scores, size)
    else:
        found = maxima(scores, size)
    groups = found.topk(count, dim=-1).indices
    return _led(groups, found.argmax(dim=-1, keepdim=True)) if first else groups


def _led(indices: Tensor, first: Tensor) -> Tensor:
    """Indices of the greatest values with the first of them in front: [rows, count], [rows, 1].

    What stands in front is as great, so it takes the other's place, or none if that one is new.
    """
    rest = torch.where(indices == first, indices[:, :1], indices)[:, 1:]
    return torch.cat((first, rest), dim=1)


def most_probable(scores: Scores) -> Tensor:
    """The most probable token of each row, that of `torch.argmax`, int32 [rows]."""
    if isinstance(scores, Tensor):
        return scores.argmax(dim=-1).int()
    if may_rank(scores, 1, ranked):
        return rank(scores, 1)[0, :, 0]
    return leaders(scores, 1, first=True)[1][:, 0].int()


def ranked(logits: Scores, count: int) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row with their probabilities, the best first.

    Args:
        logits: [rows, vocabulary].
        count: at least 1, cut to the vocabulary.

    Returns:
        Tokens, int64, and probabilities, float32, [rows, count] each.  The first token is that
        of `torch.argmax`, however many rows there are; see `leaders` for others as probable.
    """
    rows, vocabulary = logits.shape
    values, tokens = leaders(logits, min(count, vocabulary), first=True)
    if isinstance(logits, Penalized):
        return tokens, torch.exp(values - log_totals(logits))
    # Part by part, since probabilities of all rows can take more memory than a step has.
    size = max(1, PART // vocabulary)
    if rows <= size:
        return tokens, torch.softmax(logits, dim=-1, dtype=torch.float32).gather(1, tokens)
    probabilities = [
        torch.softmax(logits[start : start + size], dim=-1, dtype=torch.float32).gather(
            1, tokens[start : start + size]
        )
        for start in range(0, rows, size)
    ]
    return tokens, torch.cat(probabilities)
