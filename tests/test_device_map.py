"""Models that are spread over devices: where keys go, what memory allows, which maps there are."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ladecli import __main__, cli, device, device_map, memory, models, offload, placement
from ladecli.decoder import layout
from ladecli.decoder.attention import StepMask
from ladecli.decoder.config import GROWTH
from ladecli.decoder.kv_cache import KVCache, LayerShape
from ladecli.decoder.load import load_decoder
from ladecli.decoder.runner import Runner
from ladecli.decoder.stock_model import StockModel, input_device
from ladecli.errors import LadeError, UsageError
from ladecli.options import LoadOptions

from .families import model_of
from .split_texts import texts
from .test_memory import GB, LLAMA_7B
from .tokenizers_here import byte_level

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
"""The second stands for another GPU: it has shapes and devices, and no numbers."""


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


def limit(patch: pytest.MonkeyPatch, slots: int) -> None:
    """Let there be no memory elsewhere for a cache of more slots."""
    real = torch.zeros

    def limited(shape: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs["device"] == ELSEWHERE and shape[3] > slots:
            raise torch.OutOfMemoryError
        return real(shape, **kwargs)

    patch.setattr(torch, "zeros", limited)


def test_a_first_step_that_one_device_has_no_room_for_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = spread_cache()
    limit(monkeypatch, GROWTH)
    with pytest.raises(torch.OutOfMemoryError):
        write(cache, list(range(GROWTH + 1)))
    write(cache, [1, 2, 3])
    cache.keep(range(3))
    assert cache.slots == GROWTH
    assert held(cache, 0) == [1, 2, 3]


def test_growing_is_for_all_devices_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = spread_cache()
    write(cache, [1, 2, 3])
    cache.keep(range(3))
    with monkeypatch.context() as patch:
        limit(patch, 0)
        with pytest.raises(torch.OutOfMemoryError):
            cache.reserve(GROWTH + 1)
    write(cache, [4])
    cache.keep([0])
    assert cache.slots == GROWTH
    assert held(cache, 0) == [1, 2, 3, 4]


def test_masks_go_where_the_layers_are() -> None:
    mask = StepMask((0b01, 0b11), (3, 4), 3)
    here, there = (mask.additive_mask(None, 1, torch.float32, at) for at in (CPU, ELSEWHERE))
    assert here is not None
    assert there is not None
    assert (here.device, there.device, here.shape) == (CPU, ELSEWHERE, there.shape)
    assert mask.additive_mask(None, 1, torch.float32, ELSEWHERE) is there, "made once"


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
        runner.run(layout.build([1, 2, 3], 0, layout.Draft()))
    assert seen[0].tolist() == [2]
    assert seen[0].device == CPU


@pytest.fixture(scope="module", params=["llama", "mixtral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model on the disk; a mixture of experts is not stored there as it is needed."""
    path = tmp_path_factory.mktemp("maps") / request.param
    model_of(request.param).save_pretrained(path)
    byte_level().save_pretrained(path)
    return str(path)


LAST_ON_DISK = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
FIRST_ON_DISK = {"model.embed_tokens": "disk", "model.layers.0": "disk", "model.layers.1": "cpu"}
REST = {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}


