"""Models that are spread over devices: where keys go, and which maps there are."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ladecli import models, placement
from ladecli.decoder import layout
from ladecli.decoder.config import GROWTH
from ladecli.decoder.kv_cache import KVCache, LayerShape
from ladecli.decoder.load import load_decoder
from ladecli.decoder.runner import Runner
from ladecli.decoder.stock_model import StockModel, input_device
from ladecli.decoder.strategy import Draft
from ladecli.errors import UsageError
from ladecli.options import Request
from ladecli.specs import device, memory
from ladecli.specs.device import Device

from .decoding import three_texts
from .families import new_model
from .hub_files import use_devices
from .tokenizers_here import byte_level

pytestmark = pytest.mark.slow

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
"""The second stands for another GPU: it has shapes and devices, and no numbers."""
ON_CPU = Request(device="cpu", dtype="float32")


@torch.inference_mode()
def write(cache: KVCache, tokens: list[int]) -> None:
    """One step of a model whose layers 1 and 2 are elsewhere."""
    cache.reserve(cache.length + len(tokens))
    key = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(2, -1, 3)
    for layer, place in enumerate((CPU, ELSEWHERE, ELSEWHERE, CPU)):
        keys, values = cache.write(layer, (key + layer).to(place), -key.to(place))
        assert keys.device == values.device == place
        assert keys.shape == (2, cache.length + len(tokens), 3)


def spread_cache() -> KVCache:
    places = (CPU, ELSEWHERE, ELSEWHERE, CPU)
    return KVCache([LayerShape(2, 3, 3, torch.float32, place) for place in places])


def held(cache: KVCache, layer: int) -> list[float]:
    return [float(key) for key in cache.layer(layer)[0][0, : cache.length, 0]]


def test_keys_are_where_their_layers_are() -> None:
    cache = spread_cache()
    write(cache, [7, 8])
    cache.keep([0, 1])
    write(cache, [10, 11, 12])
    cache.keep([0, 2])
    assert held(cache, 0) == [7, 8, 10, 12]
    assert held(cache, 3) == [10, 11, 13, 15]
    assert cache.layer(1)[0].device == ELSEWHERE
    assert {tuple(each.shape) for each in cache.tensors} == {(2, 2, 2, GROWTH, 3)}
    write(cache, list(range(GROWTH)))
    cache.keep(range(GROWTH))
    cache.truncate(3)
    assert held(cache, 0) == [7, 8, 10]
    assert {each.shape[3] for each in cache.tensors} == {2 * GROWTH}, "all grow together"
    cache.release()
    assert not cache.tensors


class Waits:
    """What accelerate leaves at a part whose weights come when they are needed."""

    execution_device = "cuda:1"


def test_where_a_model_takes_its_input() -> None:
    model = nn.Sequential(nn.Linear(1, 1, device=ELSEWHERE), nn.Linear(1, 1))
    assert input_device(model) == CPU
    waiting = nn.Sequential(nn.Linear(1, 1, device=ELSEWHERE))
    vars(waiting[0])["_hf_hook"] = Waits()
    assert input_device(waiting) == torch.device("cuda:1")


@pytest.mark.parametrize("several", [False, True])
def test_rows_are_chosen_on_any_device_where_the_last_layer_may_be_elsewhere(several: bool) -> None:
    seen: list[Any] = []

    class Spread(nn.Module):
        dtype = torch.float32

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, **given: Any) -> Any:
            seen.append(given["logits_to_keep"])
            raise KeyError

    places = (CPU, ELSEWHERE) if several else (CPU, CPU)
    shapes = [LayerShape(2, 3, 3, torch.float32, place) for place in places]
    runner = Runner(StockModel(Spread(), shapes), KVCache(shapes))
    with pytest.raises(KeyError):
        runner.run(layout.build([1, 2, 3], 0, Draft()))
    assert seen[0].tolist() == [2]
    assert seen[0].device == CPU


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("on_disk", ["model.layers.0", "model.layers.1"])
def test_weights_on_the_disk_give_the_same_text(
    family: str, on_disk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts are not stored there as they are needed, and are written anew."""
    folder, written = tmp_path / "model", tmp_path / "written"
    written.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(written))
    new_model(family).save_pretrained(folder)
    byte_level().save_pretrained(folder)
    parts = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm")
    parts = (*parts, "model.rotary_emb", "lm_head")
    placed = json.dumps({part: "disk" if part == on_disk else "cpu" for part in parts})
    loaded = models.load(str(folder), replace(ON_CPU, device_map=placed))
    assert any(p.device == ELSEWHERE for p in loaded.model.parameters()), "it is on the disk"
    whole = models.load(str(folder), ON_CPU)
    assert three_texts(load_decoder(loaded.model)) == three_texts(load_decoder(whole.model))
    placement.remove_offloaded()
    assert not [*written.iterdir()], "nothing is left"


