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

from ladecli.decoder.backends.facts import model_facts
from ladecli.decoder.backends.triton_attention import (
    compile_attention,
    gpu_of,
    plan,
    triton_available,
)
from ladecli.decoder.kv_cache import Target
from ladecli.decoder.model.layer import Heads, Norm, Norms, TorchOps
from ladecli.decoder.model.rotary import Rotary
from ladecli.decoder.model.transformer import Transformer
from tests.support.models import model_of

pytest.importorskip("triton")
kernels: Any = importlib.import_module("ladecli.decoder.backends.triton_ops")

ranking: Any = importlib.import_module("ladecli.decoder.backends.triton_ranking")

OPS: Any = kernels.TritonOps()
TORCH = TorchOps()
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not triton_available(CPU), reason="needs TRITON_INTERPRET=1")
# The interpreter truncates numbers to bfloat16, and a GPU rounds them.
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(out: Tensor, expected: Tensor) -> None:
    """Check for equality up to the order of a sum, which may round one number in half precision."""
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    near = 1e-5 if out.dtype == torch.float32 else 2e-3
    torch.testing.assert_close(out, expected, atol=near, rtol=near)


def norm_of(width: int, dtype: torch.dtype, float_weight: bool, seed: int = 1) -> Norm:
    """Return a norm in the type of activations like Llama's, or in float32 like Gemma's."""
    weight = 1 + 0.1 * randn(width, seed=seed)
    return Norm(weight if float_weight else weight.to(dtype), 1e-3)


def exact(norm: Norm) -> Norm:
    return Norm(norm.weight.float(), norm.eps)


@DTYPES
@pytest.mark.parametrize("float_weight", [False, True])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (5, 100), (2, 576)])
def test_norms(dtype: torch.dtype, float_weight: bool, count: int, width: int) -> None:
    x, update = randn(2, count, width + 8, dtype=dtype)[..., 8:]  # rows need not be adjacent
    norm, total = norm_of(width, dtype, float_weight), x + update
    assert_close(OPS.rms_norm(x, norm), TORCH.rms_norm(x.float(), exact(norm)).to(dtype))
    out = OPS.add_rms_norm(x, update, norm)
    assert_close(out, TORCH.rms_norm(total.float(), exact(norm)).to(dtype))
    assert torch.equal(x, total)


class Cache:
    """Keys and values of one layer, [2, heads, slots, size], and the first slot of a step."""

    def __init__(self, numbers: Tensor, start: int | Tensor) -> None:
        self.numbers, self.start = numbers, start

    def target(self, _index: int, count: int) -> Target:
        return Target(*self.numbers, self.start, int(self.start) + count)

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        start, end = int(self.start), self.target(index, keys.shape[1]).end
        self.numbers[:, :, start:end] = torch.stack((keys, values))
        return self.numbers[0, :, :end], self.numbers[1, :, :end]


SHAPES = [  # heads, key/value heads, head size, numbers turned, interleaved, normed
    (4, 4, 16, 16, False, False),
    (6, 2, 64, 64, False, True),
    (3, 1, 80, 32, False, True),
    (4, 2, 16, 8, True, False),
    (2, 1, 128, 128, True, True),
]


@DTYPES
@pytest.mark.parametrize(
    ("shape", "float_weight"),
    [(shape, weight) for shape in SHAPES for weight in ([False, True] if shape[-1] else [False])],
)
def test_rope_and_write(
    dtype: torch.dtype, shape: tuple[int, int, int, int, bool, bool], float_weight: bool
) -> None:
    """The slot of the keys is known to the host, or only to the device; each with every type."""
    heads, kv_heads, size, turned, interleaved, normed = shape
    on_host = (dtype == torch.float32) is float_weight
    start = 1 if on_host else torch.tensor([5], dtype=torch.int32)
    qkv = randn(3, (heads + 2 * kv_heads) * size, dtype=dtype)
    # The form of a table of positions.
    cos, sin = randn(3, 2, 1, turned, dtype=dtype, seed=3).unbind(1)
    cache = Cache(randn(2, kv_heads, 9, size, dtype=dtype, seed=4), start)
    norms = [norm_of(size, dtype, float_weight, seed) for seed in (1, 2)] if normed else []
    made = []
    for ops, kind, normed_by in ((OPS, dtype, norms), (TORCH, torch.float32, map(exact, norms))):
        layer: Any = types.SimpleNamespace(
            index=0, heads=Heads(heads, kv_heads, size), norms=Norms(*normed_by)
        )
        cache = Cache(randn(2, kv_heads, 9, size, dtype=dtype, seed=4).to(kind), start)
        rotary = Rotary(cos.to(kind), sin.to(kind), interleaved)
        out = ops.rope_and_write(qkv.to(kind), layer, rotary, cache)
        made.append([*out, cache.numbers])
    for out, expected in zip(*made, strict=True):
        assert_close(out, expected.to(dtype))
    assert torch.equal(made[0][-1][1].float(), made[1][-1][1]), "values are as they were"


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (3, 1500)])
def test_gate(dtype: torch.dtype, activation: str, count: int, width: int) -> None:
    both = 5 * randn(count, 2 * width, dtype=dtype)
    both[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -40.0])
    assert_close(OPS.gate(both, activation), TORCH.gate(both.float(), activation).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 5), (3, 4096), (2, 9001)])
