"""The online n-gram model: what it learns, how it backs off, which tree it proposes."""

from __future__ import annotations

import random

import pytest

from ladecli.decoder.ngrams import SOURCE_OF_KIND, Guide, NgramModel, tables
from ladecli.decoder.ngrams.kernels import CHILDREN, ORDER, SUCCESSORS
from ladecli.decoder.step_cost import CostCurve, StepCost
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import ROOT, TokenTree


def taught(*texts: list[int], source: str = "context") -> NgramModel:
    model = NgramModel()
    for text in texts:
        model.learn([text], 1, 1.0, source)
    return model


def best(model: NgramModel, *text: int) -> list[int]:
    return [token for _, token, _ in model.successors(text)]


def free(nodes: int) -> CostCurve:
    """Nodes cost nothing."""
    return StepCost().curve(0, 1, nodes, ())


def priced(nodes: int, token: float) -> CostCurve:
    """Every node costs the same."""
    return StepCost((1, 2), (0,), ((1.0, 1.0 + token),)).curve(0, 1, nodes, ())


def recycle(model: NgramModel, text: list[int], row: dict[int, float]) -> None:
    model.recycle(text, TokenTree(), Successors.of([row]))


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
    recycle(model, [1, 2], {8: 0.6, 3: 0.3})
    for context in ([1], [2], [1, 2], [4, 1, 2], [7], [3, 1, 2]):
        ranked = model.successors(context)
        shares = [probability for probability, _, _ in ranked]
        assert shares == sorted(shares, reverse=True)
        assert 0.0 <= sum(shares) <= 1.0 + 1e-9


def test_recycled_successors_fill_what_was_never_seen() -> None:
    model = NgramModel()
    recycle(model, [1, 2], {5: 0.8, 6: 0.1})
    ranked = model.successors([2])
    assert [(token, SOURCE_OF_KIND[kind]) for _, token, kind in ranked] == [
        (5, "recycled"),
        (6, "recycled"),
    ]
    assert ranked[0][0] == pytest.approx(8 * ranked[1][0])
    # A pair has its own row, and the last token's comes behind it.
    recycle(model, [3, 2], {7: 0.5})
    assert best(model, 1, 2)[0] == 5
    assert best(model, 3, 2)[0] == 7


def test_what_the_model_said_behind_the_same_four_tokens_is_nearly_certain() -> None:
    model = taught(*[[1, 2, 3, 4, 9]] * 3)
    recycle(model, [1, 2, 3, 4], {5: 0.9, 6: 0.05})
    assert best(model, 1, 2, 3, 4) == [5, 6]
    assert best(model, 7, 2, 3, 4)[0] == 5
    assert model.successors([1, 2, 3, 4])[0][0] > 0.8


def test_guesses_of_the_window_stand_behind_what_a_candidate_saw() -> None:
    model = NgramModel()
    model.guess([(1, 2)], Successors.of([{8: 0.9}]))
    assert best(model, 2) == [8]
    assert SOURCE_OF_KIND[model.successors([2])[0][2]] == "trajectory"
    recycle(model, [2], {5: 0.9})
    assert best(model, 2) == [5]


def test_the_source_is_the_one_that_knew_the_longest_context() -> None:
    model = taught([1, 2, 3])
    model.learn([[2, 3]], 1, 0.25, "trajectory")
    for context, source in (([1, 2], "context"), ([8, 2], "trajectory")):
        _, token, kind = model.successors(context)[0]
        assert (token, SOURCE_OF_KIND[kind]) == (3, source)


def test_a_guide_leads_along_its_passage() -> None:
    model, passage = NgramModel(), list(range(10, 40))
    tree = model.tree([9], 99, free(20), Guide(passage, 0, 30, 0.9))
    assert tree.tokens == passage[:20]
    assert tree.depths == list(range(1, 21))
    assert set(tree.sources) == {"context"}
    # It ends where it is told to.
    tree = model.tree([9], 99, free(20), Guide(passage, 25, 28, 0.9))
    assert tree.tokens == passage[25:28]


def test_a_guide_is_left_where_another_token_is_tried() -> None:
    model = NgramModel()
    recycle(model, [9], {50: 1.0})
    tree = model.tree([9], 99, free(20), Guide([10, 11], 0, 2, 0.5))
    assert set(paths(tree)) == {(10,), (10, 11), (50,)}


