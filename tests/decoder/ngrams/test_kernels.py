"""The compiled model does, number for number, what a plain one with dictionaries does."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder.layout import Draft
from ladecli.decoder.ngrams import SOURCE_OF_KIND, SOURCES, Guide, NgramModel
from ladecli.decoder.ngrams import kernels as k
from ladecli.decoder.parallel.wire import Kind, Message, Wire
from ladecli.decoder.readout import Readout, Rows, Wanted, pack
from ladecli.decoder.step_cost import CostCurve, StepCost
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import TokenTree

from .plain import PlainModel, Row

CURVES = [
    StepCost().curve(0, 1, 30, ()),
    StepCost((1, 64), (0,), ((1.0, 1.4),)).curve(0, 1, 60, (1, 8, 16, 61)),
    StepCost((1, 2, 40), (0,), ((1.0, 1.5, 3.0),)).curve(0, 1, 12, ()),
    CostCurve((1.0,), (0.0,)),
]


@dataclass
class Both:
    """Two models that are told the same."""

    rng: random.Random
    vocabulary: int
    compiled: NgramModel = field(default_factory=NgramModel)
    plain: PlainModel = field(default_factory=PlainModel)

    def tokens(self, count: int) -> list[int]:
        return [min(int(self.rng.paretovariate(0.6)), self.vocabulary) for _ in range(count)]

    def rows(self, count: int) -> list[Row]:
        """What a model might say: probabilities of half precision, in order, and some ties."""
        rows = []
        for _ in range(count):
            tokens = dict.fromkeys(self.tokens(self.rng.randrange(k.SUCCESSORS + 1)))
            shares = sorted((self.rng.randrange(64) / 256 for _ in tokens), reverse=True)
            rows.append(dict(zip(tokens, shares, strict=True)))
        return rows

    def learn(self) -> None:
        count, length = self.rng.choice([(1, 9), (4, 3), (5, 6), (1, 60)])
        rows = [self.tokens(length) for _ in range(count)]
        told = rows, self.rng.randrange(1, 5), self.rng.choice([0.25, 1.0])
        source = self.rng.choice(SOURCES)
        self.compiled.learn(*told, source)
        self.plain.learn(*told, source)

    def recycle(self) -> None:
        nodes = self.rng.randrange(20)
        text, tokens = self.tokens(self.rng.randrange(1, 7)), self.tokens(nodes)
        parents = [self.rng.randrange(-1, node) for node in range(nodes)]
        rows, tree = self.rows(nodes + 1), TokenTree(tokens, parents, [], [])
        self.compiled.recycle(text, tree, Successors.of(rows))
        self.plain.recycle(text, tokens, parents, rows)

    def guess(self) -> None:
        pairs = [tuple(self.tokens(2)) for _ in range(6)]
        rows = self.rows(6)
        self.compiled.guess([(first, second) for first, second in pairs], Successors.of(rows))
        self.plain.guess([(first, second) for first, second in pairs], rows)

    def step(self) -> None:
        """The same tree, and the same lesson from what became of it."""
        rng = self.rng
        text, depth, curve = self.tokens(rng.randrange(1, 8)), rng.randrange(9), rng.choice(CURVES)
        passage = self.tokens(12)
        guide = rng.choice([None, Guide(passage, rng.randrange(4), 9, 0.7)])
        lesson = rng.choice([1.0, 2.0])
        tree = self.compiled.tree(text, depth, curve, guide, lesson)
        tokens, parents, kinds = self.plain.tree(text, depth, curve, guide, lesson)
        assert (tree.tokens, tree.parents) == (tokens, parents)
        assert tree.sources == [SOURCE_OF_KIND[kind] for kind in kinds]
        assert self.compiled.margin == self.plain.margin
        # Down the first path, then off it.
        nodes: list[int] = []
        while rng.random() < 0.8:
            node = nodes[-1] if nodes else -1
            child = next((i for i, above in enumerate(parents) if above == node), None)
            if child is None:
                break
            nodes.append(child)
        committed = [*(tokens[node] for node in nodes), *self.tokens(1)]
        self.compiled.judge(committed, nodes)
        self.plain.judge(committed, nodes)
        assert self.compiled.promised.tolist() == self.plain.promised
        assert self.compiled.hits.tolist() == self.plain.hits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([3, 12, 300, (1 << k.BITS) - 1]))
def test_it_grows_the_trees_of_a_plain_model(seed: int, vocabulary: int) -> None:
    both = Both(random.Random(seed), vocabulary)
    for _ in range(40):
        for _ in range(3):
            both.rng.choice([both.learn, both.recycle, both.guess])()
        both.step()


def test_tables_grow_and_lose_nothing() -> None:
    model = NgramModel()
    texts = [random.Random(seed).choices(range(1, 900), k=700) for seed in range(3)]
    for text in texts:
        model.learn([text], 1, 1.0, "context")
    assert model.counted.arrays[0].shape[1] >= 2000, "it did not grow"
    for text in texts:
        for end in range(k.ORDER, len(text)):
            assert text[end] in [token for _, token, _ in model.successors(text[end - 4 : end])]


def test_contexts_that_differ_in_any_token_are_told_apart() -> None:
    """Also where their hashes collide: a table of a few entries has an index of a few places."""
    model = NgramModel()
    contexts = [[a, b, c, d] for a in (1, 9) for b in (1, 9) for c in (1, 9) for d in (1, 9)]
    highest = (1 << k.BITS) - 1
    contexts += [[highest] * 4, [highest, 1, 1, 1], [0, 0, 0, 1]]
    for number, context in enumerate(contexts):
        model.recycle(context, TokenTree(), Successors.of([{100 + number: 1.0}]))
    for number, context in enumerate(contexts):
        assert model.successors(context)[0][1] == 100 + number


def read_out() -> Successors:
    """What a step on a device shows."""
    words = pack(torch.randn(3, 9), k.SUCCESSORS, None, None).numpy()
    return Readout(words, Rows(None, [0, 2]), 3, Wanted(k.SUCCESSORS)).read().ranked


def sent() -> Successors:
    """What another rank has found."""
    wire, draft = Wire(9, k.SUCCESSORS), Draft(TokenTree([5], [-1], [1], ["context"]), successors=4)
    told = wire.pack(Message(Kind.FOUND, (0, 0), [1], [1, 2], read_out()), (0, 0))
    return wire.unpack(told, draft)[0].ranked


@pytest.mark.parametrize("origin", [read_out, sent, lambda: Successors.of([{1: 0.5}, {}])])
def test_whatever_arrays_come_the_kernels_are_compiled_once(
    origin: Callable[[], Successors],
) -> None:
    """Other types of numbers, strides or flags would mean seconds of compiling in mid-answer."""
    said = origin()
    model = NgramModel()
    for rows in ([[1, 2, 3]], ((4, 5), (5, 6)), [range(90)]):
        model.learn(rows, 1, 1.0, "context")
    model.learn([[7, 8]], np.int64(1), 1, "context")
    for tree in (TokenTree([5], [-1], [1], ["context"]), TokenTree([True], [-1], [1], ["context"])):
        model.recycle([1, 2, 3], tree, said)
        model.guess([(1, 2)], said.part(slice(1, None)))
        model.guess([], said.part(slice(2, None)))
        model.tree([1], 3, CURVES[0], Guide([1, 2, 3], 0, 3, 1), 2)
        model.tree([1], 3, CURVES[1])
        model.judge([1], [])
        model.judge((1, 2), (0,))
    for kernel in (k.count, k.answers, k.guesses, k.grow, k.judge):
        assert len(vars(kernel)["overloads"]) == 1, kernel


def test_nothing_is_left_to_compile_when_an_answer_begins() -> None:
    program = """