def test_ranks(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    """Compare with torch's result; among equal logits, the token with the lower id wins."""
    logits = randn(rows, vocabulary).to(dtype)
    logits[0, 1:3] = logits.max() + 1  # equally good, in one block
    logits[-1, :] = float("-inf")  # whole blocks of it
    logits[-1, [0, vocabulary - 1]] = -0.0
    logits[-1, vocabulary - 1] = 0.0
    for successors in (0, 1, 6, ranking.MOST):
        ids, shares = ranking.most_probable(logits, successors)
        count = min(max(successors, 1), vocabulary)
        order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :count]
        seen = logits.gather(1, order) > float("-inf")
        assert torch.equal(ids[seen], order[seen])
        torch.testing.assert_close(shares, logits.float().softmax(-1).gather(1, order))


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter's numpy
@pytest.mark.parametrize("wrong", [float("nan"), -float("nan"), float("inf")])
def test_a_row_with_a_nan_logit_has_nan_shares(wrong: float) -> None:
    logits = randn(2, 5000)
    logits[1, 4999] = wrong
    ids, shares = ranking.most_probable(logits, 2)
    assert int(ids.max()) < 5000
    assert bool(shares[0].isfinite().all())
    assert not bool(shares[1].isfinite().any())


def test_attention_is_compiled_for_all_widths() -> None:
    model = copy.deepcopy(model_of("gemma2")).to(torch.bfloat16)
    # The interpreter has only one thread.
    compile_attention(
        Transformer(model, model_facts(model.config)), (1, 2, 16), slots=64, workers=1
    )


def test_the_largest_tiles_have_the_registers_that_they_need() -> None:
    for size in (128, 256):
        assert plan(64, 2, 4, size, 4096, 2, gpu_of(torch.device("cpu"))).warps == 8


