"""Differences between the supported versions of torch and transformers.

Each entry names the version that made the difference, so that it can be deleted once older versions
are not supported any more (pyproject.toml).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from packaging.version import Version
from torch import Tensor

_HERE = Version(transformers.__version__)
_Code = TypeVar("_Code", bound=Callable[..., Any])
if TYPE_CHECKING:
    PackedWeight = Any
else:
    # What fbgemm has of a weight, as TorchScript names its type.
    try:
        PackedWeight = torch.classes.quantized.LinearPackedParamsBase
    except (AttributeError, RuntimeError):
        PackedWeight = Tensor
CACHE_NAMES = (
    "cache",  # from 5.24 on
    "past_key_values",  # before 5.24; models whose code comes from the hub: at any version
    "cache_params",  # Mamba and kin, likewise
    "state",  # RWKV, at any version
)
"""The names of the cache in the parameters and outputs of forwards, the newest first."""
GENERATE_CACHE = CACHE_NAMES[Version("5.24.dev0") > _HERE]
"""The name of the cache in the parameters of `generate` and `custom_generate`."""


MAKES_QUANTISED = hasattr(torch, "_make_per_channel_quantized_tensor")
"""True if torch has tensors of a quantised type, which 2.13 announces to remove."""


def quantised_tensor(values: Tensor, scales: Tensor) -> Tensor:
    """Return integers with a scale for each row as one of torch's quantised tensors."""
    zeros = torch.zeros(len(values), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation")
        made: Tensor = torch._make_per_channel_quantized_tensor(values, scales.double(), zeros, 0)
    return made


def packs_halves() -> bool:
    """Return True if torch has products with weights in float16: by fbgemm, on x86 with AVX2."""
    engines = torch.backends.quantized
    here = engines.engine in ("x86", "fbgemm") and "fbgemm" in engines.supported_engines
    return here and hasattr(torch.ops.quantized, "linear_dynamic_fp16")


def script(code: _Code) -> _Code:
    """Return a function or a module compiled by TorchScript; unchanged if that is not possible.

    torch 2.13 warns that TorchScript is deprecated, and not supported on Python 3.14.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.jit.script(code)  # type: ignore[no-any-return]
        except Exception:
            return code


@cache
def scripted(function: _Code) -> _Code:
    """See `script`; each function is compiled once."""
    return script(function)


def needs_eager(config: Any) -> bool:
    """Return True if a model's own forward is right only with transformers' eager attention."""
    text = config.get_text_config(decoder=True)
    # Before 5.21 SDPA, which leaves soft caps out, is taken all the same.
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    # Before 5.18 a prompt gets another mask than what follows it.
    return (capped and Version("5.21") > _HERE) or (
        text.model_type == "doge" and Version("5.18") > _HERE
    )


def cache_argument(forward: Callable[..., Any]) -> str | None:
    """Return the name of a forward's cache parameter; None if it has none."""
    known = inspect.signature(forward).parameters
    return next((name for name in CACHE_NAMES if name in known), None)


def returned_cache(output: Any) -> Any:
    """Return the cache in the output of a forward; None if it has none."""
    # From 5.24 on, reading one of the older names as an attribute logs a warning.
    fields = output.keys()
    return next((output[name] for name in CACHE_NAMES if name in fields), None)
