"""The n-gram pool: keys, order, and what leaves when it is full."""

from __future__ import annotations

from ladecli.decoder.pool import NgramPool


def filled(guesses: int, *ngrams: tuple[int, ...]) -> NgramPool:
    pool = NgramPool()
    for ngram in ngrams:
        pool.add(ngram, guesses)
    return pool


def test_newest_first_under_the_first_token() -> None:
    pool = filled(3, (1, 2, 3), (1, 4, 5), (2, 6, 7))
    assert list(pool.candidates(1)) == [(4, 5), (2, 3)]
    assert list(pool.candidates(2)) == [(6, 7)]
    assert list(pool.candidates(3)) == []


def test_the_oldest_goes_and_a_repeated_one_is_renewed() -> None:
    pool = filled(2, (1, 2), (1, 3), (1, 2), (1, 4))
    assert list(pool.candidates(1)) == [(4,), (2,)]
    assert len(pool) == 2


def test_fewer_guesses_than_before_make_room() -> None:
    pool = filled(3, (1, 2), (1, 3), (1, 4))
    pool.add((1, 5), 2)
    assert list(pool.candidates(1)) == [(5,), (4,)]


def test_all_ngrams_the_oldest_first() -> None:
    assert list(filled(2, (1, 2), (3, 4), (1, 5))) == [(1, 2), (1, 5), (3, 4)]


def test_no_guesses_no_pool() -> None:
    assert len(filled(0, (1, 2))) == 0
