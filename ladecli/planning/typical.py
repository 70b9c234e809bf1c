"""Shapes of well-known models: planning needs a size, and no download."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError
from ..memory import smaller_forms
from ..profiles.listing import SIZES
from ..shape import ModelShape

DEFAULT = "7b"
"""What is planned for where nobody names a model or a size."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The figures of one model.

    Attributes:
        figures: parameters, layers, hidden, inner, heads, heads of keys and values, vocabulary.
        active: parameters that a token meets, where that is not all of them.
    """

    figures: tuple[float, int, int, int, int, int, int]
    active: float | None = None


_MODELS = {
    "qwen2.5-0.5b": _Form(SIZES["0.5B"]),
    "llama-3.2-1b": _Form((1.236e9, 16, 2048, 8192, 32, 8, 128256)),
    "qwen2.5-1.5b": _Form(SIZES["1.5B"]),
    "qwen2.5-3b": _Form((3.086e9, 36, 2048, 11008, 16, 2, 151936)),
    "llama-3.2-3b": _Form(SIZES["3B"]),
    "llama-2-7b": _Form(SIZES["7B"]),
    "mistral-7b": _Form((7.242e9, 32, 4096, 14336, 32, 8, 32000)),
    "qwen2.5-7b": _Form((7.616e9, 28, 3584, 18944, 28, 4, 152064)),
    "llama-3-8b": _Form((8.030e9, 32, 4096, 14336, 32, 8, 128256)),
    "llama-2-13b": _Form(SIZES["13B"]),
    "qwen2.5-14b": _Form((14.770e9, 48, 5120, 13824, 40, 8, 152064)),
    "qwen2.5-32b": _Form((32.764e9, 64, 5120, 27648, 40, 8, 152064)),
    "codellama-34b": _Form(SIZES["34B"]),
    "mixtral-8x7b": _Form((46.703e9, 32, 4096, 14336, 32, 8, 32000), 12.880e9),
    "llama-2-70b": _Form(SIZES["70B"]),
    "llama-3-70b": _Form((70.554e9, 80, 8192, 28672, 64, 8, 128256)),
    "qwen2.5-72b": _Form((72.706e9, 80, 8192, 29568, 64, 8, 152064)),
    "llama-3-405b": _Form((405.853e9, 126, 16384, 53248, 128, 8, 128256)),
}
"""By size, the smallest first."""
_SHORT = {
    **{"0.5b": "qwen2.5-0.5b", "1b": "llama-3.2-1b", "1.5b": "qwen2.5-1.5b"},
    **{"3b": "llama-3.2-3b", "7b": "llama-2-7b", "8b": "llama-3-8b", "13b": "llama-2-13b"},
    **{"14b": "qwen2.5-14b", "32b": "qwen2.5-32b", "34b": "codellama-34b"},
    **{"8x7b": "mixtral-8x7b", "70b": "llama-2-70b", "72b": "qwen2.5-72b"},
    **{"405b": "llama-3-405b"},
}
"""What a size alone stands for."""


def known() -> str:
    """All sizes that there are, for messages."""
    return f"{', '.join(_SHORT)}, and names such as {', '.join(list(_MODELS)[-3:])}"


def typical(size: str, dtype: str = "bfloat16", quantize: str = "none") -> tuple[str, ModelShape]:
    """A well-known model by its size or name.

    Args:
        size: "7b", "llama-3-8b" and the like; capitals, and an owner before it, do not matter.
        dtype: of weights that are not quantised, and of activations.
        quantize: none, 4bit or 8bit.

    Returns:
        The model's name, and its shape.

    Raises:
        UsageError: none of this size is known.
    """
    word = size.strip().lower().rpartition("/")[2].replace("llama-3.1-", "llama-3-")
    if (number := _number(word)) is not None:
        word = f"{number:g}b"
    name = _SHORT.get(word, word)
    if name not in _MODELS:
        raise UsageError(f"unknown model size {size!r}{_nearest(word)}; known: {known()}")
    parameters, layers, hidden, inner, heads, kv_heads, vocabulary = _MODELS[name].figures
    active = _MODELS[name].active or parameters
    size_bytes = parameters * (4 if dtype == "float32" else 2)
    numbers = (layers, hidden, inner, heads, kv_heads, hidden // heads, vocabulary)
    shape = ModelShape(parameters, active, dtype, size_bytes, dtype, *numbers)
    for flag, form in smaller_forms(shape, "cuda"):
        if flag == f"--quantize {quantize}":
            return name, form
    return name, shape


def _number(word: str) -> float | None:
    """Billions of parameters, where a size is that alone: 7, 7b or 7.0b."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)b?", word)
    return None if found is None else float(found[1])


def _nearest(word: str) -> str:
    """The known sizes next to one that is a number."""
    wanted = _number(word)
    if wanted is None:
        return ""
    sizes = [name for name in _SHORT if "x" not in name]
    below = [name for name in sizes if float(name[:-1]) <= wanted][-1:]
    above = [name for name in sizes if float(name[:-1]) > wanted][:1]
    return f" (next to it: {' and '.join([*below, *above])})"