from ladecli.decoder.ngrams import NgramModel, kernels, prepare
from ladecli.decoder.ngrams.tables import START
from tests.decoder.ngrams.test_kernels import Both, random
prepare()
kernels_used = [k for k in vars(kernels).values() if hasattr(k, "overloads")]
before = [len(k.overloads) for k in kernels_used]
both = Both(random.Random(1), 900)
for _ in range(60):
    both.learn(); both.recycle(); both.guess(); both.step()
assert max(both.compiled.counted.sizes) > START and max(both.compiled.ranked.sizes) > START
assert [len(k.overloads) for k in kernels_used] == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize("row", [{}, {1: 0.5}, dict.fromkeys(range(1, 9), 0.1)])
def test_rows_of_any_length_are_kept_as_far_as_there_is_room(row: Row) -> None:
    model = NgramModel()
    model.recycle([5], TokenTree(), Successors.of([row]))
    found = [token for _, token, _ in model.successors([5])]
    assert sorted(found) == sorted(row)[: k.SUCCESSORS]


@pytest.mark.parametrize(("rows", "known"), [(9, 2), (2, 2), (1, 1), (0, 0)])
def test_no_more_rows_count_than_there_are_nodes(rows: int, known: int) -> None:
    model, said = NgramModel(), Successors.of([{1: 0.5}] * 9).part(slice(rows))
    model.recycle([1], TokenTree([2], [-1], [1], ["context"]), said)
    assert model.ranked.sizes == [0, known, 0, 0, 0]


@pytest.mark.parametrize(("rows", "known"), [(9, 3), (3, 3), (1, 1), (0, 0)])
def test_no_more_rows_count_than_there_are_pairs(rows: int, known: int) -> None:
    model, said = NgramModel(), Successors.of([{1: 0.5}] * 9).part(slice(rows))
    model.guess([(1, 2), (3, 4), (5, 6)], said)
    assert model.ranked.sizes == [0, known, known, 0, 0]
