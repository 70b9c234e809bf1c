"""The draft sources: what each teaches the model, and when the text's own passages lead."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.events import Token
from ladecli.decoder.layout import Draft
from ladecli.decoder.ngrams import Guide, NgramModel
from ladecli.decoder.ngrams.kernels import ASKED, GUESSED, ORDER
from ladecli.decoder.observation import Observation
from ladecli.decoder.sources.context import BOUNDARY, FAITH, LENGTHS, OVERLAP
from ladecli.decoder.sources.trajectory import WEIGHT
from ladecli.decoder.step_cost import CostCurve
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.verify import Verdict
from ladecli.decoder.window import LookaheadWindow, WindowBlock

from .ngrams.contents import Row, contents

PASSAGE = list(range(100, 160))


def step(
    text: Sequence[int],
    new: int,
    tree: TokenTree | None = None,
    window: WindowBlock | None = None,
    ranked: Sequence[Row] = (),
) -> Observation:
    """A step that committed the last `new` tokens of `text`."""
    verdict = Verdict((), tuple(Token(token) for token in text[len(text) - new :]))
    return Observation(Draft(tree or TokenTree(), window), text, verdict, (), Successors.of(ranked))


def counted(model: NgramModel) -> list[list[tuple[object, ...]]]:
    """All that was counted, in the order it was met."""
    return [
        [tuple(map(str, entry)) for entry in model.counted.entries(order)]
        for order in range(ORDER + 1)
    ]


def learned_whole(*text: int) -> DraftState:
    drafts = DraftState()
    drafts.context.begin(text)
    return drafts


def share_of(drafts: DraftState) -> float:
    guide = drafts.context.guide()
    assert guide is not None
    return guide.share


def drawn(drafts: DraftState, text: Sequence[int], nodes: int = 20) -> TokenTree:
    """The tree behind a text where nodes cost nothing."""
    curve = CostCurve((1.0,) * (nodes + 1), (0.0,) * (nodes + 1))
    model = drafts.model
    return model.tree(text, nodes, curve, drafts.context.guide())


# Context: what is counted.


@given(st.lists(st.integers(1, 3), min_size=1, max_size=40), st.data())
def test_a_continued_text_counts_every_token_once(text: list[int], data: st.DataObject) -> None:
    """Whatever part of it came as a prompt, and whatever was accepted."""
    drafts = DraftState()
    end = 0
    while end < len(text):
        start, end = end, data.draw(st.integers(end + 1, len(text)))
        if start and data.draw(st.booleans()):
            drafts.context.learn(step(text[:end], end - start), [])
        else:
            drafts.context.begin(text[:end])
    whole = learned_whole(*text)
    assert counted(drafts.model) == counted(whole.model)
    assert drafts.context.corpus.tokens == text


def test_tokens_are_counted_under_one_to_four_tokens_before() -> None:
    model = learned_whole(1, 2, 3, 4, 5, 6).model
    for order in range(1, ORDER + 1):
        found = contents(model.counted, order)
        assert found[(1, 2, 3, 4, 5)[-order:]] == {6: 1.0}
        # The text has no longer context than this before its earlier tokens.
        assert len(found) == 6 - order


def test_the_same_prompt_again_teaches_nothing() -> None:
    drafts = learned_whole(1, 2, 3, 1, 2)
    before = counted(learned_whole(1, 2, 3, 1, 2).model)
    drafts.context.begin([1, 2, 3, 1, 2])
    assert counted(drafts.model) == before
    assert drafts.context.corpus.tokens == [1, 2, 3, 1, 2]


def test_a_fork_counts_only_what_is_new_behind_what_is_common() -> None:
    drafts = learned_whole(1, 2, 3, 4)
    model = drafts.model
    drafts.context.begin([1, 2, 7, 8])
    found = contents(model.counted, 1)
    assert found[1,] == {2: 1.0}
    assert found[2,].keys() == {3, 7}
    assert contents(model.counted, 2)[1, 2].keys() == {3, 7}
    assert found[7,] == {8: 1.0}
    assert (4,) not in found, "7 did not follow 4"


def test_after_a_fork_the_new_text_is_the_one_that_goes_on() -> None:
    drafts = learned_whole(1, 2, 3, 4)
    drafts.context.begin([1, 2, 7])
    drafts.context.begin([1, 2, 7, 8])
    assert drafts.context.corpus.tokens == [1, 2, 3, 4, BOUNDARY, 1, 2, 7, 8]
    assert contents(drafts.model.counted, 1)[2,][7] == 1.0


# Context: repeated passages.


@pytest.mark.parametrize("repeated", [LENGTHS[0] - 1, LENGTHS[0], 20])
def test_a_guide_leads_where_more_is_repeated_than_a_context_holds(repeated: int) -> None:
    drafts = learned_whole(*PASSAGE, *PASSAGE[:repeated])
    guide = drafts.context.guide()
    if repeated < LENGTHS[0]:
        assert guide is None
    else:
        assert isinstance(guide, Guide)
        ahead = guide.tokens[guide.start : guide.start + 9]
        assert list(ahead) == PASSAGE[repeated : repeated + 9]


@pytest.mark.parametrize(("length", "faith"), list(zip(LENGTHS, FAITH, strict=True)))
def test_longer_passages_are_believed_more(length: int, faith: float) -> None:
    assert share_of(learned_whole(*PASSAGE, *PASSAGE[:length])) == pytest.approx(faith)


def test_the_guide_leads_the_tree_against_what_is_counted() -> None:
    """Behind the last four tokens something else came more often, and later."""
    other = [*PASSAGE[6:10], 7]
    text = [*PASSAGE, *other * 5, *PASSAGE[:10]]
    tree = drawn(learned_whole(*text), text)
    first = [t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]
    assert first[0] == PASSAGE[10]
    assert 7 in first


def test_kept_promises_raise_the_share() -> None:
    text = [*PASSAGE, *PASSAGE[:5]]
    drafts = learned_whole(*text)
    before = share_of(drafts)
    for token in PASSAGE[5:7]:
        text.append(token)
        drafts.context.learn(step(text, 1), [])
    assert before < share_of(drafts) < 1.0


def test_broken_promises_lower_the_share() -> None:
    text = [*PASSAGE, *PASSAGE[:5]]
    drafts = learned_whole(*text)
    before = share_of(drafts)
    for start in (20, 40):
        text += [9, *PASSAGE[start : start + 5]]
        drafts.context.learn(step(text, 6), [])
    assert 0.0 < share_of(drafts) < before


def test_records_fade() -> None:
    """A hundred broken promises are made good by as many that are kept."""
    drafts = learned_whole(*PASSAGE)
    text = list(PASSAGE)
    for promise in range(300):
        text += [promise + 1000, *PASSAGE[:5]]
        drafts.context.begin(text)
        text.append(PASSAGE[5] if promise >= 100 else promise + 2000)
        drafts.context.learn(step(text, 1), [])
    assert drafts.context.hits[0] / drafts.context.trials[0] > 0.95


def test_lengths_have_records_of_their_own() -> None:
    """A passage of 6 goes on by three tokens: two trials of one class, one of the next."""
    text = [*PASSAGE, *PASSAGE[:9]]
    drafts = learned_whole(*text[:-3])
    drafts.context.learn(step(text, 3), [])
    assert drafts.context.trials == pytest.approx([1.98, 1.0, 0.0, 0.0])
    assert drafts.context.hits == pytest.approx([1.98, 1.0, 0.0, 0.0])


def test_a_passage_is_tried_until_it_is_left() -> None:
    text = [*PASSAGE, *PASSAGE[:6], 9, PASSAGE[7], PASSAGE[8]]
    drafts = learned_whole(*text[:-3])
    drafts.context.learn(step(text, 3), [])
    assert drafts.context.trials == [1.0, 0.0, 0.0, 0.0]
    assert drafts.context.hits == [0.0, 0.0, 0.0, 0.0]


def test_short_passages_are_not_tried() -> None:
    text = [*PASSAGE, *PASSAGE[: LENGTHS[0]]]
    drafts = learned_whole(*text[:-1])
    drafts.context.learn(step(text, 1), [])
    assert drafts.context.trials == [0.0] * len(LENGTHS)


# Context: forks.


def test_texts_that_do_not_go_on_have_a_boundary_between_them() -> None:
    drafts = learned_whole(1, 2, 3)
    drafts.context.begin([7, 8])
    assert drafts.context.corpus.tokens == [1, 2, 3, BOUNDARY, 7, 8]


def test_a_fork_repeats_the_end_of_what_is_common() -> None:
    drafts = learned_whole(*PASSAGE, 1, 2)
    drafts.context.begin([*PASSAGE, 3])
    assert drafts.context.corpus.tokens == [
        *PASSAGE,
        *(1, 2),
        BOUNDARY,
        *PASSAGE[-OVERLAP:],
        3,
    ]


def test_passages_across_a_fork_are_found() -> None:
    drafts = learned_whole(*PASSAGE, 1, 2)
    drafts.context.begin([*PASSAGE, 3, 4, 5, 6, 9, *PASSAGE[-4:], 3, 4])
    guide = drafts.context.guide()
    assert guide is not None
    assert list(guide.tokens[guide.start : guide.start + 2]) == [5, 6]


def test_no_passage_runs_across_a_boundary() -> None:
    drafts = learned_whole(1, 2, 3, 4)
    drafts.context.begin([5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6])
    assert drafts.context.guide() is None


def test_a_boundary_is_never_drafted() -> None:
    """The same text again, and further: the passage that it repeats ends at a boundary."""
    drafts = learned_whole(*PASSAGE)
    drafts.context.begin(PASSAGE[:20])
    for end in (len(PASSAGE) - 5, len(PASSAGE)):
        drafts.context.begin(PASSAGE[:end])
        tree = drawn(drafts, PASSAGE[:end])
        assert BOUNDARY not in tree.tokens
        assert tree.tokens[: len(PASSAGE) - end] == PASSAGE[end:]


def test_a_boundary_breaks_no_promise() -> None:
    """What was generated twice goes on where it was cut off the first time."""
    drafts = learned_whole(*PASSAGE)
    drafts.context.begin(PASSAGE[:20])
    drafts.context.begin(PASSAGE)
    drafts.context.learn(step([*PASSAGE, 7], 1), [])
    assert drafts.context.trials == [0.0] * len(LENGTHS)


# Trajectory.


def test_ngrams_are_counted_with_their_weight() -> None:
    drafts = DraftState()
    drafts.trajectory.learn(step([9], 1), [(1, 2, 3)])
    model = drafts.model
    assert contents(model.counted, 1) == {(1,): {2: WEIGHT}, (2,): {3: WEIGHT}}
    assert contents(model.counted, 2) == {(1, 2): {3: WEIGHT}}
    assert model.counted.sizes == [0, 2, 1, 0, 0]
    assert model.successors([1])[0][1] == 2


def test_long_ngrams_are_counted_under_up_to_four_tokens() -> None:
    drafts = DraftState()
    drafts.trajectory.learn(step([9], 1), [(1, 2, 3, 4, 5, 6, 7)])
    assert drafts.model.counted.sizes == [0, 6, 5, 4, 3]
    assert contents(drafts.model.counted, ORDER)[3, 4, 5, 6] == {7: WEIGHT}


def test_ngrams_of_one_step_do_not_follow_one_another() -> None:
    drafts = DraftState()
    drafts.trajectory.learn(step([9], 1), [(1, 2), (3, 4)])
    assert contents(drafts.model.counted, 1).keys() == {(1,), (3,)}
    assert drafts.model.counted.sizes == [0, 2, 0, 0, 0]


def test_a_window_that_closes_nothing_teaches_nothing() -> None:
    drafts = DraftState()
    drafts.trajectory.learn(step([9], 1), [])
    assert len(drafts.model.counted) == 0


def test_accepted_text_counts_more_than_newer_ngrams() -> None:
    drafts = learned_whole(1, 2)
    drafts.trajectory.learn(step([1, 2], 1), [(1, 3)])
    assert [token for _, token, _ in drafts.model.successors([1])] == [2, 3]


def test_drafts_say_which_source_they_are_of() -> None:
    drafts = learned_whole(1, 2)
    drafts.trajectory.learn(step([1, 2], 1), [(3, 4)])
    drafts.recycled.learn(step([5, 6], 1, ranked=[{7: 1.0}]), [])
    assert drawn(drafts, [1], nodes=1).sources == ["context"]
    assert drawn(drafts, [3], nodes=1).sources == ["trajectory"]
    assert drawn(drafts, [5], nodes=1).sources == ["recycled"]


# Recycled.


def rows_of(count: int) -> list[Row]:
    """Rows that can be told apart."""
    return [{50 + number: 0.875, 70 + number: 0.125} for number in range(count)]


def window_block(current: int) -> WindowBlock:
    """A window whose last row stands on (20, 30) and (21, 31)."""
    window = LookaheadWindow(2, 4, [1], random.Random(0))
    window.rows = [[0, 11], [20, 21], [30, 31]]
    return window.block(current)


def test_rows_land_under_one_to_four_tokens_of_text_and_tree() -> None:
    tree = TokenTree()
    tree.add([7, 8], "context", 9)
    tree.add([9], "context", 9)
    before, rows = [1, 2, 3, 4, 5], rows_of(4)
    drafts = DraftState()
    drafts.recycled.learn(step([*before, 7, 6], 2, tree, ranked=rows), [])
    for order in range(1, ORDER + 1):
        paths = [before, [*before, 7], [*before, 7, 8], [*before, 9]]
        keys = [tuple(path[-order:]) for path in paths]
        assert contents(drafts.model.ranked, order) == dict(zip(keys, rows, strict=True))
    assert not contents(drafts.model.ranked, 1, GUESSED)


def test_a_short_text_has_no_longer_contexts() -> None:
    drafts = DraftState()
    drafts.recycled.learn(step([1, 2, 3], 1, ranked=rows_of(1)), [])
    assert drafts.model.ranked.sizes == [0, 1, 1, 0, 0]


def test_the_rows_of_the_window_are_guesses() -> None:
    tree = TokenTree()
    tree.add([7], "context", 9)
    rows = rows_of(4)
    drafts = DraftState()
    drafts.recycled.learn(step([1, 2, 3], 1, tree, window_block(2), rows), [])
    ranked = drafts.model.ranked
    assert contents(ranked, 1, ASKED) == {(2,): rows[0], (7,): rows[1]}
    assert contents(ranked, 1, GUESSED) == {(30,): rows[2], (31,): rows[3]}
    assert contents(ranked, 2, GUESSED) == {(20, 30): rows[2], (21, 31): rows[3]}
    assert not contents(ranked, 3, GUESSED)


def test_guesses_never_shadow_what_the_model_was_asked() -> None:
    """Behind (20, 30) the model was asked first; behind (21, 31) it never was."""
    drafts = DraftState()
    drafts.recycled.learn(step([20, 30, 4], 1, ranked=[{5: 0.9}]), [])
    rows = [{40: 0.9}, {6: 0.9}, {8: 0.9}]
    drafts.recycled.learn(step([1, 2, 3], 1, window=window_block(2), ranked=rows), [])
    model = drafts.model
    assert [token for _, token, _ in model.successors([20, 30])] == [5]
    assert [token for _, token, _ in model.successors([21, 31])] == [8]


def test_nothing_happens_where_nothing_was_ranked() -> None:
    tree = TokenTree()
    tree.add([7, 8], "context", 9)
    drafts = DraftState()
    drafts.recycled.learn(step([1, 2, 3], 1, tree, window_block(2)), [])
    assert len(drafts.model.ranked) == 0


def test_the_last_answer_under_a_context_is_remembered() -> None:
    drafts = DraftState()
    for row in ({5: 0.75}, {6: 0.75}):
        drafts.recycled.learn(step([1, 2, 3], 1, ranked=[row]), [])
    assert contents(drafts.model.ranked, 1) == {(2,): {6: 0.75}}


def test_no_source_but_the_context_learns_from_a_prompt() -> None:
    drafts = DraftState()
    drafts.trajectory.begin(PASSAGE)
    drafts.recycled.begin(PASSAGE)
    assert len(drafts.model.counted) == len(drafts.model.ranked) == 0


def test_of_many_texts_the_older_half_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladecli.decoder.sources.context.CORPUS", 100)
    source = DraftState().context
    for number in range(30):
        source.begin([1000 + number, *range(20)])
        assert len(source.corpus) < 100 + 60
    # What is left still leads on: the last text began like this one.
    source.begin([1029, *range(12)])
    guide = source.guide()
    assert guide is not None
    assert list(guide.tokens[guide.start : guide.start + 3]) == [12, 13, 14]
