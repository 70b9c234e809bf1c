"""A CPU's products with weights, written for TorchScript's interpreter.

Between two of torch's calls Python takes a third of a plain step of a small model: a weight that
was just read has pushed the interpreter out of the processor's caches.  So what every product of a
step calls is in the part of Python that torch runs by itself (`compat.scripted`).
"""

# Annotations are not postponed: TorchScript would not find the types of a named tuple's fields.

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import PackedWeight


class Weight(NamedTuple):
    """A weight [out, in] as a form of `cpu_formats` or `int8` holds it."""

    form: str
    numbers: Tensor
    """The weight; of halves their unit, [1]; of integers what rotates an input's blocks, [b, b]."""
    packed: Optional[PackedWeight] = None  # noqa: UP045 - it is no class to Python
    """What fbgemm has of it."""
    rows: int = 1
    """Of an input: the fewest that are multiplied; of halves whose rows are alike, a multiple."""
    part: int = 0
    """Rows taken at once: of a weight that is widened, of an input whose rows are to be alike."""
    limit: int = 0
    """The largest integer of an input."""


class Linear(NamedTuple):
    """A weight in the forms that are fastest for a single row and for more."""

    one: Weight
    more: Weight
    bias: Tensor | None


def project(x: Tensor, linear: Linear) -> Tensor:
    """[T, in] -> [T, out]."""
    return multiply(x, linear.more if x.shape[0] > 1 else linear.one, linear.bias)


def multiply(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """[T, in] -> [T, out] in the type of the input."""
    form, numbers = weight.form, weight.numbers
    # To compare names takes time, too: the forms of most steps come first.
    if form == "integers":
        product = _integers(x.float(), weight)
    elif form == "halves":
        product = _halves(x, weight)
    elif form == "packed":
        return _packed(x, weight, bias)
    elif form == "rows":
        return F.linear(x.to(numbers.dtype), numbers, bias).to(x.dtype)
    elif form == "widened":
        wide = x.float()
        parts = torch.split(numbers, weight.part)
        product = torch.cat([F.linear(wide, part.float()) for part in parts], dim=-1)
    elif form == "alike halves":
        product = torch.cat([_alike_halves(each, weight) for each in torch.split(x, weight.part)])
    else:
        product = _integers_twice(x.float(), weight)
    if bias is not None:
        product += bias
    return product if product.dtype == x.dtype else product.to(x.dtype)


def _packed(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    count, numbers = x.shape[0], weight.numbers
    padded = F.pad(x, [0, 0, 0, weight.rows - count]) if count < weight.rows else x
    found: Tensor = torch.ops.mkldnn._linear_pointwise(
        padded.to(numbers.dtype), numbers, bias, "none", [], ""
    )
    return (found[:count] if count < weight.rows else found).to(x.dtype)


def _halves(x: Tensor, weight: Weight) -> Tensor:
    packed = weight.packed
    assert packed is not None
    # In float32, whatever the input; and by a power of two, so that nothing is rounded.
    product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x * weight.numbers, packed)
    return product


def _alike_halves(x: Tensor, weight: Weight) -> Tensor:
    count = x.shape[0]
    missing = -count % weight.rows
    if missing > 0:
        x = F.pad(x, [0, 0, 0, missing])
    return _halves(x, weight)[:count]


def rotated(x: Tensor, matrix: Tensor) -> Tensor:
    """[T, n], each block of b numbers multiplied with a matrix [b, b]; as it is for [1, 1]."""
    block = matrix.shape[0]
    return torch.mm(x.reshape(-1, block), matrix).view(x.shape) if block > 1 else x


def _integers(x: Tensor, weight: Weight) -> Tensor:
    """Of an input that is rotated; a row is measured by its largest number."""
    turned = rotated(x, weight.numbers) if weight.numbers.shape[0] > 1 else x.clone()
    largest = turned.abs().amax(-1, True)
    # A row of zeros becomes one of any numbers, and the product with that is multiplied by 0.
    product = _of_whole_numbers(turned.div_(largest), 1.0 / weight.limit, weight)
    return product.mul_(largest)


def _integers_twice(x: Tensor, weight: Weight) -> Tensor:
    """Of what integers hold of an input, and of what that leaves."""
    limit = float(weight.limit)
    scale = x.abs().amax(-1, True).mul_(1.0 / limit).add_(1e-30)  # of a row of zeros, too
    scaled = x / scale
    whole = scaled.round()
    # What is left is half an integer at most.
    left = scaled.sub_(whole).mul_(2.0 * limit)
    product = _of_whole_numbers(torch.cat((whole, left)), 1.0, weight)
    coarse, fine = product.chunk(2)
    return torch.add(coarse, fine, alpha=0.5 / limit).mul_(scale)


def _of_whole_numbers(x: Tensor, unit: float, weight: Weight) -> Tensor:
    """The product with an input rounded to whole numbers of a unit, up to the limit."""
    packed = weight.packed
    assert packed is not None
    product: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x, unit, weight.limit + 1, packed
    )
    return product
