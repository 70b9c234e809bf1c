"""Changes of a loaded model: hooks, replaced forwards and modules, other weights, adapters.

Our own forward only calls a model's linear layers, so a model with hooks needs transformers'.  The
result of a trial is valid until the `fingerprint` of the model changes.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from typing import Any

import torch
from torch import nn

_PLAIN = {type(None), bool, int, float, str}
_UNREAD = {*vars(nn.Module()), "_is_hf_initialized"} - {"training"}
"""Attributes that no forward reads, or that `fingerprint` reads separately."""
_LIBRARIES = {
    *("torch", "transformers", "transformers_modules", "accelerate", "peft", "bitsandbytes"),
    *("torchao", "gptqmodel", "auto_gptq", "awq", "hqq", "optimum", "compressed_tensors"),
}
"""Packages whose hooks change nothing, and whose modules need only the trial at load."""


def intervention(model: nn.Module) -> str | None:
    """Return a description of a change that only transformers' forward supports; None without one.

    Linear modules are always called, so their forwards may be arbitrary.
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
    """Return True if a function, or the wrapper around it, comes from one of the packages."""
    while isinstance(function, partial):  # accelerate replaces forwards by these
        function = function.func
    if (code := getattr(function, "__code__", None)) is None:  # an object that can be called
        return type(function).__module__.partition(".")[0] in _LIBRARIES
    packages = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    folders = [os.path.join(path, "") for package in packages for path in package.__path__]
    return str(code.co_filename).startswith(tuple(folders))


def why_not_drafted(model: nn.Module) -> str | None:
    """Return why only transformers' own decoding is right; None if there is no known reason."""
    # peft's learned prompts are not tokens; peft adds them when inputs are prepared.
    name = "prepare_inputs_for_generation"
    prepare = vars(model).get(name)
    if prepare and getattr(prepare, "__func__", prepare) is not getattr(type(model), name, None):
        return "its inputs are not prepared by its class"
    one_scale = ("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")
    if any(type(module).__module__.startswith(one_scale) for module in model.modules()):
        return "its 8-bit products depend on how many tokens a step has"
    return None


def fingerprint(model: nn.Module) -> int:
    """Return a number that depends on everything in a model that a forward may read.

    No weight is read, since torch counts the changes of each.
    """
    marks: list[Any] = [model.device]
    configs: dict[int, Any] = {}
    waiting, seen = [model], {model}
    while waiting:  # `model.modules` makes the name of each
        own = vars(module := waiting.pop())
        for child in own["_modules"].values():
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
        if (config := own.get("config")) is not None:
            configs[id(config)] = getattr(config, "__dict__", config)
        marks += (id(module), type(module), type(module).forward)
        marks += [_mark_of(weight) for weight in own["_parameters"].values() if weight is not None]
        # These are empty in most modules; some rotary frequencies change in every forward.
        if own["_buffers"] and "rope_type" not in own:
            marks.append(_mark(own["_buffers"]))
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            marks += (_mark(own["_forward_hooks"]), _mark(own["_forward_pre_hooks"]))
        marks += [
            value if type(value) in _PLAIN else _mark(value)
            for value in map(own.__getitem__, _read_by_forwards(tuple(own)))
        ]
    return hash((*marks, _mark(configs)))


@cache
def _read_by_forwards(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes of a module that a forward may read."""
    # Some rotary frequencies change in every forward.
    changing = ("max_seq_len_cached", "inv_freq") if "rope_type" in names else ()
    return tuple(name for name in names if name not in _UNREAD and not name.endswith(changing))


def _mark_of(tensor: torch.Tensor) -> tuple[int, torch.dtype, int]:
    """Return a key of a tensor, which changes with every change in place."""
    # torch does not count the changes of tensors of inference mode
    return id(tensor), tensor.dtype, tensor.is_inference() or tensor._version


def _mark(value: Any) -> Any:
    """Return a key of a value: plain values, the keys of tensors, otherwise the identity."""
    kind = type(value)
    if isinstance(value, dict):
        if not value:
            return ()  # as most are
        return tuple([(k, v if type(v) in _PLAIN else _mark(v)) for k, v in value.items()])
    if kind in (list, tuple, set, frozenset):
        return (kind, *map(_mark, value))
    if isinstance(value, torch.Tensor):
        return _mark_of(value)
    return value if kind in _PLAIN else id(value)
