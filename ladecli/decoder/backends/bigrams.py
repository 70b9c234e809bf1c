"""Asks a model what it expects after single tokens, many of them in a step.

Tokenizers number common tokens first: some thousands do, where Stewart et al. (see
`drafting.ngram_model`) ask about the whole vocabulary.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from .. import layout
from ..drafting.ngram_model import BIGRAMS, Bigrams
from ..faults import attempt
from ..strategy import Draft
from ..transfer import to_host
from ..tree import ROOT, TokenTree

if TYPE_CHECKING:
    from ..decoder import Decoder

TOKENS = 1 << 13
"""That are asked about; a quarter of them brings most of what there is to gain."""
FIRST, MOST = 7, 63
"""Tokens of the first step, which shows how long others take, and of any; the start is one more."""
ROWS = 16
"""Of an embedding, by which a model is known again, whatever its name."""


def nothing() -> Bigrams:
    """What is known of a model that was never asked."""
    return Bigrams(np.empty((0, BIGRAMS), np.int32), np.empty((0, BIGRAMS), np.float16))


def fingerprint(model: Any) -> str | None:
    """A digest by which a model is known again; None where its embedding is on a disk, or ranks
    share it."""
    weights = [*model.parameters(), weight := model.get_input_embeddings().weight]
    if any(each.is_meta for each in weights) or type(weight) not in (Tensor, nn.Parameter):
        return None
    return hashlib.sha256(weight[:ROWS].detach().float().cpu().numpy().tobytes()).hexdigest()[:16]


def find_bigrams(decoder: Decoder, start: Sequence[int], known: Bigrams, seconds: float) -> Bigrams:
    """Ask for the successors of further tokens for about so many seconds; the cached text is lost.

    Nothing is asked where steps cannot hold rival continuations, or memory does not suffice.

    Args:
        decoder: of the model.
        start: of an answer: what stands before each token; at least one.
        known: from before.
        seconds: the first step, of a few tokens, may take longer.
    """
    executor, done = decoder.executor, len(known.ids)
    wanted = min(decoder.facts.vocabulary, TOKENS)
    if executor.model.drafts != "trees" or done >= wanted or not seconds:
        return known
    *before, last = start
    ids, shares, count = [known.ids], [known.shares], FIRST
    ends = time.perf_counter() + seconds
    decoder.forget(keep_memory=True)
    try:
        if before:
            if attempt(executor.run, layout.build_chunk(before, 0)) is None:
                return known
            decoder.cache.keep(range(len(before)))
        while count and done < wanted and time.perf_counter() < ends:
            began = time.perf_counter()
            tokens = [*range(done, min(done + count, wanted))]
            tree = TokenTree(tokens, [ROOT] * len(tokens), [1] * len(tokens))
            step = layout.build([last], len(before), Draft(tree))
            logits = attempt(executor.run, step)
            if logits is None:
                break
            best, probabilities = to_host(*executor.most_probable(logits[1:], BIGRAMS))()
            if not np.isfinite(probabilities).all():
                break
            ids.append(np.array(best, np.int32))
            shares.append(np.array(probabilities, np.float16))
            done += len(tokens)
            now = time.perf_counter()
            count = min(max(int((ends - now) / (now - began) * count), 0), MOST)
    finally:
        decoder.forget(keep_memory=True)
    return Bigrams(np.concatenate(ids), np.concatenate(shares))
