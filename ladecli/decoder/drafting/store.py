"""The memory that drafts are made from, kept from one generation to the next, and the speculation
budget."""

from __future__ import annotations

from collections.abc import Sequence

from ..window import NgramPool
from .constants import CONSTANTS
from .ngram_model import NgramModel
from .sources import SOURCES, ContextSource


class SpeculationBudget:
    """Keeps drafts from costing more than they bring.

    A step that costs c plain steps and yields t tokens gains t - c.  If the cost curve is right,
    the first text of a session takes at most this much longer than plain decoding:
    `loss_per_token` for each token, `initial_balance`, `max_deficit` and one step.  A text after
    losses has no `initial_balance`.

    Attributes:
        balance: what drafts have gained and may still lose, in plain steps.
    """

    def __init__(self) -> None:
        self.balance = CONSTANTS.initial_balance

    def begin(self) -> None:
        """Begin a text without the debt of earlier ones: a text of random tokens used to disable
        drafts for the next 60 tokens."""
        self.balance = max(self.balance, 0.0)

    @property
    def may_draft(self) -> bool:
        """True if the next step may have candidates."""
        return self.balance >= -CONSTANTS.max_deficit

    @property
    def may_run_window(self) -> bool:
        """True if the next step may have a window.

        When the window could use up the whole deficit, and so stop all drafts, the demo made 1.14
        tokens per step with all sources on a CPU, instead of 1.34 to 1.41.
        """
        return self.balance >= -CONSTANTS.max_window_deficit

    @property
    def may_explore(self) -> bool:
        """True if candidates may be tried for what they teach, even if they do not pay."""
        return self.balance > 0.0

    def update(self, tokens: int, cost: float) -> None:
        """Account for a step that yielded `tokens` for `cost` plain steps."""
        self.balance += tokens * (1.0 + CONSTANTS.loss_per_token) - cost


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
