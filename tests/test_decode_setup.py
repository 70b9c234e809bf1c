"""How steps run: CUDA graphs where they can be, attention by its name, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ladecli.decoder.errors import ConfigError
from ladecli.errors import UsageError
from ladecli.options.answer import RankedOptions
from ladecli.options.model import StepOptions
from ladecli.session import setup as decode_setup
from ladecli.specs.device import Device

from .profiles.makers import shape

GPU = Device("cuda", "cuda:0", "NVIDIA H200")
CPU = Device("cpu", "cpu", "AMD EPYC")
MPS = Device("mps", "mps", "Apple M4")
NEEDS = "they need a CUDA GPU, and the model runs on"
SPLIT = "the ranks of a model that is split wait for one another within every step"


@pytest.mark.parametrize(
    ("device", "options", "why"),
    [
        (GPU, {}, None),
        (GPU, {"cuda_graphs": True}, None),
        (GPU, {"cuda_graphs": False}, "switched off"),
        (GPU, {"split": True}, SPLIT),
        (CPU, {}, f"{NEEDS} AMD EPYC"),
        (MPS, {"cuda_graphs": True}, f"{NEEDS} Apple M4"),
    ],
)
def test_where_steps_are_captured(device: Device, options: dict[str, Any], why: str | None) -> None:
    split = options.pop("split", False)
    assert decode_setup.why_no_graphs(StepOptions(**options), device, split) == why


def test_what_cannot_be_on_a_device_is_refused() -> None:
    asked = StepOptions(cuda_graphs=True, origins={"cuda_graphs": "flag --cuda-graphs"})
    decode_setup.check_device(asked, GPU, shape(), split=False)
    with pytest.raises(UsageError, match=f"^no CUDA graphs: {NEEDS} AMD EPYC; leave --cuda-graphs"):
        decode_setup.check_device(asked, CPU, shape(), split=False)
    asked = StepOptions(batch_invariant=True)
    decode_setup.check_device(asked, CPU, shape(), split=False)
    with pytest.raises(ConfigError, match="a model on a CPU; add --device cpu, or leave"):
        decode_setup.check_device(asked, GPU, shape(), split=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"device": "cpu"}, "cuda-graphs need a CUDA GPU, and device is cpu"),
        ({"parallel_mode": "tensor"}, "cuda-graphs do not go together with parallel-mode tensor"),
        ({"attention": "triton", "kernels": False}, "attention triton is a Triton kernel; leave"),
        ({"attention": "sdpa", "batch_invariant": True}, "batch-invariant steps have an attention"),
    ],
)
def test_what_is_refused_before_a_device_is_looked_for(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}"):
        RankedOptions(**{"cuda_graphs": True, **options}).check()


@pytest.mark.parametrize(
    ("options", "device", "compute", "works", "name"),
    [
        ({}, GPU, "bfloat16", True, "triton"),
        ({}, GPU, "float32", True, "sdpa"),
        ({}, GPU, "bfloat16", False, "sdpa"),
        ({"kernels": False}, GPU, "bfloat16", True, "sdpa"),
        ({}, CPU, "bfloat16", True, "sdpa"),
        ({"batch_invariant": True}, CPU, "bfloat16", True, "invariant"),
        ({}, MPS, "float16", True, "sdpa"),
        ({"attention": "flash"}, GPU, "float32", True, "flash"),
    ],
)
def test_attention_comes_to_a_name(
    options: dict[str, Any],
    device: Device,
    compute: str,
    works: bool,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ladecli.decoder.model.attention.triton_available", lambda _: works)
    model = replace(shape(), compute=compute)
    found = decode_setup.choose_attention(StepOptions(**options), device, model)
    assert found.name == name
    assert found.why
    latent = decode_setup.choose_attention(StepOptions(), GPU, replace(shape(), latent=576))
    assert latent.name == "sdpa"
