"""Tokens drawn for all rows of a step at once, on the device, without waiting for it.

A token's weight is a whole number, in parts of the most probable token's, so that sums do not
depend on their order: the same token is drawn from a whole row, from a list of its best tokens,
or from sums of blocks, alone or among other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..config import SamplingConfig
from ..successors import NOTHING
from .penalty import Penalized, Scores, gather, part
from .quick import ONE, may_weigh, weigh
from .quick_draw import Cuts, draw, may_draw, may_pick, pick
from .ranking import leaders, most_probable

LISTED = 512
"""Of each row, as many of the best tokens are looked at where top-p or min-p removes others."""
TIES = 32
"""With top-k, twice k and so many are looked at: enough for those that tie with the k-th."""
BLOCK = 128
"""Tokens whose weights are summed up first when all can be drawn; exact in float64."""
SMALL = 4096
"""Of no more tokens than these, all of one row are looked at at once: that is cheaper."""
PART = 1 << 21
"""The most weights that exist at a time in a pass over all logits: 16 MiB in float64."""


def choose_ahead(
    logits: Scores, uniforms: Tensor, config: SamplingConfig, best: Tensor | None = None
) -> Tensor:
    """The token drawn for every row, by inverse CDF, tokens in order of id.

    Where top-k, top-p or min-p remove tokens, only the best ones of each row are looked at.
    That is enough where all tokens that stay are provably among them.

    Args:
        logits: [rows, vocabulary].
        uniforms: float64 [rows], each in [0, 1).
        config: `temperature` must be above 0; its repetition penalty is not looked at, for the
            logits have it already.
        best: the token with the greatest logit of each row, [rows], where that is known.

    Returns:
        Tokens, int32 [rows]: what `choose` says, or `NOTHING` where that is not certain.
    """
    if draws_from_all(config):
        best = most_probable(logits) if best is None else best
        sums = _blocks(logits, best, config.temperature)
        asked = logits, best, sums, _warm(config.temperature), uniforms
        if may_pick(logits, BLOCK, _pick_by_torch):
            return pick(*asked, BLOCK)
        return _pick_by_torch(*asked)
    values, tokens, totals, cuts = _listed(logits, config, _enough(logits, config))
    drawn = draw if may_draw(values, _draw_by_torch) else _draw_by_torch
    return drawn(values, tokens, totals, cuts, uniforms)


def draws_from_all(config: SamplingConfig) -> bool:
    """Whether no token is removed: then what `choose_ahead` draws is certain in every row."""
    return not (config.top_k or config.top_p < 1.0 or config.min_p)


def choose(scores: Tensor, u: float, config: SamplingConfig) -> int:
    """The token drawn from one row, by inverse CDF, tokens in order of id.

    Args:
        scores: [vocabulary].
        u: in [0, 1).
        config: `temperature` must be above 0; the repetition penalty is not applied.
    """
    scores = _with_float64(scores)
    if len(scores) > SMALL:
        uniforms = torch.tensor([u], dtype=torch.float64, device=scores.device)
        token = int(choose_ahead(scores[None], uniforms, config))
        if token != NOTHING:
            return token
    through = weights_of(scores, config).cumsum(dim=0)
    return int(_place(through, _target(through[-1:], u)))


def weights_of(scores: Tensor, config: SamplingConfig) -> Tensor:
    """What tokens of one row weigh, 0 where they cannot be drawn.

    Args:
        scores: [vocabulary].
        config: `temperature` must be above 0; the repetition penalty is not applied.

    Returns:
        int64 [vocabulary].
    """
    scores = _with_float64(scores)
    weights = _weigh(scores, scores.amax(dim=0, keepdim=True), config.temperature).long()
    if 0 < config.top_k < len(scores):
        # Ties with the k-th best stay, as they do in transformers.
        cut = scores.topk(config.top_k).values[-1]
        weights = weights.masked_fill_(scores < cut, 0)
    if config.top_p < 1.0:
        ordered, order = scores.sort(descending=True)
        through = weights[order].cumsum(dim=0)
        last = _place(through, _share(through[-1:], config.top_p) - 1)
        weights = weights.masked_fill_(scores < ordered[last], 0)
    return weights.masked_fill_(weights < _least(config), 0)


def _with_float64(scores: Tensor) -> Tensor:
    """Scores on a device that knows float64: Apple's does not."""
    return scores.cpu() if scores.device.type == "mps" else scores


def _enough(logits: Scores, config: SamplingConfig) -> int:
    """How many of the best tokens are listed first."""
    return min(logits.shape[-1], 2 * config.top_k + TIES if config.top_k else LISTED)


def _share(total: Tensor, top_p: float) -> Tensor:
    """What the tokens that top-p keeps weigh at least, int64 like `total`."""
    return total.double().mul_(top_p).ceil_().long()


def _least(config: SamplingConfig) -> int:
    """What each token that min-p keeps weighs at least."""
    return math.ceil(config.min_p * ONE)


def _weigh(scores: Tensor, greatest: Tensor, temperature: float) -> Tensor:
    """Weights of tokens: float64 like `scores`, whole numbers; `greatest` is [..., 1]."""
    # Relative to the best one, so that no temperature is too small to divide by.
    return (scores - greatest.double()).mul_(1.0 / _warm(temperature)).exp_().mul_(ONE).floor_()


def _warm(temperature: float) -> float:
    """A temperature that numbers can be divided by."""
    return max(temperature, torch.finfo(torch.float32).tiny)


