"""Attention backends and Triton kernels on a GPU."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ladecli.decoder.attention import (
    BACKENDS,
    CapturedMask,
    DeviceMask,
    StepMask,
    check_usable,
    choose_backend,
)
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.layout import Draft, StepLayout, build
from ladecli.decoder.tree import TokenTree

GPU, HALF = torch.device("cuda", 0), torch.bfloat16
# Norm of the error over norm of the result.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


def kernels() -> Any:
    from ladecli.decoder import triton_kernels

    return triton_kernels


def randn(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> Tensor:
    generator = torch.Generator(GPU).manual_seed(seed)
    return torch.randn(*shape, device=GPU, generator=generator).to(dtype)


def error(found: Tensor, expected: Tensor) -> float:
    """Infinite where what was found is not a number."""
    far = (found.double() - expected.double()).norm() / expected.double().norm()
    return float(far.nan_to_num(float("inf")))


def tree_step(count: int, prefix: int) -> StepLayout:
    draw, tree = random.Random(count), TokenTree()
    for node in range(count - 1):
        tree.grow(draw.randrange(max(-1, node - 5), node), node, "context")
    return build([3], prefix, Draft(tree))


@pytest.mark.parametrize("backend", ["sdpa", "flash", "triton"])
@pytest.mark.parametrize(
    ("groups", "size", "dtype"),
    [(1, 128, HALF), (4, 128, HALF), (7, 64, HALF), (2, 64, torch.float32)],
)
@torch.inference_mode()
def test_backends(backend: str, groups: int, size: int, dtype: torch.dtype) -> None:
    try:
        check_usable(backend, GPU, dtype, 2 * groups, 2, size)
    except ConfigError as reason:
        pytest.skip(str(reason))
    for prefix, count, window, softcap in (
        *(
            (prefix, count, None, None)
            for prefix in (0, 1, 300, 2000)
            for count in (1, 17, 64, 128)
        ),
        *((300, count, 40, softcap) for count in (1, 17) for softcap in (None, 20.0)),
    ):
        layout, slots = tree_step(count, prefix), -(-(prefix + count + 1) // 256) * 256
        query = randn(1, count, 2 * groups, size, dtype=dtype).transpose(1, 2)
        key, value = randn(2, 1, 2, slots, size, dtype=dtype, seed=1)
        key[:, :, prefix + count :] = value[:, :, prefix + count :] = 50.0
        exact = [
            x.float() for x in (query, key[:, :, : prefix + count], value[:, :, : prefix + count])
        ]
        mask = StepMask(layout.rows, layout.positions, prefix)
        more = size**-0.5, window, softcap
        expected = BACKENDS["reference"](*exact, mask, *more)
        out = BACKENDS[backend](*(x.to(dtype) for x in exact), mask, *more)
        assert error(out, expected) <= ERROR[dtype], (prefix, count, window, softcap)
        captured = CapturedMask(mask.on_device(GPU), slots)
        out = BACKENDS[backend](query, key, value, captured, *more)
        assert error(out, expected) <= ERROR[dtype], (prefix, count, window, softcap, "captured")


@torch.inference_mode()
def test_a_captured_step_follows_the_text() -> None:
    """One graph of cache write and attention, replayed after texts of several lengths."""
    count, slots, heads, size = 8, 1024, 4, 128
    numbers = DeviceMask(
        *(torch.ones(n, dtype=torch.int32, device=GPU) for n in (1, count, (count, 1)))
    )
    cache, qkv = randn(2, heads, slots, size), randn(count, 3 * heads * size, seed=1)
    cos, sin = torch.ones(count, size, device=GPU), torch.zeros(count, size, device=GPU)

    def step() -> Tensor:
        rope = kernels().rope_and_write
        norms = None, None, 1e-6, False
        query = rope(qkv, cos, sin, heads, heads, size, *norms, *cache, numbers.length)
        mask = CapturedMask(numbers, slots)
        return BACKENDS["triton"](
            query.transpose(0, 1)[None], *cache[:, None], mask, 0.1, None, None
        )

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
            query.transpose(0, 1)[None], keys, values, mask, 0.1, None, None
        )
        assert error(out, expected) <= ERROR[HALF], prefix


@torch.inference_mode()
def test_row_kernels_in_bfloat16() -> None:
    x, update, weight = randn(5, 4096), randn(5, 4096, seed=1), 1 + 0.1 * randn(4096, seed=2)
    total = x + update
    for float_weight in (False, True):
        found = kernels().add_rms_norm(x.clone(), update, weight, 1e-5, float_weight)
        assert error(found, F.rms_norm(total.float(), (4096,), weight.float(), 1e-5)) < 1e-2
    both = 3 * randn(5, 2 * 11008)
    gate, up = both.float().chunk(2, dim=-1)
    assert error(kernels().gate(both, "silu"), F.silu(gate) * up) < 1e-2
    assert error(kernels().gate(both, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up) < 1e-2


@pytest.mark.parametrize("vocabulary", [259, 32_000, 151_936])
@torch.inference_mode()
def test_the_best_logits(vocabulary: int) -> None:
    for rows, k in ((1, 1), (64, 4)):
        logits = 3 * randn(rows, vocabulary)
        values, tokens, logsumexp = kernels().top_k(logits, k)
        expected = logits.float().sort(dim=-1, descending=True, stable=True)
        assert torch.equal(values, expected.values[:, :k])
        assert torch.equal(tokens.long(), expected.indices[:, :k])
        torch.testing.assert_close(logsumexp, logits.float().logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_a_models_kernels_are_prepared_in_threads(tmp_path: Any, monkeypatch: Any) -> None:
    """Afterwards a step of these widths compiles nothing: it takes no time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shape = kernels().KernelShape(HALF, 512, 1408, 32_000, 8, 2, 64, 64, best=(1, 4))
    kernels().prepare(shape, GPU, (1, 8, 32, 64), slots=1024)
    torch.cuda.synchronize()
    start = time.perf_counter()
    kernels().prepare(shape, GPU, (1, 8, 32, 64), slots=1024)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 0.5
    assert choose_backend("auto", GPU, HALF) == "triton"
