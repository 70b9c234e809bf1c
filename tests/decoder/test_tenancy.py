"""Whose the cache is: what a new text may keep of an old one, wherever that was broken off."""

from __future__ import annotations

import pytest

from ladecli.decoder.errors import DecoderError
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.tenancy import Tenancy


def after(text: list[int], cached: int) -> tuple[Tenancy, KVCache]:
    """A cache that a generation has left with the keys of so many tokens."""
    cache = KVCache(1)
    tenancy = Tenancy(cache)
    mine = tenancy.begin(text)
    cache.length = cached
    tenancy.end(mine, text)
    return tenancy, cache


@pytest.mark.parametrize(
    ("text", "kept"),
    [([1, 2, 3, 4, 5], 3), ([1, 2, 9, 4], 2), ([1, 2], 1), ([7, 1, 2], 0), ([1, 2, 3], 2)],
)
def test_a_text_keeps_what_it_shares_and_feeds_one_token(text: list[int], kept: int) -> None:
    tenancy, cache = after([1, 2, 3, 4], 9)
    assert cache.length == 3
    tenancy.begin(text)
    assert cache.length == kept


def test_what_was_computed_is_all_that_counts() -> None:
    tenancy, cache = after([1, 2, 3, 4], 2)
    tenancy.begin([1, 2, 3, 4, 5])
    assert cache.length == 2


def test_the_newest_has_the_cache() -> None:
    tenancy, cache = after([1, 2, 3, 4], 3)
    first, second = tenancy.begin([1, 2, 3]), tenancy.begin([5, 6, 7])
    tenancy.check(second)
    with pytest.raises(DecoderError, match="another generation has started"):
        tenancy.check(first)
    cache.length = 2
    tenancy.end(first, [1])
    assert cache.length == 2
    # Until the second one ends, nobody knows what the cache holds.
    tenancy.begin([5, 6, 7])
    assert cache.length == 0
    tenancy.forget()
    with pytest.raises(DecoderError):
        tenancy.check(second + 1)


def test_a_takeover_that_breaks_off_leaves_no_wrong_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    tenancy, cache = after([1, 2, 3, 4], 3)
    real = KVCache.truncate

    def broken(self: KVCache, length: int) -> None:
        real(self, length)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "truncate", broken)
        with pytest.raises(KeyboardInterrupt):
            tenancy.begin([1, 9])
    tenancy.begin([1, 2, 3, 4])
    assert cache.length == 1
