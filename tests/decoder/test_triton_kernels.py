"""Triton kernels in the interpreter against torch; and through the compiler for GPUs."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import triton_available
from ladecli.decoder.families import examine
from ladecli.decoder.kv_cache import Target
from ladecli.decoder.load import compile_attention
from ladecli.decoder.rotary import Rotary
from ladecli.decoder.transformer import Norm, TorchOps, Transformer

from ..families import model_of

pytest.importorskip("triton")
kernels: Any = importlib.import_module("ladecli.decoder.triton_kernels")

OPS: Any = kernels.TritonOps()
TORCH: Any = TorchOps()
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not triton_available(CPU), reason="needs TRITON_INTERPRET=1"),
]
# The interpreter cuts numbers off where a GPU rounds to bfloat16.
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Equal but for the order of a sum, and for roundings in half precision."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    near = 1e-5 if found.dtype == torch.float32 else 8e-3
    torch.testing.assert_close(found, expected, atol=near, rtol=near)


@DTYPES
@pytest.mark.parametrize("float_weight", [False, True])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (5, 100), (2, 576)])
def test_norms(dtype: torch.dtype, float_weight: bool, count: int, width: int) -> None:
    x, update = randn(2, count, width, dtype=dtype)
    weight = 1 + 0.1 * randn(width, seed=1)
    norm = Norm(weight if float_weight else weight.to(dtype), 1e-3)
    assert_close(OPS.rms_norm(x, norm), TORCH.rms_norm(x, norm))
    # Rows that are not adjacent.
    part = Norm(norm.weight[:4].clone(), 1e-3)
    assert_close(OPS.rms_norm(x[:, 2:6], part), TORCH.rms_norm(x[:, 2:6], part))
    residual = x.clone()
    assert_close(OPS.add_rms_norm(residual, update, norm), TORCH.rms_norm(x + update, norm))
    assert torch.equal(residual, x + update)


class Slots:
    """The cache of one layer, [2, heads, slots, size], written by torch or by a kernel."""

    def __init__(self, cache: Tensor, start: int | Tensor) -> None:
        self.cache, self.start = cache, start

    def target(self, _layer: int, count: int) -> Target:
        return Target(*self.cache, self.start, int(self.start) + count)

    def write(self, _layer: int, keys: Tensor, values: Tensor) -> Tensor:
        first, end = int(self.start), int(self.start) + keys.shape[1]
        self.cache[:, :, first:end] = torch.stack((keys, values))
        return self.cache[:, :, :end]


@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "rotary", "interleaved", "norm"),
    [
        (4, 4, 16, 16, False, False),
        (6, 2, 64, 64, False, True),
        (3, 1, 80, 32, False, True),
        (4, 2, 16, 8, True, False),
        (2, 1, 128, 128, True, True),
    ],
)
@pytest.mark.parametrize("float_weight", [False, True])
@pytest.mark.parametrize("start", [1, torch.tensor([5], dtype=torch.int32)], ids=["host", "device"])
def test_rope_and_write(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    rotary: int,
    interleaved: bool,
    norm: bool,
    float_weight: bool,
    start: int | Tensor,
) -> None:
    qkv = randn(3, (heads + 2 * kv_heads) * size, dtype=dtype)
    weights = (1 + 0.1 * randn(2, size, seed=2)).to(torch.float32 if float_weight else dtype)
    norms = [Norm(weight, 1e-3) if norm else None for weight in weights]
    layer = types.SimpleNamespace(
        **{"index": 0, "heads": heads, "kv_heads": kv_heads, "head_size": size},
        **dict(zip(("query_norm", "key_norm"), norms, strict=True)),
    )
    # As tables of positions have them.
    cos, sin = randn(3, 2, 1, rotary, dtype=dtype, seed=3).unbind(1)
    cache = randn(2, kv_heads, 9, size, dtype=dtype, seed=4)
    slots = [Slots(cache.clone(), start) for _ in range(2)]
    found, expected = (
        ops.rope_and_write(qkv, layer, Rotary(cos, sin, interleaved), each)
        for ops, each in zip((OPS, TORCH), slots, strict=True)
    )
    for mine, theirs in zip((*found, slots[0].cache), (*expected, slots[1].cache), strict=True):
        assert_close(mine, theirs)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (3, 1500)])
def test_gate(dtype: torch.dtype, activation: str, count: int, width: int) -> None:
    both = 5 * randn(count, 2 * width, dtype=dtype)
    both[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -40.0])
    assert_close(OPS.gate(both, activation), TORCH.gate(both, activation))


def test_attention_is_compiled_for_all_widths() -> None:
    model = copy.deepcopy(model_of("gemma2")).to(torch.bfloat16)
    # The interpreter knows one thread.
    compile_attention(Transformer(model, examine(model.config)), (1, 2, 16), slots=64, workers=1)


COMPILE = """
import sys

import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget

if "nvidia" not in backends:
    sys.exit(77)
from ladecli.decoder import triton_kernels as rows
from ladecli.decoder.attention import triton_kernel as attention


def compiled(kernel, pointers, numbers, constants, warps=4, stages=3, capability=90, fusion=False):
    names = kernel.arg_names
    types = dict.fromkeys(names, "i32") | dict.fromkeys(numbers.split(), "fp32")
    for kind, group in pointers.items():
        types |= dict.fromkeys(group.split(), kind)
    types |= dict.fromkeys(constants, "constexpr")
    fixed = {each.name for each in kernel.params if not each.do_not_specialize}
    whole = [n for n in names if types[n][0] in "*i" and n in fixed]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in whole}
    source = triton.compiler.ASTSource(kernel, types, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fusion}
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kernel.__name__, found.metadata.shared)


pointers = {"*bf16": "query key value out", "*fp32": "lse", "*i32": "length positions words"}
sizes = {"GROUPS": 1, "SIZE": 128, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_O": 32, "BLOCK_D": 128}
flags = {"WINDOWED": True, "CAPPED": True, "DOT": triton.language.bfloat16}
compiled(attention.attend, pointers, "scaling softcap", sizes | flags, fusion=True)
pointers = {"*bf16": "part out", "*fp32": "lse"}
compiled(attention.join, pointers, "", {"SIZE": 128, "BLOCK_D": 128, "BLOCK_S": 8}, fusion=True)
flags = {"WIDTH": 4096, "BLOCK": 4096, "ADD": True, "FLOAT_WEIGHT": False}
compiled(rows.norm_kernel, {"*bf16": "x update weight out"}, "eps", flags, warps=16)
pointers = {"*bf16": "qkv cos sin q_norm k_norm query keys values", "*i32": "start"}
sizes = {"HEADS": 32, "KV_HEADS": 8, "SIZE": 128, "ROTARY": 128, "BLOCK_H": 4, "BLOCK_D": 128}
flags = {"INTERLEAVED": False, "NORMED": True, "FLOAT_WEIGHT": False, "ON_DEVICE": True}
compiled(rows.rope_kernel, pointers, "eps", sizes | flags)
sizes = {"WIDTH": 11008, "BLOCK": 1024, "GELU": True}
compiled(rows.gate_kernel, {"*bf16": "both out"}, "", sizes, capability=80)
"""


def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Two programs of attention fit in the shared memory of an H100's multiprocessor."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this triton has no compiler for NVIDIA's GPUs")
    assert done.returncode == 0, done.stderr[-2000:]
    shared = dict(line.split() for line in done.stdout.splitlines())
    assert {*shared} == {"attend", "join", "norm_kernel", "rope_kernel", "gate_kernel"}
    assert 2 * (int(shared["attend"]) + 1024) <= 228 * 1024