def test_the_tree_holds_the_most_probable_prefixes() -> None:
    model = taught([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6])
    recycle(model, [6], {1: 0.6, 4: 0.4})
    tree = model.tree([5, 6], 99, free(9))
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
    tree = model.tree([1], depth, free(nodes))
    assert len(tree) <= nodes
    assert max(tree.depths, default=0) <= depth
    assert all(tree.parents.count(node) <= CHILDREN for node in range(ROOT, len(tree)))


def test_nodes_that_do_not_pay_are_left_out() -> None:
    model = taught(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12)
    context = [1, 2, 3, 4]
    sizes = [len(model.tree(context, 99, priced(99, cost))) for cost in (0.0, 0.02, 0.2, 0.9, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[-1] == 0


def test_a_dear_first_node_pays_where_cheap_ones_follow() -> None:
    """The size is chosen as a whole: costs may jump and then rise slowly."""
    model = taught(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12)
    context = [1, 2, 3, 4]
    jump = StepCost((1, 2, 9), (0,), ((1.0, 3.5, 3.6),))
    assert len(model.tree(context, 99, jump.curve(0, 1, 8, ()))) > 4
    assert len(model.tree(context, 99, jump.curve(0, 1, 1, ()))) == 0


def test_static_widths_are_filled() -> None:
    model = taught([1, 2, 3, 1, 2, 4, 1, 3, 2, 1, 2, 3, 4, 1, 4, 2])
    context = [1, 2]
    free_to_eight = StepCost((1, 4, 64), (0,), ((1.0, 1.2, 9.0),)).curve(0, 1, 20, (1, 4, 8))
    assert len(model.tree(context, 99, free_to_eight)) in (3, 7)


def test_improbable_paths_end_quietly() -> None:
    """Probabilities underflow on long repeated texts and where logits are very peaked."""
    model = taught([7] * 50)
    tree = model.tree([7] * 4, 5000, free(5000))
    assert 50 < len(tree) <= 5000
    recycle(model, [3], {4: 1.0, 5: 0.0, 6: 0.0})
    assert best(model, 3)[0] == 4
    model.tree([3], 9, free(50))


def test_evidence_that_promises_too_much_is_trusted_less() -> None:
    model = NgramModel()
    recycle(model, [1], {2: 0.9})
    recycle(model, [2], {3: 0.9})
    context = [1]
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
    recycle(model, [1], {2: 0.6, 3: 0.3})
    context = [1]
    model.tree(context, 1, free(1))
    assert model.margin == pytest.approx(model.successors(context)[0][0])
    model.tree(context, 1, free(9))
    assert model.margin == 0.0, "there was room for more"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CONTEXTS", 10)
    model = taught(list(range(1000)))
    for token in range(100):
        recycle(model, [token], {token: 1.0})
    assert max(*model.counted.sizes, *model.ranked.sizes) <= 10
    assert best(model, 997, 998) == [999]
    assert best(model, 3, 4) == []
    for token in range(50):
        model.learn([[5, token]], 1, 1.0, "context")
    counted = model.counted.entries(1)
    (entry,) = counted[counted["low"] == 5]
    assert sorted(entry["tokens"]) == list(range(50 - SUCCESSORS, 50))


def test_guesses_make_room_for_themselves() -> None:
    model = NgramModel()
    pairs = [(token, 1000 + token) for token in range(300)]
    for first in range(0, 300, 10):
        model.guess(pairs[first : first + 10], Successors.of([{5: 0.5}] * 10))
    assert model.ranked.sizes == [0, 300, 300, 0, 0]
    assert model.ranked.arrays[0].shape[1] >= 300


def test_what_was_forgotten_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are used again: nothing of what they counted before may be left."""
    monkeypatch.setattr(tables, "CONTEXTS", 16)
    model = taught(*[[*range(1, 9)]] * 9, *([*range(n, n + 8)] for n in range(100, 160, 8)))
    fresh = taught([*range(156, 164)])
    for context in ([158], [158, 159], [157, 158, 159], [156, 157, 158, 159]):
        assert fresh.successors(context)
        assert model.successors(context) == fresh.successors(context)


def test_a_smaller_tree_is_the_beginning_of_a_larger_one() -> None:
    """What waits is only given up where there is no room for it."""
    text = random.Random(1).choices(range(12), k=400)
    model = taught(text)
    for start in range(0, 90, 9):
        context = text[start : start + ORDER]
        large = paths(model.tree(context, 99, free(60)))
        small = model.tree(context, 99, free(30))
        same = sum(path in large[:30] for path in paths(small))
        assert len(small) == 30
        assert same >= 28
