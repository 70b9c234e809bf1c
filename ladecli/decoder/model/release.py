"""Memory that a load gives back as it goes: what it freed, and what it has read of files."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn


class MappedFile(NamedTuple):
    """A file in memory that weights are parts of, and that nobody wrote to there.

    The system reads anew what is dropped of it.
    """

    address: int
    size: int
    part: torch.UntypedStorage
    """Of a weight: as long as it is held, nothing else gets these addresses."""

    def holds(self, weight: Tensor) -> bool:
        """Whether a weight is part of it."""
        return self.address <= weight.data_ptr() < self.address + self.size


def mapped_files(model: nn.Module) -> list[MappedFile]:
    """The files that weights of a model on a CPU are parts of; none but on Linux."""
    on_cpu = [each for each in model.parameters() if each.device.type == "cpu"]
    parts = {each.data_ptr(): each.untyped_storage() for each in on_cpu}
    files = []
    for each in _maps():
        if each.path.startswith("[") or each.anonymous or each.swap:
            continue  # no file, or one with pages of its own that were written to
        start, end = (int(address, 16) for address in each.addr.split("-"))
        part = next((parts[address] for address in parts if start <= address < end), None)
        if part is not None:
            files.append(MappedFile(start, end - start, part))
    return files


def _maps() -> list[Any]:
    """What this process has mapped; nothing where no system tells, as in some containers."""
    with suppress(AttributeError, OSError, psutil.Error):
        if sys.platform == "linux":
            return list(psutil.Process().memory_maps(grouped=False))
    return []


def give_back(files: Iterable[MappedFile] = ()) -> None:
    """Give memory back to the system: what was freed, and what was read of files.

    The C library keeps the first for itself.  Weights leave holes where others of their size seldom
    fit: with small models these would be most of what a process holds.  A load calls this between
    layers.
    """
    # glibc has the first; others give back by themselves.
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        for file in files:
            address, size = ctypes.c_void_p(file.address), ctypes.c_size_t(file.size)
            library.madvise(address, size, mmap.MADV_DONTNEED)
