"""What drafts are made from, which is kept from one generation to the next; and the speculation
budget."""

from __future__ import annotations

from collections.abc import Sequence

from ..window import NgramPool
from .ngram_model import NgramModel
from .sources import SOURCES, ContextSource

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

    def learn_text(self, tokens: Sequence[int], *, expected: bool = True) -> None:
        """Learn a text that answers may repeat; the model need not have read it.

        Args:
            tokens: the text.
            expected: whether the next answer may begin like it.
        """
        self.broken = True
        self.context.add(tokens, expected=expected)
        self.model.learn([tokens], 1)
        self.broken = False
