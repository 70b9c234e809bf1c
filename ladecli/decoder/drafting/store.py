"""What drafts are made from, which is kept from one generation to the next and saved to disk; and
the speculation budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DraftStateError
from ..tree import TokenTree
from ..window import NgramPool
from .ngram_model import ORDER, NgramModel, pack
from .sources import BOUNDARY, SOURCES, ContextSource

SAVED_TEXT = 1 << 14
"""The newest tokens of text, this many, are saved."""
SAVED_ROWS = 1 << 12
"""The model's successors after the newest tokens, this many, are saved."""
SAVED_NGRAMS = 1 << 10
"""The most n-grams of the paper's pool that are saved."""
LOSS_PER_TOKEN = 0.01
"""The loss that drafts may cause for each token of text, in plain steps."""
INITIAL_BALANCE = 2.0
"""The initial allowance for exploratory drafts, in plain steps."""
MAX_DEFICIT = 4.0
"""How far the balance may fall below zero before drafts pause, in plain steps.  Drafts at a
negative balance are expected to pay, and pausing them too early loses what they would bring."""
MAX_WINDOW_DEFICIT = 0.75
"""The same for the window, which pays later, if at all."""


class SpeculationBudget:
    """Keeps drafts from costing more than they bring.

    A step that costs c plain steps and yields t tokens gains t - c.  If the cost curve is right,
    the first text of a session takes at most this much longer than plain decoding:
    `LOSS_PER_TOKEN` for each token, `INITIAL_BALANCE`, `MAX_DEFICIT` and one step.  A text after
    losses has no `INITIAL_BALANCE`.

    Attributes:
        balance: what drafts have gained and may still lose, in plain steps.
    """

    def __init__(self) -> None:
        self.balance = INITIAL_BALANCE

    def begin(self) -> None:
        """Begin a text without the debt of earlier ones: a text of random tokens used to disable
        drafts for the next 60 tokens."""
        self.balance = max(self.balance, 0.0)

    @property
    def may_draft(self) -> bool:
        """Whether the next step may have candidates."""
        return self.balance >= -MAX_DEFICIT

    @property
    def may_run_window(self) -> bool:
        """Whether the next step may have a window.

        When the window could use up the whole deficit, and so stop all drafts, the demo made 1.14
        tokens per step with all sources on a CPU, instead of 1.34 to 1.41.
        """
        return self.balance >= -MAX_WINDOW_DEFICIT

    @property
    def may_explore(self) -> bool:
        """Whether candidates may be tried because of what they teach, if they do not pay."""
        return self.balance > 0.0

    def update(self, tokens: int, cost: float) -> None:
        """Account for a step that yielded `tokens` for `cost` plain steps."""
        self.balance += tokens * (1.0 + LOSS_PER_TOKEN) - cost


class DraftStore:
    """Everything that drafts are made from; exactness does not depend on any of it.

    A generation learns from its own `sources`, and uses what any source has ever learned.

    Attributes:
        model: the n-gram model.
        sources: all sources by name.
        context: the source that keeps the texts.
        pool: the n-grams of the paper's algorithm, which uses nothing else.
        budget: the speculation budget.
        broken: set by those who update the store, while they do; it stays set if Ctrl-C or an error
            ends the update, and the store must be replaced then.
    """

    def __init__(self) -> None:
        self.model = NgramModel()
        self.sources = {name: source(self.model) for name, source in SOURCES.items()}
        context = self.sources["context"]
        assert isinstance(context, ContextSource)
        self.context = context
        self.pool = NgramPool()
        self.budget = SpeculationBudget()
        self.broken = False

    def learn_text(self, tokens: Sequence[int]) -> None:
        """Learn a text that answers may repeat; the model need not have read it."""
        self.broken = True
        self.context.add(tokens, expected=True)
        self.model.learn([tokens], 1)
        self.broken = False

    def to_dict(self) -> dict[str, Any]:
        """Return the newest part as lists of numbers for JSON, at most about 75,000 of them, or
        125,000 if tokens are drawn.

        The text itself is saved, not what was counted in it; and the model's successors after
        accepted text, not those after other candidates.
        """
        text = self.context.corpus.tokens[-SAVED_TEXT:]
        rows = []
        for end in range(max(len(text) - SAVED_ROWS, ORDER), len(text) + 1):
            last = text[end - ORDER : end]
            row = None if BOUNDARY in last else self.model.model_successors[ORDER].get(pack(last))
            if row is not None:
                rows.append([end, [*row], [round(value, 4) for value in row.values()]])
        ngrams = [list(ngram) for ngram in self.pool]
        return {"text": text, "rows": rows, "ngrams": ngrams[-SAVED_NGRAMS:]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], vocabulary: int) -> DraftStore:
        """Make a store of what `to_dict` returned.

        Args:
            data: the result of `to_dict`, read from JSON.
            vocabulary: the size of the vocabulary, which token ids are below.

        Raises:
            DraftStateError: something is missing, of the wrong form, or out of range.
        """
        store = cls()
        try:
            store._load(data, vocabulary)
        except (KeyError, TypeError, ValueError) as error:
            raise DraftStateError(f"these are no saved drafts: {error!r}") from error
        return store

    def _load(self, data: Mapping[str, Any], vocabulary: int) -> None:
        text = _tokens(data["text"], BOUNDARY, vocabulary)
        self.context.add(text)
        start = 0
        for index, token in enumerate((*text, BOUNDARY)):
            if token == BOUNDARY:
                self.model.learn([text[start:index]], 1)
                start = index + 1
        for end, tokens, probabilities in data["rows"]:
            if not all(0.0 <= probability <= 1.0 for probability in probabilities):
                raise ValueError(f"no probabilities: {probabilities}")
            row = dict(zip(_tokens(tokens, 0, vocabulary), map(float, probabilities), strict=True))
            self.model.recycle(text[end - ORDER : end], TokenTree(), [row])
        for ngram in data["ngrams"]:
            if len(ngram) < 2:
                raise ValueError("an n-gram of less than two tokens")
            self.pool.add(_tokens(ngram, 0, vocabulary), SAVED_NGRAMS)


def _tokens(values: list[Any], first: int, below: int) -> list[int]:
    """Return the values if they are token ids; raise ValueError if not."""
    for value in values:
        if type(value) is not int or not first <= value < below:
            raise ValueError(f"{value!r} is no token id from {first} to {below - 1}")
    return values
