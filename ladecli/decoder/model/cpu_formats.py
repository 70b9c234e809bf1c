"""Forms in which a CPU multiplies with a weight, and which of them is fastest here.

Which one that is differs by processor, precision, shape and number of rows: on one AMD EPYC a
transposed matrix takes half as long again for a single row as a plain one, on another it is the
other way round.  So the forms are raced where a shape is first met.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = 1 << 16
"""Numbers in a matrix below which the call itself costs more than a form can save."""
PADDED_ROWS = 4
"""Fewer rows of float32 are padded: with 2 or 3 oneDNN takes half as long again."""
PACKING_HINT = 8
"""Rows of the steps that oneDNN packs a weight for; it works for any."""
ONE, MORE = 1, 8
"""Rows of the steps that forms are raced at: of a plain one, and of one with drafts."""
RACE_SECONDS = 0.05
"""Of a load, for all races: what is not raced then has the form that is usually fastest."""
RACE_BYTES = 1 << 23
"""Of the weights that a race reads once, so that they come from memory as in a step."""
RACE_PASSES = 3
MARGIN = 0.05
"""Of a single row's time that one form for all rows may cost."""
WIDENED_ROWS = 256
"""Of a weight that are brought to float32 at once, and stay in a processor's cache."""
MKLDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether torch has oneDNN; see `packs`."""


class Form(Protocol):
    """A weight [out, in] as a CPU multiplies with it."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, in] -> [T, out]."""

    def dense(self) -> Tensor:
        """The weight, [out, in]."""


class Rows:
    """As transformers keeps it."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        return F.linear(x, self._weight, bias)

    def dense(self) -> Tensor:
        """See `Form`."""
        return self._weight


class Columns(Rows):
    """Transposed, so that a single row reads memory along another side of the matrix."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight.t().contiguous().t())


class Widened(Rows):
    """As `Rows`, multiplied in float32, which a processor without products of bfloat16 does several
    times as fast for more than a few rows."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        wide = x.float()
        parts = [F.linear(wide, part.float()) for part in torch.split(self._weight, WIDENED_ROWS)]
        product = torch.cat(parts, dim=-1)
        if bias is not None:
            product += bias
        return product.to(x.dtype)


class Packed:
    """In oneDNN's blocks: a step of 4 rows costs what one of a single row does.

    A row of the result does not depend on the other rows, bit for bit, but for a single row of
    bfloat16, which is added up in another order.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_HINT)
        self._least = PADDED_ROWS if weight.dtype == torch.float32 else 1

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        rows = x.shape[0]
        if rows < self._least:
            x = F.pad(x, (0, 0, 0, self._least - rows))
        product = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return product[:rows]  # type: ignore[no-any-return]

    def dense(self) -> Tensor:
        """See `Form`."""
        return self._weight.to_dense()  # type: ignore[no-any-return]


FORMS: dict[str, type[Rows] | type[Packed]] = {
    "rows": Rows,
    "columns": Columns,
    "widened": Widened,
    "packed": Packed,
}


