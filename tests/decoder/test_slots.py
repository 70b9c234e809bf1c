"""Slots of a cache by Triton's kernels: the same as by torch's operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ladecli.decoder.errors import DeviceLostError
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.layout import Draft, build
from ladecli.decoder.lean import slots, turning
from ladecli.decoder.lean.fused import Room
from ladecli.decoder.lean.rotary import PLAIN, Turn
from ladecli.decoder.lean.turning import TURNINGS
from ladecli.decoder.static_step import StaticCache, StepInputs
from ladecli.decoder.tree import TokenTree

pytest.importorskip("triton")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has them, too: in the interpreter."""
    monkeypatch.setattr(slots, "DEVICES", ("cpu",))
    monkeypatch.setattr(slots, "_work", slots._work.__wrapped__)


def room_for(heads: int, depth: int, length: int, dtype: torch.dtype = torch.float32) -> Room:
    """A cache of twelve slots whose keys and values are other numbers, with other strides."""
    keys, values = torch.randn(2, 1, heads, 15, depth).to(dtype)
    keys = keys[:, :, :12].clone()
    return Room(keys, values[:, :, :12], torch.tensor([length], dtype=torch.int32))


def spread(x: Tensor) -> Tensor:
    """The same numbers, no two of which are neighbours."""
    return x.repeat_interleave(2, -1)[..., ::2]


def product(heads: tuple[int, int, int], count: int, depth: int) -> tuple[Tensor, ...]:
    """Queries, keys and values as they come out of one product."""
    sizes = [each * depth for each in heads]
    parts = torch.split(torch.randn(1, count, sum(sizes)), sizes, dim=-1)
    return tuple(part.view(1, count, -1, depth).transpose(1, 2) for part in parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "depth", "count"), [(2, 8, 3), (1, 80, 1), (3, 5, 4)])
def test_write(heads: int, depth: int, count: int, dtype: torch.dtype) -> None:
    _, key, value = (each.to(dtype) for each in product((4, heads, heads), count, depth))
    room = room_for(heads, depth, 7, dtype)
    expected = room.keys.clone(), room.values.clone()
    expected[0][:, :, 7 : 7 + count] = key
    expected[1][:, :, 7 : 7 + count] = value
    assert slots.may_write(key, value, room)
    slots.write(key, value, room)
    assert torch.equal(room.keys, expected[0])
    assert torch.equal(room.values, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [8, 5])
def test_move_reads_all_before_it_writes_any(dtype: torch.dtype, depth: int) -> None:
    keys, values = torch.randn(2, 3, 1, 2, 12, depth).to(dtype)
    sources = torch.tensor([4, 5, 6, 9, 0, 0, 0, 0], dtype=torch.int32)
    targets = torch.tensor([3, 4, 5, 6, 0, 0, 0, 0], dtype=torch.int32)
    expected = [each.clone() for each in (keys, values)]
    for tensor in expected:
        tensor[:, :, :, 3:7] = tensor[:, :, :, [4, 5, 6, 9]]
    assert slots.may_move(keys, values)
    slots.move(keys, values, sources, targets)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize(("heads", "depth", "count"), [(2, 8, 3), (1, 6, 4), (3, 10, 1)])
def test_what_is_turned_can_be_written_at_once(heads: int, depth: int, count: int) -> None:
    query, key, value = product((4, heads, heads), count, depth)
    cos, sin = torch.randn(2, 1, count, depth)
    room = room_for(heads, depth, 5)
    expected = room.keys.clone(), room.values.clone()
    outs = turning.rotate(query, key, cos, sin)
    expected[0][:, :, 5 : 5 + count] = outs[1]
    expected[1][:, :, 5 : 5 + count] = value
    behind = slots.values_behind(key, room)
    assert behind is not None
    assert slots.same(behind, value)
    written = turning.rotate(query, key, cos, sin, room=room)
    assert all(map(torch.equal, (*written, *room[:2]), (*outs, *expected)))


def test_what_lies_behind_keys() -> None:
    room = room_for(2, 8, 5)
    _, key, value = product((4, 2, 2), 3, 8)
    assert slots.values_behind(key, room) is not None
    # Other sizes, types and heads than the cache has.
    assert slots.values_behind(key, room_for(3, 8, 5)) is None
    assert slots.values_behind(key, room_for(2, 6, 5)) is None
    assert slots.values_behind(key, room_for(2, 8, 5, torch.float16)) is None
    # The end of the tensor, the next token, and keys whose heads are apart.
    assert slots.values_behind(value, room) is None
    assert slots.values_behind(torch.randn(1, 3, 2, 8).transpose(1, 2), room) is None
    assert slots.values_behind(torch.randn(1, 2, 1, 8), room) is None
    assert slots.values_behind(torch.randn(1, 2, 3, 8), room) is None
    # A product without values: behind a token's keys are the next one's.
    assert slots.values_behind(torch.randn(1, 6, 2, 8)[:, :3].transpose(1, 2), room) is None
    assert not slots.may_write(key, value[..., :4], room)
    assert not slots.may_write(key, value, room_for(3, 8, 5))


def test_numbers_that_are_not_neighbours_are_not_for_kernels() -> None:
    room = room_for(2, 8, 5)
    _, key, value = product((4, 2, 2), 3, 8)
    assert slots.may_write(key, value, room)
    assert not slots.may_write(spread(key), value, room)
    assert not slots.may_write(key, spread(value), room)
    for other in (room._replace(keys=spread(room.keys)), room._replace(values=spread(room.values))):
        assert not slots.may_write(key, value, other)
        assert slots.values_behind(key, other) is None


