"""Models of the usual sizes, to show what a profile says before there is a model."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory import smaller_forms
from ..shape import ModelShape
from .schema import Profile

SIZES = {
    # parameters, layers, hidden, inner, heads, heads of keys and values, vocabulary
    "0.5B": (494e6, 24, 896, 4864, 14, 2, 151936),  # Qwen2.5
    "1.5B": (1.54e9, 28, 1536, 8960, 12, 2, 151936),  # Qwen2.5
    "3B": (3.21e9, 28, 3072, 8192, 24, 8, 128256),  # Llama 3.2
    "7B": (6.74e9, 32, 4096, 11008, 32, 32, 32000),  # Llama 2
    "13B": (13.0e9, 40, 5120, 13824, 40, 40, 32000),  # Llama 2
    "34B": (33.7e9, 48, 8192, 22016, 64, 8, 32000),  # Code Llama
    "70B": (69.0e9, 80, 8192, 28672, 64, 8, 32000),  # Llama 2
}
"""Real models, each for its size."""


def shapes_for(profile: Profile) -> Iterator[tuple[str, ModelShape]]:
    """Models with the names of their sizes, each in 16, 8 and 4 bits.

    Args:
        profile: a device without units for bfloat16 is shown float16.
    """
    rates = profile.hardware.rates if profile.hardware else {}
    full = "float16" if "float16" in rates and "bfloat16" not in rates else "bfloat16"
    for name, (size, layers, hidden, inner, heads, kv_heads, vocabulary) in SIZES.items():
        numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
        shape = ModelShape(size, size, full, 2 * size, full, *numbers)
        yield name, shape
        for _, smaller in smaller_forms(shape):
            yield name, smaller
