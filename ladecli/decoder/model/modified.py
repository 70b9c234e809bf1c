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

from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ADAPTERS = ("_active_adapter", "_disable_adapters")
"""Attributes in which peft's layers keep what is switched on."""
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


def fingerprint(model: nn.Module) -> int:
    """A number that is another one after anything of this was done to a model.

    It takes some microseconds a module, and reads no weight: torch counts the changes of each.
    """
    marks: list[Any] = [prepares_inputs(model)]
    for module in model.modules():
        own = vars(module)
        marks += (id(module), type(module), type(module).forward, id(own.get("forward")))
        for kind in _HOOKS:
            marks += own[kind]  # their numbers, which torch gives out once
        for name in _ADAPTERS:
            if name in own:
                marks.append(str(own[name]))
        for tensors in (own["_parameters"], own["_buffers"]):
            for tensor in tensors.values():
                if tensor is not None:
                    # torch does not count changes of tensors of inference mode
                    marks += (id(tensor), 0 if tensor.is_inference() else tensor._version)
    return hash(tuple(marks))
