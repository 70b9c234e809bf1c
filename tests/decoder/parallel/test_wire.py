"""Messages: what is packed comes out again, in as many bytes whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.layout import Draft
from ladecli.decoder.parallel.wire import Kind, Message, Wire, draft_checksum
from ladecli.decoder.successors import NOTHING, Successors
from ladecli.decoder.tree import ROOT, TokenTree

TOKENS = st.integers(0, 2**31 - 1)
CHECKS = st.integers(-(2**31), 2**31 - 1)
SHARES = st.floats(0, 1, width=32)


def tree_of(*nodes: tuple[int, int]) -> TokenTree:
    tree = TokenTree()
    for parent, token in nodes:
        tree.grow(parent, token, "context")
    return tree


def asking(outputs: int) -> Draft:
    """A draft with so many outputs, that asks for successors."""
    return Draft(tree_of(*((ROOT, token) for token in range(outputs - 1))), successors=3)


@given(
    st.integers(1, 9).flatmap(
        lambda outputs: st.tuples(
            st.just(outputs),
            st.lists(TOKENS, min_size=1, max_size=outputs),
            st.lists(TOKENS, min_size=outputs, max_size=outputs),
            st.lists(
                st.dictionaries(TOKENS, SHARES, min_size=0, max_size=3),
                min_size=outputs,
                max_size=outputs,
            ),
        )
    ),
    st.tuples(CHECKS, CHECKS),
)
def test_what_was_found_arrives(
    found: tuple[int, list[int], list[int], list[dict[int, float]]], checks: tuple[int, int]
) -> None:
    outputs, tokens, best, ranked = found
    wire = Wire(12, 3)
    message = Message(Kind.FOUND, (0, 0), tokens, best, Successors.of(ranked))
    told = wire.pack(message, checks)
    assert len(told) == wire.length
    assert all(-(2**31) <= number < 2**31 for number in told)
    fed = asking(outputs)
    heard, along = wire.unpack(told, fed)
    assert along == checks
    assert (heard.kind, heard.figures) == (message.kind, message.figures)
    assert (heard.tokens, heard.best) == (message.tokens, message.best)
    # Not only equal, but in the same order: the best one comes first.
    again = heard.ranked.rows()
    assert [[*row.items()] for row in again] == [[*row.items()] for row in ranked]


def test_probabilities_keep_their_last_bit() -> None:
    share = float(np.float32(1 / 3))
    ranked = Successors.of([{5: share}])
    told = Wire(1, 1).pack(Message(Kind.FOUND, (0, 0), [5], [5], ranked), (0, 0))
    assert Wire(1, 1).unpack(told, asking(1))[0].ranked.rows() == [{5: share}]


def test_what_is_no_token_has_no_probability() -> None:
    wire = Wire(4, 3)
    found = Message(Kind.FOUND, (0, 0), [5], [5, 6], Successors.of([{5: 0.5}, {}]))
    ranked = wire.unpack(wire.pack(found, (0, 0)), asking(2))[0].ranked
    assert ranked.tokens.tolist() == [[5, NOTHING, NOTHING], [NOTHING] * 3]
    assert ranked.probabilities.tolist() == [[0.5, 0.0, 0.0], [0.0] * 3]


@pytest.mark.parametrize("kind", [*Kind])
def test_other_words_have_the_same_length(kind: Kind) -> None:
    wire = Wire(60, 4)
    told = wire.pack(Message(kind, (7, 30)), (1, -2))
    assert len(told) == wire.length == 6 + 2 * 60 * 5
    assert wire.unpack(told, asking(3))[0].figures == (7, 30)
    assert wire.unpack(told, asking(3))[0].kind is kind


def test_length_depends_on_the_step_alone() -> None:
    """Not on the model: 2.4 KB at a budget of 60, whatever the vocabulary or the layers."""
    assert 4 * Wire(61, 4).length == 2464


def test_drafts_that_differ_have_other_checksums() -> None:
    different = [
        Draft(tree_of((ROOT, 5), (0, 6))),
        Draft(tree_of((ROOT, 5), (ROOT, 6))),
        Draft(tree_of((ROOT, 5), (0, 7))),
        Draft(tree_of((ROOT, 5))),
        Draft(tree_of((ROOT, 5), (0, 6)), successors=4),
    ]
    sums = {draft_checksum(draft, 9) for draft in different}
    assert len(sums) == len(different)
    assert draft_checksum(different[0], 10) not in sums
    assert draft_checksum(Draft(tree_of((ROOT, 5), (0, 6))), 9) in sums
