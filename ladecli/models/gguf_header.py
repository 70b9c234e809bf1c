"""The header of a GGUF file: its settings, and the position of each tensor.

Every count, length and offset is checked against the size of the file before it is used.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..errors import LoadError

_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""The formats of `struct` for the types of numbers in the settings."""
_STRING, _ARRAY = 8, 9
_NOT_UNPACKED = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0")
"""Types that the package gguf knows, but cannot dequantise."""
_PART = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf")
"""The name of a part of a split file."""
_SIZES = {
    "embedding_length": ("token_embd.weight", 1),
    "vocab_size": ("token_embd.weight", 0),
    "feed_forward_length": ("blk.0.ffn_down.weight", 1),
}
"""Settings that equal a dimension of a tensor."""


class GGUFArray(NamedTuple):
    """A list among the settings of a GGUF file, which `GGUFHeader.values` decodes."""

    kind: int
    length: int
    start: int
    end: int


class GGUFTensor(NamedTuple):
    """A tensor of a GGUF file."""

    path: Path  # of the file
    name: str
    shape: tuple[int, ...]  # in torch's order: rows first
    kind: str  # such as "Q4_K"
    start: int  # the offset in the file
    size: int  # in bytes


@dataclass(frozen=True)
class GGUFHeader:
    """The settings and the tensor table of a GGUF file."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    files: int = 1  # the number of files of a split model; `path` is the first

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the family of the model."""
        return str(self.settings.get("general.architecture", ""))

    def get(self, name: str) -> Any:
        """Return the setting of the architecture with this name; None without one."""
        value = self.settings.get(f"{self.architecture}.{name}")
        return None if isinstance(value, GGUFArray) else value

    def tokenizer(self, name: str) -> Any:
        """Return the setting of the tokenizer with this name; None without one."""
        return self.settings.get(f"tokenizer.ggml.{name}")

    @property
    def quantised(self) -> bool:
        """True if some weights have fewer than 16 bits."""
        return any(tensor.kind not in ("F32", "F16", "BF16") for tensor in self.tensors.values())

    @property
    def chat_templates(self) -> dict[str, str]:
        """The chat templates by name; the model's own is `default`."""
        key = "tokenizer.chat_template"
        return {
            name.removeprefix(key).lstrip(".") or "default": template
            for name, template in self.settings.items()
            if isinstance(template, str) and (name == key or name.startswith(f"{key}."))
        }

    def values(self, array: GGUFArray) -> list[Any]:
        """Return the items of a list among the settings."""
        with self.path.open("rb") as file:
            file.seek(array.start)
            data = file.read(array.end - array.start)
        if array.kind != _STRING:
            return list(struct.unpack(f"<{array.length}{_NUMBERS[array.kind]}", data))
        items, at = [], 0
        for _ in range(array.length):
            (size,) = struct.unpack_from("<Q", data, at)
            items.append(data[at + 8 : at + 8 + size].decode("utf-8", "replace"))
            at += 8 + size
        return items

    def floats(self, tensor: str) -> list[float]:
        """Return the numbers of a small tensor in float32, such as rotary factors."""
        entry = self.tensors[tensor]
        if entry.kind != "F32":
            raise LoadError(f"has {tensor} in {entry.kind}; only F32 can be read here")
        with entry.path.open("rb") as file:
            file.seek(entry.start)
            return list(struct.unpack(f"<{entry.size // 4}f", file.read(entry.size)))


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file.

    Raises:
        LoadError: the file is damaged, or a part of it is absent; the message follows its name.
        OSError: the file cannot be read.
    """
    header = _read(path)
    if header.settings.get("split.count", 1) != 1:
        header = _join(path, header)
    _check_settings(header)
    return header


def _read(path: Path) -> GGUFHeader:
    """Read the header of one file."""
    if not path.is_file():
        raise LoadError("is not a regular file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LoadError("is not a GGUF file; download or copy it again")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data).header(path)
        except (struct.error, OverflowError, UnicodeDecodeError) as error:
            raise _damaged("its header ends early") from error


def _damaged(why: str) -> LoadError:
    return LoadError(f"is damaged or cut off ({why}); download or copy it again")


class _Reader:
    """Reads the bytes of a header in order."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self.data, self.at)
        self.at += struct.calcsize(kind)
        return value

    def string(self) -> str:
        size = self.number("Q")
        self.at += size
        if self.at > len(self.data):
            raise _damaged("its header ends early")
        return self.data[self.at - size : self.at].decode("utf-8")

    def array(self) -> GGUFArray:
        kind, count = self.number("I"), self.number("Q")
        start, size = self.at, len(self.data)
        if kind in _NUMBERS:
            self.at += count * struct.calcsize(_NUMBERS[kind])
        elif kind != _STRING:
            raise _damaged(f"it holds a list of type {kind}")
        elif count <= size // 8:
            length, at = struct.Struct("<Q").unpack_from, start
            for _ in range(count):  # a vocabulary may be large, so the loop has only one call
                at += 8 + length(self.data, at)[0]
            self.at = at
        if self.at > size or count > size:
            raise _damaged("its header ends early")
        return GGUFArray(kind, count, start, self.at)

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _ARRAY:
            return self.array()
        if kind == _STRING:
            return self.string()
        if kind not in _NUMBERS:
            raise _damaged(f"it holds a setting of type {kind}")
        return self.number(_NUMBERS[kind])

    def header(self, path: Path) -> GGUFHeader:
        version, tensors, settings = self.number("I"), self.number("Q"), self.number("Q")
        if version not in (2, 3):
            why = "is in the byte order of another processor" if version % 65536 == 0 else ""
            raise LoadError(why or f"has version {version} of the format; only 2 and 3 are read")
        if 13 * settings + 24 * tensors > len(self.data):
            raise _damaged(f"it cannot hold {settings} settings and {tensors} tensors")
        stated = {self.string(): self.value() for _ in range(settings)}
        table = [self.tensor() for _ in range(tensors)]
        step = stated.get("general.alignment", 32)
        if not (isinstance(step, int) and 0 < step <= 2**20):
            raise _damaged(f"general.alignment is {step!r}")
        start = -(-self.at // step) * step
        moved = {t.name: t._replace(path=path, start=start + t.start) for t in table}
        if len(moved) < tensors:
            raise _damaged("two tensors have one name")
        end, last = start, "the header"
        for tensor in sorted(moved.values(), key=lambda tensor: tensor.start):
            if tensor.start < end:
                raise _damaged(f"{tensor.name} overlaps with {last}")
            end, last = tensor.start + tensor.size, tensor.name
        if end > len(self.data):
            raise _damaged(f"it ends after {len(self.data)} of {end} bytes")
        return GGUFHeader(path, stated, moved)

    def tensor(self) -> GGUFTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self.string(), self.number("I")
        if not 1 <= dimensions <= 4:
            raise _damaged(f"{name} has {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        number, start = self.number("I"), self.number("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise LoadError(f"has {name} in type {number}, which is not known here") from error
        if kind.name in _NOT_UNPACKED:
            raise LoadError(
                f"has {name} in {kind.name}, which cannot be unpacked here; take a file in another"
                " type, such as Q8_0"
            )
        weights, block = GGML_QUANT_SIZES[kind]  # the weights of a block, and its bytes
        if min(shape) < 1 or shape[0] % weights:
            raise _damaged(f"{name} has the shape {list(shape)}")
        size = math.prod(shape) // weights * block
        return GGUFTensor(Path(), name, shape[::-1], kind.name, start, size)


def parts_of(name: str) -> list[str]:
    """Return the names of all parts of a split model that has a file of this name."""
    if not (part := _PART.fullmatch(name)):
        return [name]
    return [f"{part[1]}{number:05d}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]


def _join(path: Path, header: GGUFHeader) -> GGUFHeader:
    """Return the joint header of a split model, given one of its files; LoadError if others are
    missing."""
    names, count = parts_of(path.name), header.settings.get("split.count", 1)
    if count != len(names):
        raise LoadError(f"is one of {count} files of a split model, but its name does not say so")
    if missing := [name for name in names if not (path.parent / name).exists()]:
        more = f" and {len(missing) - 1} more, which are" if missing[1:] else ", which is"
        raise LoadError(
            f"is one of {count} files of a split model; get {missing[0]}{more} not here"
        )
    parts = [_read(path.parent / name) for name in names]
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    if len(tensors) < sum(len(part.tensors) for part in parts):
        raise _damaged("two of its parts have one tensor")
    return replace(parts[0], tensors=tensors, files=count)


def first_part(names: list[str]) -> list[str]:
    """Return names of files without the later parts of split models whose first part is among
    them."""
    later = {name: _PART.fullmatch(name) for name in names}
    return [
        name
        for name, part in later.items()
        if not part or part[2] == "00001" or f"{part[1]}00001-of-{part[3]}.gguf" not in names
    ]


def _check_settings(header: GGUFHeader) -> None:
    """Raise a LoadError if a size in the settings differs from the tensors."""
    if not header.architecture:
        raise _damaged("general.architecture is not stated")
    layers = len({name.split(".")[1] for name in header.tensors if name.startswith("blk.")})
    # Building a model with a million layers would take forever.
    if layers and (header.get("block_count") or 0) > layers:
        raise _odd(header, "block_count", f"there are tensors of {layers}")
    for name, (tensor, axis) in _SIZES.items():
        shape = header.tensors[tensor].shape if tensor in header.tensors else ()
        if shape and (len(shape) != 2 or (header.get(name) or shape[axis]) != shape[axis]):
            raise _odd(header, name, f"{tensor} has the shape {list(shape)}")


def _odd(header: GGUFHeader, name: str, why: str) -> LoadError:
    return LoadError(f"is damaged: {header.architecture}.{name} is {header.get(name)!r}, but {why}")


@contextlib.contextmanager
def quick_gguf(header: GGUFHeader) -> Iterator[None]:
    """Replace two slow functions of the package gguf, which take ten seconds each time: reading the
    header, and creating a table of names per module."""
    import gguf

    quick = {
        "GGUFReader": partial(_PackageReader, header),
        "get_tensor_name_map": cache(gguf.get_tensor_name_map),
    }
    usual = {name: getattr(gguf, name) for name in quick}
    vars(gguf).update(quick)
    try:
        yield
    finally:
        vars(gguf).update(usual)


class _PackageReader:
    """A replacement for the package's `GGUFReader`, as far as transformers uses it."""

    def __init__(self, header: GGUFHeader, path: str) -> None:
        self.fields = {
            key: _field(header, value)
            for key, value in header.settings.items()
            if ".rope.scaling." not in key  # transformers misreads these for gpt-oss
        }
        self.tensors = [SimpleNamespace(name=name) for name in header.tensors]


def _field(header: GGUFHeader, value: Any) -> SimpleNamespace:
    """Return a setting in the package's form: parts, the indices of values in them, and types."""
    if isinstance(value, GGUFArray):
        types, values = [9, value.kind], header.values(value)
    else:
        types, values = [{bool: 7, int: 11, float: 12, str: 8}[type(value)]], [value]
    parts = [value.encode() if isinstance(value, str) else (value,) for value in values]
    return SimpleNamespace(parts=parts, data=range(len(parts)), types=types)
