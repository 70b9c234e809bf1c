"""Texts that repeat their prompt: drafts from the prompt must carry whole passages.

A fake model with a fixed answer stands for a real one that summarises, edits or quotes.  After any
other text it predicts a token that follows the last one somewhere in the text, like a real model,
so that the window and recycled successors see plausible tokens.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from tests.support.decoding import ids_of, run, steps_of
from tests.support.oracle import oracle

pytestmark = pytest.mark.slow

VOCABULARY = 400
ASK = [VOCABULARY - 1, VOCABULARY - 2]


def document(rng: random.Random, length: int) -> list[int]:
    """Tokens as unevenly distributed as words are."""
    weights = [1.0 / (rank + 3) for rank in range(VOCABULARY - 10)]
    return rng.choices(range(VOCABULARY - 10), weights, k=length)


def edited(rng: random.Random, text: list[int]) -> list[int]:
    """The text again with every thirtieth token or so replaced."""
    return [rng.randrange(VOCABULARY - 10) if rng.random() < 0.03 else token for token in text]


def summary(rng: random.Random, text: list[int]) -> list[int]:
    """Return passages of the text, in order, with new tokens between them."""
    starts = range(0, len(text) - 30, 60)
    return [t for start in starts for t in [*text[start : start + 25], *document(rng, 3)]]


def spelling(script: list[int]) -> Decoder:
    """A model that spells out `script`, and off its path what followed the last token once."""
    after: dict[int, int] = {}
    for first, second in itertools.pairwise(script):
        after.setdefault(first, second)

    def rule(text: Sequence[int]) -> int:
        if len(text) < len(script) and script[: len(text)] == list(text):
            return script[len(text)]
        return after.get(text[-1], 0)

    return oracle(rule, VOCABULARY, context=2048)


@pytest.mark.parametrize(("answer", "tokens_per_step"), [(edited, 25.0), (summary, 5.5)])
def test_copies_take_less_than_half_the_steps_of_the_paper(
    answer: Callable[[random.Random, list[int]], list[int]], tokens_per_step: float
) -> None:
    """`tokens_per_step` is for a text that drafts know, but that is not in the prompt."""
    rng = random.Random(0)
    text = document(rng, 240)
    copy = answer(rng, text)

    def steps(prompt: list[int], config: LookaheadConfig, drafts: DraftStore | None = None) -> int:
        model, limits = spelling(prompt + copy), Limits(len(copy))
        events = run(model, prompt, "lookahead", config, limits=limits, store=drafts)
        assert ids_of(events) == copy
        return len(steps_of(events))

    paper = steps(text + ASK, LookaheadConfig(15, 5, 15, sources=("trajectory",)))
    assert 2 * steps(text + ASK, LookaheadConfig(5, 3, 5, 60)) <= paper
    handed_over = DraftStore()
    handed_over.learn_text(text)
    known = steps(ASK, LookaheadConfig(5, 3, 5, 64), handed_over)
    assert len(copy) / known >= tokens_per_step
