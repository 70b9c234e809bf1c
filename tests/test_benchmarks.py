"""What measures a GPU runs through on a CPU, too, so that the first one to be had is not lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .families import VOCABULARY, model_of
from .forked import SERVER

GPU = Path(__file__).parents[1] / "benchmarks/gpu"
pytestmark = pytest.mark.skipif(not GPU.is_dir(), reason="benchmarks are not part of a release")


def run_part(arguments: list[str], file: Path) -> None:
    """Run a part of the measurement, in a process of its own, and keep what it prints."""
    sys.argv = [str(GPU / "parts.py"), "--rehearse", *arguments]
    sys.path.insert(0, str(GPU))
    with file.open("w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.mark.slow
def test_products_and_steps_are_measured(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for part in (["products", "tiny"], ["steps", "tiny"]):
        file = tmp_path / part[0]
        process = SERVER.Process(target=run_part, args=(part, file))
        process.start()
        process.join()
        assert process.exitcode == 0
        for line in file.read_text().splitlines():
            found |= json.loads(line)
    assert found["head"]["microseconds"]["8"] > 0
    for what in ("device_ms", "whole_ms", "drawn_ms"):
        assert found["context 100"][what]["8"] > 0


def test_parts_are_named(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(GPU), "--rehearse", "--only", "^none$", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {}


@torch.no_grad()
def test_a_model_inside_a_larger_one_says_the_same() -> None:
    spec = importlib.util.spec_from_file_location("widen", GPU / "widen.py")
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    small = model_of("llama")
    large = module.widen(small, (160, 96, 3, 8, 2))
    ids = torch.arange(2, 42)[None] % VOCABULARY
    torch.testing.assert_close(large(ids).logits, small(ids).logits, atol=1e-4, rtol=1e-4)
