"""Counts what a GPU would have to launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ladecli.decoder.lean import fused

KERNELS = ("lean.kernels", "readout.kernels", "readout.draw_kernel")
"""Modules of the decoder, which need Triton."""
FREE = {"empty", "empty_like", "new_empty", "detach"}
"""They launch nothing, and neither do views."""
WHOLE = {"linear", "embedding"}
"""One kernel each on a GPU, though torch can take them apart."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class Counting(TorchDispatchMode):
    """Writes down operations on tensors, Triton's kernels among them.

    Args:
        layers: what they do is written down by itself.

    Attributes:
        layers: operations in each.
        outside: all others.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self._kind = type(layers[0])
        self.layers: list[list[str]] = [[] for _ in layers]
        self.outside: list[str] = []
        self._now, self._off = self.outside, False
        self._places = {id(layer): self.layers[index] for index, layer in enumerate(layers)}

    @contextmanager
    def on(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Write down what is done within."""
        call = self._kind.__call__
        assert fused.loaded() is not None, "nothing to count: there is no triton"

        def called(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before, self._now = self._now, self._places[id(layer)]
            try:
                return call(layer, *args, **kwargs)
            finally:
                self._now = before

        with monkeypatch.context() as patch, self:
            # Hooks would change what the layers do.
            patch.setattr(self._kind, "__call__", called)
            for module in (import_module(f"ladecli.decoder.{name}") for name in KERNELS):
                for name, kernel in [*vars(module).items()]:
                    # Those with an underscore are parts of others.
                    if hasattr(kernel, "run") and not name.startswith("_"):
                        patch.setattr(module, name, _Launcher(self, name, kernel))
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = func._schema.name.partition("::")[2]
        composite = name not in WHOLE and func.has_kernel_for_dispatch_key(_COMPOSITE)
        if composite and not self._off:
            with self:
                return func.decompose(*args, **given)
        returns = [each.alias_info for each in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in returns)
        if not (self._off or view or name in FREE):
            self._now.append(name)
        return func(*args, **given)

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """What is done within is one kernel."""
        self._now.append(name)
        before, self._off = self._off, True
        try:
            yield
        finally:
            self._off = before

    def backend(self, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """An attention backend as one kernel, whose output needs no copy for what comes next."""

        def counted(*args: Any) -> Tensor:
            with self.one("attention"):
                return attend(*args).transpose(1, 2).contiguous().transpose(1, 2)

        return counted


class _Launcher:
    """A kernel of Triton's that is counted."""

    def __init__(self, counting: Counting, name: str, kernel: Any) -> None:
        self._counting, self._name, self._kernel = counting, name, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            with self._counting.one(self._name):
                self._kernel[grid](*args, **kwargs)

        return launch
