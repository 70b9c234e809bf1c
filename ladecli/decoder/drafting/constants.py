"""The constants of drafting, in one place so that they can be read and tuned together.

They were chosen on conversations and edits that no reported figure is about; the measurements are
in benchmarks/README.md ("Edits", "Draft sources beside others", "What was tried") and
benchmarks/log.md ("Drafts on a real chat model").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftingConstants:
    """The constants of drafting, by the module that uses them."""

    # The n-gram model (`ngram_model`).
    max_contexts: int = 1 << 16
    """The most contexts in a table; the oldest are dropped first."""
    max_successors: int = 6
    """The most successors of a context.  Further ones cost time and are hardly ever right."""
    sampled_successors: int = 32
    """The same if tokens are drawn.  At temperature 1 a third of the drawn tokens are none of the
    best 12, and 32 give 5 % more tokens per step for a tenth more of the host's time."""
    max_children: int = 8
    """The most children of a tree node."""
    window_weight: float = 0.25
    """The count of a token in an n-gram of the lookahead window; a token of the text counts 1."""
    count_decay: float = 0.7
    """The decay of a context's counts when a new token is counted."""
    discounts: tuple[float, ...] = (0.0, 8.0, 4.0, 2.0, 1.0)
    """By length of context, the sum of counts that gets half of the probability left."""
    model_shares: tuple[float, ...] = (0.0, 0.65, 0.7, 0.8, 0.95)
    """By length of context, the share of the model's successors in the probability left."""
    negligible: float = 0.2
    """Shorter contexts are not looked up if they can share at most this much probability."""
    prior_successors: int = 64
    """The number of tokens in the prior."""
    prior_rows: int = 12
    """The prior learns this many rows at once, since ranking takes time."""
    prior_decay: float = 0.95
    """The decay of the prior for each row that it learns."""
    calibration_decay: float = 0.98
    """The decay of the record of a kind of evidence with each trial."""
    calibration_prior: float = 2.0
    """The number of expected hits that counts as much as having no record."""
    max_calibration: float = 3.0
    """The largest factor by which a record raises probabilities."""

    # The search for a tree (`tree_search`).
    optimism: float = 0.5
    """The assumed probability of the best child of a node that was not looked up yet.  At 1.0 trees
    took a third longer to build, and no more of them was accepted."""
    exploration: float = 1.5
    """The worth of a node in relation to its probability to be accepted; more than 1, because its
    logits teach something in any case.  By the cost curves of two processors a text took up to 2 %
    more time at 1.0, and 2.5 % at 2.0."""

    # Repeated passages (`sources` and `copy_pointer`).
    max_corpus: int = 1 << 16
    """If the corpus has more tokens than this when a text begins or is added, only the newest half
    as many are kept."""
    overlap: int = 32
    """If a text begins like the last one and then differs, this many tokens before the difference
    are added to the corpus again, so that passages across the difference are found."""
    passage_lengths: tuple[int, ...] = (5, 8, 16, 32)
    """The classes of copied passages, by the number of copied tokens at which each class begins.
    As many tokens as the first one must agree for a passage to be found."""
    passage_priors: tuple[float, ...] = (0.55, 0.7, 0.85, 0.95, 0.6, 0.9, 0.4, 0.15, 0.7)
    """The assumed probability that the next token is as expected, before any trial: for each class
    of passages, then for the five classes about edits in `copy_pointer`."""
    passage_prior_trials: float = 8.0
    """The weight of this assumption, as a number of trials."""
    passage_decay: float = 0.98
    """The decay of the record of a class with each trial."""
    max_proposed: int = 128
    """The most tokens of a passage that are proposed at once."""
    trusted_length: int = 16
    """A passage of at least this many copied tokens is remembered across an edit.  When chats and
    edits were replayed without a model, 8 gave 1 % fewer tokens per step in chats, and 32 a quarter
    fewer in edits."""
    max_shortening: int = 8
    """The most tokens by which an edit may shorten the passage."""
    max_search: int = 32
    """An edit with this many tokens ends the search for the rest of the passage."""
    max_edits: int = 64
    """The most edits that are remembered; the oldest are dropped first."""
    longest_edit: int = 32
    """An edit that removes or adds more tokens than this is not expected again."""

    # The speculation budget (`store`), in plain steps.
    loss_per_token: float = 0.01
    """The loss that drafts may cause for each token of text."""
    initial_balance: float = 2.0
    """The initial allowance for exploratory drafts."""
    max_deficit: float = 4.0
    """The largest deficit of the balance before drafts pause.  Drafts at a negative balance
    are expected to pay, and pausing them too early loses what they would bring."""
    max_window_deficit: float = 0.75
    """The same for the window, which pays later, if at all."""

    # The strategy (`strategies.lookahead`).
    plain_steps_per_look: int = 4
    """Only one of this many plain steps asks for successors, since ranking logits takes time."""

    @property
    def least_repeat(self) -> int:
        """The number of tokens that must agree for a passage to be found, also after an edit."""
        return self.passage_lengths[0]


CONSTANTS = DraftingConstants()
