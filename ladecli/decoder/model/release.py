"""Memory that a load gives back as it goes: what it freed, and what it has read of files."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

SMALLEST_APART = 1 << 17
"""Bytes of a block that has pages of its own in a load: glibc's default."""
LARGEST_IN_HEAP = 32 << 20
"""Of the blocks that it takes out of its heap once one of that size was freed."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_under_way: list[bool] = []
"""Not empty while blocks are allocated apart."""


class MappedFile(NamedTuple):
    """A file in memory that weights are parts of, and that nobody wrote to there.

    The system reads anew what is dropped of it.
    """

    path: str
    address: int
    size: int
    part: torch.UntypedStorage
    """Of a weight: as long as it is held, nothing else gets these addresses."""

    def holds(self, weight: Tensor) -> bool:
        """Whether a weight is part of it."""
        return self.address <= weight.data_ptr() < self.address + self.size


def mapped_files(model: nn.Module) -> list[MappedFile]:
    """The files that weights of a model on a CPU are parts of; none but on Linux.

    Files are those of /proc/self/maps: to ask for their pages too (smaps, as psutil does) makes the
    system walk through all memory of the process.
    """
    on_cpu = [each for each in model.parameters() if each.device.type == "cpu"]
    parts = {each.data_ptr(): each.untyped_storage() for each in on_cpu}
    files = []
    with suppress(OSError):
        # Names of files may have other ends of lines in them.
        for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")[:-1]:
            addresses, *_, path = line.split(maxsplit=5)
            if not path.startswith("/"):
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            part = next((parts[address] for address in parts if start <= address < end), None)
            if part is not None and _is_as_in_file(start, end - start):
                files.append(MappedFile(path, start, end - start, part))
    return files


def _is_as_in_file(address: int, size: int) -> bool:
    """Whether no page in memory is of this process alone, as one that was written to is: see
    "pagemap" in the kernel's documentation.  Some kernels do not say so of huge pages."""
    entry, pages = np.dtype(np.uint64), size // mmap.PAGESIZE
    skipped = address // mmap.PAGESIZE * entry.itemsize
    entries = np.fromfile("/proc/self/pagemap", entry, pages, offset=skipped)
    flags = np.right_shift(entries, 61, out=entries)  # in memory, swapped out, of a file
    return len(flags) == pages and bool(((flags == 0) | (flags & 1 == 1)).all())


def drop(files: Iterable[MappedFile]) -> None:
    """Give back what was read of files."""
    with _c_library() as library:
        for file in files:
            address, size = ctypes.c_void_p(file.address), ctypes.c_size_t(file.size)
            library.madvise(address, size, mmap.MADV_DONTNEED)


def give_back() -> None:
    """Give back what was freed, and what the C library keeps for itself."""
    with _c_library() as library:
        library.malloc_trim(0)


class FileRows:
    """Reads rows of a weight out of the file that holds them: read by way of the memory that the
    file is mapped to, each row takes 64 KB of that, and longer.

    Args:
        weight: part of the file.
        file: opened here, and open as long as this lives: another one may take its name.
    """

    def __init__(self, weight: Tensor, file: MappedFile) -> None:
        self._path, self._number = file.path, os.open(file.path, os.O_RDONLY)
        self._start = weight.data_ptr() - file.address
        self._dtype, self._shape = weight.dtype, weight.shape

    def __del__(self) -> None:
        with suppress(AttributeError):  # where it could not be opened
            os.close(self._number)

    def __deepcopy__(self, _memo: object) -> FileRows:
        return self

    @classmethod
    def of(cls, weight: Tensor, files: Iterable[MappedFile]) -> FileRows | None:
        """Of the file that a weight is part of, where its rows are found again there."""
        ends = torch.tensor([0, len(weight) - 1])
        for file in files:
            with suppress(AttributeError, OSError):
                rows = cls(weight, file)
                if torch.equal(rows.read(ends).view(torch.uint8), weight[ends].view(torch.uint8)):
                    return rows
        return None

    def read(self, ids: Tensor) -> Tensor:
        """[T] -> [T, n]; OSError where the file was cut short meanwhile."""
        size = self._shape[1] * self._dtype.itemsize
        rows = [os.pread(self._number, size, self._start + size * row) for row in ids.tolist()]
        if any(len(row) < size for row in rows):
            raise OSError(errno.EIO, "the model's file was cut short", self._path)
        data = bytearray(b"".join(rows))
        return torch.frombuffer(data, dtype=self._dtype).view(len(rows), -1)


@contextmanager
def apart() -> Iterator[None]:
    """Let what is allocated meanwhile have pages of its own, which go back to the system with it.

    Once a weight was freed, glibc takes others out of its heap.  Those that are joined or packed
    leave holes there, and what steps allocate fills one hole after the other: a tenth of what
    SmolLM2-135M held, in bfloat16 and in 8 bits.  Within another one it changes nothing.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or _under_way:
        yield
        return
    _under_way.append(True)
    _set_threshold(SMALLEST_APART)
    try:
        yield
    finally:
        _under_way.clear()
        # What steps allocate over and over would be mapped anew each time.
        _set_threshold(LARGEST_IN_HEAP)


def _set_threshold(size: int) -> None:
    with _c_library() as library:
        library.mallopt(_MMAP_THRESHOLD, size)
        library.mallopt(_TRIM_THRESHOLD, 2 * size)


@contextmanager
def _c_library() -> Iterator[Any]:
    """The C library: what it lacks is not called.  Others than glibc give back by themselves."""
    with suppress(AttributeError, OSError, TypeError):
        yield ctypes.CDLL(None)
