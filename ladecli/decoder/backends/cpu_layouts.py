"""Forms of weights for products on a CPU, and the products.

A step reads every weight once, so a form is fast if it has few bytes and its product has little
overhead.  `choose_form` has the rule; benchmarks/log.md has the measurements behind it.

Between torch's calls, Python takes a third of a plain step of a small model, since each weight that
is read evicts the interpreter from the processor's caches.  So the products of a step are written
for TorchScript (`compat.scripted`).
"""

# Annotations are not postponed, since TorchScript needs the types of a named tuple's fields.

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import List, NamedTuple, Optional  # noqa: UP035

import torch
import torch.nn.functional as F
from torch import Tensor

from .compat import PackedWeight, packs_halves, scripted
from .stored import Rows, StackedRows

SMALL = 1 << 16
"""For matrices with fewer numbers, the call itself costs more than a form can save."""
PADDED_ROWS = 4
"""Inputs with fewer rows of float32 are padded, since 2 or 3 take oneDNN 1.5 times as long."""
PACKING_HINT = 8
"""The number of rows for which oneDNN packs a weight; other numbers work, too."""
ALIKE_ROWS = 96
"""The most rows of halves in one product if rows must be alike; see `rows_alike`."""
CHECKED_AT_ONCE = 1 << 14
"""The most numbers of a weight that are checked at once, so that copies stay in a processor's cache
and are too small for malloc to map pages, which takes most of the time of larger copies."""
PIECE = 1 << 23
"""The numbers of a weight that fbgemm packs at once in halves: it reads them by column, and a cache
must hold a line of each row.  This halves the time for a weight of 28 million numbers."""
PIECE_OF_INTEGERS = 1 << 13
"""The most rows of a head of integers that are packed at once.  A product in pieces rounds its
input for each piece, which costs too much for smaller weights."""
ROOMS: list[Tensor] = []
"""Memory for such numbers that no thread uses now; it is freed after a load."""
LARGEST_HALF, LOST = 15, 2.0**-25
"""The exponent of the limit of float16, and its rounding error for the smallest numbers: 2⁻³⁹ of
the largest weight, compared with 2⁻²⁴ for products in float32."""
MKLDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""True if torch has oneDNN; see `packs`."""


class Weight(NamedTuple):
    """A weight [out, in] in a form."""

    form: str
    numbers: Tensor
    """The weight; for halves their unit, [1]; for integers the rotation of blocks, [b, b]."""
    packed: Optional[List[PackedWeight]] = None  # noqa: UP006, UP045 - it is no class to Python
    """The weight in fbgemm's form; see `pieces_of`."""
    rows: int = 1
    """The fewest rows of an input; for halves with rows alike, their number is a multiple."""
    part: int = 0
    """The most rows of an input in one product if rows must be alike."""
    limit: int = 0
    """The largest integer of an input."""


class Linear(NamedTuple):
    """A weight and its bias."""

    weight: Weight
    bias: Tensor | None


def project(x: Tensor, linear: Linear) -> Tensor:
    """[T, in] -> [T, out]."""
    return multiply(x, linear.weight, linear.bias)


