"""Attention backends and Triton kernels on a GPU."""

from __future__ import annotations

import copy
import time
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ladecli.decoder import sampling
from ladecli.decoder.backends.attention import BACKENDS, choose_backend, choose_operations
from ladecli.decoder.backends.facts import model_facts
from ladecli.decoder.backends.triton_attention import compile_attention
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.kv_cache import Target
from ladecli.decoder.model.layer import Heads, Norm, Norms
from ladecli.decoder.model.mask import CapturedMask, DeviceMask, Rules, StepMask
from ladecli.decoder.model.rotary import Rotary
from ladecli.decoder.model.transformer import Transformer
from tests.support.decoding import tree_step
from tests.support.models import model_of

GPU, HALF = torch.device("cuda", 0), torch.bfloat16
# Norm of the error over norm of the result.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


def ops() -> Any:
    from ladecli.decoder.backends.triton_ops import TritonOps

    return TritonOps()


def randn(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> Tensor:
    generator = torch.Generator(GPU).manual_seed(seed)
    return torch.randn(*shape, device=GPU, generator=generator).to(dtype)


def error(out: Tensor, expected: Tensor) -> float:
    """Return the relative error; infinite if the result contains NaN."""
    far = (out.double() - expected.double()).norm() / expected.double().norm()
    return float(far.nan_to_num(float("inf")))


@pytest.mark.parametrize("backend", ["sdpa", "flash", "triton"])
@pytest.mark.parametrize(
    ("groups", "size", "dtype"),
    [(1, 128, HALF), (4, 128, HALF), (7, 64, HALF), (2, 64, torch.float32)],
)
@torch.inference_mode()
def test_backends(backend: str, groups: int, size: int, dtype: torch.dtype) -> None:
    if backend == "flash" and dtype == torch.float32:
        pytest.skip("flash-attn knows half precision only")
    try:
        choose_backend(backend, GPU, dtype)
    except ConfigError as reason:
        pytest.skip(str(reason))
    sinks = randn(2 * groups, dtype=dtype)
    for prefix, count, window, softcap, sink in (
        *(
            (prefix, count, None, None, None)
            for prefix in (0, 1, 300, 2000)
            for count in (1, 17, 64, 128)
        ),
        *((300, count, 40, softcap, None) for count in (1, 17) for softcap in (None, 20.0)),
        *((prefix, 17, window, None, sinks) for prefix in (0, 2000) for window in (None, 40)),
    ):
        layout, slots = tree_step(count, prefix), -(-(prefix + count + 1) // 256) * 256
        query = randn(1, count, 2 * groups, size, dtype=dtype).transpose(1, 2)
        key, value = randn(2, 1, 2, slots, size, dtype=dtype, seed=1)
        key[:, :, prefix + count :] = value[:, :, prefix + count :] = 50.0
        exact = [
            x.float() for x in (query, key[:, :, : prefix + count], value[:, :, : prefix + count])
        ]
        mask = StepMask(layout.rows, layout.positions, prefix)
        rules = Rules(size**-0.5, window, softcap, sink)
        expected = BACKENDS["reference"](*exact, mask, rules)
        out = BACKENDS[backend](*(x.to(dtype) for x in exact), mask, rules)
        case = prefix, count, window, softcap, sink is not None
        assert error(out, expected) <= ERROR[dtype], case
        captured = CapturedMask(mask.on_device(GPU), slots)
        out = BACKENDS[backend](query, key, value, captured, rules)
        assert error(out, expected) <= ERROR[dtype], (*case, "captured")


@torch.inference_mode()
def test_a_captured_step_follows_the_text() -> None:
    """One graph of cache write and attention, replayed after texts of several lengths."""
    count, slots, heads, size = 8, 1024, 4, 128
    numbers = DeviceMask(
        *(torch.ones(n, dtype=torch.int32, device=GPU) for n in (1, count, (count, 1)))
    )
    cache, qkv = randn(2, heads, slots, size), randn(count, 3 * heads * size, seed=1)
    cos, sin = torch.ones(count, 1, size, device=GPU), torch.zeros(count, 1, size, device=GPU)
    rotary = Rotary(cos, sin, interleaved=False)
    layer = types.SimpleNamespace(index=0, heads=Heads(heads, heads, size), norms=Norms())
    target = types.SimpleNamespace(target=lambda *_: Target(*cache, numbers.length, slots))

    def step() -> Tensor:
        query, keys, values = ops().rope_and_write(qkv, layer, rotary, target)
        mask = CapturedMask(numbers, slots)
        return BACKENDS["triton"](query[None], keys[None], values[None], mask, Rules(0.1))

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for prefix in (1, 500, 63, 1000):
        layout = tree_step(count, prefix)
        mask = StepMask(layout.rows, layout.positions, prefix)
        for fixed, new in zip(numbers, mask.on_device(GPU), strict=True):
            fixed.copy_(new)
        graph.replay()
        query, key, value = qkv.view(count, 3, heads, size).unbind(1)
        keys, values = (
            torch.cat((old[:, :prefix], new.transpose(0, 1)), 1)[None]
            for old, new in zip(cache, (key, value), strict=True)
        )
        expected = BACKENDS["reference"](
            query.transpose(0, 1)[None], keys, values, mask, Rules(0.1)
        )
        assert error(out, expected) <= ERROR[HALF], prefix


@torch.inference_mode()
def test_row_kernels_in_bfloat16() -> None:
    x, update, weight = randn(5, 4096), randn(5, 4096, seed=1), 1 + 0.1 * randn(4096, seed=2)
    total = x + update
    for norm in (Norm(weight, 1e-5), Norm(weight.float(), 1e-5)):
        out = ops().add_rms_norm(x.clone(), update, norm)
        assert error(out, F.rms_norm(total.float(), (4096,), weight.float(), 1e-5)) < 1e-2
    both = 3 * randn(5, 2 * 11008)
    gate, up = both.float().chunk(2, dim=-1)
    assert error(ops().gate(both, "silu"), F.silu(gate) * up) < 1e-2
    assert error(ops().gate(both, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 128_256), (9, 49_152), (64, 300)])
@torch.inference_mode()
def test_ranks(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    from ladecli.decoder.backends.triton_ranking import most_probable

    logits = randn(rows, vocabulary, dtype=dtype)
    for count in (0, 6, 12):
        ids, shares = most_probable(logits, count)
        expected, known = sampling.most_probable(logits, count)
        assert torch.equal(ids[:, 0], expected[:, 0])
        assert torch.equal(logits.gather(1, ids), logits.gather(1, expected))
        if count:
            torch.testing.assert_close(shares, known)


def test_attention_is_compiled_in_threads(tmp_path: Any, monkeypatch: Any) -> None:
    """Afterwards a step of these widths compiles nothing, so it takes no time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stock = copy.deepcopy(model_of("llama")).to(GPU, HALF)
    operations = choose_operations("triton", GPU, HALF)
    model = Transformer(stock, model_facts(stock.config), operations)
    compile_attention(model, (1, 8, 32, 64), slots=1024)
    torch.cuda.synchronize()
    start = time.perf_counter()
    compile_attention(model, (1, 8, 32, 64), slots=1024)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 0.5
    assert choose_backend("auto", GPU, HALF) == "triton"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 4096), (1536, 8960), (1000, 600)])
@torch.inference_mode()
def test_a_row_of_a_product_is_the_same_among_others(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    from ladecli.decoder.backends.triton_product import BLOCKS, SkinnyProduct

    product = SkinnyProduct(randn(outputs, inputs, dtype=dtype), None, alike=True)
    x = randn(300, inputs, dtype=dtype, seed=1)
    alone = torch.cat([product(row[None]) for row in x])
    assert error(alone, x.float() @ product.weight.float().T) < 1e-2
    for width in (1, 2, 3, 5, 8, 16, 17, 33, 64, 128, 300):
        for product.block in BLOCKS:
            assert torch.equal(product(x[:width]), alone[:width]), (width, product.block)
