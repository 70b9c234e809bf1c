"""What the interpreter cannot show of lean's kernels: they pass the compiler for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladecli.decoder.lean import fused

from .triton_compiler import printed

pytest.importorskip("triton")
COMPILER = """
HALF, WHOLE, NUMBER = "*bf16", "*i32", "fp32"


def compiled(kernel, types, warps, architecture=90, **constants):
    types = {name: types.get(name, "i32") for name in kernel.arg_names}
    types.update(dict.fromkeys(constants, "constexpr"))
    source = triton.compiler.ASTSource(kernel, types, constants, {})
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def of(names, kind):
    return dict.fromkeys(names.split(), kind)


def turned(half, type, architecture, **flags):
    tensors = "query key cos sin query_weight key_weight query_out key_out keys values"
    types = of(tensors, type) | {"length": WHOLE if flags["WRITE"] else type, "eps": NUMBER}
    block = triton.next_power_of_2(half)
    sizes = {"QUERIES": 32, "KEYS": 8, "HALF": half, "BLOCK": block, "HEADS": 4, "TURNED": half}
    forms = {"ROUNDED": True, "OFFSET": 1.0, "EARLY": True}
    return stack(compiled(kernels.rotate, types, 4, architecture, **sizes | forms | flags))


llama = {"NEIGHBOURS": False, "SHARED": False}
stacks = [
    turned(32, HALF, 90, **llama, NORMED=True, WRITE=True),
    turned(40, HALF, 90, **llama, NORMED=False, WRITE=False),
    turned(64, "*fp16", 80, NEIGHBOURS=True, SHARED=True, TURNED=32, NORMED=False, WRITE=True),
    turned(64, HALF, 90, **llama, TURNED=32, NORMED=True, WRITE=False),
    turned(128, HALF, 80, **llama, NORMED=True, WRITE=True),
    turned(128, "*fp32", 90, **llama, NORMED=True, WRITE=True),
]
print(max(stacks))
step = of("key value keys values", HALF) | {"length": WHOLE}
compiled(kernels.write, step, 1, DEPTH=80, BLOCK=128)
norms = of("x said weight behind ahead total normed out", HALF) | of(
    "eps behind_eps ahead_eps", NUMBER
)
row = {"WIDTH": 4096, "BLOCK": 4096}
compiled(kernels.normalise, norms, 16, **row, OFFSET=0.0, EARLY=True)
for ends in ({"BEHIND": False, "AHEAD": True}, {"BEHIND": True, "AHEAD": False}):
    forms = {"BEHIND_OFFSET": 1.0, "BEHIND_EARLY": False, "AHEAD_OFFSET": 0.0, "AHEAD_EARLY": True}
    compiled(kernels.add, norms, 16, **row, **ends, **forms, FACTOR=0.22)
for gelu in (False, True):
    compiled(kernels.gate, of("both out", HALF), 4, WIDTH=11008, BLOCK=1024, GELU=gelu)
angles = of("cos sin", HALF) | {"positions": "*i64", "frequencies": "*fp32", "scaling": NUMBER}
print("cos.approx" in compiled(kernels.angles, angles, 2, HALF=64, BLOCK=64).asm["ptx"])
slots = of("keys values", HALF) | of("sources targets", WHOLE)
lines = compiled(kernels.move, slots, 4, DEPTH=128, BLOCK=128, MOVED=16).asm["ptx"].splitlines()
read = max(i for i, line in enumerate(lines) if "ld.global" in line)
wait = next(i for i, line in enumerate(lines) if "bar.sync" in line)
print(read < wait < next(i for i, line in enumerate(lines) if "st.global" in line))
print(any("length" in specialised(kernel) for kernel in (kernels.rotate, kernels.write)))
"""


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    source = Path(fused.__file__).with_name("kernels.py")
    said = printed(COMPILER, source, tmp_path)
    spilled, approximate, waits, placed = said.split()
    # Heads of any size fit into registers.
    assert spilled == "0"
    # Far from 0 that instruction is wrong.
    assert approximate == "False"
    # What one warp writes may be what another one reads.
    assert waits == "True"
    # Steps of any width have the same kernel, wherever in their buffer the length is.
    assert placed == "False"
