"""Attention backends: what a step's queries take from the cached text and from one another.

`mask.StepMask` says who sees whom, and hands each backend that in the form it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..config import NO_TRITON, check_attention
from ..errors import ConfigError
from ..model.attention import reference_attention, sdpa_attention
from ..model.mask import Rules, StepMask
from .flash import flash_attention
from .invariant import invariant_attention
from .triton_attention import triton_attention, triton_available

Backend = Callable[[Tensor, Tensor, Tensor, StepMask, Rules], Tensor]
"""(query [1, H, T, D], key and value [1, K, S, D], mask, rules) -> [1, H, T, D]; see
`reference_attention`."""

BACKENDS: dict[str, Backend] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "flash": flash_attention,
    "invariant": invariant_attention,
    "triton": triton_attention,
}
READS_LENGTH = frozenset({"triton"})
"""Backends that read the length of the text on the device and nothing after it: a captured step
can hand them all slots there are, at no cost."""


def choose_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that an option names: `name`, or what "auto" stands for.

    That is `triton` for half precision on a CUDA GPU that it knows, else `sdpa`: float32 kernels
    take several times longer to compile and use no tensor cores.

    Raises:
        ConfigError: there is no such backend, or it needs what this machine lacks.
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
