"""The requirements of attention backends, without importing torch."""

from __future__ import annotations

import os
from importlib.util import find_spec

from ..errors import ConfigError

NO_TRITON = (
    "attention 'triton' needs the package triton and a CUDA GPU of compute capability 8.0; use"
    " --attention auto"
)


def check_attention(name: str, device: str) -> None:
    """Check that an attention backend can run on a kind of device; this imports nothing.

    Raises:
        ConfigError: it needs a package, or another kind of device.
    """
    if name == "invariant" and device != "cpu" and (device != "cuda" or not find_spec("triton")):
        raise ConfigError(
            "batch-invariant steps need a model on a CPU, or a CUDA GPU and the package triton; add"
            " --device cpu, or leave --batch-invariant out"
        )
    if name == "flash" and (device != "cuda" or find_spec("flash_attn") is None):
        raise ConfigError(
            "attention 'flash' needs the package flash-attn and a CUDA GPU; use --attention auto"
        )
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if name == "triton" and (find_spec("triton") is None or not (device == "cuda" or interpreted)):
        raise ConfigError(NO_TRITON)
