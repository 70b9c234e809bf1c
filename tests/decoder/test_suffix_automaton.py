"""The suffix automaton against searching the text again: what it finds, what it takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.suffix_automaton import SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=60))


def searched(tokens: list[int]) -> tuple[int, int]:
    """The longest suffix that is in the text earlier, and what followed it first."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == suffix:
                return length, start + length
    return 0, 0


@given(TEXTS)
def test_finds_after_every_token_what_a_search_finds(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.extend(token)
        assert automaton.longest_match() == searched(text[:end])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([], (0, 0)),
        ([5], (0, 0)),
        ([5, 6, 7], (0, 0)),
        ([5, 6, 5], (1, 1)),
        ([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], (2, 2)),
        ([1, 2, 3, 1, 9, 1, 2, 3], (3, 3)),
        # An earlier occurrence may overlap the end of the text.
        ([7, 7, 7, 7], (3, 3)),
        ([1, 2, 1, 2, 1], (3, 3)),
    ],
)
def test_the_longest_repeated_suffix_and_what_followed_it_first(
    text: list[int], found: tuple[int, int]
) -> None:
    assert SuffixAutomaton(text).longest_match() == found


def test_any_number_is_a_token() -> None:
    assert SuffixAutomaton([-1, 1 << 40, 3, -1, 1 << 40]).longest_match() == (2, 2)


@given(TEXTS)
def test_keeps_the_tokens_that_it_was_given(text: list[int]) -> None:
    half = len(text) // 2
    automaton = SuffixAutomaton(text[:half])
    assert automaton.tokens == text[:half]
    for token in text[half:]:
        automaton.extend(token)
    assert automaton.tokens == text
    assert len(automaton) == len(text)


@given(TEXTS)
def test_made_at_once_or_token_by_token_it_is_the_same(text: list[int]) -> None:
    grown = SuffixAutomaton()
    for token in text:
        grown.extend(token)
    assert SuffixAutomaton(iter(text)).longest_match() == grown.longest_match()


@given(TEXTS)
def test_memory_is_linear(text: list[int]) -> None:
    automaton = SuffixAutomaton(text)
    assert len(automaton._next) <= max(2 * len(text), 1)
    assert sum(map(len, automaton._next)) <= 3 * len(text)


@pytest.mark.parametrize("letters", [1, 2, 1000])
def test_long_texts_stay_linear(letters: int) -> None:
    draw = random.Random(letters)
    text = [draw.randrange(letters) for _ in range(20_000)]
    assert len(SuffixAutomaton(text)._next) <= 2 * len(text)


def test_a_text_that_splits_most_is_within_the_bound() -> None:
    """Blumer et al.: a b b … b needs the most states, 2n - 1."""
    automaton = SuffixAutomaton([0] + [1] * 49)
    assert len(automaton._next) == 2 * 50 - 1
