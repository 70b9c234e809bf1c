"""What was done to a loaded model: hooks, replaced forwards and modules, other weights, adapters.

Our own forward only calls a model's linear layers, so a model with hooks needs transformers'.  What
a trial showed about a model holds until its `fingerprint` changes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

_PLAIN = {type(None), bool, int, float, str}
_ONE_SCALE = ("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")
_LIBRARIES = {
    *("torch", "transformers", "transformers_modules", "accelerate", "peft", "bitsandbytes"),
    *("torchao", "gptqmodel", "auto_gptq", "awq", "hqq", "optimum", "compressed_tensors"),
}
"""Packages whose hooks change nothing, and whose modules a trial at load is enough for."""


def intervention(model: nn.Module) -> str | None:
    """Return what a model has that only transformers' forward runs, in words; None if nothing.

    Linear modules are always called, so their forwards may be any.
    """
    for name, module in model.named_modules():
        place = name or type(module).__name__
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if not all(map(_is_of_library, hooks)):
            return f"{place} has a hook"
        forward = vars(module).get("forward", type(module).forward)
        forward = getattr(forward, "_torchdynamo_orig_callable", forward)  # torch compiled it
        if not (isinstance(module, nn.Linear) or _is_of_library(forward)):
            return f"{place} runs {getattr(forward, '__qualname__', forward)}"
    return None


def _is_of_library(function: Any) -> bool:
    """Return whether a function was written in one of the packages, whatever it wraps."""
    while isinstance(function, partial):  # accelerate replaces forwards by these
        function = function.func
    names = getattr(function, "__globals__", {"__name__": type(function).__module__})
    return names["__name__"].partition(".")[0] in _LIBRARIES


def why_not_drafted(model: nn.Module) -> str | None:
    """Return why only transformers' own decoding is right, in words; None if nothing is known."""
    # Prompts that peft learns are no tokens: it makes them when inputs are prepared.
    prepare = vars(model).get("prepare_inputs_for_generation")
    own = getattr(type(model), "prepare_inputs_for_generation", None)
    if prepare is not None and getattr(prepare, "__func__", prepare) is not own:
        return "something else than its class prepares its inputs"
    if any(type(module).__module__.startswith(_ONE_SCALE) for module in model.modules()):
        return "its 8-bit products depend on how many tokens a step has"
    return None


def fingerprint(model: nn.Module) -> int:
    """Return a number that changes when anything that a forward may read is changed in a model.

    That is hooks, forwards, configurations, modules, their parameters and buffers, and all other
    attributes.  No weight is read: torch counts the changes of each.
    """
    marks: list[Any] = []
    for module in model.modules():
        attributes = vars(module)
        if "rope_type" in attributes:  # some of these change their frequencies in every forward
            changing = ("_buffers", "max_seq_len_cached", "inv_freq")
            attributes = {k: v for k, v in attributes.items() if not k.endswith(changing)}
        marks.append((id(module), type(module), type(module).forward, _mark(attributes)))
    configs = {id(c): c for m in model.modules() if (c := vars(m).get("config")) is not None}
    return hash((*marks, *(_mark(vars(config)) for config in configs.values())))


def _mark(value: Any) -> Any:
    """Return what tells a value from others: plain values, changes of tensors, else identity."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        # torch does not count the changes of tensors of inference mode
        return id(value), value.dtype, value.device, value.is_inference() or value._version
    if isinstance(value, dict):
        return tuple([(key, _mark(item)) for key, item in value.items()])
    if kind in (list, tuple, set, frozenset):
        return (kind, *map(_mark, value))
    return id(value)