def multiply(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """[T, in] -> [T, out] in the type of the input."""
    form, numbers = weight.form, weight.numbers
    # The most frequent forms come first, since comparing names takes time, too.
    if form == "integers":
        product = _integers(x.float(), weight)
    elif form == "halves":
        product = _halves(x, weight)
    elif form == "packed":
        return _packed(x, weight, bias)
    elif form == "rows":
        return F.linear(x.to(numbers.dtype), numbers, bias).to(x.dtype)
    elif form == "alike halves":
        product = torch.cat([_alike_halves(rows, weight) for rows in torch.split(x, weight.part)])
    else:
        product = _integers_twice(x.float(), weight)
    if bias is not None:
        product += bias
    return product if product.dtype == x.dtype else product.to(x.dtype)


def _packed(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    count, numbers = x.shape[0], weight.numbers
    padded = F.pad(x, [0, 0, 0, weight.rows - count]) if count < weight.rows else x
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        padded.to(numbers.dtype), numbers, bias, "none", [], ""
    )
    return (product[:count] if count < weight.rows else product).to(x.dtype)


def _halves(x: Tensor, weight: Weight) -> Tensor:
    packed = weight.packed
    assert packed is not None
    x = x * weight.numbers  # float32 for any input; scaling by a power of two does not round
    products = [torch.ops.quantized.linear_dynamic_fp16(x, piece) for piece in packed]
    return products[0] if len(products) == 1 else torch.cat(products, -1)


def _alike_halves(x: Tensor, weight: Weight) -> Tensor:
    count = x.shape[0]
    missing = -count % weight.rows
    if missing > 0:
        x = F.pad(x, [0, 0, 0, missing])
    return _halves(x, weight)[:count]


def rotated(x: Tensor, matrix: Tensor) -> Tensor:
    """Return [T, n] with each block of b numbers multiplied by a matrix [b, b]."""
    block = matrix.shape[0]
    return torch.mm(x.reshape(-1, block), matrix).view(x.shape) if block > 1 else x


def _integers(x: Tensor, weight: Weight) -> Tensor:
    """Return the product with an input that is rotated; a row is scaled by its largest number."""
    turned = rotated(x, weight.numbers) if weight.numbers.shape[0] > 1 else x.clone()
    largest = turned.abs().amax(-1, True)
    # A row of zeros becomes arbitrary numbers, but its product is multiplied by 0.
    product = _of_whole_numbers(turned.div_(largest), 1.0 / weight.limit, weight)
    return product.mul_(largest)


def _integers_twice(x: Tensor, weight: Weight) -> Tensor:
    """Return the product with an input in two parts: rounded to integers, and the remainder."""
    limit = float(weight.limit)
    scale = x.abs().amax(-1, True).mul_(1.0 / limit).add_(1e-30)  # of a row of zeros, too
    scaled = x / scale
    whole = scaled.round()
    # The remainder is at most half an integer.
    left = scaled.sub_(whole).mul_(2.0 * limit)
    product = _of_whole_numbers(torch.cat((whole, left)), 1.0, weight)
    coarse, fine = product.chunk(2)
    return torch.add(coarse, fine, alpha=0.5 / limit).mul_(scale)


def _of_whole_numbers(x: Tensor, unit: float, weight: Weight) -> Tensor:
    """Return the product with an input rounded to whole numbers of a unit, up to the limit."""
    packed = weight.packed
    assert packed is not None
    zero = weight.limit + 1
    products = [
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, unit, zero, piece)
        for piece in packed
    ]
    return products[0] if len(products) == 1 else torch.cat(products, -1)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A weight [out, in] in a form, with its product."""

    weight: Weight
    dense: Callable[[], Tensor]
    """Returns the weight, [out, in]."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, in] -> [T, out]."""
        product: Tensor = scripted(multiply)(x, self.weight, bias)
        return product


def rows(weight: Tensor) -> Form:
    """Return the plain form, as in transformers."""
    return Form(Weight("rows", weight), lambda: weight)


def packed(weight: Tensor, least: int = 1) -> Form:
    """Return the form in oneDNN's blocks, in which a step of 4 rows costs as much as one row."""
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_HINT)
    if weight.dtype == torch.float32:
        least = PADDED_ROWS
    return Form(Weight("packed", blocks, rows=least), blocks.to_dense)


def _pieces_of(weight: Rows) -> list[slice]:
    """Return the rows of a weight in pieces that are packed at once, of about the same size."""
    count = weight.shape[0]
    step = math.ceil(count / math.ceil(count * weight.shape[1] / PIECE))
    return [slice(start, start + step) for start in range(0, count, step)]


def halves(weight: Rows, *, alike: bool = False, spend: bool = False) -> Form:
    """Return the form in float16, multiplied in float32: half the bytes of float32.

    It is for weights that fit into 16 bits exactly, like those of most checkpoints in float16 and
    bfloat16; see `possible`.  A step of 4 rows costs as much as one row.  With `spend`, the weight
    itself is changed, which saves a copy.
    """
    dtype, unit = weight.dtype, _unit_of(weight)
    scale = torch.tensor([1.0 / unit])
    pieces = _pieces_of(weight)
    if isinstance(weight, StackedRows):
        made = _packed_from_room(weight, pieces, scale)
    else:
        in_place = spend and dtype == torch.float32
        # The product with a tensor in float32 is one, without a copy in the type of the weight.
        scaled = (weight[i].mul_(scale) if in_place else weight[i] * scale for i in pieces)
        made = [torch.ops.quantized.linear_prepack_fp16(piece, None) for piece in scaled]

    def dense() -> Tensor:
        pieces = [torch.ops.quantized.linear_unpack_fp16(piece)[0] for piece in made]
        return (torch.cat(pieces) * unit).to(dtype)

    held = Weight("halves", torch.tensor([unit]), made)
    if alike:
        held = held._replace(form="alike halves", rows=rows_alike() or 1, part=ALIKE_ROWS)
    return Form(held, dense)


def _packed_from_room(
    weight: StackedRows, pieces: Sequence[slice], scale: Tensor
) -> list[PackedWeight]:
    """Pack the rows of a weight, multiplied with a number, [1], in pieces.

    All pieces, and those of other weights, are written to the same memory: to get new memory from
    the system takes longer than to read them.
    """
    size = max(PIECE, (pieces[0].stop - pieces[0].start) * weight.shape[1])
    try:
        room = ROOMS.pop()
    except IndexError:
        room = torch.empty(size)
    room = room if room.numel() >= size else torch.empty(size)
    made = [
        torch.ops.quantized.linear_prepack_fp16(weight.read(rows, room).mul_(scale), None)
        for rows in pieces
    ]
    ROOMS.append(room)
    return made


