"""The fused kernels in Triton's interpreter, against attention written out; and their compiler."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import StepAttention, fused
from ladecli.decoder.attention.fused import Chip, Cut, cut, triton_attention
from ladecli.decoder.attention.reference import reference_attention
from ladecli.decoder.attention.step import Parts
from ladecli.decoder.errors import ConfigError, UnsupportedModelError

from .triton_compiler import printed

pytest.importorskip("triton")

KEYS = 2
H100 = Chip(132, 228 * 1024)


class Behind(StepAttention):
    """A step whose kernels read the length on the device, behind a buffer of more slots."""

    def __init__(self, step: StepAttention, buffers: Parts) -> None:
        assert step.prefix is not None
        super().__init__(
            triton_attention, step.visible, step.positions, step.prefix, step.prefix + 99
        )
        self.buffers = buffers

    @property
    def prefix(self) -> None:
        return None

    def split(self, key: Tensor, value: Tensor) -> Parts:
        return self.buffers


def step_of(prefix: int, count: int, seed: int = 0) -> StepAttention:
    """A random forest of tokens, the last of which sees itself alone, as padding does."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.eye(count, dtype=torch.bool)
    depths = [0] * count
    for token in range(1, count - 1):
        parent = int(torch.randint(-1, token, (1,), generator=generator))
        if parent >= 0:
            seen[token] |= seen[parent]
            depths[token] = depths[parent] + 1
    positions = prefix + torch.tensor(depths)
    return StepAttention(
        triton_attention, seen if count > 1 else None, positions, prefix, int(positions.max())
    )


def inputs(
    prefix: int, count: int, groups: int, depth: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values; keys and values are the front of longer buffers."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, KEYS * groups, count, depth, generator=generator)
    held = torch.randn(2, 1, KEYS, prefix + count + 3, depth, generator=generator).to(dtype)
    key, value = held[:, :, :, : prefix + count]
    return query.to(dtype), key, value


def agree(
    step: StepAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sliding: int | None = None,
    softcap: float | None = None,
    scaling: float = 0.3,
) -> None:
    """Check the kernels against attention written out, in float32 to its last digits."""
    out = triton_attention(query, key, value, step, scaling, sliding, softcap)
    wide = (each.float() for each in (query, key, value))
    expected = reference_attention(*wide, step, scaling, sliding, softcap)
    near = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[query.dtype]
    assert out.dtype == query.dtype
    torch.testing.assert_close(out.float(), expected, atol=near, rtol=near)


def in_splits(monkeypatch: pytest.MonkeyPatch, **changed: int) -> None:
    """Cut every step otherwise than by the table."""
    monkeypatch.setattr(fused, "cut", lambda *shape: replace(cut(*shape), **changed))


@pytest.mark.parametrize(
    ("prefix", "count"),
    [(0, 1), (0, 33), (1, 5), (17, 1), (17, 64), (130, 1), (130, 5), (130, 33)],
)
def test_steps_behind_texts(prefix: int, count: int) -> None:
    # Not every size with every other one: the interpreter is slow.
    turn = (prefix + count) % 3
    groups, depth = (4, 1, 4)[turn], (8, 64, 80)[turn]
    agree(step_of(prefix, count), *inputs(prefix, count, groups, depth))


@pytest.mark.parametrize("sliding", [1, 3, 16, 60, 131])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_windows_and_caps(sliding: int, softcap: float | None) -> None:
    agree(step_of(130, 9), *inputs(130, 9, 2, 16), sliding, softcap)


@pytest.mark.parametrize(("splits", "sliding"), [(1, None), (2, 20), (3, None), (9, 20)])
def test_any_number_of_splits(
    monkeypatch: pytest.MonkeyPatch, splits: int, sliding: int | None
) -> None:
    # 4 tiles of cached keys and 3 of the step's own: some splits have both, some have none.
    in_splits(monkeypatch, splits=splits, keys=16)
    agree(step_of(50, 34), *inputs(50, 34, 1, 16), sliding)


def test_all_splits_but_one_are_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, splits=9)
    agree(step_of(0, 1), *inputs(0, 1, 4, 16))


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(("prefix", "splits"), [(0, 1), (0, 3), (50, 1), (50, 3)])
def test_what_lies_behind_the_text_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, junk: float, prefix: int, splits: int
) -> None:
    in_splits(monkeypatch, splits=splits, keys=16)
    live = step_of(prefix, 5)
    query, key, value = inputs(prefix, 5, 2, 16)
    held = [torch.full((1, KEYS, 100, 16), junk) for _ in "kv"]
    for buffer, tensor in zip(held, (key, value), strict=True):
        buffer[:, :, :prefix] = tensor[:, :, :prefix]
    # The step's own come from elsewhere, in another order of tokens and heads.
    own = (
        each[:, :, prefix:].transpose(1, 2).contiguous().transpose(1, 2) for each in (key, value)
    )
    step = Behind(live, Parts(*held, *own))
    for sliding in (None, 10):
        out = triton_attention(query, *held, step, 0.3, sliding, None)
        expected = reference_attention(query, key, value, live, 0.3, sliding, None)
        torch.testing.assert_close(out, expected, atol=3e-6, rtol=3e-6)