class Races:
    """The forms of products by shape, and how fast they were.

    Args:
        known: microseconds of earlier races on this processor, by `key` and form.
        seconds: for all races together; None for `RACE_SECONDS`.

    Attributes:
        known: as given, and those since.
        run: races run here.
    """

    def __init__(
        self, known: dict[str, dict[str, float]] | None = None, seconds: float | None = None
    ) -> None:
        self.known = {} if known is None else known
        self.run = 0
        self._left = RACE_SECONDS if seconds is None else seconds
        self._taken: list[tuple[float, float]] = []  # microseconds for one row and for more
        # Of a forward that was given up, they are to go.
        self._watched: dict[tuple[str, tuple[int, ...]], WeakSet[Form]] = {}

    def choose(
        self, dtype: torch.dtype, shape: Sequence[int], only: str | None = None
    ) -> tuple[str, str]:
        """The forms of a weight [out, in] for a single row, and for more; `only` leaves no choice.

        They are one where it is hardly slower for a single row: then the weight is held once, and
        a row of the packed form is the same, bit for bit, however many there are.
        """
        one, more = self._times(dtype, shape, ONE), self._times(dtype, shape, MORE)
        if not (one and more):
            return (only, only) if only else usual(dtype, shape)
        best = only or min(more, key=more.__getitem__)
        first = best
        if only is None and one[best] > (1.0 + MARGIN) * min(one.values()):
            first = min(one, key=one.__getitem__)
        self._taken.append((one[first], more[best]))
        return first, best

    def watch(self, form: Form, name: str, shape: Sequence[int]) -> None:
        """Let `spread` count a weight of integers, [out, in], which has no other form."""
        self._watched.setdefault((name, tuple(shape)), WeakSet()).add(form)

    def spread(self) -> float | None:
        """How much longer products of `MORE` rows take than those of one, over all weights; None
        if no race has shown."""
        taken = self._taken + [
            times
            for (name, shape), forms in self._watched.items()
            for times in [self._times_of(forms, name, shape)] * len(forms)
            if times is not None
        ]
        if not taken:
            return None
        one, more = map(sum, zip(*taken, strict=True))
        return more / one

    def _times_of(
        self, forms: Iterable[Form], name: str, shape: Sequence[int]
    ) -> tuple[float, float] | None:
        """Microseconds of a watched weight for one row and for more; None where there was no time
        to find out."""
        names = {rows: key(torch.int8, shape, rows) for rows in (ONE, MORE)}
        if not all(name in self.known.get(of, ()) for of in names.values()):
            if self._left <= 0.0:
                return None
            began = time.perf_counter()
            some = [*islice(forms, max(RACE_BYTES // (shape[0] * shape[1]), 1))]
            for rows, of in names.items():
                seconds = _pass_seconds(some, torch.ones((rows, shape[1])))
                self.known.setdefault(of, {})[name] = round(1e6 * seconds / len(some), 1)
            self.run += 1
            self._left -= time.perf_counter() - began
        return self.known[names[ONE]][name], self.known[names[MORE]][name]

    def _times(self, dtype: torch.dtype, shape: Sequence[int], rows: int) -> dict[str, float]:
        """Microseconds by form; empty where there was no time to find out."""
        name = key(dtype, shape, rows)
        if {*self.known.get(name, ())} != {*_possible(dtype)}:
            if self._left <= 0.0:
                return {}
            self._race(dtype, shape)
        return self.known[name]

    def _race(self, dtype: torch.dtype, shape: Sequence[int]) -> None:
        began, row = time.perf_counter(), shape[1] * dtype.itemsize
        part = min(shape[0], max(RACE_BYTES // row, 1)), shape[1]  # of a head, as many rows as do
        copies = max(RACE_BYTES // (part[0] * row), 1)
        found: dict[int, dict[str, float]] = {ONE: {}, MORE: {}}
        for form in _possible(dtype):
            weights = [FORMS[form](torch.ones(part, dtype=dtype)) for _ in range(copies)]
            for rows, times in found.items():
                seconds = _pass_seconds(weights, torch.ones((rows, shape[1]), dtype=dtype))
                times[form] = round(1e6 * seconds / copies * shape[0] / part[0], 1)
        for rows, times in found.items():
            self.known[key(dtype, shape, rows)] = times
        self.run += 1
        self._left -= time.perf_counter() - began


def key(dtype: torch.dtype, shape: Sequence[int], rows: int) -> str:
    """The name of a race."""
    return f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]} {rows}"


def usual(dtype: torch.dtype, shape: Sequence[int]) -> tuple[str, str]:
    """The forms that are usually fastest, for a single row and for more."""
    plain = "columns" if shape[0] > shape[1] else "rows"
    if dtype == torch.float32:
        return plain, "packed" if packs(dtype) else plain
    return ("packed", "packed") if packs(dtype) else ("rows", "widened")


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a type here: for bfloat16 it needs instructions that not
    every processor has."""
    if dtype == torch.bfloat16:
        return MKLDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return MKLDNN and dtype == torch.float32


def _possible(dtype: torch.dtype) -> list[str]:
    """The forms to race; bfloat16 is widened where it is not packed."""
    if packs(dtype):
        return ["rows", "columns", "packed"]
    return ["rows", "columns", "widened"] if dtype == torch.bfloat16 else ["rows", "columns"]


def _pass_seconds(weights: Sequence[Form], x: Tensor) -> float:
    """The shortest pass over copies of a weight."""
    found = []
    with torch.inference_mode():
        for _ in range(RACE_PASSES):
            began = time.perf_counter()
            for weight in weights:
                weight(x, None)
            found.append(time.perf_counter() - began)
    return min(found)
