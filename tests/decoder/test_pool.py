"""The n-gram pool: keys, order, and what leaves when it is full."""

from __future__ import annotations

from ladecli.decoder.pool import NgramPool


def continuations(pool: NgramPool, token: int) -> list[tuple[int, ...]]:
    return [tokens for tokens, _ in pool.candidates(token)]


def test_newest_first_under_the_first_token() -> None:
    pool = NgramPool(3)
    for ngram in ((1, 2, 3), (1, 4, 5), (2, 6, 7)):
        pool.add(ngram, "trajectory")
    assert continuations(pool, 1) == [(4, 5), (2, 3)]
    assert continuations(pool, 2) == [(6, 7)]
    assert continuations(pool, 3) == []


def test_the_oldest_goes_and_a_repeated_one_is_renewed() -> None:
    pool = NgramPool(2)
    for ngram in ((1, 2), (1, 3), (1, 2), (1, 4)):
        pool.add(ngram, "trajectory")
    assert continuations(pool, 1) == [(4,), (2,)]
    assert len(pool) == 2


def test_the_first_finder_keeps_the_credit() -> None:
    pool = NgramPool(2)
    pool.add((1, 2), "context")
    pool.add((1, 2), "trajectory")
    assert list(pool.candidates(1)) == [((2,), "context")]


def test_no_guesses_no_pool() -> None:
    pool = NgramPool(0)
    pool.add((1, 2), "trajectory")
    assert len(pool) == 0
