"""Triton's compiler for GPUs, in a process of its own: here kernels are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import importlib.util, subprocess, sys
from pathlib import Path

import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget

if "nvidia" not in backends:
    sys.exit(77)
spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)


def specialised(kernel):
    # Arguments whose values or addresses decide which kernel is compiled.
    return [each.name for each in kernel.params if not each.do_not_specialize]


def stack(found):
    # Bytes a thread, for registers that did not fit.
    binary = Path(sys.argv[2]) / "kernel.cubin"
    binary.write_bytes(found.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True).stdout
    return int(usage.partition("STACK:")[2].split()[0])
"""


def printed(program: str, kernels: Path, folder: Path) -> str:
    """What a program prints that has the modules of `START`, and `kernels` as it was written.

    Args:
        program: its second argument is the folder.
        kernels: file that holds them.
        folder: for whatever the compiler writes.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", START + program, str(kernels), str(folder)],
        env=environment | {"TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("this triton has no compiler for NVIDIA's GPUs")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
