"""What a table of the n-gram model holds, as dictionaries."""

from __future__ import annotations

from ladecli.decoder.ngrams.kernels import BITS, ONE, ORDER
from ladecli.decoder.ngrams.tables import Table

Row = dict[int, float]
Context = tuple[int, ...]


def contents(table: Table, order: int, source: int | None = None) -> dict[Context, Row]:
    """By context of that length, the tokens behind it with their weights.

    Args:
        source: only what the model said when it was asked, or when it guessed.
    """
    found: dict[Context, Row] = {}
    for entry in table.entries(order):
        if source is not None and entry["source"] != source:
            continue
        high, low, count = int(entry["high"]), int(entry["low"]), entry["count"]
        whole = (high >> BITS, high & ONE, low >> BITS, low & ONE)
        row = zip(entry["tokens"].tolist(), entry["weights"].tolist(), strict=True)
        found[whole[ORDER - order :]] = dict(list(row)[:count])
    return found
