"""What measures a GPU runs through on a CPU, too, so that the first one to be had is not lost."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .families import VOCABULARY, model_of

GPU = Path(__file__).parents[1] / "benchmarks/gpu"
pytestmark = pytest.mark.skipif(not GPU.is_dir(), reason="benchmarks are not part of a release")


@pytest.mark.slow
def test_products_and_steps_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    parts = ["--rehearse", "--only", "^(products|steps tiny)$", "--json", str(file)]
    subprocess.run([sys.executable, str(GPU), *parts], stdout=subprocess.DEVNULL, check=True)
    found = json.loads(file.read_text())
    assert found["products"]["head"]["microseconds"]["8"] > 0
    assert found["steps tiny"]["context 100"]["whole_ms"]["8"] > 0


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
