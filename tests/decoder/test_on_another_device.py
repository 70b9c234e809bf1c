"""What a GPU runs and a CPU does not, on tensors that have a device and no numbers.

Where operations meet tensors of two devices, torch says so without any GPU.  So do operations
that need a number on the host, which a CUDA graph cannot hold.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)

from ladecli.decoder import layout
from ladecli.decoder.attention import BACKENDS, bound, flash
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.graphs import GraphRunner, _Kind
from ladecli.decoder.kv_cache import KVCache, Moves
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.lean import Lean, make_lean
from ladecli.decoder.readout import Wanted
from ladecli.decoder.readout.choosing import choose_ahead
from ladecli.decoder.readout.ranking import ranked
from ladecli.decoder.runner import Runner
from ladecli.decoder.static_step import StepInputs
from ladecli.decoder.tree import TokenTree

from ..families import VOCABULARY, model_of
from .tracing import Tracing

GPU = torch.device("cuda", 0)
TEXT = 16
SAMPLINGS = {
    "greedy": None,
    "all": SamplingConfig(temperature=0.7),
    "cut": SamplingConfig(temperature=0.7, top_k=9, top_p=0.9, min_p=0.01),
    "penalized": SamplingConfig(temperature=0.7, top_p=0.9, repetition_penalty=1.1),
}


@pytest.fixture(autouse=True)
def _without_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors without numbers; those of the host that come in are taken for such."""
    make = torch.tensor

    def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        # It would be written where there is no device.
        return torch.empty_like(make(data, dtype=dtype), device=device)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(FakeTensor, "__getitem__", part_of)
    monkeypatch.setattr(FakeTensor, "__setitem__", write_part)
    monkeypatch.setattr(FakeTensor, "copy_", write)
    monkeypatch.setattr(FakeTensor, "__invert__", lambda tensor: torch.bitwise_not(tensor))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    # Where kernels fail, somebody looks whether the device still answers.
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(flash, "_processors", lambda *_: 132)
    monkeypatch.setattr(flash, "_package", lambda: None)
    # Autograd would look for the device, too.
    with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def part_of(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]`, for which a torch without CUDA would look for the device."""
    indices = index if isinstance(index, tuple) else (index,)
    named = sum(each is not None and each is not Ellipsis for each in indices)
    rest, at = tensor.ndim - named, 0
    for each in indices:
        if each is Ellipsis:
            at += rest
        elif each is None:
            tensor, at = tensor.unsqueeze(at), at + 1
        elif isinstance(each, int):
            tensor = tensor.select(at, each)
        elif isinstance(each, slice):
            tensor = torch.ops.aten.slice(tensor, at, each.start, each.stop, each.step or 1)
            at += 1
        else:
            each = torch.tensor(each, device=tensor.device) if isinstance(each, list) else each
            tensor = torch.ops.aten.index(tensor, [*[None] * at, each])
            at += each.ndim
    return tensor


def write_part(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`."""
    part = part_of(tensor, index)
    write(part, value) if isinstance(value, Tensor) else part.fill_(value)


def write(tensor: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`tensor.copy_(source)`."""
    return torch.ops.aten.copy_(tensor, source, non_blocking)