def test_what_no_window_reaches_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    in_splits(monkeypatch, splits=2, keys=16)
    step, (query, key, value) = step_of(130, 5), inputs(130, 5, 1, 16)
    expected = reference_attention(query, key, value, step, 0.3, 20, None)
    # The first token sees slot 111, which is in the tile from 96 on.
    value[:, :, :96] = float("nan")
    out = triton_attention(query, key, value, step, 0.3, 20, None)
    torch.testing.assert_close(out, expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 3])
def test_half_precision(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, splits: int) -> None:
    in_splits(monkeypatch, splits=splits, keys=32)
    agree(step_of(70, 9), *inputs(70, 9, 4, 64, dtype))


def test_tensors_of_any_layout() -> None:
    query, key, value = inputs(20, 7, 2, 16)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    key = key.transpose(2, 3).contiguous().transpose(2, 3)
    assert key.stride(-1) != 1
    agree(step_of(20, 7), query, key, value)


def test_what_comes_out_needs_no_copy_for_what_comes_next() -> None:
    out = triton_attention(*inputs(20, 7, 2, 16), step_of(20, 7), 0.3, None, None)
    assert out.transpose(1, 2).is_contiguous()


def test_scores_far_apart() -> None:
    # Thousands in base 2: whoever forgets to subtract the highest gets infinities.
    agree(step_of(40, 9), *inputs(40, 9, 2, 16), scaling=500.0)


def test_caps_keep_the_digits_of_small_scores() -> None:
    # A tangent made of exponentials has no digits near 0.
    query, key, value = inputs(40, 9, 2, 16)
    agree(step_of(40, 9), query, key, value, softcap=1e5)
    agree(step_of(40, 9), query, key, value, softcap=50.0, scaling=4.0)


def test_layers_on_a_window_are_remembered() -> None:
    step = step_of(20, 7)
    triton_attention(*inputs(20, 7, 2, 16), step, 0.3, 8, None)
    assert step.sliding_windows == {8}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Llama 2 7B in bfloat16: a plain step, one of 64 tokens, one behind a short text.
        ((1, 1, 32, 128, 4096, 2), Cut(16, 64, 128, 8, 4, 3)),
        ((64, 1, 32, 128, 4096, 2), Cut(64, 64, 128, 8, 4, 3)),
        ((64, 1, 32, 128, 100, 2), Cut(64, 64, 128, 1, 4, 3)),
        # Llama 3 8B: four query heads a key head, two tiles of rows.
        ((64, 4, 8, 128, 16384, 2), Cut(128, 64, 128, 8, 8, 3)),
        ((1, 4, 8, 128, 16384, 2), Cut(16, 64, 128, 33, 4, 3)),
        # One key head, wide heads, float32.
        ((1, 8, 1, 256, 100000, 2), Cut(16, 32, 256, 128, 4, 3)),
        ((64, 2, 4, 256, 4096, 2), Cut(64, 32, 256, 33, 4, 2)),
        ((64, 1, 32, 128, 4096, 4), Cut(32, 32, 128, 4, 8, 3)),
        ((5, 1, 8, 80, 4096, 4), Cut(16, 32, 128, 33, 8, 3)),
    ],
)
def test_the_table(shape: tuple[int, int, int, int, int, int], expected: Cut) -> None:
    assert cut(*shape, H100) == expected


