"""Attention backends: what a step's queries take from the cached text and from one another.

`mask.StepMask` says who sees whom, and hands each backend that in the form it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import ConfigError
from .dense import reference_attention, sdpa_attention
from .flash import flash_attention
from .mask import CapturedMask, DeviceMask, StepMask
from .triton import register_for_compile, triton_attention, triton_available

__all__ = [
    "BACKENDS",
    "READS_LENGTH",
    "Backend",
    "CapturedMask",
    "DeviceMask",
    "StepMask",
    "check_usable",
    "choose_backend",
    "register_for_compile",
    "triton_available",
]

Backend = Callable[..., Tensor]
"""(query [1, H, T, D], key and value [1, K, S, D], mask, scaling, sliding_window, softcap)
-> [1, H, T, D]; see `reference_attention`."""

BACKENDS: dict[str, Backend] = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "flash": flash_attention,
    "triton": triton_attention,
}
READS_LENGTH = frozenset({"triton"})
"""Backends that read the length of the text on the device and nothing after it: a captured step
can hand them all slots there are, at no cost."""

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Largest difference from `reference` taken for rounding, relative to the largest value."""


def choose_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that an option names: `name`, or what "auto" stands for.

    That is `triton` for half precision on a CUDA GPU that it knows, else `sdpa`: float32 kernels
    take several times longer to compile and use no tensor cores.

    Raises:
        ConfigError: there is no such backend.
    """
    if name == "auto":
        half = dtype in (torch.float16, torch.bfloat16)
        return "triton" if device.type == "cuda" and half and triton_available(device) else "sdpa"
    if name not in BACKENDS:
        raise ConfigError(f"unknown attention {name!r}; use one of auto, {', '.join(BACKENDS)}")
    return name


@torch.inference_mode()
def check_usable(
    name: str, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_size: int
) -> None:
    """Run a small step, and compare it with `reference`.

    Raises:
        ConfigError: the backend does not work for such layers; one line says why.
    """
    mask = StepMask((0b001, 0b011, 0b101), (16, 17, 17), 16)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, count, tokens, head_size, generator=generator).to(device, dtype)
        for count, tokens in ((heads, 3), (kv_heads, 19), (kv_heads, 19))
    )
    expected = reference_attention(query, key, value, mask, head_size**-0.5, None, None)
    try:
        found = BACKENDS[name](query, key, value, mask, head_size**-0.5, None, None)
        difference = (found.float() - expected.float()).abs().max() / expected.abs().max()
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"attention {name!r} does not work here: {reason}; use --attention sdpa"
        ) from error
    # Also if it is NaN.
    if not float(difference) <= _TOLERANCE[dtype]:
        raise ConfigError(
            f"attention {name!r} is wrong here, by {float(difference):.1g} of the largest value;"
            " use --attention sdpa"
        )
