"""Models that are spread over devices: the places of keys, and the room on each device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ladecli.decoder.config import GROWTH
from ladecli.decoder.kv_cache import KVCache, LayerShape
from ladecli.models import memory, placement
from ladecli.models.device import Device
from ladecli.models.load import load
from ladecli.options.model import ModelOptions, PlacementOptions
from tests.support.hub import plan, use_devices

pytestmark = pytest.mark.slow

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
"""The second device stands for another GPU: its tensors have shapes but no numbers."""
PLACES = (CPU, ELSEWHERE, ELSEWHERE, CPU)
FLOAT32, ON_CPU = ModelOptions(dtype="float32"), PlacementOptions(device="cpu")


@torch.inference_mode()
def write(cache: KVCache, tokens: list[int]) -> None:
    """Write one step of a model whose layers 1 and 2 are on another device."""
    cache.reserve(cache.length + len(tokens))
    key = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(2, -1, 3)
    for layer, place in enumerate(PLACES):
        keys, values = cache.write(layer, (key + layer).to(place), -key.to(place))
        assert keys.device == values.device == place
        assert keys.shape == (2, cache.length + len(tokens), 3)


def held(cache: KVCache, layer: int) -> list[float]:
    return [float(key) for key in cache.layer(layer)[0][0, : cache.length, 0]]


def test_keys_are_where_their_layers_are() -> None:
    cache = KVCache([LayerShape(2, 3, 3, torch.float32, place) for place in PLACES])
    write(cache, [7, 8])
    cache.keep([0, 1])
    write(cache, [10, 11, 12])
    cache.keep([0, 2])
    assert held(cache, 0) == [7, 8, 10, 12]
    assert held(cache, 3) == [10, 11, 13, 15]
    assert cache.layer(1)[0].device == ELSEWHERE
    assert {tuple(tensor.shape) for tensor in cache.tensors} == {(4, 2, GROWTH, 3)}
    write(cache, list(range(GROWTH)))
    cache.keep(range(GROWTH))
    cache.truncate(3)
    assert held(cache, 0) == [7, 8, 10]
    assert {tensor.shape[2] for tensor in cache.tensors} == {2 * GROWTH}, "all grow together"
    cache.release()
    assert not cache.tensors


def test_auto_offloads_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    use_devices(monkeypatch, Device("cpu", "cpu", "CPU"), free=20e6)
    planned = plan("demo", FLOAT32, replace(ON_CPU, device_map="auto"))
    small, large = (memory.MemoryNeed(0.0, cache, 0.0) for cache in (1e6, 14e6))
    everywhere = load(planned, need=small).model
    assert {weight.device for weight in everywhere.parameters()} == {CPU}, "12.6 MB"
    spread = load(planned, need=large).model
    assert {"cpu", "disk"} == {*spread.hf_device_map.values()}
    ids = torch.arange(30, 40)[None]
    with torch.inference_mode():
        assert torch.equal(spread(ids).logits, everywhere(ids).logits)
    placement.remove_offloaded()


def test_auto_leaves_room_for_texts_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Device("cuda", f"cuda:{n}", "GPU", 24 << 30) for n in range(2)]
    use_devices(monkeypatch, *cards, Device("cpu", "cpu", "CPU"), free=20e9)
    where = placement.Placement(cards[0], device_map="auto")
    need = memory.MemoryNeed(0.0, 8e9, 1e9)
    place = placement.keywords(where, None, torch.float16, need)
    room, spare = pytest.approx(19.4e9 - 1e9 - 4e9), pytest.approx(19.4e9)
    assert place["max_memory"] == {0: room, 1: room, "cpu": spare}
