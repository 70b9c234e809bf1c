"""A fake compiler of transformers' steps, which counts the compilations that torch would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ladecli.decoder.backends.compat import CACHE_NAMES


class Compiler:
    """Stands for `torch.compile` of a model.

    Attributes:
        count: the number of times that torch would have compiled a step.
        steps: that were run.
    """

    def __init__(self) -> None:
        self.count = self.steps = 0
        self._known: set[str] = set()
        self._models: list[Any] = []

    def __call__(self, forward: Any, **_config: Any) -> Callable[..., Any]:
        model = forward.__self__
        self._models.append(model)

        def step(**inputs: Any) -> Any:
            self.steps += 1
            if (seen := _seen(model, inputs)) not in self._known:
                self._known.add(seen)
                self.count += 1
            return forward(**inputs)

        return step

    def forget(self) -> None:
        """Remove transformers' compiled functions from the models."""
        for model in self._models:
            for name in ("_compiled_call", "_last_compile_config"):
                vars(model).pop(name, None)


def _seen(model: Any, inputs: dict[str, Any]) -> str:
    """Return the properties on which torch's compilations depend: shapes, addresses of the cache,
    hooks, and code."""
    shapes = tree_map(lambda x: x.shape if isinstance(x, torch.Tensor) else None, inputs)
    (name,) = inputs.keys() & CACHE_NAMES
    shapes[name] = [(layer.keys.data_ptr(), layer.keys.shape) for layer in inputs[name].layers]
    hooks = [id(hook) for hook in model._forward_hooks.values()]
    own = [name for name, part in model.named_modules() if "forward" in vars(part)]
    return repr((sorted(shapes.items()), hooks, own, model.config._attn_implementation))
