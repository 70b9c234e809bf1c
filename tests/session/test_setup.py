"""The setup of steps: CUDA graphs, attention backends, and refusals."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.decoder.errors import ConfigError
from ladecli.errors import UsageError
from ladecli.models import memory
from ladecli.models.device import Device
from ladecli.options.answer import RankedOptions
from ladecli.options.drafting import DraftOptions
from ladecli.options.model import ModelOptions, PlacementOptions, SessionOptions, StepOptions
from ladecli.session import setup as decode_setup
from tests.support.hub import plan, use_devices
from tests.support.profiles import shape

GPU = Device("cuda", "cuda:0", "NVIDIA H200", int(140e9))
CPU = Device("cpu", "cpu", "AMD EPYC", int(32e9), 2)
MPS = Device("mps", "mps", "Apple M4")
NEEDS = "they need a CUDA GPU, and the model runs on"


def test_options_that_a_device_cannot_have_are_refused() -> None:
    asked = StepOptions(cuda_graphs=True)
    decode_setup.check_device(asked, GPU, shape(), split=False)
    with pytest.raises(UsageError, match=f"^no CUDA graphs: {NEEDS} AMD EPYC; leave cuda-graphs"):
        decode_setup.check_device(asked, CPU, shape(), split=False)
    asked = StepOptions(batch_invariant=True)
    for device in (CPU, GPU):
        decode_setup.check_device(asked, device, shape(), split=False)
    with pytest.raises(ConfigError, match="need a model on a CPU, or a CUDA GPU and"):
        decode_setup.check_device(asked, MPS, shape(), split=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"device": "cpu"}, "cuda-graphs need a CUDA GPU, and device is cpu"),
        ({"parallel_mode": "tensor"}, "cuda-graphs do not go together with parallel-mode tensor"),
        ({"attention": "triton", "kernels": False}, "attention triton is a Triton kernel; leave"),
        ({"attention": "sdpa", "batch_invariant": True}, "batch-invariant steps have an attention"),
    ],
)
def test_options_refused_before_device_detection(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}"):
        RankedOptions(**{"cuda_graphs": True, **options}).check()


def test_the_choice_of_an_attention_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(device: Device, compute: str, latent: int | None = None, **options: Any) -> str:
        model = replace(shape(), compute=compute, latent=latent)
        chosen = decode_setup.choose_attention(StepOptions(**options), device, model)
        assert chosen.why
        return chosen.name

    available = "ladecli.decoder.backends.attention.triton_available"
    monkeypatch.setattr(available, lambda _: False)
    assert name(GPU, "bfloat16") == "sdpa"
    monkeypatch.setattr(available, lambda _: True)
    assert name(GPU, "bfloat16") == "triton"
    assert name(GPU, "float32") == name(MPS, "float16") == "sdpa"
    assert name(GPU, "bfloat16", kernels=False) == name(GPU, "bfloat16", latent=576) == "sdpa"
    assert name(CPU, "bfloat16", batch_invariant=True) == "invariant"
    assert name(GPU, "float32", attention="flash") == "flash"


@pytest.mark.parametrize(
    ("weights", "kernels", "line"),
    [
        ("bfloat16", True, "was tested in Triton's interpreter, not on a GPU"),
        ("float32", True, "does nothing here: on a GPU it is for weights in bfloat16 or float16"),
        ("float16", False, "does nothing here: on a GPU it needs Triton kernels, which are"),
    ],
)
def test_a_line_says_what_batch_invariance_on_a_gpu_comes_to(
    weights: str, kernels: bool, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = "ladecli.decoder.backends.triton_attention.triton_available"
    monkeypatch.setattr(available, lambda _: True)
    use_devices(monkeypatch, GPU, free=PLENTY)
    planned = plan("demo", ModelOptions(dtype=weights), PlacementOptions(device="cuda"))
    asked = SessionOptions(device="cuda", batch_invariant=True, kernels=kernels)
    setup = decode_setup.decide(asked, DraftOptions(), planned)
    assert any(f"--batch-invariant {line}" in effect for effect in setup.effects)
    assert (setup.attention.name == "invariant") == (line[0] == "w")


# Joint decisions of ranks, and the room in memory.

PLENTY = 64e9


def other_rank(context: int = 2048, twice: bool = True) -> Any:
    """Another rank with some room."""
    return SimpleNamespace(gather=lambda mine: [mine, (context, twice)])


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the setup of the demo model with a number of free bytes."""

    def decide(free: float, ranks: Any = None, sharing: int = 1) -> decode_setup.Setup:
        use_devices(monkeypatch, CPU, free=free)
        planned = plan("demo", ModelOptions(), PlacementOptions(device="cpu"))
        options = SessionOptions(device="cpu", kernels=False)
        return decode_setup.decide(options, DraftOptions(), planned, ranks, sharing)

    return decide


def test_weights_are_stored_twice_if_that_fits(decided: Any) -> None:
    need = decided(PLENTY).need
    edge = (2 * need.weights + need.cache + need.step) / (1 - memory.SPARE)
    assert [decided(edge + more).store_twice for more in (-1e5, 1e5)] == [False, True]
    # Ranks on one machine share its memory, but not its GPUs.
    shared = [decided(2 * edge + more, other_rank(), 2).store_twice for more in (-4e5, 4e5)]
    assert shared == [False, True]


def test_all_ranks_use_the_smallest_context_of_any(decided: Any) -> None:
    alike = decided(PLENTY, other_rank())
    assert (alike.context, alike.store_twice, alike.notices) == (2048, True, ())
    less = decided(PLENTY, other_rank(1024, twice=False))
    assert (less.context, less.store_twice) == (1024, False)
    assert less.notices == ("texts end at 1,024 tokens: another rank has less room",)
