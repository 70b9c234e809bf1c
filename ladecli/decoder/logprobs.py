"""Log-probabilities of a step's tokens, from the logits that its verification computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .events import Logprobs, Token
from .transfer import to_device, to_host


@torch.inference_mode()
def with_logprobs(
    tokens: Sequence[Token], nodes: Sequence[int], logits: Tensor, count: int
) -> list[Token]:
    """The tokens of a walk with their log-probabilities.

    Args:
        tokens: that the walk chose: k + 1 after k accepted nodes.
        nodes: the accepted ones.
        logits: [outputs, vocabulary], as the forward gave them.
        count: of the most probable tokens at each place that are named, too.
    """
    places = to_device([0, *[1 + node for node in nodes]], logits.device)
    shares = logits[places].float().log_softmax(dim=-1)
    ids = to_device([[token.id] for token in tokens], logits.device)
    best = shares.topk(min(count, shares.shape[-1]))
    arrived = to_host(shares.gather(1, ids)[:, 0], best.indices, best.values)()
    rows = zip(tokens, *arrived, strict=True)
    return [
        replace(token, logprobs=Logprobs(mine, tuple(zip(found, values, strict=True))))
        for token, mine, found, values in rows
    ]
