"""Batch-invariant products of a few rows with a weight, in Triton.

A library's kernel, and with it the order in which a product is summed, depends on the number of
rows.  Here the order depends on the weight's shape alone, so each row's result is the same,
whatever rows stand beside it and whatever tiles `product_race` chooses.  Up to 64 rows, a product
should take about as long as reading its weight.  Importing this module needs triton.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .triton_attention import early, power_of_two
from .triton_attention_kernel import INTERPRETED, begin_early

BLOCK_K = 64
"""The inputs of a tile."""
FEW = 64
"""With more rows, the library computes the product, unless rows must be alike."""
MOST_ROWS = 128
"""The most rows that are computed at once; further rows are computed after them."""
BLOCKS = (64, 32, 128)
"""The numbers of outputs that a tile may have; the result is the same with each."""
_ROOM = 32 * 1024
"""The bytes of tiles that a program waits for; every multiprocessor since 2020 has room for three
programs."""


@triton.jit(do_not_specialize=["count"])
def product_kernel(
    x, weight, bias, out, parts, arrived, count, outputs, inputs, x_row,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr,
    DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK_O outputs of all rows, over one split of the inputs; the grid is (tiles, splits).

    The last program of a tile to arrive adds up the parts of all, in the order of the inputs.

    Args:
        x: [count, inputs], at most ROWS rows, `x_row` numbers from one to the next.
        weight: [outputs, inputs].
        bias: [outputs], if BIAS.
        out: [count, outputs].
        parts: float32 [splits, count, outputs], unread if there is one split.
        arrived: int32 [tiles], zeros before and afterwards.
        DOT: type in which matrices are multiplied.
    """
    begin_early(EARLY)
    # The rows of x are the N of the product.  On Hopper, wgmma has N in its instruction, so another
    # number of rows could be summed otherwise.  `plan` makes Triton use mma.sync on every GPU: each
    # m16n8k16 adds 16 inputs in their order to 8 rows, whatever the tile.  By estimate, 64 rows on
    # an H200 need half of the rate of mma.sync; this was not measured.
    tile, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    output = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    row, place = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    # What stands in the place of outputs beyond the last one is not stored.
    weights = weight + (output % outputs).to(tl.int64)[:, None] * inputs + place[None, :]
    rows = x + row[None, :] * x_row + place[:, None]
    share = tl.cdiv(tl.cdiv(inputs, BLOCK_K), splits) * BLOCK_K
    begin = split * share
    total = tl.zeros([BLOCK_O, ROWS], dtype=tl.float32)
    for start in tl.range(begin, tl.minimum(begin + share, inputs), BLOCK_K):
        inside = place < inputs - start
        a = tl.load(weights + start, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        b = tl.load(rows + start, mask=(row < count)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a.to(DOT), b.to(DOT), total)
    inside = (output < outputs)[:, None] & (row < count)[None, :]
    at = row[None, :] * outputs + output[:, None]
    last = splits == 1
    if splits > 1:
        # Past the first-level cache, which is one multiprocessor's.
        own = parts + split.to(tl.int64) * count * outputs
        tl.store(own + at, total, mask=inside, cache_modifier=".cg")
        # All of this program's numbers are written before it is counted.
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == splits - 1
        if last:
            tl.store(arrived + tile, 0)
            total = tl.zeros([BLOCK_O, ROWS], dtype=tl.float32)
            for _ in tl.range(splits):
                total += tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
                parts += count * outputs
    if last:
        if BIAS:
            more = tl.load(bias + output, mask=output < outputs, other=0.0)
            total += more.to(tl.float32)[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def splits_of(outputs: int, inputs: int) -> int:
    """Return how many programs share the inputs of a weight.

    It depends on nothing but the shape, so that no text depends on the device or a race.  With
    tiles of 64 outputs there are two programs for each multiprocessor of a large GPU.
    """
    return max(1, min(8, power_of_two(-(-256 * 64 // outputs)), inputs // (4 * BLOCK_K)))


class Launch(NamedTuple):
    """The programs that compute a product."""

    outputs: int
    rows: int
    """`outputs`, `rows`: of a tile."""
    warps: int
    stages: int  # tiles that a program has, or waits for


def plan(count: int, block: int) -> Launch:
    """Return the launch for `count` rows and tiles of `block` outputs, or of fewer."""
    rows = max(16, power_of_two(count))
    outputs = min(block, 64 * 64 // rows)  # 64 sums in the registers of each thread
    waiting = _ROOM // ((outputs + rows) * 2 * BLOCK_K)
    # Triton would use wgmma for a tile of 64 outputs and four warps or eight.
    warps = 4 if outputs < 64 <= rows else 2
    return Launch(outputs, rows, warps, 1 + max(2, min(waiting, 5)))


class SkinnyProduct:
    """A product with a weight in half precision; a `Projection`.

    Args:
        weight: [out, in], dense.
        bias: [out], or None.
        alike: True if a row must not depend on the others; otherwise the library may compute the
            product.

    Attributes:
        weight, bias, alike: as above.
        block: outputs of a tile, one of `BLOCKS`; None for the library.
        splits: programs that share the inputs; another number of them rounds differently.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, alike: bool) -> None:
        self.weight, self.bias, self.alike = weight, bias, alike
        self.block: int | None = BLOCKS[0] if alike else None
        self.splits = splits_of(*weight.shape)
        tiles = -(-len(weight) // min(BLOCKS))
        self._arrived = torch.zeros(tiles, dtype=torch.int32, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        if self.block is None or (len(x) > FEW and not self.alike):
            return self.by_library(x)
        return self.by_tiles(x, self.block)

    def by_library(self, x: Tensor) -> Tensor:
        """Return the product as torch computes it."""
        return F.linear(x, self.weight, self.bias)

    def by_tiles(self, x: Tensor, block: int) -> Tensor:
        """Return the product by tiles of `block` outputs."""
        out = x.new_empty((len(x), len(self.weight)))
        x = x if x.stride(1) == 1 else x.contiguous()
        parts = (torch.split(matrix, MOST_ROWS) for matrix in (x, out))
        for rows, results in zip(*parts, strict=True):
            self._multiply(rows, results, plan(len(rows), block))
        return out

    def _multiply(self, x: Tensor, out: Tensor, launch: Launch) -> None:
        (count, inputs), outputs = x.shape, len(self.weight)
        splits, parts = self.splits, out
        if splits > 1:
            parts = x.new_empty((splits, count, outputs), dtype=torch.float32)
        # The interpreter cannot multiply bfloat16.
        widened = INTERPRETED and x.dtype == torch.bfloat16
        dot: Any = getattr(tl, "float32" if widened else str(x.dtype).split(".")[1])
        with torch.cuda.device(x.get_device()):
            product_kernel[-(-outputs // launch.outputs), splits](
                *(x, self.weight, self.weight if self.bias is None else self.bias),
                *(out, parts, self._arrived, count, outputs, inputs, x.stride(0)),
                BLOCK_O=launch.outputs,
                BLOCK_K=BLOCK_K,
                ROWS=launch.rows,
                BIAS=self.bias is not None,
                DOT=dot,
                **early(x.device),
                num_warps=launch.warps,
                num_stages=launch.stages,
            )
