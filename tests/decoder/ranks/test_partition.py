"""Partitions: some rank computes every node and column, with all tokens that it sees."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.ranks.partition import Share, partition
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.window import LookaheadWindow, WindowBlock


def tree_of(parents: list[int]) -> TokenTree:
    tree = TokenTree()
    for number, parent in enumerate(parents):
        tree.grow(parent, 100 + number, f"source {number}")
    return tree


def block_of(window: int, ngram: int, filled: bool = True) -> WindowBlock:
    lookahead = LookaheadWindow(window, ngram, range(1000))
    rng = random.Random(5)
    while filled and not lookahead.filled:
        lookahead.advance([rng.randrange(1000) for _ in lookahead.rows[0]])
    return lookahead.block(7)


def width_of(share: Share) -> int:
    """Return the tokens that a rank feeds for its share, the current one included."""
    window = share.draft.window
    return 1 + len(share.draft.tree) + (len(window.tokens) if window else 0)


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Draft, list[int]]:
    size = draw(st.integers(0, 40))
    parents = [draw(st.integers(max(ROOT, i - 9), i - 1)) if i else ROOT for i in range(size)]
    window = None
    if draw(st.booleans()):
        window = block_of(draw(st.integers(1, 9)), draw(st.integers(2, 6)), draw(st.booleans()))
    loads = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    limit = draw(st.integers(1, 60))
    widths = draw(st.sampled_from([(), (1, 4, 9, 16, 30, 60)]))
    return Draft(tree_of(parents), window, limit=limit, successors=2, widths=widths), loads


def seen_by(block: WindowBlock, cell: int) -> list[tuple[int, int]]:
    """Return the tokens and offsets that a cell sees, without the current token."""
    row = block.seen[cell] if cell >= 0 else 0
    return [(block.tokens[i], block.offsets[i]) for i in range(len(block.tokens)) if row >> i & 1]


@given(drafts())
def test_every_node_and_column_is_computed_within_the_limit(case: tuple[Draft, list[int]]) -> None:
    draft, loads = case
    cut_down, shares = partition(draft, loads)
    whole, window = cut_down.tree, cut_down.window
    # Nodes without room are those that were added last.
    assert whole.tokens == draft.tree.tokens[: len(whole)]
    assert whole.parents == draft.tree.parents[: len(whole)]
    assert {node for share in shares for node in share.nodes} == {*range(len(whole))}
    leaves = {*range(len(whole))} - {*whole.parents}
    assert sum(len(leaves & {*share.nodes}) for share in shares) == len(leaves)
    assert window in (None, draft.window)
    columns = [column for share in shares for column in share.columns]
    assert columns == [*range(len(window.last_row) if window else 0)]
    for share, load in zip(shares, loads, strict=True):
        tree, part = share.draft.tree, share.draft.window
        assert [*share.nodes] == sorted({*share.nodes})
        for own, node in enumerate(share.nodes):
            above = tree.parents[own]
            assert (share.nodes[above] if above != ROOT else ROOT) == whole.parents[node]
            assert tree.tokens[own] == whole.tokens[node]
            assert tree.depths[own] == whole.depths[node]
            assert tree.sources[own] == whole.sources[node]
        assert (part is None) == (not share.columns)
        for own, column in enumerate(share.columns):
            assert seen_by(part, part.last_row[own]) == seen_by(window, window.last_row[column])
        width = width_of(share) - 1 + load
        assert width_of(share) == 1 or width <= draft.limit
        assert width <= share.draft.width
        if draft.widths and width <= draft.widths[-1]:
            assert share.draft.width in draft.widths


@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.integers(ROOT, i - 1) for i in range(n)]))
)
def test_the_widest_share_is_as_narrow_as_possible(parents: tuple[int]) -> None:
    """Compare with all ways to cut the leaves of a small tree, in depth-first order, into three."""
    tree = tree_of([*parents])
    paths: list[tuple[int, ...]] = []

    def walk(path: tuple[int, ...]) -> None:
        below = [n for n, parent in enumerate(parents) if parent == (path[-1] if path else ROOT)]
        for node in below:
            walk((*path, node))
        if not below:
            paths.append(path)

    walk(())
    best = len(tree) + 1
    for first, second in combinations_with_replacement(range(len(paths) + 1), 2):
        parts = paths[:first], paths[first:second], paths[second:]
        best = min(best, max(1 + len({n for path in part for n in path}) for part in parts))
    assert max(map(width_of, partition(Draft(tree), [1, 1, 1])[1])) == best


def test_a_window_that_does_not_fit_leaves_its_room_to_candidates() -> None:
    window = block_of(9, 5)
    cut_down, _ = partition(Draft(tree_of([ROOT] * 20), window, limit=11), [1, 1])
    assert cut_down.window is None
    assert len(cut_down.tree) == 20
    # Three ranks have room for it.
    assert partition(Draft(tree_of([]), window, limit=24), [1, 1, 1])[0].window is window