@pytest.mark.parametrize("placed", [LAST_ON_DISK, FIRST_ON_DISK])
def test_weights_on_the_disk_give_the_same_text(
    placed: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = json.dumps(placed | REST)
    options = LoadOptions(device="cpu", dtype="float32", device_map=written)
    loaded = models.load(folder, options)
    assert any(p.device == ELSEWHERE for p in loaded.model.parameters()), "it is on the disk"
    whole = models.load(folder, LoadOptions(device="cpu", dtype="float32"))
    assert texts(load_decoder(loaded.model)) == texts(load_decoder(whole.model))
    offload.remove_all()
    assert not [*tmp_path.iterdir()], "nothing is left behind"


def test_a_program_that_ends_at_once_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept, empty = Path(offload.make()), Path(offload.make())
    (kept / "weights.dat").write_bytes(b"0")
    assert {*tmp_path.iterdir()} == {kept, empty}
    offload.remove_all()
    offload.remove_all()
    assert not [*tmp_path.iterdir()]


def test_auto_keeps_on_the_disk_what_memory_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(placement, "free_memory", lambda _: 20_000_000)
    options = LoadOptions(device="cpu", dtype="float32", device_map="auto")
    everywhere = models.load("demo", options, beside=memory.Need(0.0, 1e6, 0.0)).model
    assert all(each.device == CPU for each in everywhere.parameters()), "12.6 MB"
    spread = models.load("demo", options, beside=memory.Need(0.0, 14e6, 0.0)).model
    assert {"cpu", "disk"} == {*spread.hf_device_map.values()}
    ids = torch.arange(30, 40)[None]
    with torch.inference_mode():
        assert torch.equal(spread(ids).logits, everywhere(ids).logits)


def test_auto_leaves_room_for_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = memory.Need(0.0, 8e9, 1e9)
    cards = [device.Device("cuda", f"cuda:{n}", "GPU", 24 << 30) for n in range(2)]
    free = {"cuda:0": 20e9, "cuda:1": 10e9, "cpu": 50e9}
    monkeypatch.setattr(placement, "gpus", lambda: cards)
    monkeypatch.setattr(placement, "free_memory", lambda each: free[each.torch_name])
    limits = placement._limits(beside)
    assert limits[0] == pytest.approx(19.4e9 - 1e9 - 8e9 * 2 / 3)
    assert limits[1] == pytest.approx(9.7e9 - 1e9 - 8e9 / 3)
    assert limits["cpu"] == pytest.approx(48.5e9)
    monkeypatch.setattr(placement, "gpus", list)
    assert placement._limits(beside) == {"cpu": pytest.approx(48.5e9 - 9e9)}


def ask(gpus: list[float], processor: float, wanted: int | None = None) -> tuple[int, str | None]:
    free = [each * GB for each in gpus]
    return memory.spread("m", LLAMA_7B, free, processor * GB, memory.Asked(4096, wanted, 64))


def test_what_fits_on_several_gpus_is_not_talked_about() -> None:
    assert ask([10, 10], 8) == (4096, None)
    context, notice = ask([8, 8], 8)
    assert context < 4096
    assert notice is not None
    assert "texts end at" in notice
    assert "2 GPUs" in notice


@pytest.mark.parametrize(
    ("gpus", "processor", "message"),
    [
        ([12], 64, r"\d\.\d+ GB of the 13\.5 GB of weights do not fit on 1 GPU and stay in the"
                   r" processor's memory: every step reads them from there, which is slow"),
        ([6, 6], 1, r"\d\.\d+ GB of .* do not fit on 2 GPUs and stay in the processor's memory,"
                    r" \d\.\d+ GB of them on the disk: every step .*"),
        ([], 12, r"\d\.\d+ GB of .* do not fit on this machine and stay on the disk: every .*"),
    ],
)  # fmt: skip
def test_weights_that_stay_elsewhere_are_told(
    gpus: list[float], processor: float, message: str
) -> None:
    context, notice = ask(gpus, processor)
    assert context == 4096
    assert notice is not None
    assert re.fullmatch(message, notice)


def test_no_room_for_texts_is_an_error_wherever_the_weights_are() -> None:
    with pytest.raises(LadeError, match="that can be used on 1 GPU"):
        ask([0.5], 64)


def test_weights_on_the_disk_do_not_outlive_a_program_that_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After Ctrl-C, say, nothing of Python's own exit is done."""
    folder = Path(offload.make())
    codes: list[int] = []

    def ended(code: int) -> None:
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(cli, "entry", lambda: 130)
    assert folder.is_dir()
    with pytest.raises(SystemExit):
        __main__.run_and_exit()
    assert codes == [130]
    assert not folder.exists()


@pytest.mark.parametrize("word", device_map.WORDS)
def test_words_of_transformers(word: str) -> None:
    assert device_map.parse(word) == word
    models.plan("demo", LoadOptions(device="cpu", device_map=word))


def test_maps_from_text_and_files(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"model": 1, "lm_head": "cuda:0", "x": "disk"}')
    assert device_map.parse(str(path)) == {"model": 1, "lm_head": 0, "x": "disk"}
    assert device_map.parse('{"": "cpu"}') == {"": "cpu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("banana", "unknown device map 'banana'; use one of auto, balanced, balanced_low_0,"
                   " sequential, or a .json file that names a device for each part of the model"),
        ("cuda:1", "--device-map cuda:1 names one device; use --device cuda:1"),
        ("cpu", "--device-map cpu names one device; use --device cpu"),
        ("no.json", "cannot read the device map no.json: No such file or directory"),
        ("{", "the device map is no JSON: Expecting property name enclosed in double quotes:"
              " line 1 column 2 (char 1)"),
        ("{}", 'the device map names no part of the model; {"": 0} puts all on one GPU'),
        ('{"model": -1}', "the device map puts 'model' on -1; a device is the number of a GPU,"
                          " cuda:N, cpu or disk"),
        ('{"model": "gpu"}', "the device map puts 'model' on 'gpu'; a device is the number of a"
                             " GPU, cuda:N, cpu or disk"),
        ('{"": 0}', "the device map puts '' on GPU 0, and there is none here"),
        ('{"model": "cpu"}', "demo has lm_head.weight, for which the device map names no device"),
        ('{"": "cpu", "modle": "disk"}', "demo has no part 'modle' that the device map could"
                                         " place"),
    ],
)  # fmt: skip
def test_maps_that_are_none(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.plan("demo", LoadOptions(device="cpu", device_map=text))
    assert str(caught.value) == message
