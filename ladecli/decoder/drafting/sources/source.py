"""What a source of drafts is, and what it learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..ngram_model import NgramModel, Row

if TYPE_CHECKING:
    from ...tree import TokenTree


class Observation(NamedTuple):
    """What a step showed."""

    text: Sequence[int]
    """Prompt and committed tokens, those of this step included."""
    new: int
    """Tokens that the step committed."""
    tree: TokenTree
    """The candidates that were verified, after the text without the new tokens."""
    successors: Sequence[Row]
    """The model's most probable tokens with their probabilities, after the text without the new
    tokens and then after each candidate; empty where the step did not ask for them."""
    ngrams: Sequence[Sequence[int]]
    """Those that the lookahead window closed."""


class Source:
    """Turns what a step showed into evidence for the n-gram model.

    Attributes:
        model: learns the evidence.
    """

    def __init__(self, model: NgramModel) -> None:
        self.model = model

    def begin(self, prompt: Sequence[int]) -> None:
        """A generation starts."""

    def learn(self, step: Observation) -> None:
        """A step is over."""