def test_a_single_head_may_have_any_stride() -> None:
    query, key, value = product((4, 1, 1), 3, 8)
    key = key.as_strided(key.shape, (0, 7, key.stride(2), 1))
    room = room_for(1, 8, 5)
    behind = slots.values_behind(key, room)
    assert behind is not None
    assert torch.equal(behind, value)
    cos, sin = torch.randn(2, 1, 3, 8)
    _, turned = turning.rotate(query, key, cos, sin, room=room)
    assert torch.equal(room.keys[:, :, 5:8], turned)
    assert torch.equal(room.values[:, :, 5:8], value)


def test_a_cache_is_forgotten_behind_its_attention() -> None:
    query, key, _ = product((4, 2, 2), 3, 8)
    cos, sin = torch.randn(2, 1, 3, 8)
    turn = Turn(lambda *_: pytest.fail("a kernel takes these"), TURNINGS[0], {PLAIN}, True)

    class Cache:
        def room(self, layer_idx: int) -> Room:
            pytest.fail("nobody has a right to ask")

    def broken() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        turn.run(broken, Cache(), 0)
    # Nor within it, where a trial has not shown that the kernel writes.
    other = Turn(lambda *_: pytest.fail("a kernel takes these"), TURNINGS[0], {PLAIN}, False)
    other.run(lambda: other(query, key, cos, sin), Cache(), 0)
    outs = turn(query, key, cos, sin)
    assert all(map(torch.equal, outs, turning.rotate(query, key, cos, sin)))


def test_the_same_numbers() -> None:
    one = torch.randn(1, 2, 3, 8)
    assert slots.same(one, one.view(1, 2, 3, 8))
    assert slots.same(one[:, :, :1], one.as_strided((1, 2, 1, 8), (7, 24, 99, 1)))
    assert not slots.same(one, one.clone())
    assert not slots.same(one[:, :, :2], one[:, :, 1:])
    assert not slots.same(one[..., :2, :], one[..., ::2, :])


def caches() -> tuple[KVCache, StaticCache]:
    """A text of five tokens in two layers, and a step of three behind it."""
    cache = KVCache(2, 64)
    inputs = StepInputs(3, torch.device("cpu"))
    tree = TokenTree()
    tree.add([5, 6], "trial", limit=2)
    with torch.inference_mode():
        for layer in range(2):
            cache.update(*torch.ones(2, 1, 2, 5, 8), layer)
        cache.keep(range(5))
        inputs.fill(build([4], 5, Draft(tree)), 5, None, ())
        inputs.send()
        return cache, StaticCache(cache, inputs, 16)


@pytest.mark.usefixtures("kernels")
def test_a_cache_believes_what_was_written_only_if_it_is_the_same() -> None:
    cache, static = caches()
    _, key, value = product((1, 2, 2), 3, 8)
    _, other, another = product((1, 2, 2), 3, 8)
    with torch.inference_mode():
        for wrote in (key, other):
            for values in (value, another):
                # Nothing was written, whatever they say.
                static.wrote(0, wrote, values)
                keys, _ = static.update(key, value, 0)
                believed = wrote is key and values is value
                assert bool((keys[:, :, 5:8] == key).all()) is not believed
                static.room(0).keys[:, :, 5:8] = 0.0
        # And it is believed once.
        keys, _ = static.update(key, value, 0)
    assert torch.equal(keys[:, :, 5:8], key)
    assert cache.keys is not None
    assert bool((cache.keys[:, :, :, :5] == 1).all())


@pytest.mark.usefixtures("kernels")
def test_what_kernels_do_not_take_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    _, static = caches()
    for name in ("move", "write"):
        monkeypatch.setattr(slots, f"may_{name}", lambda *_: False)
        monkeypatch.setattr(slots, name, lambda *_: pytest.fail("nobody asked"))
    key, value = torch.randn(2, 1, 2, 3, 8)
    with torch.inference_mode():
        static.move()
        keys, values = static.update(key, value, 0)
    assert torch.equal(keys[:, :, 5:8], key)
    assert torch.equal(values[:, :, 5:8], value)


@pytest.mark.usefixtures("kernels")
def test_kernels_that_fail_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    place = torch.device("cpu"), torch.float32
    assert slots.work(*place)

    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    for name, wrong in (("write", broken), ("write", lambda *_: None), ("move", lambda *_: None)):
        with monkeypatch.context() as patch:
            patch.setattr(slots, name, wrong)
            assert not slots.work(*place)
            key, value = torch.randn(2, 1, 2, 3, 8)
            with torch.inference_mode():
                keys, values = caches()[1].update(key, value, 1)
            assert torch.equal(keys[:, :, 5:8], key)
            assert torch.equal(values[:, :, 5:8], value)


def test_memory_may_suffice_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "DEVICES", ("cpu",))
    slots._work.cache_clear()
    place = torch.device("cpu"), torch.float32

    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(slots, "write", broken)
        assert not slots.work(*place)
    assert slots.work(*place)


@pytest.mark.usefixtures("kernels")
def test_a_lost_gpu_is_no_kernel_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise DeviceLostError("the GPU has met a fault")

    monkeypatch.setattr(slots, "write", lost)
    with pytest.raises(DeviceLostError):
        slots.work(torch.device("cpu"), torch.float32)


def test_a_cpu_has_nothing_to_gain() -> None:
    assert not slots.work(torch.device("cpu"), torch.float32)
