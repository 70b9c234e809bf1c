"""Drafting: the n-gram model and its trees, what each source teaches, and what is remembered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.drafting import ngram_model
from ladecli.decoder.drafting.constants import CONSTANTS
from ladecli.decoder.drafting.copy_pointer import RepeatedSpan
from ladecli.decoder.drafting.ngram_model import NgramModel, Ranked, Row, pack
from ladecli.decoder.drafting.sources import BOUNDARY, Observation
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.drafting.suffix_automaton import SuffixAutomaton
from ladecli.decoder.drafting.tree_search import TreeSearch
from ladecli.decoder.step_cost import CostCurve, StepCost
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.decoder.strategy import State
from ladecli.decoder.tree import ROOT, TokenTree
from tests.support.decoding import run, steps_of
from tests.support.oracle import Markov, decoder_with

PASSAGE = list(range(100, 160))


def model_with(*texts: list[int]) -> NgramModel:
    model = NgramModel()
    for text in texts:
        model.learn([text], 1)
    return model


def recycle(model: NgramModel, text: list[int], row: Row) -> None:
    model.recycle(text, TokenTree(), [row])


def successors(model: NgramModel, *text: int) -> Ranked:
    return model.look_up(pack(text))[: CONSTANTS.max_children]


def best(model: NgramModel, *text: int) -> list[int]:
    return [token for _, token, _ in successors(model, *text)]


def grow(
    model: NgramModel,
    text: list[int],
    depth: int,
    curve: CostCurve,
    spans: Sequence[RepeatedSpan] = (),
) -> TokenTree:
    return TreeSearch(model, text, spans).grow(depth, curve)


def calibrate(model: NgramModel, text: list[int], curve: CostCurve, token: int) -> None:
    """Draft after a text, and calibrate by the token that it got."""
    search = TreeSearch(model, text)
    search.grow(9, curve)
    model.calibrate(search.looked_up, [token], [])


def priced(nodes: int, token: float = 0.0) -> CostCurve:
    """Return a curve of which every node costs the same."""
    return StepCost((1, 2), (0,), ((1.0, 1.0 + token),)).curve(0, 1, nodes, ())


def random_model(rng: random.Random, vocabulary: int) -> NgramModel:
    """Return a model that learned random evidence of every kind."""
    model = NgramModel()

    def tokens(count: int) -> list[int]:
        return [min(int(rng.paretovariate(0.6)), vocabulary) for _ in range(count)]

    def rows(count: int) -> list[Row]:
        drawn = [
            dict.fromkeys(tokens(rng.randrange(CONSTANTS.max_successors + 1))) for _ in range(count)
        ]
        return [{token: 0.5 / 2**i for i, token in enumerate(row)} for row in drawn]

    for _ in range(rng.randrange(30)):
        model.learn([tokens(60), tokens(9)], rng.randrange(1, 5))
        model.learn([tokens(4) for _ in range(5)], 1, window=True)
        parents = [rng.randrange(-1, node) for node in range(12)]
        model.recycle(tokens(5), TokenTree(tokens(12), parents, [], []), rows(13))
        calibrate(model, tokens(3), priced(20), *tokens(1))
    return model


def test_the_longest_context_decides() -> None:
    model = model_with(*[[1, 2, 3]] * 4, *[[9, 2, 4]] * 4)
    assert [best(model, *text)[0] for text in ([2], [1, 2], [9, 2])] == [4, 3, 4]
    assert best(model_with(*[[1, 3]] * 3, *[[1, 2]] * 3), 1) == [2, 3], "new evidence outweighs old"


def test_a_new_token_gets_evidence_from_other_new_tokens() -> None:
    model = NgramModel()
    recycle(model, [1, 2], {7: 0.6, 8: 0.3})
    recycle(model, [1, 3], {7: 0.5, 9: 0.4})
    assert best(model, 1, 4)[0] == 7, "both expected it"
    assert best(model, 1, 2) == [7, 8], "a known token speaks for itself"
    recycle(model, [1, 2], {5: 1.0})
    assert 5 not in best(model, 1, 4), "nothing new: a known token's answers are its own"


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    model = NgramModel()
    tokens = range(CONSTANTS.max_contexts + 5000)
    model.learn([tokens], 1)
    for start in range(0, len(tokens), 1000):
        some = tokens[start : start + 1000]
        tree = TokenTree(some, [ROOT] * len(some), [], [])
        model.recycle([7], tree, [{}, *({token + 1: 0.5} for token in some)])
    assert all(
        len(table) <= CONSTANTS.max_contexts for table in (*model.counts, *model.model_successors)
    )
    for order in (1, ngram_model.ORDER):
        table = model.counts[order]
        assert len(table) > 0.9 * CONSTANTS.max_contexts
        assert pack(tokens[-1 - order : -1]) in table
        assert pack(tokens[:order]) not in table
    for successor in range(50):
        model.learn([[5, successor]], 1)
    assert sorted(model.counts[1][5]) == [*range(50 - CONSTANTS.max_successors, 50)]


@pytest.mark.parametrize("seed", range(60))
def test_probabilities_and_trees_keep_their_limits(seed: int) -> None:
    rng = random.Random(seed)
    model = random_model(rng, rng.choice([3, 12, 300, (1 << 20) - 1]))
    nodes, depth, price = rng.randrange(71), rng.randrange(13), rng.random() / 2
    for _ in range(20):
        ranked = successors(model, *(rng.randrange(1, 9) for _ in range(rng.randrange(1, 6))))
        shares = [share for share, _, _ in ranked]
        assert shares == sorted(shares, reverse=True)
        assert all(share > 0.0 for share in shares)
        assert len({token for _, token, _ in ranked}) == len(ranked) <= CONSTANTS.max_children
        assert all(0 <= kind < ngram_model.KINDS for _, _, kind in ranked)
    passage = [rng.randrange(1, 6) for _ in range(20)]
    starts = [rng.randrange(9) for _ in range(rng.randrange(3))]
    spans = [RepeatedSpan(passage[start:15], [0.4, 0.7]) for start in starts]
    text = [rng.randrange(1, 4) for _ in range(4)]
    tree = grow(model, text, depth, priced(nodes, price), spans)
    assert len(tree) <= nodes
    assert max(tree.depths, default=0) <= depth
    siblings = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)
    for node, parent in enumerate(tree.parents):
        assert parent < node
        assert tree.depths[node] == (1 if parent == ROOT else tree.depths[parent] + 1)
    assert all(
        tree.parents.count(node) <= CONSTANTS.max_children for node in range(ROOT, len(tree))
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_at_higher_cost_is_a_prefix(seed: int) -> None:
    """Along known answers nodes come in order of probability."""
    rng, model = random.Random(seed), NgramModel()
    text = rng.choices(range(9), k=40)
    for end in range(1, len(text)):
        row = {text[end]: 0.6 + rng.random() / 5, 9 + rng.randrange(9): rng.random() / 5}
        recycle(model, text[:end], row)
    prices = sorted((rng.random(), rng.random()))
    cheap, dear = (grow(model, text[:20], 30, priced(40, price)) for price in prices)
    assert dear.tokens == cheap.tokens[: len(dear)]
    assert dear.parents == cheap.parents[: len(dear)]


def test_a_repeated_span_is_followed_to_its_end() -> None:
    for start, end, taken in ((0, 30, 20), (25, 28, 3)):
        tree = grow(NgramModel(), [9], 99, priced(20), [RepeatedSpan(PASSAGE[start:end], [0.9])])
        assert tree.tokens == PASSAGE[start:][:taken]
        assert tree.depths == [*range(1, taken + 1)]
        assert {*tree.sources} == {"context"}


def test_nodes_that_do_not_pay_are_left_out() -> None:
    model, text = model_with(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12), [1, 2, 3, 4]
    sizes = [len(grow(model, text, 99, priced(99, c))) for c in (0.0, 0.02, 0.2, 0.9, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[-1] == 0
    # The size is chosen as a whole: an expensive first node pays if cheap ones follow.
    jump = StepCost((1, 2, 9), (0,), ((1.0, 3.5, 3.6),))
    assert len(grow(model, text, 99, jump.curve(0, 1, 8, ()))) > 4
    assert len(grow(model, text, 99, jump.curve(0, 1, 1, ()))) == 0


def test_overestimated_probabilities_are_corrected() -> None:
    model, curve = NgramModel(), priced(9, 0.3)
    recycle(model, [1], {2: 0.9})
    recycle(model, [2], {3: 0.9})
    assert len(grow(model, [1], 9, curve)) == 2
    for _ in range(60):
        calibrate(model, [1], priced(9), 99)
    assert len(grow(model, [1], 9, curve)) == 0
    # It recovers even if it is not drafted any more, as far as it hits.
    for trial in range(300):
        calibrate(model, [1], curve, 2 if trial % 2 else 99)
    assert successors(model, 1)[0][0] == pytest.approx(0.5, abs=0.02)
    for _ in range(200):
        calibrate(model, [1], curve, 2)
    assert len(grow(model, [1], 9, curve)) == 2


def step(text: Sequence[int], new: int, rows: Sequence[Row] = ()) -> Observation:
    """Return a step without candidates that committed the last `new` tokens of `text`."""
    return Observation(text, new, TokenTree(), rows, ())


def store_with(*text: int) -> DraftStore:
    store = DraftStore()
    store.context.begin(text)
    return store


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40), st.data())
def test_a_continued_text_counts_every_token_once(text: list[int], data: st.DataObject) -> None:
    """This holds for any part that came as a prompt, and any accepted tokens."""
    store, end = DraftStore(), 0
    while end < len(text):
        start, end = end, data.draw(st.integers(end + 1, len(text)))
        if start and data.draw(st.booleans()):
            store.context.learn(step(text[:end], end - start))
        else:
            store.context.begin(text[:end])
    assert store.model.counts == store_with(*text).model.counts
    assert store.context.corpus.tokens == text


def test_a_fork_counts_only_tokens_after_the_common_part() -> None:
    store = store_with(1, 2, 3, 4)
    store.context.begin([1, 2, 7])
    store.context.begin([1, 2, 7, 8])
    pairs = {context: {*row} for context, row in store.model.counts[1].items()}
    assert pairs == {1: {2}, 2: {3, 7}, 3: {4}, 7: {8}}
    assert store.model.counts[1][1] == {2: 1.0}
    assert store.context.corpus.tokens == [1, 2, 3, 4, BOUNDARY, 1, 2, 7, 8]


def test_nothing_crosses_a_boundary() -> None:
    store = store_with(1, 2, 3, 4)
    store.context.begin([5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6])
    assert not store.context.repeated_spans()
    # The same text again, and further: the passage that it repeats ends at a boundary.
    store = store_with(*PASSAGE)
    store.context.begin(PASSAGE[:20])
    for end in (len(PASSAGE) - 5, len(PASSAGE)):
        store.context.begin(PASSAGE[:end])
        spans = store.context.repeated_spans()
        tree = grow(store.model, PASSAGE[:end], 20, priced(20), spans)
        assert BOUNDARY not in tree.tokens
        assert tree.tokens[: len(PASSAGE) - end] == PASSAGE[end:]
    store.context.learn(step([*PASSAGE, 7], 1))
    assert not any(store.context.pointer.trials), "a boundary broke no promise"


def search(tokens: list[int]) -> tuple[int, int]:
    """Return the length of the longest suffix that is in the text earlier, and its first end."""
    for length in range(len(tokens) - 1, 0, -1):
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == tokens[-length:]:
                return length, start + length
    return 0, 0


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_automaton_finds_what_a_search_finds(size: int) -> None:
    for seed in range(25):
        automaton, text = SuffixAutomaton(), random.Random(seed).choices(range(size), k=60)
        for end, token in enumerate(text, start=1):
            automaton.extend(token)
            assert automaton.longest_match() == search(text[:end]), text
        assert automaton.tokens == text


VOCABULARY = 1000


def test_an_interrupted_update_is_noticed() -> None:
    store = DraftStore()
    strategy = Lookahead(LookaheadConfig(sources=("context",)), store)
    strategy.begin(State([1, 2], 2))
    assert not store.broken

    class InterruptingList(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy.begin(State(InterruptingList([1, 2]), 2))
    assert store.broken


def test_drafts_use_the_noise() -> None:
    """If four tokens are equally probable, the noise determines which one is drawn."""
    rng = torch.Generator().manual_seed(2)
    table = torch.full((40, 40), -30.0)
    for row in table:
        row[torch.randperm(40, generator=rng)[:4]] = 0.0
    config = LookaheadConfig(1, 2, 1, 16, ("context", "recycled"))
    sampling = SamplingConfig(temperature=1.0, seed=9)
    decoder = decoder_with(Markov(table))
    steps = steps_of(run(decoder, [1], "lookahead", config, sampling, Limits(400)))
    # Without the noise, 15 nodes are 4 of the first level and 11 of the 16 of the second one.
    blind = 1 + 1 + 11 / 16
    assert sum(len(step.tokens) for step in steps[-40:]) / 40 > 1.5 * blind
