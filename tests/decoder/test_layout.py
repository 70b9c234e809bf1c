"""Candidate trees, token order, positions and visibility of a step, and the walk that accepts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder import layout as layouts
from ladecli.decoder.layout import StepLayout, build_chunk
from ladecli.decoder.tree import TokenTree
from tests.support.decoding import paths_of

CANDIDATES = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8)


def tree_of(candidates: list[list[int]], limit: int = 99) -> TokenTree:
    tree = TokenTree()
    for number, candidate in enumerate(candidates):
        tree.add(candidate, f"source {number}", limit)
    return tree


@given(CANDIDATES, st.integers(0, 20))
def test_a_tree_is_the_set_of_prefixes(candidates: list[list[int]], limit: int) -> None:
    tree = tree_of(candidates, limit)
    paths = [tuple(tree.tokens[n] for n in path) for path in paths_of(tree)]
    assert len({*paths}) == len(paths) <= limit
    prefixes = {tuple(c[:end]) for c in candidates for end in range(1, len(c) + 1)}
    assert {*paths} == prefixes if len(prefixes) <= limit else {*paths} < prefixes
    for node, path in enumerate(paths):
        assert tree.parents[node] < node, "parents come before their children"
        assert tree.depths[node] == len(path)
        assert tree.child(tree.parents[node], path[-1]) == node
        first = next(n for n, c in enumerate(candidates) if tuple(c[: len(path)]) == path)
        assert tree.sources[node] == f"source {first}", "the source that proposed it first"
        assert tree.child(node, 77) is None


def dense(step: StepLayout) -> list[set[int]]:
    """Return the tokens of the step that each token sees."""
    return [{*np.flatnonzero(row).tolist()} for row in layouts.dense(step.rows)]


@pytest.mark.parametrize("anchor", [None, 90])
def test_a_chunk_is_causal_and_an_anchor_is_seen_by_no_other(anchor: int | None) -> None:
    step = build_chunk([1, 2, 3], 4, anchor)
    assert (step.outputs, step.pending) == ([], 3)
    assert step.positions == [4, 5, 6, *([90] if anchor else [])]
    assert dense(step) == [{0}, {0, 1}, {0, 1, 2}, *([{3}] if anchor else [])]


@given(CANDIDATES, st.integers(0, 10**6))
def test_the_walk_follows_the_models_own_tokens(candidates: list[list[int]], seed: int) -> None:
    tree = tree_of(candidates)

    def chosen(path: tuple[int, ...]) -> int:
        return random.Random(hash((seed, path))).randrange(5)

    calls: list[int] = []

    def choose(row: int, path: list[int]) -> int:
        calls.append(row)
        assert path == [tree.tokens[node] for node in ([], *paths_of(tree))[row]]
        return chosen(tuple(path))

    nodes, tokens = tree.walk(choose)
    # The tokens that plain decoding would choose, one after the other.
    text: tuple[int, ...] = ()
    for _ in tokens:
        text += (chosen(text),)
    assert tuple(token.id for token in tokens) == text
    assert len(tokens) == len(nodes) + 1
    assert calls == [0, *(node + 1 for node in nodes)]
    assert [token.source for token in tokens] == [*(tree.sources[node] for node in nodes), None]
    # The walk continued as long as any candidate did.
    assert not any(tuple(c[: len(text)]) == text for c in candidates)
