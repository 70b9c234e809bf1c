"""Copies with edits: the expected continuations after each kind of edit."""

from __future__ import annotations

from ladecli.decoder.drafting.sources import Observation
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.tree import TokenTree

FILE = list(range(1, 151))
ASK = [900, 901]


def after(*written: list[int], handed_over: list[int] | None = None) -> DraftStore:
    """Return the pointer after a file, a question, and parts of an answer, with a step for each."""
    store, text = DraftStore(), [*FILE, *ASK]
    if handed_over:
        store.learn_text(handed_over)
        text = [*ASK]
    store.context.begin(text)
    for part in written:
        text += part
        store.context.learn(Observation(text, len(part), TokenTree(), (), ()))
    return store


def expected(store: DraftStore, count: int = 6) -> list[list[int]]:
    """Return the first tokens of each expected continuation."""
    return [list(span.tokens[:count]) for span in store.context.repeated_spans()]


def chance(store: DraftStore, token: int) -> float:
    """Return the probability of a token that begins a continuation."""
    spans = store.context.repeated_spans()
    return next(span.probabilities[0] for span in spans if span.tokens[0] == token)


def test_the_passage_is_expected_behind_a_replaced_token_and_behind_an_insertion() -> None:
    store = after(FILE[:30], [700])
    assert expected(store) == [FILE[31:37], FILE[30:36]]
    assert chance(store, FILE[31]) > chance(store, FILE[30])
    # Two new tokens: they replace two, or are inserted before the next one.
    assert expected(after(FILE[:30], [700, 701])) == [FILE[32:38], FILE[30:36]]


def test_one_equal_token_shows_the_position_after_an_edit() -> None:
    """FILE[34] after FILE[29]: four tokens were left out."""
    assert expected(after(FILE[:30], [FILE[34]]))[0] == FILE[35:41]
    inserted = after(FILE[:30], [700, 701, 702], [FILE[30]])
    assert expected(inserted)[0] == FILE[31:37]


def test_longer_agreement_raises_the_probability_of_a_passage() -> None:
    (span,) = after(FILE[:40]).context.repeated_spans()
    (short,) = after(FILE[:6]).context.repeated_spans()
    assert span.tokens[0] == FILE[40]
    assert span.probabilities[0] > short.probabilities[0]
    assert [*short.probabilities] == sorted(short.probabilities), "also along the path"


def test_a_short_copy_is_not_remembered_across_an_edit() -> None:
    assert expected(after(FILE[:8], [700])) == []


def test_an_edit_is_expected_again_and_forgotten_if_it_does_not_come() -> None:
    """50 becomes 800, 801; the file has 50 in two more places."""
    file = [*range(1, 50), 50, *range(51, 90), 50, *range(91, 130), 50, *range(131, 150)]
    renamed = [*range(1, 50), 800, 801, *range(51, 85)]
    store = after(renamed, handed_over=file)
    assert expected(store, 9) == [
        [85, 86, 87, 88, 89, 800, 801, 91, 92],
        [85, 86, 87, 88, 89, 50, 91, 92, 93],
    ]
    kept = after(renamed, [*range(85, 90), 50, *range(91, 125)], handed_over=file)
    assert expected(kept, 6) == [[125, 126, 127, 128, 129, 50]]


def test_an_answer_may_begin_like_the_text_that_was_handed_over() -> None:
    assert expected(after(handed_over=FILE))[0] == FILE[:6]
    assert expected(after([700, 701], [FILE[0]], handed_over=FILE))[0] == FILE[1:7]
    store = after(FILE[:40], handed_over=FILE)
    store.context.begin([5, 6, 7])  # the next answer
    assert expected(store) == []


def test_a_lost_passage_is_found_again_by_its_tokens() -> None:
    words = list(range(600, 640))
    assert expected(after(FILE[:30], words)) == []
    assert expected(after(FILE[:30], words, FILE[100:106]))[0] == FILE[106:112]
