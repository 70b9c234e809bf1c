"""Products of a few rows in Triton's interpreter: right, and the same for any number of rows."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.triton_attention import triton_available

interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
products: Any = importlib.import_module("ladecli.decoder.backends.triton_product")

pytestmark = pytest.mark.skipif(
    not triton_available(torch.device("cpu")), reason="needs TRITON_INTERPRET=1"
)
HALVES = (torch.float16, torch.bfloat16)
WIDTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64)


def numbers(draw: random.Random, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(draw.getrandbits(30))).to(
        dtype
    )


def product(draw: random.Random, outputs: int, inputs: int, dtype: torch.dtype) -> Any:
    weight = numbers(draw, outputs, inputs, dtype=dtype)
    bias = numbers(draw, outputs, dtype=dtype) if draw.random() < 0.5 else None
    return products.SkinnyProduct(weight, bias, draw.choice(products.BLOCKS))


@pytest.mark.parametrize("seed", range(10))
def test_products_are_right(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        dtype, width = draw.choice(HALVES), draw.choice((1, 1, 2, 7, 16, 31, 64, 130))
        made = product(draw, draw.randint(1, 90), draw.choice((16, 72, 320, 576)), dtype)
        # Rows need not be adjacent.
        x = numbers(draw, width, made.weight.shape[1] + 8, dtype=dtype)[:, 8:]
        expected = x.double() @ made.weight.double().T
        expected += 0 if made.bias is None else made.bias.double()
        found = made(x)
        assert (found.shape, found.dtype) == (expected.shape, dtype)
        off = (found.double() - expected).norm() / expected.norm()
        assert off < (1e-3 if dtype == torch.float16 else 8e-3)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `tl.dot` add one input after the other in float32, as a GPU does for every row; the
    library that the interpreter calls chooses another order for another number of rows."""

    def dot(_self: Any, a: Any, b: Any, total: Any, *_: Any) -> Any:
        found = total.data.copy()
        for place in range(a.data.shape[-1]):
            left = a.data[..., place : place + 1].astype(np.float32)
            found += left * b.data[..., place : place + 1, :]
        return interpreter.TensorHandle(found, total.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(20, 512), (70, 300)])
def test_a_row_is_the_same_among_others(
    outputs: int, inputs: int, dtype: torch.dtype, in_order: None
) -> None:
    """Bit for bit, whatever the tiles; what is left of numbers that cancel out is rounding."""
    draw = random.Random(inputs)
    made = product(draw, outputs, inputs // 2, dtype)
    made.bias, made.splits = None, 2
    x, order = numbers(draw, max(WIDTHS), inputs // 2, dtype=dtype), torch.randperm(inputs)
    made.weight = 99 * torch.cat((made.weight, made.weight), 1)[:, order].contiguous()
    x = torch.cat((x, -x), 1)[:, order]
    alone = torch.cat([made(row[None]) for row in x[::8]])
    for number, width in enumerate(WIDTHS):
        made.block = products.BLOCKS[number % len(products.BLOCKS)]
        assert torch.equal(made(x[:width])[::8], alone[: -(-width // 8)]), width
    made.splits = 1
    assert not torch.equal(made(x)[::8], alone)
