"""The cache: slots, compaction and growth."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from ladecli.decoder.kv_cache import GROWTH, KVCache


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
