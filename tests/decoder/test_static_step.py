"""Steps of fixed shapes: inputs in one buffer, masks made on the device, slots that it names."""

from __future__ import annotations

import random

import pytest
import torch

from ladecli.decoder.attention import BACKENDS
from ladecli.decoder.attention.step import StepAttention
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.layout import Draft, StepLayout, build
from ladecli.decoder.static_step import StaticCache, StaticStep, StepInputs
from ladecli.decoder.tree import TokenTree

SLOTS = 256


def tree_of(nodes: int, seed: int) -> TokenTree:
    """A random tree."""
    rng, tree = random.Random(seed), TokenTree()
    for node in range(nodes):
        tree.grow(rng.randrange(-1, node), 10 + node, "context")
    return tree


def filled_cache(length: int, layers: int = 2) -> KVCache:
    """A cache whose slot s of layer l holds the number 1000 l + s."""
    cache = KVCache(layers, SLOTS)
    with torch.inference_mode():
        numbers = torch.arange(length).float()[None, None, :, None]
        for layer in range(layers):
            cache.update(numbers + 1000 * layer, -numbers - 1000 * layer, layer)
    cache.keep(range(length))
    return cache


def static(step: StepLayout, width: int, length: int, reach: int) -> StaticStep:
    inputs = StepInputs(width, torch.device("cpu"))
    with torch.inference_mode():
        # What an earlier step left there must not show.
        inputs.fill(build([3], 5, Draft(tree_of(width - 1, 99))), 77, None, [0.5] * width)
        inputs.fill(step, length, None, ())
        inputs.send()
        cache = StaticCache(filled_cache(length), inputs, reach)
        return StaticStep(BACKENDS["sdpa"], inputs, cache, reach)


@pytest.mark.parametrize("length", [1, 40, 100])
@pytest.mark.parametrize("nodes", [0, 1, 30, 63])
@pytest.mark.parametrize("sliding", [None, 1, 5, 33, 400])
def test_masks_say_what_those_of_a_live_step_say(
    length: int, nodes: int, sliding: int | None
) -> None:
    step = build([7], length, Draft(tree_of(nodes, length)))
    visible = None if step.visible is None else torch.from_numpy(step.visible)
    live = StepAttention(
        BACKENDS["sdpa"], visible, torch.tensor(step.positions), length, max(step.positions)
    )
    count = len(step.tokens)
    width = max(count, 1) + (5 if nodes else 0)
    fixed = static(step, width, length, SLOTS)
    with torch.inference_mode():
        mask = fixed.bool_mask(sliding)
    assert mask is not None
    assert mask.shape == (width, SLOTS)
    expected = live.bool_mask(sliding)
    if expected is None:
        assert mask[:count, : length + count].all()
    else:
        assert torch.equal(mask[:count, : length + count], expected)
    # Nobody sees the padding or what lies behind it, but for padding itself.
    assert not mask[:count, length + count :].any()
    for row in range(count, width):
        assert mask[row, length + row]
    assert torch.equal(fixed.bits[:count, 0], live.bits[:, 0])


def test_inputs_arrive_where_the_step_reads_them() -> None:
    step = build([7], 40, Draft(tree_of(40, 1)))
    fixed = static(step, 48, 40, SLOTS)
    assert fixed.positions[:41].tolist() == step.positions
    # Padding stands where the step stands anyway: a model may look at the largest position.
    assert fixed.positions[41:].tolist() == [40] * 7
    assert fixed.length.tolist() == [40]
    assert fixed.prefix is None


def test_uniform_numbers_arrive_unrounded() -> None:
    inputs = StepInputs(4, torch.device("cpu"))
    numbers = [0.1, 1.0 - 2.0**-53, 0.0]
    with torch.inference_mode():
        inputs.fill(build([7], 3, Draft(tree_of(2, 1))), 3, None, numbers)
        inputs.send()
    assert inputs.uniforms[:3].tolist() == numbers