@cache
@torch.inference_mode()
def rows_alike() -> int | None:
    """Return the number of rows in multiples of which `halves` multiplies every row alike, up to
    `ALIKE_ROWS`; None if there is none.

    The kernels are for up to 6 or 14 rows, and those for one or two add up in another order.
    """
    if not packs_halves():
        return None
    numbers = torch.Generator().manual_seed(0)
    product = halves(torch.randn((64, 1100), generator=numbers).half().float())
    x = torch.randn((ALIKE_ROWS, 1100), generator=numbers)
    whole = product(x, None)
    same = [torch.equal(product(x[:rows], None), whole[:rows]) for rows in range(1, len(x) + 1)]
    return next((n for n in (1, 2, 3, 4, 6, 8, 12) if all(same[n - 1 :: n])), None)


def _unit_of(weight: Rows) -> float:
    """Return the power of two by which the largest number of a weight comes just below the largest
    float16; NaN if a number is not finite."""
    if isinstance(weight, StackedRows):
        largest = weight.largest
    else:
        least, most = torch.aminmax(weight[...])
        largest = max(-least.item(), most.item())
    return 2.0 ** (math.frexp(largest)[1] - LARGEST_HALF) if math.isfinite(largest) else math.nan


FORMS: dict[str, Callable[[Tensor], Form]] = {
    "rows": rows,
    "packed": packed,
    "halves": halves,
}
# oneDNN adds up a single row of bfloat16 in another order, so rows come at least in pairs.
ALIKE: dict[str, Callable[[Tensor], Form]] = {
    "packed": partial(packed, least=2),
    "halves": partial(halves, alike=True),
}
"""The forms whose rows do not depend on one another."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A matrix in a form for CPUs, and its bias."""

    form: Form
    bias: Tensor | None
    alike: bool
    """True if a row of the product does not depend on the others, bit for bit."""

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        product: Tensor = scripted(multiply)(x, self.form.weight, self.bias)
        return product

    @property
    def rounding(self) -> torch.dtype:
        """The type to which inputs and outputs are rounded: that of a weight that is multiplied
        without unpacking, float32 for others."""
        weight = self.form.weight
        return weight.numbers.dtype if weight.form in ("rows", "packed") else torch.float32

    @property
    def linear(self) -> Linear:
        """The same values for TorchScript."""
        return Linear(self.form.weight, self.bias)


def alike_forms(weight: Rows) -> list[str]:
    """Return the forms that a weight may have whose rows do not depend on one another."""
    names = [name for name in possible(weight) if name in ALIKE]
    return [name for name in names if name != "halves" or rows_alike()]


def packs(dtype: torch.dtype) -> bool:
    """Return True if oneDNN packs weights of a type and multiplies them fast on this processor;
    bfloat16 is slow if the processor cannot multiply it and oneDNN converts it first."""
    if dtype == torch.bfloat16:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        x86 = torch.cpu._is_avx2_supported()
        return MKLDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported() and (native or not x86))
    return MKLDNN and dtype == torch.float32


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the type of activations for weights of a type.

    On x86 it is float32, in which operations between products are faster and round less.  Products
    themselves may round to the type of a weight; see `CpuLinear.rounding`.
    """
    halved = dtype in (torch.bfloat16, torch.float16) and packs_halves()
    return torch.float32 if halved else dtype


def possible(weight: Rows) -> list[str]:
    """Return the forms that a weight may have: those of its type, halves only if they are exact."""
    forms = forms_of(weight.dtype)
    if "halves" in forms and not _are_held(weight, _unit_of(weight)):
        forms.remove("halves")
    return forms


def _are_held(weight: Rows, unit: float) -> bool:
    """Return whether halves hold the numbers of a weight in their unit."""
    if isinstance(weight, StackedRows):  # of 16 bits: of none are more digits lost than `LOST`
        return math.isfinite(unit)
    numbers = torch.split(weight[...].reshape(-1), CHECKED_AT_ONCE)
    return math.isfinite(unit) and all(_is_held(part, unit) for part in numbers)


def _is_held(numbers: Tensor, unit: float) -> bool:
    """Return True if halves hold numbers exactly, as they do numbers that are also bfloat16."""
    if numbers.dtype == torch.float32 and not (numbers.view(torch.int32) & 0xFFFF).any():
        return True
    scaled = numbers.float() / unit
    return bool((scaled.half().float() - scaled).abs().max() <= LOST)


def forms_of(dtype: torch.dtype) -> list[str]:
    """Return the forms of a type, the simplest first."""
    forms = ["rows"]
    if packs(dtype):
        forms.append("packed")
    if packs_halves():
        forms.append("halves")
    return forms


def choose_form(dtype: torch.dtype, forms: Sequence[str]) -> str:
    """Choose one of the forms that a weight of a type may have.

    Halves are half as long as float32.  They are as long as bfloat16, but their products are
    computed in float32, which takes longer from 16 rows on.
    """
    order = ("halves", "packed", "rows") if dtype == torch.float32 else ("packed", "halves", "rows")
    return next(form for form in order if form in forms)