def on_gpu(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and type on the GPU."""
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=GPU)


def model_on_gpu(family: str, dtype: torch.dtype) -> tuple[Any, Lean]:
    """A model, lean by trials on the CPU, whose every tensor is on the GPU then."""
    with unset_fake_temporarily():
        model = copy.deepcopy(model_of(family)).to(dtype)
        lean = make_lean(model, ("norms", "gates", "products"))
    seen: set[int] = set()
    for module in model.modules():
        move(vars(module), seen)
    for _, forward in lean._forwards:
        move(vars(forward.__self__), seen)
    return model, lean


def move(held: dict[str, Any], seen: set[int]) -> None:
    """Put every tensor that is held here, or by what is held here, on the GPU."""
    for name, value in held.items():
        held[name] = moved(value, seen)


def moved(value: Any, seen: set[int]) -> Any:
    if isinstance(value, Tensor):
        return on_gpu(value) if value.device != GPU else value
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(moved(each, seen) for each in value)
    if id(value) in seen or isinstance(value, nn.Module):
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        move(value, seen)
    elif type(value).__module__.startswith("ladecli.decoder.lean"):
        move(vars(value), seen)
    return value


def a_step(width: int = 8) -> StepLayout:
    """A tree of two branches behind the text, padded."""
    tree = TokenTree()
    tree.add([5, 6, 7], "trial", limit=9)
    tree.add([8, 9], "trial", limit=9)
    return layout.build([4], TEXT, layout.Draft(tree, width=width, successors=4))


def a_cache(model: Any, dtype: torch.dtype) -> KVCache:
    """A cache that holds a text."""
    config = model.config
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = KVCache(config.num_hidden_layers, 256)
    for layer in range(cache.layers):
        written = torch.empty(1, heads, TEXT, size, dtype=dtype, device=GPU)
        cache.update(written, written, layer)
    cache.keep(range(TEXT))
    return cache


def inputs_on_gpu(width: int) -> StepInputs:
    """As a step on the GPU has them; the host's buffer has numbers, and is not pinned."""
    with unset_fake_temporarily():
        inputs = StepInputs(width, torch.device("cpu"))
    inputs.fill(a_step(width), TEXT, Moves([18, 19], 17), [0.5] * width)
    move(vars(inputs), set())
    return inputs


FAMILIES = {
    ("llama", "sdpa"): torch.bfloat16,
    ("llama", "flash"): torch.float16,
    ("llama", "reference"): torch.float32,
    ("gemma2", "sdpa"): torch.bfloat16,
    ("mistral", "flash"): torch.bfloat16,
    ("mixtral", "sdpa"): torch.bfloat16,
}


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_steps_stay_on_the_device(family: str, attention: str) -> None:
    dtype = FAMILIES[family, attention]
    model, lean = model_on_gpu(family, dtype)
    assert len(lean) > 0
    cache = a_cache(model, dtype)
    with bound(model):
        runner = GraphRunner(model, cache, attention, Tracing())
        assert runner.device == GPU
        inputs = inputs_on_gpu(8)
        for sampling in SAMPLINGS.values():
            successors = 4 if sampling is None else 0
            penalty = 1.0 if sampling is None else sampling.repetition_penalty
            kind = _Kind(8, 256, successors, sampling is not None, sampling, penalty)
            (words,) = runner._work(kind, inputs)
            assert words.device == GPU
            assert words.dtype == torch.int32
            assert words.shape == ((2 * 4 * 8,) if sampling is None else (2 * 8,))
        # All that draw leave them there, and others of up to 16 tokens would.
        assert {rows: left.shape for rows, left in runner._logits.items()} == {16: (16, VOCABULARY)}
        assert runner._logits[16].device == GPU


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_steps_that_are_not_captured(family: str, attention: str) -> None:
    dtype = FAMILIES[family, attention]
    model, _ = model_on_gpu(family, dtype)
    cache = a_cache(model, dtype)
    with bound(model):
        runner = Runner(model, cache, attention)
        assert runner.chooses
        for sampling in SAMPLINGS.values():
            penalty = 1.0 if sampling is None else sampling.repetition_penalty
            wanted = Wanted(4, True, sampling, [0.5] * 8, penalty, [3, 4])
            running = runner.start(a_step(), wanted)
            assert running._words.device == GPU
            cache.keep([0, 2, 3])  # something is moved


def test_no_plan_is_made_for_every_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = model_on_gpu("llama", torch.bfloat16)
    sdpa, enabled = BACKENDS["sdpa"], torch.backends.cuda.cudnn_sdp_enabled
    seen: list[bool] = []

    def watched(*args: Any) -> Tensor:
        seen.append(enabled())
        return sdpa(*args)

    monkeypatch.setitem(BACKENDS, "sdpa", watched)
    with bound(model):
        Runner(model, a_cache(model, torch.bfloat16), "sdpa").forward(a_step())
    assert enabled()
    assert seen == [False, False]


@pytest.mark.parametrize("vocabulary", [97, 5000, 32003])
def test_what_is_read_out_of_logits(vocabulary: int) -> None:
    logits = torch.empty(6, vocabulary, dtype=torch.bfloat16, device=GPU)
    uniforms = torch.empty(6, dtype=torch.float64, device=GPU)
    assert {each.device for each in ranked(logits, 8)} == {GPU}
    for sampling in SAMPLINGS.values():
        if sampling is not None:
            assert choose_ahead(logits, uniforms, sampling).device == GPU


def test_it_notices_a_tensor_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What these tests are worth: an attention that makes its mask on the host is found."""
    sdpa = BACKENDS["sdpa"]

    def careless(query: Tensor, *args: Any) -> Tensor:
        return sdpa(query, *args) * torch.ones(query.shape[2], 1)

    monkeypatch.setitem(BACKENDS, "sdpa", careless)
    with pytest.raises(RuntimeError, match="same device"):
        test_steps_stay_on_the_device("llama", "sdpa")


def test_it_notices_a_question_for_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sdpa = BACKENDS["sdpa"]

    def curious(query: Tensor, *args: Any) -> Tensor:
        return sdpa(query, *args) if float(query.amax()) < 1e9 else query

    monkeypatch.setitem(BACKENDS, "sdpa", curious)
    with pytest.raises(RuntimeError, match=r"_local_scalar_dense|not linked with support"):
        test_steps_stay_on_the_device("llama", "sdpa")
