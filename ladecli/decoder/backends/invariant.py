"""Attention on a CPU whose result for a token does not depend on the step it is computed in.

Plain decoding computes a token alone; a step with drafts computes it among others, its keys in
other slots, with those of rivals in between.  Matrix products and vector instructions then add in
another order, so that texts part where two tokens are nearly as good.  Here both add alike, bit
for bit ("batch invariance": He et al., "Defeating nondeterminism in LLM inference", 2025):

- Keys are taken in blocks of `BLOCK` positions from the text's first one on, and the sums of blocks
  are added one by one.  A block's product runs through its keys in their order, in which those that
  a token does not see are zeros.  Weights are added up exactly.
- Products have shapes for which the library takes one and the same way: no few rows or keys, and
  no more keys than it adds in one go.
- No number is left over when vectors are filled: for those libraries compute other exponentials.
- One thread computes: several share products out by their size.

What libraries do is theirs to change: a trial at load finds out whether it is so here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.attention import reference_attention
from ..model.mask import Rules, StepMask
from .compat import scripted
from .in_blocks import attend_in_blocks

BLOCK, WIDEST = 128, 64
"""Positions whose keys are one sum, and tokens that are computed at once; wider steps are cut.  Of
more keys than both together libraries make several sums."""


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: StepMask, rules: Rules
) -> Tensor:
    """Attention in float32; arguments as in `reference_attention`, keys and values float32.

    Sinks are left to the reference: no model that is batch-invariant has any.
    """
    if rules.sinks is not None:
        return reference_attention(query, key, value, mask, rules)
    if query.shape[2] <= WIDEST:
        with one_thread():
            return _attention(query, key, value, mask, rules).to(query.dtype)
    found = []
    for part in mask.parts(WIDEST):
        own = query[:, :, part.places], key[:, :, part.slots], value[:, :, part.slots]
        with one_thread():
            found.append(_attention(*own, part.mask, rules)[:, :, part.results])
    return torch.cat(found, dim=2).to(query.dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
        mask.blocks(rules.window, BLOCK),
        rules.scaling,
        rules.softcap,
    )
    return attended.reshape(1, heads, count, -1)
