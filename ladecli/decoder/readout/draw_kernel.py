"""The Triton kernel of `quick_draw`; importing this needs the package triton."""

from __future__ import annotations

import triton
import triton.language as tl

_SETTINGS = ["count", "vocabulary", "half", "top_k", "inverse", "top_p", "least"]
"""One kernel for all of them, since to compile one takes seconds and they change in a chat."""


# Numbers of a step lie among others: not at every address that a kernel could be compiled for.
@triton.jit(do_not_specialize=[*_SETTINGS, "uniforms"])
def draw(
    values,
    tokens,
    totals,
    uniforms,
    drawn,
    count,
    vocabulary,
    half,
    top_k,
    inverse: tl.int64,
    top_p: tl.int64,
    least: tl.int64,
    ONE: tl.constexpr,
    NOTHING: tl.constexpr,
    COUNT: tl.constexpr,
):
    """The token of one row at its uniform number; the grid is (rows,).

    Weights and cuts are those of `choosing`.  What rows that are not finite say is not certain.

    Args:
        values, tokens: the best of each row, [rows, count], the best first, and int64.
        totals: int64 [rows], what all tokens of a row weigh; looked at where top-p cuts, top-k
            does not, and not all of the vocabulary is listed.
        uniforms: float64 [rows].
        drawn: int32 [rows], NOTHING where the token is not certain.
        half: half of a power of two that no token reaches.
        top_k: 0 where it removes none.
        inverse, top_p: of the temperature, and 1 where it removes none, as the bits of float64: a
            number that is no integer would be rounded to float32 on its way here.
        least: what each token that min-p keeps weighs at least.
        COUNT: `count` as a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    values += row * count
    place = tl.arange(0, COUNT)
    listed = place < count
    value = tl.load(values + place, mask=listed, other=float("-inf")).to(tl.float64)
    token = tl.load(tokens + row * count + place, mask=listed, other=0).to(tl.int32)
    best = tl.load(values).to(tl.float64)
    last = tl.load(values + count - 1).to(tl.float64)
    scaled = (value - best) * inverse.to(tl.int64).to(tl.float64, bitcast=True)
    # No number is not below 0: nothing in rows that are not finite weighs anything.
    weight = tl.where(scaled <= 0.0, tl.floor(tl.exp(scaled) * ONE), 0.0).to(tl.int64)

    # A token that is not listed is at most as good as the last one that is.
    lightest = tl.sum(tl.where(place == count - 1, weight, 0), 0)
    complete = (count == vocabulary) | (lightest == 0)
    cut = tl.load(values + tl.maximum(top_k, 1) - 1).to(tl.float64)
    cut = tl.where(top_k > 0, cut, float("-inf"))
    complete = complete | (cut > last)
    weight = tl.where(value < cut, 0, weight)

    share = top_p.to(tl.int64).to(tl.float64, bitcast=True)
    # Where the list itself says what the total is, that is known only if nothing is missing.
    given = (count < vocabulary) & (top_k == 0)
    total = tl.where(given, tl.load(totals + row), tl.sum(weight, 0))
    known = complete | given | (share == 1.0)
    short = tl.cumsum(weight, 0) < tl.ceil(total.to(tl.float64) * share).to(tl.int64)
    cut = tl.load(values + tl.minimum(tl.sum(short.to(tl.int32), 0), count - 1)).to(tl.float64)
    cut = tl.where(share < 1.0, cut, float("-inf"))
    complete = complete | (cut > last)
    weight = tl.where(value < cut, 0, weight)

    complete = complete | (lightest < least)
    weight = tl.where(weight < least, 0, weight)

    total = tl.sum(weight, 0)
    target = (total.to(tl.float64) * tl.load(uniforms + row)).to(tl.int64)
    # Rounding can put it on the total: then the last possible token is meant.
    target = tl.minimum(target, total - 1)
    # The token is the greatest below which no more than the target lies: its bits, the highest
    # first, take fewer passes over the list than to sort it.
    found = half * 0
    while half > 0:
        before = tl.sum(tl.where(token < found + half, weight, 0), 0)
        found = tl.where(before <= target, found + half, found)
        half = half // 2
    tl.store(drawn + row, tl.where(complete & known & (total > 0), found, NOTHING))
