"""The cache against a list of tokens: slots, compaction, growth, and layers of several shapes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.decoder.config import GROWTH
from ladecli.decoder.kv_cache import KVCache, LayerShape
from tests.support.memory import limit_pages

CPU = torch.device("cpu")
SHAPE = LayerShape(2, 3, 3, torch.float32, CPU)
ALIKE = [SHAPE, SHAPE]
OTHERS = [LayerShape(1, 4, 2, torch.float32, CPU), LayerShape(1, 2, 4, torch.float64, CPU)]
VARIED = [SHAPE, OTHERS[0], SHAPE, OTHERS[1]]


@torch.inference_mode()
def write(cache: KVCache, tokens: Sequence[int], shapes: Sequence[LayerShape] = ALIKE) -> None:
    """Write a step: keys are token + layer everywhere, values their negation."""
    cache.reserve(cache.length + len(tokens))
    for layer, shape in enumerate(shapes):
        column = torch.tensor(tokens, dtype=shape.dtype)[None, :, None] + layer
        keys = column.expand(shape.heads, -1, shape.key_size)
        values = -column.expand(shape.heads, -1, shape.value_size)
        all_keys, all_values = cache.write(layer, keys, values)
        end = cache.length + len(tokens)
        assert all_keys.shape == (shape.heads, end, shape.key_size)
        assert all_values.shape == (shape.heads, end, shape.value_size)
        assert torch.equal(all_keys[:, cache.length :], keys)


def contents(cache: KVCache, shapes: Sequence[LayerShape] = ALIKE) -> list[int]:
    """Return the committed tokens, after checking all numbers of all layers."""
    if not cache.length:
        return []
    tokens = [round(float(x)) for x in cache.layer(0)[0][0, : cache.length, 0]]
    for layer in range(len(shapes)):
        keys, values = (part[:, : cache.length] for part in cache.layer(layer))
        column = torch.tensor(tokens, dtype=keys.dtype)[None, :, None] + layer
        assert torch.equal(keys, column.expand_as(keys))
        assert torch.equal(values, -column.expand_as(values))
    return tokens


@settings(max_examples=60)
@given(data=st.data(), shapes=st.sampled_from([ALIKE, VARIED]))
def test_the_cache_is_a_list_of_tokens(data: st.DataObject, shapes: list[LayerShape]) -> None:
    cache, model, fresh = KVCache(shapes), list[int](), 0
    for _ in range(data.draw(st.integers(1, 12), "operations")):
        match data.draw(st.sampled_from(["step", "broken", "truncate", "reserve", "release"])):
            case "step" | "broken" as kind:
                count = data.draw(st.sampled_from([1, 2, 5, 40, 300]), "tokens")
                tokens = [*range(fresh, fresh + count)]
                fresh += count
                write(cache, tokens, shapes)
                # A step that is not kept leaves no trace.
                if kind == "step":
                    picks = data.draw(st.sets(st.integers(0, count - 1)), "kept")
                    cache.keep(sorted(picks))
                    model += [tokens[pick] for pick in sorted(picks)]
            case "truncate":
                length = data.draw(st.integers(0, 400), "length")
                cache.truncate(length)
                del model[length:]
            case "reserve":
                cache.reserve(data.draw(st.integers(1, 1500), "slots"))
            case "release":
                cache.release()
                model.clear()
        assert cache.length == len(model)
        assert contents(cache, shapes) == model
        assert cache.slots >= cache.length


def test_keys_and_values_of_one_shape_share_a_tensor() -> None:
    cache = KVCache(VARIED)
    assert cache.tensors == []
    cache.reserve(5)
    sizes = [tuple(tensor.shape) for tensor in cache.tensors]
    assert sizes == [(4, 2, GROWTH, 3), *((1, 1, GROWTH, size) for size in (4, 2, 2, 4))]
    assert not any(bool(tensor.any()) for tensor in cache.tensors), "a masked NaN would spread"


def test_addresses_stay_until_the_allocation_changes() -> None:
    cache = KVCache(ALIKE)
    cache.reserve(3)
    first, address = cache.allocation, cache.tensors[0].data_ptr()
    cache.reserve(GROWTH)
    assert (cache.allocation, cache.tensors[0].data_ptr()) == (first, address)
    cache.reserve(GROWTH + 1)
    assert cache.allocation != first
    second = cache.allocation
    cache.release()
    assert cache.allocation != second
    assert cache.slots == 0


def test_the_last_growth_starts_from_less_than_two_thirds() -> None:
    """Grown from nearly all slots to all, the two caches would take twice the memory."""
    for most in range(GROWTH, 30 * GROWTH, 500):
        cache, sizes = KVCache(ALIKE[:1], most), [0]
        for slots in range(1, most + 1, 64):
            cache.reserve(slots)
            if cache.slots != sizes[-1]:
                sizes.append(cache.slots)
        whole = -(-most // GROWTH) * GROWTH
        assert sizes[-1] == whole
        assert sizes[-2] <= max(0.6 * whole, GROWTH)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_write_into_its_parents_cache() -> None:
    cache = KVCache(ALIKE)
    write(cache, [1, 2])
    cache.keep([0, 1])
    before = [tensor.clone() for tensor in cache.tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks in a process with threads
        child = os.fork()
    if child == 0:
        for tensor in cache.tensors:
            ctypes.memset(tensor.data_ptr(), 1, tensor.nbytes)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(torch.equal, cache.tensors, before))


@pytest.mark.parametrize("most", [4, 3, 2])
def test_growth_adapts_to_free_memory(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the slots, otherwise as many as are needed, otherwise no change."""
    cache, text = KVCache(ALIKE), [*range(GROWTH + 1)]
    write(cache, text)
    cache.keep(range(len(text)))
    assert cache.slots == 2 * GROWTH

    slot = sum(tensor[:, :, 0].nbytes for tensor in cache.tensors)
    limit_pages(monkeypatch, lambda size: size <= most * GROWTH * slot)
    generation = cache.allocation
    with pytest.raises(MemoryError) if most == 2 else contextlib.nullcontext():
        cache.reserve(2 * GROWTH + 1)
    assert (cache.allocation == generation) == (most == 2)
    assert cache.slots == most * GROWTH
    assert contents(cache) == text
    write(cache, [5])
