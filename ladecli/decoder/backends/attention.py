"""The operations between products that a model runs with: attention backends, norms, ranking.

`mask.StepMask` has the mask of a step, in the form that each attention backend reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import ConfigError
from ..model.attention import Attend, reference_attention, sdpa_attention
from ..model.forward import Operations
from ..model.layer import TorchOps
from .cpu_layers import ScriptedLayers
from .flash import flash_attention
from .invariant import InvariantOps, invariant_attention
from .needs import NO_TRITON, check_attention
from .quiet import quiet
from .triton_attention import triton_attention, triton_available

BACKENDS: dict[str, Attend] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "flash": flash_attention,
    "invariant": invariant_attention,
    "triton": triton_attention,
}
SDPA = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All of PyTorch's attention kernels except cuDNN's, which needs a new plan for every length."""


def choose_operations(
    attention: str, device: torch.device, dtype: torch.dtype, *, kernels: bool = False
) -> Operations:
    """Return the operations with an attention backend; errors as for `choose_backend`.

    Args:
        attention: name of the backend.
        device, dtype: of activations.
        kernels: True if Triton kernels also compute the operations between products.
    """
    name = choose_backend(attention, device, dtype)
    invariant = name == "invariant"
    layers = ScriptedLayers.make if invariant or name == "sdpa" else None
    if not kernels and name != "triton" and not (invariant and device.type == "cuda"):
        ops = InvariantOps() if invariant else TorchOps()
        return Operations(
            name, BACKENDS[name], ops=ops, layers=layers and partial(layers, invariant)
        )
    from . import triton_invariant, triton_ops, triton_ranking  # they import triton

    attend = triton_invariant.invariant_attention if invariant else BACKENDS[name]
    return Operations(
        *(name, attend, name in ("triton", "invariant")),
        ops=triton_ops.TritonOps() if kernels else TorchOps(),
        rank=triton_ranking.most_probable,
        # Steps that were promised to be batch-invariant fail rather than go on without.
        simpler=None if invariant else choose_operations("sdpa", device, dtype),
    )


def step_context(
    device: torch.device, *, foreign: bool
) -> Callable[[], AbstractContextManager[object]]:
    """Return a function that creates the context manager for steps.

    Args:
        device: of the model.
        foreign: True if modules of libraries run in a step.  They may cause warnings, and may keep
            tensors and change them later, which torch forbids in inference mode.
    """

    @contextmanager
    def context() -> Iterator[None]:
        with (
            torch.no_grad() if foreign else torch.inference_mode(),
            quiet() if foreign else nullcontext(),
            sdpa_kernel(SDPA) if device.type == "cuda" else nullcontext(),
        ):
            yield

    return context if foreign or device.type == "cuda" else torch.inference_mode


def choose_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the name of a backend, resolving "auto".

    "auto" is `triton` for half precision on a supported CUDA GPU, else `sdpa`, since float32
    kernels take several times longer to compile and use no tensor cores.

    Raises:
        ConfigError: there is no such backend, or it does not work on this machine.
    """
    if name == "auto":
        half = dtype in (torch.float16, torch.bfloat16)
        return "triton" if device.type == "cuda" and half and triton_available(device) else "sdpa"
    if name not in BACKENDS:
        raise ConfigError(f"unknown attention {name!r}; use one of auto, {', '.join(BACKENDS)}")
    check_attention(name, device.type)
    if name == "triton" and not triton_available(device):
        raise ConfigError(NO_TRITON)
    return name
