"""Memory that is counted, also on meta devices, and memory that runs out."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WHOLE = {"linear", "embedding", "scaled_dot_product_attention"}
"""Operations that allocate nothing temporary on a GPU, although torch can decompose them."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def limit_pages(monkeypatch: pytest.MonkeyPatch, fits: Callable[[int], bool]) -> None:
    """Limit the sizes of pages that caches can allocate."""
    pages = mmap.mmap

    def limited(place: int, size: int, **options: int) -> mmap.mmap:
        if not fits(size):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return pages(place, size, **options)

    monkeypatch.setattr(mmap, "mmap", limited)


class MemoryCounter(TorchDispatchMode):
    """Counts the bytes of live tensors that are created within a block.

    Attributes:
        most: the peak in bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._sizes: dict[int, int] = {}

    @property
    def now(self) -> int:
        return sum(self._sizes.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        name = func._schema.name.partition("::")[2]
        # In inference mode they arrive before they are taken apart: a softmax of other numbers
        # than its input's makes a copy first.
        if name not in WHOLE and func.has_kernel_for_dispatch_key(_COMPOSITE):
            with self:
                return func.decompose(*args, **options)
        self._watch((args, options), there=True)
        out = func(*args, **options)
        self._watch(out)
        self.most = max(self.most, self.now)
        return out

    def _watch(self, tensors: Any, *, there: bool = False) -> None:
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._sizes:
                # Earlier tensors are not counted.
                self._sizes[key] = 0 if there else storage.nbytes()
                weakref.finalize(storage, self._sizes.pop, key, None)
