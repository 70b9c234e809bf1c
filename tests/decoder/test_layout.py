"""Token order, positions and visibility of a step."""

from __future__ import annotations

import random

import numpy as np

from ladecli.decoder import bits
from ladecli.decoder.layout import Draft, build, build_chunk
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.window import LookaheadWindow


def tree_of(*candidates: tuple[int, ...], limit: int = 99) -> TokenTree:
    tree = TokenTree()
    for candidate in candidates:
        tree.add(candidate, "trajectory", limit)
    return tree


def test_common_prefixes_are_merged() -> None:
    tree = tree_of((5, 6, 7), (5, 6, 8), (9,))
    assert tree.tokens == [5, 6, 7, 8, 9]
    assert tree.parents == [ROOT, 0, 1, 1, ROOT]
    assert tree.depths == [1, 2, 3, 3, 1]
    assert tree.child(1, 8) == 3
    assert tree.child(ROOT, 8) is None


def test_a_full_tree_takes_known_prefixes_only() -> None:
    tree = tree_of((5, 6), (5, 7), (8,), limit=3)
    assert tree.tokens == [5, 6, 7]


def test_plain_step_needs_no_mask() -> None:
    step = build([42], 10, Draft())
    assert (step.tokens, step.positions, step.outputs) == ([42], [10], [0])
    assert step.visible is None


def test_chunk_is_causal_and_wants_no_outputs() -> None:
    step = build_chunk([1, 2, 3], 4)
    assert step.positions == [4, 5, 6]
    assert step.outputs == []
    assert step.visible is not None
    assert np.array_equal(step.visible, np.tri(3, dtype=bool))


def test_an_anchor_is_seen_by_nobody() -> None:
    step = build_chunk([1, 2], 4, anchor=90)
    assert step.positions == [4, 5, 90]
    assert step.visible is not None
    assert step.visible.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_pending_tree_and_window_see_what_they_should() -> None:
    window = LookaheadWindow(2, 3, [1], random.Random(0))
    window.advance([2, 3, 4])
    block = window.block(41)
    step = build([40, 41], 10, Draft(tree_of((5, 6), (5, 7)), block))
    assert step.tokens == [40, 41, 5, 6, 7, *block.tokens]
    assert step.positions == [10, 11, 12, 13, 13, 12, 12, 13]
    assert step.outputs == [1, 2, 3, 4, 6, 7]
    assert step.visible is not None
    seen = [set(np.flatnonzero(row).tolist()) for row in step.visible]
    pending = {0, 1}
    assert seen[:2] == [{0}, {0, 1}]
    assert seen[2:5] == [pending | {2}, pending | {2, 3}, pending | {2, 4}]
    assert seen[5:] == [pending | {5}, pending | {6}, pending | {5, 7}]


def test_padding_sees_itself_and_is_seen_by_nobody() -> None:
    step = build([40, 41], 10, Draft(tree_of((5, 6)), width=7))
    assert len(step.tokens) == 7
    assert step.outputs == [1, 2, 3]
    assert step.positions[4:] == [11, 11, 11]
    assert step.visible is not None
    assert np.array_equal(step.visible[4:, :], np.eye(7, dtype=bool)[4:])
    assert not step.visible[:4, 4:].any()
    # A plain step may be padded too, and one that is wide enough is not.
    assert len(build([42], 10, Draft(width=4)).tokens) == 4
    assert len(build([40, 41], 10, Draft(tree_of((5, 6)), width=3)).tokens) == 4


def test_long_paths_stay_whole_in_the_mask() -> None:
    """The paths are packed into bits: they must not end at a byte or a machine word."""
    tree = TokenTree()
    tree.add(list(range(150)), "x", 150)
    tree.add([0, 1, 999], "x", 151)
    step = build([7], 0, Draft(tree))
    assert step.visible is not None
    assert np.array_equal(step.visible[:151, :151], np.tri(151, dtype=bool))
    assert np.flatnonzero(step.visible[151]).tolist() == [0, 1, 2, 151]


def test_bits_say_what_the_mask_says() -> None:
    """Words end within rows of every width, and the highest bit of a word is a sign."""
    for width in (1, 2, 31, 32, 33, 64, 65, 130):
        tree = tree_of(tuple(range(width - 1)), (3,))
        step = build([7], 0, Draft(tree))
        count = len(step.tokens)
        visible = np.ones((1, 1)) if step.visible is None else step.visible
        for words in (-(-count // 32), 7):
            packed = np.frombuffer(bits.packed(step.rows, words), np.uint8)
            whole = np.unpackbits(packed.reshape(count, 4 * words), axis=1, bitorder="little")
            assert np.array_equal(whole[:, :count], visible)
            assert not whole[:, count:].any()


def test_a_window_without_cells_has_an_empty_mask() -> None:
    block = LookaheadWindow(1, 2, [1], random.Random(0)).block(7)
    assert block.visible.shape == (0, 0)
    step = build([7], 0, Draft(window=block))
    assert (step.tokens, step.outputs, step.visible) == ([7], [0, 0], None)
