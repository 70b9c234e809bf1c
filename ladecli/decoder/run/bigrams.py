"""Asks a model what it expects after single tokens, many of them in a step.

Tokenizers number common tokens first: some thousands do, where Stewart et al. (see
`drafting.bigrams`) ask about the whole vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import layout
from ..drafting.bigrams import SUCCESSORS, Bigrams
from ..faults import attempt
from ..strategy import Draft
from ..transfer import to_host
from ..tree import ROOT, TokenTree

if TYPE_CHECKING:
    from ..decoder import Decoder

TOKENS = 1 << 13
"""That are asked about; a quarter of them brings most of what there is to gain."""
FIRST, MOST = 8, 64
"""Tokens of the first step, which shows how long others take, and of any."""


def nothing() -> Bigrams:
    """What is known of a model that was never asked."""
    return Bigrams(np.empty((0, SUCCESSORS), np.int32), np.empty((0, SUCCESSORS), np.float16))


def find_bigrams(decoder: Decoder, start: Sequence[int], known: Bigrams, seconds: float) -> Bigrams:
    """Ask for the successors of further tokens for about so many seconds; the cached text is lost.

    Nothing is asked where steps cannot hold rival continuations, or memory does not suffice.

    Args:
        decoder: of the model.
        start: of an answer: what stands before each token; at least one.
        known: from before.
        seconds: a first step, of a few tokens, is taken even if it takes longer.
    """
    runner, done = decoder.runner, len(known.ids)
    wanted = min(decoder.facts.vocabulary, TOKENS)
    if runner.model.drafts != "trees" or done >= wanted or not seconds:
        return known
    *before, last = start
    ids, shares, count = [known.ids], [known.shares], FIRST
    decoder.forget(keep_memory=True)
    try:
        if before:
            if attempt(runner.run, layout.build_chunk(before, 0)) is None:
                return known
            decoder.cache.keep(range(len(before)))
        ends = time.perf_counter() + seconds
        while count and done < wanted:
            began = time.perf_counter()
            tokens = [*range(done, min(done + count, wanted))]
            tree = TokenTree(tokens, [ROOT] * len(tokens), [1] * len(tokens))
            step = layout.build([last], len(before), Draft(tree))
            logits = attempt(runner.run, step)
            if logits is None:
                break
            best, probabilities = to_host(*runner.rank(logits[1:], SUCCESSORS))()
            ids.append(np.array(best, np.int32))
            shares.append(np.array(probabilities, np.float16))
            done += len(tokens)
            now = time.perf_counter()
            count = min(max(int((ends - now) / (now - began) * count), 0), MOST)
    finally:
        decoder.forget(keep_memory=True)
    return Bigrams(np.concatenate(ids), np.concatenate(shares))
