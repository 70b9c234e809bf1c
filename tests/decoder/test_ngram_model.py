"""The online n-gram model: what it learns, how it backs off, which tree it proposes."""

from __future__ import annotations

import pytest

from ladecli.decoder import ngram_model
from ladecli.decoder.ngram_model import CHILDREN, ORDER, SUCCESSORS, NgramModel
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
    model.recycle(model.context_of([1, 2]), 2, [(0.6, 8), (0.3, 3)])
    for context in ([1], [2], [1, 2], [4, 1, 2], [7], [3, 1, 2]):
        ranked = model.successors(model.context_of(context))
        shares = [probability for probability, _, _ in ranked]
        assert shares == sorted(shares, reverse=True)
        assert 0.0 <= sum(shares) <= 1.0 + 1e-9


def test_recycled_successors_fill_what_was_never_seen() -> None:
    model = NgramModel()
    model.recycle(model.context_of([1, 2]), 2, [(0.8, 5), (0.1, 6)])
    assert model.successors(model.context_of([2])) == [
        (pytest.approx(0.8), 5, "recycled"),
        (pytest.approx(0.1), 6, "recycled"),
    ]
    # A pair has its own row, and the last token's comes behind it.
    model.recycle(model.context_of([3, 2]), 2, [(0.5, 7)])
    assert best(model, 1, 2)[0] == 5
    assert best(model, 3, 2)[0] == 7


def test_the_source_is_the_one_that_knew_the_longest_context() -> None:
    model = taught([1, 2, 3])
    model.learn(model.context_of([2]), 1, 3, 0.25, "trajectory")
    assert model.successors(model.context_of([1, 2]))[0][1:] == (3, "context")
    assert model.successors(model.context_of([8, 2]))[0][1:] == (3, "trajectory")


def test_the_tree_holds_the_most_probable_prefixes() -> None:
    model = taught([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6])
    model.recycle(model.context_of([6]), 1, [(0.9, 1), (0.1, 4)])
    tree = model.tree(model.context_of([5, 6]), 6, 99, 0.0)
    found = paths(tree)
    assert (1, 2, 3) in found
    assert (4,) in found
    assert len(found) == 6
    # Parents come first, and every prefix of a path is there.
    for path in found:
        assert len(path) == 1 or path[:-1] in found[: found.index(path)]


@pytest.mark.parametrize(("nodes", "depth"), [(0, 9), (1, 9), (9, 0), (9, 1), (40, 3)])
def test_limits(nodes: int, depth: int) -> None:
    model = taught([1, 2, 3, 1, 2, 4, 1, 3, 2, 1, 2, 3, 4])
    tree = model.tree(model.context_of([1]), nodes, depth, 0.0)
    assert len(tree) <= nodes
    assert max(tree.depths, default=0) <= depth
    assert all(tree.parents.count(node) <= CHILDREN for node in range(ROOT, len(tree)))


def test_nodes_that_do_not_pay_are_left_out() -> None:
    model = taught(*[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 12)
    context = model.context_of([1, 2, 3, 4])
    sizes = [len(model.tree(context, 99, 99, cost)) for cost in (0.0, 0.02, 0.2, 0.9, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[-1] == 0


def test_improbable_paths_end_quietly() -> None:
    """Probabilities underflow on long repeated texts and where logits are very peaked."""
    model = taught([7] * 50)
    tree = model.tree(model.context_of([7] * 4), 5000, 5000, 0.0)
    assert len(tree) == 5000
    model.recycle(model.context_of([3]), 1, [(1.0, 4), (0.0, 5), (0.0, 6)])
    assert best(model, 3)[0] == 4
    model.tree(model.context_of([3]), 50, 9, 0.0)


def test_a_source_that_promises_too_much_is_trusted_less() -> None:
    model = NgramModel()
    model.recycle(model.context_of([1]), 1, [(0.9, 2)])
    model.recycle(model.context_of([2]), 1, [(0.9, 3)])
    context = model.context_of([1])
    assert len(model.tree(context, 9, 9, 0.2)) == 2
    for _ in range(30):
        model.judge(model.tree(context, 9, 9, 0.0), accepted=())
    assert len(model.tree(context, 9, 9, 0.2)) == 0
    # A record fades, and the source has another chance.
    for _ in range(200):
        model.judge(TokenTree(), accepted=())
    assert len(model.tree(context, 9, 9, 0.2)) == 2
    for _ in range(30):
        model.judge(model.tree(context, 9, 9, 0.0), accepted=(0, 1))
    assert len(model.tree(context, 9, 9, 0.8)) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_model, "CONTEXTS", 10)
    model = taught(list(range(1000)))
    for token in range(100):
        model.recycle(token, 1, [(1.0, token)])
    assert all(len(table) <= 10 for table in [*model._seen, *model._recycled])
    assert best(model, 997, 998) == [999]
    for token in range(50):
        model.learn(model.context_of([5]), 1, token, 1.0, "context")
    assert len(model._seen[1][5].weights) == SUCCESSORS
