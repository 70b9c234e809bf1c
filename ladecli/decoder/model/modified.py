"""What was done to a loaded model: hooks, replaced forwards and modules, other weights, adapters.

Our own forward calls a model's linear layers and reads the rest of its weights; transformers' runs
whatever hangs on a module.  So a model with hooks is for the latter, and what was found out about a
model holds until its `fingerprint` is another one.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_TORCHS = {*vars(nn.Module())}
"""Attributes that torch gives every module."""
_CHANGING = ("dynamic", "longrope")
_PLAIN = {type(None), bool, int, float, str}
_SEVERAL = {list, tuple, set, frozenset}
_ONE_SCALE = ("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")
_KNOWN = (
    *("torch", "transformers", "transformers_modules", "accelerate", "peft", "bitsandbytes"),
    *("torchao", "gptqmodel", "auto_gptq", "awq", "hqq", "optimum", "compressed_tensors"),
)
"""Packages whose hooks change nothing, and whose modules a trial at load is enough for."""


def intervention(model: nn.Module) -> str | None:
    """What hangs on a model that transformers' forward alone runs, in words; None if nothing does.

    Linear modules are always called, so that theirs may be any.
    """
    for name, module in model.named_modules():
        where = name or type(module).__name__
        hooks = [hook for kind in _HOOKS for hook in getattr(module, kind).values()]
        if not all(map(_is_known, hooks)):
            return f"{where} has a hook"
        if not (isinstance(module, nn.Linear) or _is_known(forward := _forward_of(module))):
            return f"{where} runs {getattr(forward, '__qualname__', forward)}"
    return None


def prepares_inputs(model: nn.Module) -> bool:
    """Whether another function than its class's makes what a model is fed of the tokens, as with
    peft's prompts, which are no tokens."""
    own = vars(model).get("prepare_inputs_for_generation")
    return own is not None and getattr(own, "__func__", own) is not getattr(
        type(model), "prepare_inputs_for_generation", None
    )


def _forward_of(module: nn.Module) -> Any:
    """The function that a module runs, before torch compiles it."""
    forward = vars(module).get("forward", type(module).forward)
    forward = getattr(forward, "_torchdynamo_orig_callable", forward)
    return getattr(forward, "__func__", forward)


def _is_known(function: Any) -> bool:
    """Whether a function was written in one of the packages, whatever it wraps."""
    while isinstance(function, partial):  # so accelerate puts its own in
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:  # an object that can be called
        return type(function).__module__.partition(".")[0] in _KNOWN
    folders = [
        os.path.join(folder, "")
        for name in _KNOWN
        for folder in getattr(sys.modules.get(name), "__path__", ())
    ]
    return str(code.co_filename).startswith(tuple(folders))


def depends_on_rows(model: nn.Module) -> bool:
    """Whether products give all of their rows one scale, as those of torch's `quantize_dynamic` do:
    then logits depend on how a text is cut into forwards."""
    return any(type(module).__module__.startswith(_ONE_SCALE) for module in model.modules())


def fingerprint(model: nn.Module) -> int:
    """A number that is another one after anything was done to a model that a forward may read.

    That is configurations, hooks, forwards, modules, their parameters and buffers, and whatever
    other attributes they have.  It takes some microseconds a module, and reads no weight: torch
    counts the changes of each.
    """
    marks: list[Any] = [prepares_inputs(model)]
    configs: dict[int, Any] = {}
    for module in model.modules():
        own = vars(module)
        marks += (id(module), type(module), type(module).forward)
        for kind in _HOOKS:
            marks += own[kind]  # their numbers, which torch gives out once
        if (config := own.get("config")) is not None:
            configs[id(config)] = config
        if "rope_type" in own and any(kind in str(own["rope_type"]) for kind in _CHANGING):
            continue  # transformers itself changes its attributes with every forward
        for tensors in (own["_parameters"], own["_buffers"]):
            marks += [_mark(tensor) for tensor in tensors.values() if tensor is not None]
        marks += [
            value if type(value) in _PLAIN else _mark(value)
            for name, value in own.items()
            if name not in _TORCHS
        ]
    marks += [_mark(vars(each)) for each in configs.values() if hasattr(each, "__dict__")]
    return hash(tuple(marks))


def _mark(value: Any) -> Any:
    """What tells a value from others: plain ones by value, tensors by changes, others by place."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, torch.Tensor):
        # torch does not count changes of tensors of inference mode
        return id(value), 0 if value.is_inference() else value._version
    if kind is dict:
        return tuple([(id(key), _mark(each)) for key, each in value.items()])
    if kind in _SEVERAL:
        return kind, *[_mark(each) for each in value]
    return id(value)
