"""Dealing: every branch and column once, nothing without what it stands on, nobody overloaded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.layout import Draft
from ladecli.decoder.parallel.deal import Share, deal
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.window import LookaheadWindow, WindowBlock


def tree_of(parents: list[int]) -> TokenTree:
    tree = TokenTree()
    for number, parent in enumerate(parents):
        tree.grow(parent, 100 + number, f"source {number}")
    return tree


def block_of(window: int, ngram: int, filled: bool = True) -> WindowBlock:
    lookahead = LookaheadWindow(window, ngram, range(1000), random.Random(3))
    rng = random.Random(5)
    while filled and not lookahead.filled:
        lookahead.advance([rng.randrange(1000) for _ in lookahead.rows[0]])
    return lookahead.block(7)


def fed(share: Share) -> int:
    """Tokens that a share has beside those that the rank is behind."""
    window = share.draft.window
    return 1 + len(share.draft.tree) + (len(window.tokens) if window else 0)


def leaves(tree: TokenTree) -> set[int]:
    return {*range(len(tree))} - {*tree.parents}


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Draft, list[int]]:
    size = draw(st.integers(0, 40))
    parents = [draw(st.integers(max(ROOT, i - 9), i - 1)) if i else ROOT for i in range(size)]
    window = None
    if draw(st.booleans()):
        window = block_of(draw(st.integers(1, 9)), draw(st.integers(2, 6)), draw(st.booleans()))
    behind = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    limit = draw(st.integers(1, 60))
    widths = draw(st.sampled_from([(), (1, 4, 9, 16, 30, 60)]))
    return Draft(tree_of(parents), window, limit=limit, successors=2, widths=widths), behind


@given(drafts())
def test_every_branch_goes_to_one_rank_with_all_that_it_stands_on(
    given: tuple[Draft, list[int]],
) -> None:
    draft, behind = given
    dealt = deal(draft, behind)
    whole = dealt.draft.tree
    assert len(dealt.shares) == len(behind)
    # What is left out was added last.
    assert whole.tokens == draft.tree.tokens[: len(whole)]
    assert whole.parents == draft.tree.parents[: len(whole)]
    ends = [{*share.nodes} & leaves(whole) for share in dealt.shares]
    assert sum(map(len, ends)) == len(leaves(whole))
    assert set().union(*ends) == leaves(whole)
    for share in dealt.shares:
        tree = share.draft.tree
        assert [*share.nodes] == sorted({*share.nodes})
        for own, node in enumerate(share.nodes):
            above = tree.parents[own]
            assert (share.nodes[above] if above != ROOT else ROOT) == whole.parents[node]
            assert tree.tokens[own] == whole.tokens[node]
            assert tree.depths[own] == whole.depths[node]
            assert tree.sources[own] == whole.sources[node]


@given(drafts())
def test_nobody_feeds_more_than_the_limit(given: tuple[Draft, list[int]]) -> None:
    draft, behind = given
    dealt = deal(draft, behind)
    for missing, share in zip(behind, dealt.shares, strict=True):
        if fed(share) > 1:
            assert fed(share) + missing <= draft.limit
        # Tokens that are fed again count, so that all steps have one of the widths.
        if draft.widths and fed(share) + missing <= draft.widths[-1]:
            assert share.draft.width in draft.widths
        assert fed(share) + missing <= share.draft.width


@given(drafts())
def test_a_window_is_dealt_in_columns_that_see_what_they_saw(
    given: tuple[Draft, list[int]],
) -> None:
    draft, behind = given
    dealt = deal(draft, behind)
    whole = dealt.draft.window
    if whole is None:
        assert all(share.draft.window is None for share in dealt.shares)
        return
    assert whole is draft.window
    columns = [column for share in dealt.shares for column in share.columns]
    assert columns == [*range(len(whole.last_row))]
    cells = [(r, j) for r in range(9) for j in range(len(whole.last_row))][1:]
    cells = cells[: len(whole.tokens)]
    for share in dealt.shares:
        part = share.draft.window
        assert (part is None) == (not share.columns)
        if part is None:
            continue
        kept = [
            place
            for place, (r, j) in enumerate(cells)
            if j in share.columns or (r == 0 and j < share.columns.stop)
        ]
        assert part.tokens == [whole.tokens[place] for place in kept]
        assert [*part.offsets] == [whole.offsets[place] for place in kept]
        # A column has all that it saw in the whole window.
        for own, place in enumerate(kept):
            seen = {kept[key] for key in np.flatnonzero(part.visible[own])}
            column = cells[place][1]
            if column in share.columns:
                assert seen == {*np.flatnonzero(whole.visible[place])}
        wanted = [whole.last_row[column] for column in share.columns]
        assert [kept[row] if row >= 0 else -1 for row in part.last_row] == wanted
        assert part.last_tokens == [whole.last_tokens[column] for column in share.columns]
        assert part.filled == whole.filled


@given(st.integers(1, 60), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_single_tokens_are_dealt_evenly(count: int, behind: list[int]) -> None:
    """All of them hang on the current token, so any deal is possible: the best one is known."""
    dealt = deal(Draft(tree_of([ROOT] * count)), behind)
    widest = max(fed(s) + missing for s, missing in zip(dealt.shares, behind, strict=True))
    total = count + sum(1 + missing for missing in behind)
    assert widest == max(-(-total // len(behind)), 1 + max(behind))


def test_a_rank_that_must_catch_up_gets_less() -> None:
    dealt = deal(Draft(tree_of([ROOT] * 20), limit=60), [8, 0, 0])
    assert [len(share.draft.tree) for share in dealt.shares] == [2, 10, 8]  # 11 tokens at most


def test_a_long_path_stays_in_one_piece() -> None:
    chain = [*range(-1, 11)]  # twelve nodes in a row
    dealt = deal(Draft(tree_of([*chain, *[ROOT] * 12]), limit=60), [0, 0])
    assert sorted(len(share.draft.tree) for share in dealt.shares) == [12, 12]
    longest = max(dealt.shares, key=lambda share: max(share.draft.tree.depths))
    assert longest.draft.tree.depths == [*range(1, 13)]


def test_what_has_no_room_is_what_was_added_last() -> None:
    dealt = deal(Draft(tree_of([ROOT] * 20), limit=6), [0, 0])
    assert dealt.draft.tree.tokens == [100 + n for n in range(10)]


def test_a_window_that_does_not_fit_leaves_its_place_to_candidates() -> None:
    window = block_of(9, 5)
    dealt = deal(Draft(tree_of([ROOT] * 20), window, limit=11), [0, 0])
    assert dealt.draft.window is None
    assert len(dealt.draft.tree) == 20
    # With three ranks it has room.
    assert deal(Draft(tree_of([]), window, limit=24), [0, 0, 0]).draft.window is window


@pytest.mark.parametrize(
    ("path", "held"), [((), []), ((0,), [0]), ((0, 2), [0, 1]), ((0, 1), [0]), ((1,), [])]
)
def test_what_a_rank_has_of_a_path(path: tuple[int, ...], held: list[int]) -> None:
    share = Share(Draft(tree_of([ROOT, 0])), [0, 2])
    assert share.held(path) == held
