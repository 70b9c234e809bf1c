"""The online n-gram model: what it learns, how it backs off, which tree it proposes."""

from __future__ import annotations

import random

import pytest

from ladecli.decoder import ngram_model
from ladecli.decoder.ngram_model import (
    CHILDREN,
    ORDER,
    SOURCE_OF_KIND,
    SUCCESSORS,
    Guide,
    NgramModel,
)
from ladecli.decoder.step_cost import CostCurve, StepCost
from ladecli.decoder.tree import ROOT, TokenTree


def taught(*texts: list[int], source: str = "context") -> NgramModel:
    model = NgramModel()
    for text in texts:
        for end in range(1, len(text)):
            context = model.context_of(text[:end])
            model.learn(context, min(end, ORDER), text[end], 1.0, source)
    return model


def best(model: NgramModel, *context: int) -> list[int]:
    return [token for _, token, _ in model.successors(model.context_of(context))]


def free(nodes: int) -> CostCurve:
    """Nodes cost nothing."""
    return StepCost().curve(0, 1, nodes, ())


def priced(nodes: int, token: float) -> CostCurve:
    """Every node costs the same."""
    return StepCost((1, 2), (0,), ((1.0, 1.0 + token),)).curve(0, 1, nodes, ())


def recycle(model: NgramModel, context: list[int], orders: int, row: dict[int, float]) -> None:
    model.recycle(model.recycled, model.keys([model.context_of(context)], orders), [row])


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The path to every node, in the order of the nodes."""
    found: list[tuple[int, ...]] = []
    for parent, token in zip(tree.parents, tree.tokens, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return found


def test_the_longest_context_speaks_first() -> None:
    model = taught(*[[1, 2, 3]] * 4, *[[9, 2, 4]] * 4)
    assert best(model, 2)[0] == 4
    assert best(model, 1, 2)[0] == 3
    assert best(model, 9, 2)[0] == 4


def test_new_evidence_outweighs_old() -> None:
    model = taught(*[[1, 2]] * 3, *[[1, 3]] * 3)
    assert best(model, 1) == [3, 2]


def test_probabilities_are_probabilities() -> None:
    model = taught([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 2])
    recycle(model, [1, 2], 2, {8: 0.6, 3: 0.3})
    for context in ([1], [2], [1, 2], [4, 1, 2], [7], [3, 1, 2]):
        ranked = model.successors(model.context_of(context))
        shares = [probability for probability, _, _ in ranked]
        assert shares == sorted(shares, reverse=True)
        assert 0.0 <= sum(shares) <= 1.0 + 1e-9


def test_recycled_successors_fill_what_was_never_seen() -> None:
    model = NgramModel()
    recycle(model, [1, 2], 2, {5: 0.8, 6: 0.1})
    ranked = model.successors(model.context_of([2]))
    assert [(token, SOURCE_OF_KIND[kind]) for _, token, kind in ranked] == [
        (5, "recycled"),
        (6, "recycled"),
    ]
    assert ranked[0][0] == pytest.approx(8 * ranked[1][0])
    # A pair has its own row, and the last token's comes behind it.
    recycle(model, [3, 2], 2, {7: 0.5})
    assert best(model, 1, 2)[0] == 5
    assert best(model, 3, 2)[0] == 7


def test_what_the_model_said_behind_the_same_four_tokens_is_nearly_certain() -> None:
    model = taught(*[[1, 2, 3, 4, 9]] * 3)
    recycle(model, [1, 2, 3, 4], 4, {5: 0.9, 6: 0.05})
    assert best(model, 1, 2, 3, 4) == [5, 6]
    assert best(model, 7, 2, 3, 4)[0] == 5
    assert model.successors(model.context_of([1, 2, 3, 4]))[0][0] > 0.8


def test_guesses_of_the_window_stand_behind_what_a_candidate_saw() -> None:
    model = NgramModel()
    model.recycle(model.guessed, model.keys([model.context_of([2])], 1), [{8: 0.9}])
    assert best(model, 2) == [8]
    assert SOURCE_OF_KIND[model.successors(model.context_of([2]))[0][2]] == "trajectory"
    recycle(model, [2], 1, {5: 0.9})
    assert best(model, 2) == [5]


def test_the_source_is_the_one_that_knew_the_longest_context() -> None:
    model = taught([1, 2, 3])
    model.learn(model.context_of([2]), 1, 3, 0.25, "trajectory")
    for context, source in (([1, 2], "context"), ([8, 2], "trajectory")):
        _, token, kind = model.successors(model.context_of(context))[0]
        assert (token, SOURCE_OF_KIND[kind]) == (3, source)


def test_a_guide_leads_along_its_passage() -> None:
    model, passage = NgramModel(), list(range(10, 40))
    tree = model.tree(model.context_of([9]), 99, free(20), Guide(passage, 0, 30, 0.9))
    assert tree.tokens == passage[:20]
    assert tree.depths == list(range(1, 21))
    assert set(tree.sources) == {"context"}
    # It ends where it is told to.
    tree = model.tree(model.context_of([9]), 99, free(20), Guide(passage, 25, 28, 0.9))
    assert tree.tokens == passage[25:28]


def test_a_guide_is_left_where_another_token_is_tried() -> None:
    model = NgramModel()
    recycle(model, [9], 1, {50: 1.0})
    tree = model.tree(model.context_of([9]), 99, free(20), Guide([10, 11], 0, 2, 0.5))
    assert set(paths(tree)) == {(10,), (10, 11), (50,)}


def test_the_tree_holds_the_most_probable_prefixes() -> None:
    model = taught([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6])
    recycle(model, [6], 1, {1: 0.6, 4: 0.4})
    tree = model.tree(model.context_of([5, 6]), 99, free(9))
    found = paths(tree)
    assert (1, 2, 3) in found
    assert (4,) in found
    assert len(found) == 9
    # Parents come first, and every prefix of a path is there.
    for path in found:
        assert len(path) == 1 or path[:-1] in found[: found.index(path)]


@pytest.mark.parametrize(("nodes", "depth"), [(0, 9), (1, 9), (9, 0), (9, 1), (40, 3)])
def test_limits(nodes: int, depth: int) -> None:
    model = taught([1, 2, 3, 1, 2, 4, 1, 3, 2, 1, 2, 3, 4])
    tree = model.tree(model.context_of([1]), depth, free(nodes))
    assert len(tree) <= nodes
    assert max(tree.depths, default=0) <= depth
    assert all(tree.parents.count(node) <= CHILDREN for node in range(ROOT, len(tree)))


def test_nodes_that_do_not_pay_are_left_out() -> None:
    model = taught(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12)
    context = model.context_of([1, 2, 3, 4])
    sizes = [len(model.tree(context, 99, priced(99, cost))) for cost in (0.0, 0.02, 0.2, 0.9, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[-1] == 0


def test_a_dear_first_node_pays_where_cheap_ones_follow() -> None:
    """The size is chosen as a whole: costs may jump and then rise slowly."""
    model = taught(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12)
    context = model.context_of([1, 2, 3, 4])
    jump = StepCost((1, 2, 9), (0,), ((1.0, 3.5, 3.6),))
    assert len(model.tree(context, 99, jump.curve(0, 1, 8, ()))) > 4
    assert len(model.tree(context, 99, jump.curve(0, 1, 1, ()))) == 0


def test_static_widths_are_filled() -> None:
    model = taught([1, 2, 3, 1, 2, 4, 1, 3, 2, 1, 2, 3, 4, 1, 4, 2])
    context = model.context_of([1, 2])
    free_to_eight = StepCost((1, 4, 64), (0,), ((1.0, 1.2, 9.0),)).curve(0, 1, 20, (1, 4, 8))
    assert len(model.tree(context, 99, free_to_eight)) in (3, 7)


def test_improbable_paths_end_quietly() -> None:
    """Probabilities underflow on long repeated texts and where logits are very peaked."""
    model = taught([7] * 50)
    tree = model.tree(model.context_of([7] * 4), 5000, free(5000))
    assert 50 < len(tree) <= 5000
    recycle(model, [3], 1, {4: 1.0, 5: 0.0, 6: 0.0})
    assert best(model, 3)[0] == 4
    model.tree(model.context_of([3]), 9, free(50))


def test_evidence_that_promises_too_much_is_trusted_less() -> None:
    model = NgramModel()
    recycle(model, [1], 1, {2: 0.9})
    recycle(model, [2], 1, {3: 0.9})
    context = model.context_of([1])
    assert len(model.tree(context, 9, priced(9, 0.3))) == 2
    for _ in range(60):
        model.tree(context, 9, free(9))
        model.judge([99], [])
    assert len(model.tree(context, 9, priced(9, 0.3))) == 0
    # It wins trust back though it is not drafted any more.
    for _ in range(200):
        model.tree(context, 9, priced(9, 0.3))
        model.judge([2], [])
    assert len(model.tree(context, 9, priced(9, 0.3))) == 2


def test_the_margin_tells_what_one_more_node_was_worth() -> None:
    model = NgramModel()
    recycle(model, [1], 1, {2: 0.6, 3: 0.3})
    context = model.context_of([1])
    model.tree(context, 1, free(1))
    assert model.margin == pytest.approx(model.successors(context)[0][0])
    model.tree(context, 1, free(9))
    assert model.margin == 0.0, "there was room for more"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_model, "CONTEXTS", 10)
    model = taught(list(range(1000)))
    for token in range(100):
        recycle(model, [token], 1, {token: 1.0})
    assert all(len(table) <= 10 for table in [*model.counted, *model.recycled])
    assert best(model, 997, 998) == [999]
    for token in range(50):
        model.learn(model.context_of([5]), 1, token, 1.0, "context")
    assert len(model.counted[1][5].weights) == SUCCESSORS


def test_a_smaller_tree_is_the_beginning_of_a_larger_one() -> None:
    """What waits is only given up where there is no room for it."""
    text = random.Random(1).choices(range(12), k=400)
    model = taught(text)
    for start in range(0, 90, 9):
        context = model.context_of(text[start : start + ORDER])
        large = paths(model.tree(context, 99, free(60)))
        small = model.tree(context, 99, free(30))
        same = sum(path in large[:30] for path in paths(small))
        assert len(small) == 30
        assert same >= 28
