"""Tables that are loaded: they keep what they are given, and go on to learn within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ladecli.decoder.ngrams import NgramModel, tables
from ladecli.decoder.ngrams.kernels import ASKED, BITS, ORDER, RANKED
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import ROOT, TokenTree

ORDERS = range(1, ORDER + 1)


def records(order: int, count: int) -> NDArray[Any]:
    """Answers behind tokens from 0 on, which token 1 precedes in longer contexts."""
    made = np.zeros(count, RANKED)
    made["low"] = np.arange(count) | ((order > 1) << BITS)
    made["tokens"][:, 0], made["weights"][:, 0] = 100 * order, 0.5
    made["source"], made["count"] = ASKED, 1
    return made


def recycle(model: NgramModel, tokens: range) -> None:
    """Tell of answers behind these tokens and the one after them, under contexts of any length."""
    count = len(tokens)
    tree = TokenTree(tokens, [ROOT] * count, [1] * count, ["context"] * count)
    shape = count + 1, 1
    said = Successors(np.full(shape, 7, np.int32), np.full(shape, 0.5, np.float32))
    model.recycle([tokens.stop] * ORDER, tree, said)


@pytest.mark.parametrize("sizes", [(40_000,) * ORDER, (5, 700, 40_000, 300), (1, 0, 700, 0)])
def test_all_that_was_loaded_is_there(sizes: tuple[int, ...]) -> None:
    model = NgramModel()
    given = {order: records(order, size) for order, size in zip(ORDERS, sizes, strict=True)}
    for order, some in given.items():
        model.ranked.load(order, some)
    assert model.ranked.sizes == [0, *sizes]
    assert len(model.ranked) == sum(sizes)
    for order, some in given.items():
        assert model.ranked.entries(order).tobytes() == some.tobytes()
    for token in {0, sizes[0] // 2, sizes[0] - 1}:
        assert [found for _, found, _ in model.successors([token])] == [100]


def test_a_loaded_table_goes_on_to_learn() -> None:
    model = NgramModel()
    for order in ORDERS:
        model.ranked.load(order, records(order, 40_000))
    recycle(model, range(50_000, 50_010))
    assert model.ranked.sizes == [0, *[40_000 + 11] * ORDER]
    assert model.successors([1, 39_999])[0][1] == 400
    for start in range(100_000, 190_000, 30_000):
        recycle(model, range(start, start + 30_000))
        assert max(model.ranked.sizes) <= tables.CONTEXTS
        assert model.successors([start])[0][1] == model.successors([start + 29_999])[0][1] == 7


@pytest.mark.parametrize("count", [1000, 1005, 5000])
def test_of_too_many_entries_the_last_are_kept(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(tables, "CONTEXTS", 1000)
    model, given = NgramModel(), records(1, count)
    model.ranked.load(1, given)
    assert model.ranked.entries(1).tobytes() == given[-1000:].tobytes()
    for start in range(10_000, 10_100, 10):
        recycle(model, range(start, start + 10))
        assert 900 < model.ranked.sizes[1] <= 1000
        assert model.successors([start])[0][1] == 7
    assert model.successors([count - 1])[0][1] == 100
    assert not model.successors([count - 1000]), "the oldest go first"


def test_of_entries_under_one_context_the_last_counts() -> None:
    model, given = NgramModel(), records(1, 3)
    given["low"], given["tokens"][:, 0] = 5, [7, 8, 9]
    model.ranked.load(1, given)
    assert [found for _, found, _ in model.successors([5])] == [9]
