"""Forms in which a CPU multiplies with a weight.

A step reads every weight once, so a form is fast by how few bytes it has, and by how little else
its product does.  Which one is fastest differs by processor: see `form_races`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import packs_halves

SMALL = 1 << 16
"""Numbers in a matrix below which the call itself costs more than a form can save."""
PADDED_ROWS = 4
"""Fewer rows of float32 are padded: with 2 or 3 oneDNN takes half as long again."""
PACKING_HINT = 8
"""Rows of the steps that oneDNN packs a weight for; it works for any."""
ALIKE_ROWS = 96
"""Rows of halves that are multiplied at once where they are to be alike; see `rows_alike`."""
WIDENED_ROWS = 256
"""Of a weight that are brought to float32 at once, and stay in a processor's cache."""
LARGEST_HALF, LOST = 15, 2.0**-25
"""Power of two below which float16 ends, and what it rounds off of the least numbers that it holds:
of a weight just below the first, 2⁻³⁹, where products in float32 round off 2⁻²⁴."""
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
    """As `Rows`, multiplied in float32: without products in 16 bits a processor is several times as
    fast with that for more than a few rows, and beside activations in float32 nothing else goes."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        wide = x.float()
        parts = [F.linear(wide, part.float()) for part in torch.split(self._weight, WIDENED_ROWS)]
        product = torch.cat(parts, dim=-1)
        if bias is not None:
            product += bias
        return product.to(x.dtype)


class Packed:
    """In oneDNN's blocks: a step of 4 rows costs what one of a single row does."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_HINT)
        self._least = PADDED_ROWS if weight.dtype == torch.float32 else 1
        # The overload itself: to find it takes part of a microsecond in every call.
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        rows = x.shape[0]
        if rows < self._least:
            x = F.pad(x, (0, 0, 0, self._least - rows))
        product = self._multiply(x, self._weight, bias, "none", [], "")
        return product[:rows]  # type: ignore[no-any-return]

    def dense(self) -> Tensor:
        """See `Form`."""
        return self._weight.to_dense()  # type: ignore[no-any-return]


class AlikePacked(Packed):
    """With rows that do not depend on the others, bit for bit."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        if x.shape[0] > 1:
            return super().__call__(x, bias)
        # A single row of bfloat16 would be added up in another order.
        return super().__call__(x.repeat(2, 1), bias)[:1]


class Halves:
    """In float16, multiplied in float32: half as much to read and to hold as a float32.

    It is for weights that 16 bits hold, as those of most checkpoints in float16 and bfloat16; see
    `possible`.  A step of 4 rows costs what one of a single row does.
    """

    def __init__(self, weight: Tensor) -> None:
        self._dtype = weight.dtype
        unit = _unit_of(weight)
        self._unit = torch.tensor([unit])  # of a number torch makes one in every call
        self._packed = torch.ops.quantized.linear_prepack_fp16((weight / unit).float(), None)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default  # as in `Packed`

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        # In float32, whatever the input; and by a power of two, so that nothing is rounded.
        product: Tensor = self._multiply(x * self._unit, self._packed)
        if bias is not None:
            product += bias
        return product if x.dtype == torch.float32 else product.to(x.dtype)

    def dense(self) -> Tensor:
        """See `Form`."""
        weight, _ = torch.ops.quantized.linear_unpack_fp16(self._packed)
        return (weight * self._unit).to(self._dtype)  # type: ignore[no-any-return]


class AlikeHalves(Halves):
    """With rows that do not depend on the others, bit for bit; see `rows_alike`."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `Form`."""
        count = x.shape[0]
        if count > ALIKE_ROWS:
            return torch.cat([self(part, bias) for part in torch.split(x, ALIKE_ROWS)])
        if missing := -count % (rows_alike() or 1):
            x = torch.constant_pad_nd(x, (0, 0, 0, missing))
        return super().__call__(x, bias)[:count]


@cache
@torch.inference_mode()
def rows_alike() -> int | None:
    """The number in multiples of which `Halves` multiplies rows alike, up to `ALIKE_ROWS`; None
    where there is none.

    The kernels are for up to 6 or 14 rows, and those for one or two add up in another order.
    """
    if not packs_halves():
        return None
    numbers = torch.Generator().manual_seed(0)
    product = Halves(torch.randn((64, 1100), generator=numbers).half().float())
    x = torch.randn((ALIKE_ROWS, 1100), generator=numbers)
    whole = product(x, None)
    same = [torch.equal(product(x[:rows], None), whole[:rows]) for rows in range(1, len(x) + 1)]
    return next((n for n in (1, 2, 3, 4, 6, 8, 12) if all(same[n - 1 :: n])), None)


def _unit_of(weight: Tensor) -> float:
    """The power of two in which a weight's largest number is just below where float16 ends."""
    least, most = torch.aminmax(weight)
    largest = max(-least.item(), most.item())
    return 2.0 ** (math.frexp(largest)[1] - LARGEST_HALF) if math.isfinite(largest) else 1.0


FORMS: dict[str, Callable[[Tensor], Form]] = {
    "rows": Rows,
    "columns": Columns,
    "widened": Widened,
    "packed": Packed,
    "halves": Halves,
}
ALIKE: dict[str, Callable[[Tensor], Form]] = {"packed": AlikePacked, "halves": AlikeHalves}
"""Those that there are with rows that do not depend on one another."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """On a CPU: one matrix in the forms that are fastest for single rows and for more."""

    one: Form
    more: Form
    bias: Tensor | None
    alike: bool
    """Whether a row of the product does not depend on the others, bit for bit."""

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return (self.more if x.shape[0] > 1 else self.one)(x, self.bias)


def give_back() -> None:
    """Give memory that was freed back to the system, which the C library keeps for itself.

    Weights leave holes where others of their size seldom fit: with small models these would be most
    of what a process holds.  A load calls this between layers.
    """
    # glibc has it; others give back by themselves.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def alike_forms(weight: Tensor) -> list[str]:
    """The forms that a weight may have whose rows do not depend on one another."""
    names = [name for name in possible(weight) if name in ALIKE]
    return [name for name in names if name != "halves" or rows_alike()]


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a type here: for bfloat16 it needs instructions that not
    every processor has."""
    if dtype == torch.bfloat16:
        return MKLDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return MKLDNN and dtype == torch.float32


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type of activations beside weights of a type.

    Where fbgemm multiplies weights of 16 bits, and oneDNN does not pack them, each product would
    go through float32: to stay there is faster, and rounds less.
    """
    halved = dtype in (torch.bfloat16, torch.float16) and packs_halves() and not packs(dtype)
    return torch.float32 if halved else dtype


def possible(weight: Tensor) -> list[str]:
    """The forms that a weight may have: those of its type, and halves if these hold it."""
    forms = forms_of(weight.dtype)
    if "halves" in forms:
        unit = _unit_of(weight)
        parts = (part.float() / unit for part in torch.split(weight, WIDENED_ROWS))
        # Nothing is held of what is not finite.
        if not all((part.half().float() - part).abs().max() <= LOST for part in parts):
            forms.remove("halves")
    return forms


def forms_of(dtype: torch.dtype) -> list[str]:
    """The forms of a type, the simplest first."""
    if dtype == torch.float32:
        forms = ["rows", "columns", *(["packed"] if packs(dtype) else [])]
    elif packs(dtype):
        forms = ["rows", "packed"]
    else:
        forms = ["rows", "widened"] if computed_in(dtype) == dtype else ["widened"]
    return [*forms, "halves"] if packs_halves() else forms
