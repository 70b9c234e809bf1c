"""Weights that stay in their file in 16 bits, and are read row by row when they are needed.

Most files store two bytes for each weight, and a model in float32 has four.  On a CPU, a form of
two bytes is as exact (`cpu_layouts.halves`), so the linear layers and the embedding are never
converted to float32 as a whole, which used to take most of the time of a load.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AT_ONCE = 1 << 20
"""The numbers of a weight that are multiplied at once, few enough for a processor's cache."""


class Rows(Protocol):
    """A weight [out, in] whose rows are unpacked when they are read."""

    @property
    def shape(self) -> Sequence[int]:
        """The numbers of rows and columns."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""

    def __getitem__(self, rows: Any, /) -> Tensor:
        """Return all rows (`...`), those of a slice, or those of a tensor of indices."""


class StoredTensor:
    """A tensor in a file.

    Args:
        memory: the file, mapped privately.
        start: where the tensor begins in it, in bytes.
        dtype, shape: those of the tensor.
    """

    device = torch.device("cpu")

    def __init__(
        self, memory: mmap.mmap, start: int, dtype: torch.dtype, shape: Sequence[int]
    ) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._memory, self._start = memory, start
        flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start)
        self._tensor = flat.view(self.shape)

    def __getitem__(self, rows: Any) -> Tensor:
        """Return rows as views of the mapped file."""
        return self._tensor[rows]

    def leave_memory(self) -> None:
        """Free the memory of the tensor's pages; they are read from the file again if needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = -(-self._start // mmap.PAGESIZE) * mmap.PAGESIZE
            size = self._start + self._tensor.nbytes - first
            if size >= mmap.PAGESIZE:
                size -= size % mmap.PAGESIZE
                self._memory.madvise(mmap.MADV_DONTNEED, first, size)


class StackedRows:
    """Weights of 16 bits, one below the other, whose rows are read in float32."""

    dtype = torch.float32

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])

    def __getitem__(self, rows: Any) -> Tensor:
        """Return a copy of all rows (`...`), or of those of a slice."""
        first, end, _ = (slice(None) if rows is ... else rows).indices(self.shape[0])
        return self.read(slice(first, end), torch.empty((end - first) * self.shape[1]))

    def read(self, rows: slice, room: Tensor) -> Tensor:
        """Write rows to `room`, which has at least as many numbers, and return them."""
        first, end, _ = rows.indices(self.shape[0])
        out = room[: (end - first) * self.shape[1]].view(-1, self.shape[1])
        start = -first  # of a part, among those rows
        for part in self._parts:
            stop = start + part.shape[0]
            low, high = max(start, 0), min(stop, len(out))
            if low < high:
                out[low:high] = part[low - start : high - start]
            start = stop
        return out

    @cached_property
    def largest(self) -> float:
        """The largest absolute value; infinite or NaN if a number is."""
        ends = [torch.stack(torch.aminmax(part[...])) for part in self._parts]
        return float(torch.stack(ends).float().abs().max())

    def leave_memory(self) -> None:
        """See `StoredTensor`."""
        for part in self._parts:
            if isinstance(part, StoredTensor):
                part.leave_memory()


def parts_of(model: Any) -> dict[str, Any]:
    """Return by name the linear layers and the embedding of a model."""
    embedding = model.get_input_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear or (isinstance(module, nn.Embedding) and module is embedding)
    }


def keep_stored(model: Any, stored: Mapping[str, Rows]) -> None:
    """Replace the linear layers and the embedding of a model by modules that compute in float32
    with rows of `stored`, which has the weights by name."""
    rows_of = {model.get_parameter(name): rows for name, rows in stored.items()}
    for name, module in parts_of(model).items():
        kind = StoredEmbedding if isinstance(module, nn.Embedding) else StoredLinear
        model.set_submodule(name, kind(module, rows_of[module.weight]))


def make_plain(model: nn.Module) -> None:
    """Convert the weights of all `StoredLinear` to float32, for transformers' forward."""
    for module in model.modules():
        if isinstance(module, StoredLinear):
            module.weight = module.weight[...].float()


class StoredLinear(nn.Module):
    """A linear layer whose weight is unpacked in pieces, each time that it is multiplied.

    Args:
        linear: the original layer.
        weight: its weight.

    Attributes:
        weight: as above; not a parameter, since parameters are converted to other types.
    """

    def __init__(self, linear: nn.Linear, weight: Rows) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        step = max(AT_ONCE // self.in_features, 1)
        if isinstance(self.weight, Tensor):
            step = self.out_features
        starts = range(0, self.out_features, step)
        products = [F.linear(x, self.weight[i : i + step].float()) for i in starts]
        product = torch.cat(products, dim=-1)
        return product if self.bias is None else product + self.bias


class StoredEmbedding(nn.Module):
    """An embedding whose rows are unpacked on lookup, and scaled if the family (Gemma) requires it.

    Args:
        embedding: the original embedding.
        weight: its weight.

    Attributes:
        weight: [vocabulary, n]; not a parameter, since parameters are converted to other types.
        scale: the factor of all rows.
    """

    def __init__(self, embedding: nn.Embedding, weight: Any) -> None:
        super().__init__()
        self.weight = weight
        self.scale = getattr(embedding, "embed_scale", 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., n]."""
        rows: Tensor = self.weight[ids].float() * self.scale
        return rows