def test_auto_keeps_on_the_disk_what_memory_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_devices(monkeypatch, Device("cpu", "cpu", "CPU"), free=20e6)
    options = replace(ON_CPU, device_map="auto")
    everywhere = models.load("demo", options, beside=memory.Need(0.0, 1e6, 0.0)).model
    assert all(each.device == CPU for each in everywhere.parameters()), "12.6 MB"
    spread = models.load("demo", options, beside=memory.Need(0.0, 14e6, 0.0)).model
    assert {"cpu", "disk"} == {*spread.hf_device_map.values()}
    ids = torch.arange(30, 40)[None]
    with torch.inference_mode():
        assert torch.equal(spread(ids).logits, everywhere(ids).logits)
    placement.remove_offloaded()


def test_auto_leaves_room_for_texts_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Device("cuda", f"cuda:{n}", "GPU", 24 << 30) for n in range(2)]
    use_devices(monkeypatch, *cards, Device("cpu", "cpu", "CPU"), free=20e9)
    options = Request(device_map="auto")
    beside = memory.Need(0.0, 8e9, 1e9)
    place = placement.keywords(options, cards[0], None, torch.float16, beside)
    room, spare = pytest.approx(19.4e9 - 1e9 - 4e9), pytest.approx(19.4e9)
    assert place["max_memory"] == {0: room, 1: room, "cpu": spare}


def test_maps_from_text_and_files(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"model": 1, "lm_head": "cuda:0", "x": "disk"}')
    assert device.parse_device_map(str(path)) == {"model": 1, "lm_head": 0, "x": "disk"}
    assert device.parse_device_map('{"": "cpu"}') == {"": "cpu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("banana", "unknown device map 'banana'; use one of auto, balanced, balanced_low_0,"),
        ("{", "unknown device map '{'"),
        ("cuda:1", "--device-map cuda:1 names one device; use --device cuda:1"),
        ("no.json", "cannot read the device map no.json: No such file or directory"),
        ("{}", "unknown device map '{}'"),
        ('{"model": -1}', "the device map puts 'model' on -1; a device is the number of a GPU,"),
        ('{"model": "gpu"}', "the device map puts 'model' on 'gpu'; a device is"),
        ('{"": 0}', "the device map puts '' on GPU 0, and the GPUs here are 0"),
    ],
)
def test_maps_that_are_refused(text: str, message: str, lade: Any) -> None:
    refused = lade("generate", "demo", "-p", "x", "--device", "cpu", "--device-map", text)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"lade: {message}")
    with pytest.raises(UsageError):
        models.plan("demo", Request(device="cpu", device_map=text))


def test_a_map_that_names_no_part_of_the_model(lade: Any) -> None:
    placed = '{"": "cpu", "modle": "disk"}'
    refused = lade("generate", "demo", "-p", "x", "--device", "cpu", "--device-map", placed)
    assert (refused.code, refused.out) == (1, "")
    assert re.fullmatch(r"lade: demo cannot be loaded: .*'modle'.*\n", refused.err)
