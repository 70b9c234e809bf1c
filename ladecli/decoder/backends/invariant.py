"""Attention on a CPU whose result for a token does not depend on the other tokens of the step.

Plain decoding computes a token alone; a step with drafts computes it among others, its keys in
other slots, with keys of rival candidates in between.  Matrix products and vector instructions then
add in another order, so that texts diverge at near-ties.  Here both add in the same order, bit for
bit ("batch invariance": He et al., "Defeating nondeterminism in LLM inference", 2025):

- Keys are taken in blocks of `BLOCK` positions from the start of the text, and the sums of blocks
  are added one by one.  A block's product adds its keys in their order, with zeros for those that a
  token does not see.  Weights are added up exactly.
- Products have shapes for which the library uses the same kernel: not too few rows or keys, and no
  more keys than it adds in one go.
- The numbers fill whole vectors, since libraries compute the exponentials of a remainder
  differently.
- A single thread computes, since several would split products by their size.

Libraries may change these properties, so a trial at load checks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..layout import dense
from ..model.attention import reference_attention
from ..model.layer import TorchOps
from ..model.mask import Rules, StepMask
from ..model.rotary import one_thread
from .compat import scripted
from .in_blocks import KeyBlock, attend_in_blocks

BLOCK, WIDEST = 128, 64
"""The positions of a block, and the most tokens that are computed at once; wider steps are cut.
Libraries split sums over more keys than both together."""


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Compute attention in float32; arguments as in `reference_attention`, keys and values float32.

    Attention sinks use the reference, since no batch-invariant model has any.
    """
    if rules.sinks is not None:
        return reference_attention(query, key, value, mask, rules)
    if query.shape[2] <= WIDEST:
        with one_thread():
            return _attention(query, key, value, mask, rules).to(query.dtype)
    outputs = []
    for part in substeps(mask, WIDEST):
        own = query[:, :, part.places], key[:, :, part.slots], value[:, :, part.slots]
        with one_thread():
            outputs.append(_attention(*own, part.mask, rules)[:, :, part.results])
    return torch.cat(outputs, dim=2).to(query.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules) -> Tensor:
    _, heads, count, size = query.shape
    kv_heads, first = key.shape[1], mask.first_slot(rules.window)
    groups = heads // kv_heads
    attended: Tensor = scripted(attend_in_blocks)(
        # Query heads that share a key head are rows of one product, as in the reference.
        query.reshape(kv_heads, groups * count, size).float(),
        key[0, :, first:],
        value[0, :, first:],
        mask.additive_mask(rules.window, groups, torch.float32, query.device),
        blocks(mask, rules.window),
        rules.scaling,
        rules.softcap,
    )
    return attended.reshape(1, heads, count, -1)


class Substep(NamedTuple):
    """A part of a step that can be computed alone."""

    places: Tensor  # indices of its tokens: those whose results it yields, and those that they see
    slots: Tensor  # of the keys that these see
    results: Tensor  # indices in `places` of the tokens whose results it yields
    mask: StepMask


def substeps(mask: StepMask, most: int) -> list[Substep]:
    """Split a step into parts of at most `most` tokens, unless a token sees more."""
    return mask.once("substeps", lambda: [*_make_substeps(mask, most)])


def blocks(mask: StepMask, sliding_window: int | None) -> list[KeyBlock]:
    """Return all keys by blocks of `BLOCK` positions from the start of the text."""
    first = mask.first_slot(sliding_window)
    return mask.once(("blocks", first), lambda: [*_make_blocks(mask, first)])


def _make_substeps(mask: StepMask, most: int) -> Iterator[Substep]:
    rows = mask.rows
    # `text`: the number of leading tokens in sequence, which all later tokens see.
    text = len(rows)
    for place, row in enumerate(rows):
        followed = (~row & (row + 1)).bit_length() - 1
        if followed <= place and row & (row - 1):  # padding sees itself alone
            text = min(text, followed)
    first = start = 0
    while first < len(rows):
        # Drafts see few other tokens, so many of them fit into one part.
        seen, end = rows[first] >> start, first + 1
        while end < len(rows) and (more := seen | rows[end] >> start).bit_count() <= most:
            seen, end = more, end + 1
        places = [start + place for place in range(seen.bit_length()) if seen >> place & 1]
        yield _substep(mask, range(first, end), places, start)
        first, start = end, min(end, text)


def _substep(mask: StepMask, results: range, places: Sequence[int], start: int) -> Substep:
    """Return the part with the tokens at `places`; those before `start` belong to the text."""
    assert mask.prefix is not None
    shown = dense(mask.rows)[np.ix_(places, places)]
    words = np.packbits(shown, axis=1, bitorder="little")
    rows = [int.from_bytes(row.tobytes(), "little") for row in words]
    positions = [mask.positions[place] for place in places]
    cached, own = mask.prefix + start, torch.tensor(places)
    return Substep(
        places=own,
        slots=torch.cat((torch.arange(cached), mask.prefix + own)),
        results=torch.searchsorted(own, torch.tensor([*results])),
        mask=StepMask(rows, positions, cached),
    )


def _make_blocks(mask: StepMask, first: int) -> Iterator[KeyBlock]:
    assert mask.prefix is not None
    prefix, slots = mask.prefix, mask.prefix + len(mask.positions)
    edge = first // BLOCK * BLOCK
    while edge + BLOCK <= prefix:
        yield KeyBlock(max(edge - first, 0), edge + BLOCK - first)
        edge += BLOCK
    if mask.last_position < edge + BLOCK:
        yield KeyBlock(max(edge - first, 0), slots - first)
        return
    # The step's own keys belong to several blocks, and are in any order.
    positions = np.array([*range(edge, prefix), *mask.positions])
    for start in range(edge, mask.last_position + 1, BLOCK):
        inside = (positions >= start) & (positions < start + BLOCK)
        if len(places := np.flatnonzero(inside)):
            part = inside[places[0] : places[-1] + 1]
            kept = None if part.all() else torch.from_numpy(part.astype(np.float32))
            begin, end = (edge - first + int(place) for place in (places[0], places[-1] + 1))
            # A window may begin within the block.
            cut = max(-begin, 0)
            yield KeyBlock(begin + cut, end, kept if kept is None else kept[cut:])


class InvariantOps(TorchOps):
    """Operations on a CPU whose rows do not depend on each other."""

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `TorchOps`."""
        # Several threads would split the numbers anywhere within a row.
        with one_thread():
            return super().gate(gate_up, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See `TorchOps`."""
        capped = torch.empty_like(logits)
        with one_thread():
            for row, out in zip(logits, capped, strict=True):
                torch.tanh(row / cap, out=out)
        return capped.mul_(cap)