def _listed(
    logits: Scores, config: SamplingConfig, count: int
) -> tuple[Tensor, Tensor, Tensor | None, Cuts]:
    """The best tokens of each row, and what decides which of them can be drawn.

    Returns:
        Logits and tokens, [rows, count]; what all tokens weigh, int64 [rows, 1], where that is
        needed; the cuts.
    """
    vocabulary, top_k, temperature = logits.shape[-1], config.top_k, _warm(config.temperature)
    values, tokens = leaders(logits, count)
    top_k = top_k if top_k < vocabulary else 0
    cuts = Cuts(temperature, top_k, config.top_p, _least(config), vocabulary)
    totals = None
    if cuts.needs_total(count):
        totals = _blocks(logits, tokens[:, 0], config.temperature).sum(dim=-1, keepdim=True)
    return values, tokens, totals, cuts


def _draw_by_torch(
    values: Tensor, tokens: Tensor, totals: Tensor | None, cuts: Cuts, uniforms: Tensor
) -> Tensor:
    """What `quick_draw.draw` says."""
    count = values.shape[-1]
    weights = _weigh(values, values[:, :1], cuts.temperature).long()
    # A token that is not listed is at most as good as the last one that is.
    last, lightest = values[:, -1:], weights[:, -1:]
    complete = (lightest == 0) if count < cuts.vocabulary else torch.ones_like(lightest).bool()
    known = torch.ones_like(complete)
    if cuts.top_k:
        cut = values[:, cuts.top_k - 1 : cuts.top_k]
        complete = complete | (cut > last)
        weights = weights.masked_fill(values < cut, 0)
    if cuts.top_p < 1.0:
        if totals is None:
            known, totals = complete, weights.sum(dim=-1, keepdim=True)
        # A token stays while all better ones together do not have their share.
        cut = values.gather(1, _place(weights.cumsum(dim=-1), _share(totals, cuts.top_p) - 1))
        complete = complete | (cut > last)
        weights = weights.masked_fill(values < cut, 0)
    if cuts.least:
        complete = complete | (lightest < cuts.least)
        weights = weights.masked_fill(weights < cuts.least, 0)
    drawn = _drawn(tokens, weights, uniforms)
    return drawn.masked_fill(~(complete & known)[:, 0], NOTHING).int()


def _drawn(tokens: Tensor, weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row at its uniform number, int64 [rows]; lists are [rows, count]."""
    tokens, order = tokens.sort(dim=-1)
    through = weights.gather(1, order).cumsum(dim=-1)
    place = _place(through, _target(through[:, -1:], uniforms[:, None]))
    return tokens.gather(1, place)[:, 0]


def _target(total: Tensor, u: Tensor | float) -> Tensor:
    """Where in the sum of weights a uniform number is, int64 like `total`."""
    # Rounding can put it on the total: then the last possible token is meant.
    return torch.minimum((total.double() * u).long(), total - 1)


def _place(through: Tensor, target: Tensor) -> Tensor:
    """The first place where sums up to there exceed the target, int64 [..., 1]."""
    place = (through <= target).sum(dim=-1, keepdim=True)
    # Of a model that says NaN nothing exceeds anything.
    return place.clamp_(max=through.shape[-1] - 1)


def _pick_by_torch(
    logits: Scores, best: Tensor, sums: Tensor, temperature: float, uniforms: Tensor
) -> Tensor:
    """What `quick_draw.pick` says."""
    vocabulary = logits.shape[-1]
    through = sums.cumsum(dim=-1)
    target = _target(through[:, -1:], uniforms[:, None])
    block = _place(through, target)
    # What lies before the block: the sum up to the block before it, 0 before the first.
    before = torch.nn.functional.pad(through, (1, 0)).gather(1, block)
    tokens = block * BLOCK + torch.arange(BLOCK, device=logits.device)
    greatest = gather(logits, best[:, None].long())
    within = _weigh(gather(logits, tokens.clamp(max=vocabulary - 1)), greatest, temperature)
    through = before + within.long().cumsum(dim=-1)
    return (block * BLOCK + _place(through, target)).clamp_(max=vocabulary - 1)[:, 0].int()


def _blocks(logits: Scores, best: Tensor, temperature: float) -> Tensor:
    """Sums of weights of `BLOCK` tokens each, int64 [rows, blocks]; `best` is as in `weigh`."""
    if may_weigh(logits, BLOCK, _blocks_by_torch):
        return weigh(logits, best, _warm(temperature), BLOCK)
    return _blocks_by_torch(logits, best, temperature)


def _blocks_by_torch(logits: Scores, best: Tensor, temperature: float) -> Tensor:
    greatest = gather(logits, best[:, None].long())
    sums = [_summed(part(logits, each), greatest, temperature) for each in _parts(logits)]
    return torch.cat(sums, dim=1)


def _summed(logits: Tensor, greatest: Tensor, temperature: float) -> Tensor:
    """The same of one part, whose weights are gone before the next part has some."""
    weights = _weigh(logits, greatest, temperature)
    missing = -weights.shape[-1] % BLOCK
    if missing:
        weights = torch.nn.functional.pad(weights, (0, missing))
    return weights.reshape(len(weights), -1, BLOCK).sum(dim=-1).long()


def _parts(logits: Scores) -> Iterator[slice]:
    """Stretches of the vocabulary for passes over all logits, in whole blocks."""
    rows, vocabulary = logits.shape
    # Penalised ones do not exist yet, and take half as much as their weights.
    most = PART // 2 if isinstance(logits, Penalized) else PART
    size = max(1, most // (rows * BLOCK)) * BLOCK
    for start in range(0, vocabulary, size):
        yield slice(start, min(start + size, vocabulary))