def test_no_chip_is_too_small_for_two_stages() -> None:
    small = Chip(82, 100 * 1024)
    assert cut(64, 1, 32, 128, 4096, 2, small) == Cut(64, 64, 128, 5, 4, 2)


def test_machines_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    import ladecli.decoder.attention as package

    monkeypatch.delattr(package, "fused_kernel", raising=False)
    monkeypatch.setitem(sys.modules, "ladecli.decoder.attention.fused_kernel", None)
    with pytest.raises(ConfigError) as caught:
        triton_attention(*inputs(20, 7, 2, 16), step_of(20, 7), 0.3, None, None)
    assert str(caught.value) == (
        "attention 'triton' needs the package triton, which comes with torch for CUDA; "
        "use --attention sdpa"
    )


def test_a_cpu_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from ladecli.decoder.attention import fused_kernel

    monkeypatch.setattr(fused_kernel, "INTERPRETED", False)
    with pytest.raises(ConfigError, match="needs the package triton"):
        triton_attention(*inputs(20, 7, 2, 16), step_of(20, 7), 0.3, None, None)


def test_heads_of_two_sizes_are_refused() -> None:
    query, key, value = inputs(20, 7, 2, 16)
    with pytest.raises(UnsupportedModelError, match="heads of one size, and these are 16 and 8"):
        triton_attention(query, key, value[..., :8], step_of(20, 7), 0.3, None, None)


COMPILER = """
import subprocess
from pathlib import Path


def compiled(kernel, types, constants, warps):
    names = kernel.arg_names
    types = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    whole = [n for n in names if types[n][0] in "*i" and n in specialised(kernel)]
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in whole}
    source = triton.compiler.ASTSource(kernel, types, constants, attributes)
    options = {"num_warps": warps, "num_stages": 3, "enable_fp_fusion": True}
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    binary = Path(sys.argv[2]) / "kernel.cubin"
    binary.write_bytes(found.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True).stdout
    stack = usage.partition("STACK:")[2].split()[0]
    print(found.metadata.shared, stack, "wgmma" in found.asm["ptx"])


half = dict.fromkeys(("query", "key", "value", "own_key", "own_value"), "*bf16")
whole = {"out": "*fp32", "lse": "*fp32", "length": "*i32", "bits": "*i32", "positions": "*i64"}
types = half | whole | {"scaling": "fp32", "softcap": "fp32"}
sizes = {"GROUPS": 1, "DEPTH": 128, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_O": 32, "BLOCK_D": 128}
flags = {"WINDOWED": False, "CAPPED": False, "ALONE": False, "DOT": triton.language.bfloat16}
compiled(kernels.attend, types, sizes | flags, 4)
types = {"part": "*fp32", "lse": "*fp32", "out": "*bf16"}
compiled(kernels.join, types, {"DEPTH": 128, "BLOCK_D": 128, "BLOCK_S": 8}, 4)
"""


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Without one at hand, this is what can be known of it: they pass the compiler for an H100,
    with its matrix unit, and two programs fit on a multiprocessor."""
    source = Path(fused.__file__).with_name("fused_kernel.py")
    said = printed(COMPILER, source, tmp_path)
    (shared, stack, units), (_, join_stack, _) = (line.split() for line in said.splitlines())
    assert units == "True"
    assert 2 * (int(shared) + 1024) <= H100.shared_memory
    # Registers that did not fit: a few may be spilled, not the tiles.
    assert int(stack) <= 128
    assert int(join_stack) == 0


def test_torch_compiles_around_the_kernels() -> None:
    step = step_of(17, 5)
    query, key, value = inputs(17, 5, 2, 8)
    # What reads the length from the device is made before: nothing here asks the device.
    assert step.length.tolist() == [17]
    assert step.bits.shape == (5, 1)

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return triton_attention(query * 2.0, key, value, step, 0.3, 4, None) + 1.0

    fused.opaque()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(
            compiled(query, key, value), layer(query, key, value), atol=1e-6, rtol=1e-6
        )
