"""The scripts that measure a GPU also run on a CPU, so that mistakes waste no time on a GPU."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import VOCABULARY, model_of

GPU = Path(__file__).parents[2] / "benchmarks/gpu"
pytestmark = pytest.mark.skipif(not GPU.is_dir(), reason="benchmarks are not part of a release")


@pytest.mark.slow
def test_products_and_steps_are_measured(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.syspath_prepend(GPU)
    for part in ("invariance", "products", "steps"):
        monkeypatch.setattr(sys, "argv", [str(GPU / "parts.py"), "--rehearse", part, "tiny"])
        runpy.run_path(sys.argv[0], run_name="__main__")
    figures: dict[str, Any] = {}
    for line in capsys.readouterr().out.splitlines():
        figures |= json.loads(line)
    assert figures["invariant"]["promised"]
    assert figures["invariant"]["equal"] == figures["invariant"]["texts"] == 2
    assert figures["head, library"]["microseconds"]["8"] > 0
    for name in ("device_ms", "whole_ms", "drawn_ms"):
        assert figures["context 100"][name]["8"] > 0


def test_parts_are_named(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(GPU), "--rehearse", "--only", "^none$", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {}


@torch.no_grad()
def test_a_model_inside_a_larger_one_gives_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GPU)
    small = model_of("llama")
    large = importlib.import_module("widen").widen(small, (160, 96, 3, 8, 2))
    ids = torch.arange(2, 42)[None] % VOCABULARY
    torch.testing.assert_close(large(ids).logits, small(ids).logits, atol=1e-4, rtol=1e-4)