def test_slots_are_written_and_moved_where_the_device_says() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3, 4, 9])
    moves = cache.moves
    assert moves is not None
    assert (moves.slots, moves.start, cache.length) == ([13, 14, 19], 11, 14)
    inputs = StepInputs(2, torch.device("cpu"))
    with torch.inference_mode():
        inputs.fill(build([7], 14, Draft(tree_of(1, 1))), cache.length, moves, ())
        inputs.send()
        fixed = StaticCache(cache, inputs, 32)
        fixed.move()
        own = torch.full((1, 1, 2, 1), 5.0)
        keys, values = fixed.update(own, own + 1.0, 1)
    assert keys.shape == values.shape == (1, 1, 32, 1)
    expected = [*range(11), 13, 14, 19]
    assert keys[0, 0, :16, 0].tolist() == [1000.0 + slot for slot in expected] + [5.0, 5.0]
    assert values[0, 0, 14:16, 0].tolist() == [6.0, 6.0]
    assert fixed.own is not None
    assert [each.unique().tolist() for each in fixed.own] == [[5.0], [6.0]]
    cache.moved()
    assert cache.keys is not None
    assert cache.keys[0, 0, 0, :14, 0].tolist() == [float(slot) for slot in expected]


def test_keys_in_another_layers_slots_are_an_error() -> None:
    inputs = StepInputs(2, torch.device("cpu"))
    fixed = StaticCache(filled_cache(20), inputs, 32)
    own = torch.full((1, 1, 2, 1), 5.0)
    with torch.inference_mode():
        fixed.wrote(1, own, own)
        with pytest.raises(RuntimeError, match="another layer's slots"):
            fixed.update(own, own, 0)


def test_what_was_kept_can_be_read_before_a_step_moves_it() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    assert cache.keys is not None
    assert cache.keys[0, 0, 0, :12, 0].tolist() == [*map(float, range(11)), 13.0]
    assert cache.moves is None


def test_moves_are_made_before_there_are_others() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    cache.keep([1])
    assert cache.keys is not None
    assert cache.keys[0, 0, 0, :13, 0].tolist() == [*map(float, range(11)), 13.0, 13.0]


def test_what_is_left_to_be_moved_comes_along_when_the_cache_grows() -> None:
    cache = KVCache(2, 4 * SLOTS)
    with torch.inference_mode():
        for layer in range(2):
            cache.update(*(torch.arange(20.0)[None, None, :, None],) * 2, layer)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    cache.reserve(3 * SLOTS)
    assert cache.keys is not None
    assert cache.keys.shape[3] > SLOTS
    assert cache.keys[1, 0, 0, :12, 0].tolist() == [*map(float, range(11)), 13.0]


def test_moves_that_fail_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    monkeypatch.setattr(cache, "_move", full)
    with pytest.raises(torch.OutOfMemoryError):
        cache.settle()
    assert (cache.length, cache.moves) == (11, None)


def test_moves_that_may_or_may_not_have_been_made_are_forgotten() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 1, 4])
    cache.lose_moves()
    assert (cache.length, cache.moves) == (12, None)


def test_moves_behind_what_is_left_are_dropped() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    cache.truncate(11)
    assert cache.moves is None


def test_moves_before_the_end_of_what_is_left_stay() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3, 4])
    cache.truncate(12)
    assert cache.keys is not None
    assert cache.keys[0, 0, 0, :12, 0].tolist() == [*map(float, range(11)), 13.0]


def test_memory_that_goes_back_takes_moves_and_addresses_along() -> None:
    cache = filled_cache(20)
    cache.defers = True
    cache.length = 10
    cache.keep([0, 3])
    before = cache.edition
    cache.release()
    assert (cache.moves, cache.tensors) == (None, None)
    assert cache.edition != before


def test_layers_on_several_devices_are_no_one_tensor() -> None:
    cache = KVCache(2, SLOTS)
    cache.spread([torch.device("cpu"), torch.device("meta")])
    cache.update(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), 0)
    assert cache.tensors is None
