"""The cache: slots, compaction and growth."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from ladecli.decoder.config import GROWTH
from ladecli.decoder.kv_cache import KVCache


@torch.inference_mode()
def write(cache: KVCache, tokens: list[int]) -> torch.Tensor:
    """Write tokens to both layers, as keys; returns what the second layer sees."""
    key = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 3)
    cache.reserve(cache.length + len(tokens))
    cache.update(key, -key, 0)
    seen, _ = cache.update(key + 0.5, -key, 1)
    return seen


def contents(cache: KVCache) -> list[float]:
    assert cache.keys is not None
    assert cache.values is not None
    assert torch.equal(cache.keys[0], -cache.values[0])
    assert torch.equal(
        cache.keys[0, ..., : cache.length, :] + 0.5, cache.keys[1, ..., : cache.length, :]
    )
    return cache.keys[0, 0, 0, : cache.length, 0].tolist()


@pytest.mark.parametrize("kept", [[0], [0, 1, 2, 3], [0, 2], [0, 1, 3], [3], [0, 3], [1, 2, 3], []])
def test_keeping_moves_the_kept_to_the_front(kept: list[int]) -> None:
    cache = KVCache(2)
    write(cache, [7, 8])
    cache.keep([0, 1])
    step = [10, 11, 12, 13]
    assert write(cache, step)[0, 0, :, 0].tolist() == [7.5, 8.5, 10.5, 11.5, 12.5, 13.5]
    cache.keep(kept)
    assert contents(cache) == [7, 8, *(step[i] for i in kept)]


def test_a_step_that_is_not_kept_leaves_no_trace() -> None:
    cache = KVCache(2)
    write(cache, [1, 2])
    cache.keep([0, 1])
    write(cache, [3, 4, 5])
    assert cache.length == 2
    write(cache, [6])
    cache.keep([0])
    assert contents(cache) == [1, 2, 6]


def test_growth_keeps_the_text_and_copies_seldom() -> None:
    cache = KVCache(2)
    sizes = []
    for token in range(GROWTH * 5):
        write(cache, [token, 0])
        cache.keep([0])
        assert cache.keys is not None
        sizes.append(cache.keys.shape[3])
    assert contents(cache) == list(range(GROWTH * 5))
    assert sum(a != b for a, b in pairwise(sizes)) <= 3


def test_running_out_of_memory_while_growing_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = KVCache(2)
    write(cache, [1, 2, 3])
    cache.keep([0, 1, 2])
    real, calls = torch.zeros, 0

    def fails_once(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros", fails_once)
    with pytest.raises(torch.OutOfMemoryError):
        cache.reserve(GROWTH * 3)
    write(cache, list(range(GROWTH)))
    cache.keep(range(GROWTH))
    assert contents(cache) == [1, 2, 3, *range(GROWTH)]


@pytest.mark.parametrize(("most", "slots"), [(4, 4), (3, 3), (2, None)])
def test_growth_makes_do_with_what_memory_has(
    most: int, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the slots, else as many as are needed, else none."""
    cache = KVCache(2)
    write(cache, list(range(GROWTH + 1)))
    cache.keep(range(GROWTH + 1))
    real = torch.zeros

    def limited(shape: Any, **kwargs: Any) -> torch.Tensor:
        if shape[3] > most * GROWTH:
            raise torch.OutOfMemoryError
        return real(shape, **kwargs)

    monkeypatch.setattr(torch, "zeros", limited)
    if slots is None:
        with pytest.raises(torch.OutOfMemoryError):
            cache.reserve(2 * GROWTH + 1)
        slots = 2
    else:
        cache.reserve(2 * GROWTH + 1)
    assert cache.keys is not None
    assert cache.values is not None
    assert cache.keys.shape[3] == cache.values.shape[3] == slots * GROWTH
    assert contents(cache) == list(range(GROWTH + 1))


def test_a_first_step_that_memory_has_no_room_for_can_be_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = KVCache(2)
    real = torch.zeros

    def limited(shape: Any, **kwargs: Any) -> torch.Tensor:
        if shape[3] > GROWTH:
            raise torch.OutOfMemoryError
        return real(shape, **kwargs)

    monkeypatch.setattr(torch, "zeros", limited)
    with pytest.raises(torch.OutOfMemoryError):
        write(cache, list(range(GROWTH + 1)))
    write(cache, list(range(GROWTH)))
    cache.keep(range(GROWTH))
    assert contents(cache) == list(range(GROWTH))


def test_truncate_forgets_the_end_only() -> None:
    cache = KVCache(2)
    write(cache, [1, 2, 3])
    cache.keep([0, 1, 2])
    cache.truncate(9)
    assert contents(cache) == [1, 2, 3]
    cache.truncate(1)
    write(cache, [5])
    cache.keep([0])
    assert contents(cache) == [1, 5]
    assert cache.get_seq_length() == cache.get_query_offset() == 2
    assert cache.get_mask_sizes(4) == (6, 0)


@pytest.mark.parametrize(("most", "slots"), [(None, 1024), (600, 768), (2000, 1024), (100, 768)])
def test_growth_doubles_but_not_beyond_any_text(most: int | None, slots: int) -> None:
    cache = KVCache(1, most)
    cache.reserve(512)
    for count in (500, 20):
        key = torch.ones(1, 1, count, 2)
        cache.reserve(cache.length + count)
        with torch.inference_mode():
            cache.update(key, key, 0)
        cache.keep(range(count))
    assert cache.keys is not None
    assert cache.keys.shape[3] == slots


def test_the_last_growth_starts_from_less_than_two_thirds() -> None:
    """Grown from nearly all slots to all, the two caches would take twice the memory."""
    for most in range(GROWTH, 30 * GROWTH, 100):
        cache, sizes = KVCache(1, most), [0]
        for slots in range(1, most + 1, 64):
            cache.reserve(slots)
            if cache.keys is None:
                with torch.inference_mode():
                    cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), 0)
            assert cache.keys is not None
            if cache.keys.shape[3] != sizes[-1]:
                sizes.append(cache.keys.shape[3])
        whole = -(-most // GROWTH) * GROWTH
        assert sizes[-1] == whole
        assert len(sizes) == 2 or sizes[-2] <= max(0.6 * whole, GROWTH)


@pytest.mark.parametrize(("most", "slots"), [(5000, 2048), (600, 600), (None, GROWTH)])
def test_a_new_cache_can_start_with_room(most: int | None, slots: int) -> None:
    cache = KVCache(2, most)
    cache.first = 2048
    for _ in "ab":  # and so does one whose memory was given back
        write(cache, [1, 2])
        assert cache.slots == slots
        cache.release()


def test_a_start_that_memory_has_no_room_for_can_be_smaller() -> None:
    cache = KVCache(2, 5000)
    cache.first = 2048
    cache.reserve(3)
    # The first step failed before anything was written.
    write(cache, [1, 2, 3])
    assert cache.slots == GROWTH
