"""Options about a model, its device and its steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from ..errors import UsageError
from .declare import Options, option

model_option = partial(option, "Model")
model_argument = partial(model_option, metavar="MODEL", argument=True)

SMALL_MODEL = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
"""A small real model without access restrictions."""
TOY = "the bundled demo is a toy; a small real model:"
"""The hint for users of the demo model; a command with `SMALL_MODEL` follows."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The weights and the types of their numbers."""

    model: str | None = model_argument(
        "Hugging Face id, local folder or GGUF file; default: the bundled demo model."
    )
    dtype: str = model_option(
        "auto, float32, float16 or bfloat16.",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    quantize: str = model_option(
        "none, 4bit or 8bit (by bitsandbytes; 8bit on a CPU is lade's own).",
        default="none",
        choices=("none", "4bit", "8bit"),
    )
    adapter: list[str] | None = model_option(
        "LoRA adapter (a folder or hub id) to merge into MODEL; can be repeated.",
        metavar="NAME",
        lasting=False,
    )
    gguf_file: str | None = model_option(
        "Name of the GGUF file to load, if MODEL holds several.", metavar="NAME"
    )
    revision: str | None = model_option("Branch, tag or commit on the hub.")
    offline: bool = model_option("Do not ask the hub.", default=False)
    trust_remote_code: bool = model_option("Run code that comes with the model.", default=False)

    def _check(self) -> None:
        super()._check()
        if self.model == "":
            raise UsageError("MODEL is empty; name a model, or leave it out for the demo")

    @property
    def name(self) -> str:
        """The MODEL argument, or "demo"."""
        return self.model or "demo"

    @property
    def adapters(self) -> list[str]:
        """The values of --adapter."""
        return self.adapter or []


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """The device."""

    device: str = model_option(
        "auto, cpu, cuda, cuda:N or mps.", default="auto", pattern=r"auto|cpu|mps|cuda(:\d+)?"
    )


@dataclass(frozen=True, kw_only=True)
class PlacementOptions(DeviceOptions):
    """The placement of the weights."""

    device_map: str | None = model_option(
        "Spread the model over devices: auto, balanced, balanced_low_0 or sequential.",
        choices=("auto", "balanced", "balanced_low_0", "sequential"),
    )


@dataclass(frozen=True, kw_only=True)
class StepOptions(DeviceOptions):
    """The kernels of a step."""

    attention: str = model_option(
        "auto (the fastest here), reference, sdpa, flash or triton.",
        default="auto",
        choices=("auto", "reference", "sdpa", "flash", "triton"),
    )
    cuda_graphs: bool | None = model_option(
        "Capture steps as CUDA graphs, or launch kernels one by one; default: on with a CUDA GPU."
    )
    batch_invariant: bool = model_option(
        "Bitwise identical logits of a token, however many tokens a step has; not tested on a GPU.",
        default=False,
    )
    kernels: bool = model_option(
        "Use lade's Triton kernels on a CUDA GPU, or torch's own operations.", default=True
    )

    def _check(self) -> None:
        super()._check()
        if self.cuda_graphs and re.match(r"cpu|mps", self.device):
            raise UsageError(f"cuda-graphs need a CUDA GPU, and device is {self.device}")
        if self.batch_invariant and self.attention != "auto":
            raise UsageError(
                f"batch-invariant steps have an attention of their own, and attention is"
                f" {self.attention}; leave one of them out"
            )
        if self.attention == "triton" and not self.kernels:
            raise UsageError("attention triton is a Triton kernel; leave it or no-kernels out")


@dataclass(frozen=True, kw_only=True)
class SessionOptions(PlacementOptions, StepOptions, ModelOptions):
    """The options for opening a session, without those of drafts."""

    max_context: int | None = option(
        "Length",
        "Maximum number of tokens of prompt and answer; default: the model's own.",
        least=16,  # a chat template needs as many for any question
    )
