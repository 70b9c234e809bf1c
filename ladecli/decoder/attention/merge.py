"""Partial attentions over different keys, joined by the logarithm of what their softmax sums to.

A softmax over many keys is the mean of softmaxes over parts of them, weighted by exp(lse), where
lse is the log-sum-exp of a part's scores.  This is what split-KV decoding rests on (Dao et al.,
"Flash-Decoding for long-context inference", 2023; the online softmax of FlashAttention).
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Join N partial attentions of the same queries.

    Args:
        out: [N, ..., D], what each part came to; finite.
        lse: [N, ...], the log-sum-exp of each part's scores; minus infinity where it saw nothing,
            and then it counts for nothing.

    Returns:
        What they come to together, [..., D], and its lse, [...]; both float32.  Where no part saw
        anything, 0 and minus infinity.
    """
    lse = lse.float()
    weights = torch.softmax(lse, dim=0)
    # Where nobody saw anything, that softmax is not a number.
    weights = weights.masked_fill(lse == float("-inf"), 0.0)
    return (weights.unsqueeze(-1) * out).sum(dim=0), torch.logsumexp(lse, dim=0)


def merge_scores(scores: Tensor, value: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """Join a partial attention and keys whose scores are at hand.

    A partial attention is like one key more: its score is its lse, and its value is its output.
    So one softmax does it all.

    Args:
        scores: float32 [..., R, T]; minus infinity where a query does not see a key.  Each query
            sees at least one of them.
        value: [..., T, D], of those keys.
        out: [..., R, D], the partial attention over other keys; finite.
        lse: [..., R], its log-sum-exp; minus infinity where it saw nothing.

    Returns:
        Float32 [..., R, D].
    """
    count = scores.shape[-1]
    weights = torch.softmax(torch.cat([scores, lse.float().unsqueeze(-1)], dim=-1), dim=-1)
    own = weights[..., :count] @ value.float()
    return torch.addcmul(own, weights[..., count:], out.float())