COMPILE = r"""
import re, subprocess, sys
from pathlib import Path

import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget

if "nvidia" not in backends:
    sys.exit(77)
from ladecli.decoder.backends import triton_attention_kernel as attention
from ladecli.decoder.backends import triton_invariant as invariant
from ladecli.decoder.backends import triton_ops as rows
from ladecli.decoder.backends import triton_product as product
from ladecli.decoder.backends import triton_ranking as ranking
from ladecli.decoder.backends.triton_attention import warps_to_join


def compiled(kernel, pointers, numbers, constants, warps=4, stages=3, capability=90, fusion=False):
    names = kernel.arg_names
    types = dict.fromkeys(names, "i32") | dict.fromkeys(numbers.split(), "fp32")
    for kind, group in pointers.items():
        types |= dict.fromkeys(group.split(), kind)
    early = {"EARLY": capability >= 90} if "EARLY" in names else {}
    constants = constants | early
    types |= dict.fromkeys(constants, "constexpr")
    types = {name: types[name] for name in names}  # several kernels share their lists
    fixed = {x.name for x in kernel.params if not x.do_not_specialize}
    whole = [n for n in names if types[n][0] in "*i" and n in fixed]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in whole}
    source = triton.compiler.ASTSource(kernel, types, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fusion}
    options["launch_pdl"] = early.get("EARLY", False)
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    binary = Path(sys.argv[1]) / "kernel.cubin"
    binary.write_bytes(result.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True).stdout
    stack = int(usage.partition("STACK:")[2].split()[0])
    kinds = {*re.findall(r"wgmma|mma\.sync\.aligned\.m\d+n\d+k\d+", result.asm["ptx"])}
    print(kernel.__name__, result.metadata.shared, stack, ",".join(sorted(kinds)) or "-")


pointers = {"*bf16": "query key value sinks out", "*fp32": "lse", "*i32": "length positions words"}
sizes = {"GROUPS": 1, "SIZE": 128, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_O": 32, "BLOCK_D": 128}
flags = {"WINDOWED": True, "CAPPED": True, "SINKS": True, "DOT": triton.language.bfloat16}
compiled(attention.attend, pointers, "scaling softcap", sizes | flags, fusion=True)
pointers = {"*bf16": "part out", "*fp32": "lse"}
sizes, warps = {"SIZE": 256, "BLOCK_D": 256, "BLOCK_S": 128}, warps_to_join(128, 256)
compiled(attention.join, pointers, "", sizes, fusion=True, warps=warps)
flags = {"WIDTH": 4096, "BLOCK": 4096, "ADD": True, "FLOAT_WEIGHT": False}
compiled(rows.norm_kernel, {"*bf16": "x update weight out"}, "eps", flags, warps=16)
pointers = {"*bf16": "qkv cos sin q_norm k_norm query keys values", "*i32": "start"}
sizes = {"HEADS": 32, "KV_HEADS": 8, "SIZE": 128, "ROTARY": 128, "BLOCK_H": 4, "BLOCK_D": 128}
flags = {"INTERLEAVED": False, "NORMED": True, "FLOAT_WEIGHT": False, "ON_DEVICE": True}
compiled(rows.rope_kernel, pointers, "eps", sizes | flags)
sizes = {"WIDTH": 11008, "BLOCK": 1024, "GELU": True}
compiled(rows.gate_kernel, {"*bf16": "both out"}, "", sizes, capability=80)
pointers = {"*bf16": "logits", "*i64": "best", "*fp32": "tops sums"}
compiled(ranking.rank_block, pointers, "", {"BLOCK": 4096}, warps=8)
pointers = {"*i64": "best ids", "*fp32": "tops sums shares"}
compiled(ranking.rank_row, pointers, "", {"BLOCKS": 64})
for capability in (80, 89, 90):
    pointers = {"*bf16": "x weight bias out", "*fp32": "parts", "*i32": "arrived"}
    for count, block in ((1, 64), (1, 128), (64, 128), (128, 64)):
        cut = product.plan(count, block)
        sizes = {"BLOCK_O": cut.outputs, "BLOCK_K": product.BLOCK_K, "ROWS": cut.rows}
        flags = {"BIAS": True, "DOT": triton.language.bfloat16}
        how = cut.warps, cut.stages, capability
        compiled(product.product_kernel, pointers, "", sizes | flags, *how)
    sizes = {"GROUPS": 4, "SIZE": 128, "BLOCK_N": 64, "BLOCK_D": 128, "SPLIT": invariant.SPLIT}
    flags = {"WINDOWED": True, "CAPPED": False, "DOT": triton.language.bfloat16}
    pointers = {"*bf16": "query key value out sinks", "*fp32": "part sums"}
    pointers["*i32"] = "length positions paths"
    numbers, own = "scaling softcap", sizes | flags
    cached = own | {"SINKS": True, "BLOCK_M": 32}
    compiled(invariant.attend_cached, pointers, numbers, cached, 8, 3, capability)
    compiled(invariant.attend_own, pointers, numbers, own | {"BLOCK_M": 16}, 4, 3, capability)
"""


@pytest.mark.slow
def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Checks without a GPU: the compiler accepts the kernels, registers suffice, two programs of
    attention fit on a multiprocessor of an H100, and its matrix unit is used."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-c", COMPILE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this triton has no compiler for NVIDIA's GPUs")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 7 + 3 * 6
    (name, shared, stack, multiplies), *others = lines
    assert (name, multiplies) == ("attend", "wgmma")
    assert 2 * (int(shared) + 1024) <= 228 * 1024
    # A few registers of attention may be spilled, not tiles.
    assert int(stack) <= 128
    assert {stack for _, _, stack, _ in others} == {"0"}
    # What must not depend on a step's width is multiplied by one instruction, on every GPU, and
    # fits into the shared memory of the smallest.
    assert {kind for *_, kind in lines[7:]} == {"mma.sync.aligned.m16n8k16"}
    assert max(int(shared) for _, shared, *_ in lines[7:]) <= 99 * 1024
