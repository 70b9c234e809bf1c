"""Devices, models and a profile by hand, for tests of profiles."""

from __future__ import annotations

from pathlib import Path

from ladecli.models.device import Device
from ladecli.models.memory import ModelSpec
from ladecli.profiles import user

CPU = Device("cpu", "cpu", "AMD EPYC", 8 << 30, 1)
A100 = Device("cuda", "cuda:0", "NVIDIA A100-SXM4-80GB", int(85e9))
ACME = Device("cuda", "cuda:0", "ACME Accelerator 9000", int(16e9))
"""An unknown GPU."""
OWN = """
description = "mine"
devices = ["A100"]
[[setting]]
window = 4
ngram = 4
guesses = 4
origin = "measured: here"
"""
"""A profile by hand."""


def shape(
    parameters: float = 6.74e9, weights: str = "bfloat16", compute: str = "bfloat16"
) -> ModelSpec:
    """Return a model with the proportions of a Llama of 7B."""
    size = {"parameters": parameters, "active": parameters, "weight_bytes": 2 * parameters}
    layers = {"layers": 32, "hidden": 4096, "inner": 11008, "vocabulary": 32000}
    heads = {"heads": 32, "kv_heads": 32, "head_size": 128}
    return ModelSpec(weights=weights, compute=compute, **size, **layers, **heads)


DEMO = shape(3148224, "float32", "float32")
"""As large as the demo model."""


def put(name: str, text: str) -> Path:
    """Write a file among the user's profiles."""
    path = user.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
