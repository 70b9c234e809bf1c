"""The interface of strategies, and what passes between them and the loop: the `State` of the text
and the `Room` for a step, a `Draft` to try, and the `StepResult` of the model.

Strategies never touch the cache, the tokenizer or the screen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .config import SamplingConfig
from .events import Detail, Token
from .tree import TokenTree
from .window import WindowBlock

Successors: TypeAlias = Sequence[dict[int, float]]
"""For each output of a step its most probable next tokens with their probabilities, best first;
empty where the draft asked for none, or logits are NaN."""


@dataclass(slots=True)
class State:
    """The text so far."""

    tokens: list[int]
    """Prompt and committed tokens; the last one is the current token."""
    prompt_length: int
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """The settings by which the next tokens are chosen."""
    end: int = sys.maxsize
    """Length at which the text ends at the latest."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room for the next step."""

    depth: int = 0
    """Depth of the deepest tree node that could still be committed."""
    reach: int = 0
    """Positions after the current token that the context has, up to where rotary frequencies
    change."""
    width: int = sys.maxsize
    """The most tokens of a step that fit in memory, `loads` and padding included; with several
    ranks, of a single rank's step.  The end of a prompt, which the first step takes along, is left
    out."""
    loads: Sequence[int] = (1,)
    """By rank, the tokens that it feeds beside the draft: the current one, and committed ones that
    are fed again."""
    branches: bool = True
    """Whether a tree may have more than one path."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The candidates that a strategy wants to try in one step."""

    tree: TokenTree = field(default_factory=TokenTree)
    """Candidates after the current token."""
    window: WindowBlock | None = None
    """Cells of the lookahead window."""
    width: int = 1
    """Tokens that the step is padded to, if it has fewer."""
    successors: int = 0
    """The number of successors of every output that the strategy wants to see; 0 for none."""
    limit: int = sys.maxsize
    """With several ranks, the most tokens that one of them feeds, `Room.loads` included."""
    widths: tuple[int, ...] = ()
    """With several ranks, the only widths that their steps may have, ascending; () for any."""

    @property
    def outputs(self) -> int:
        """Rows whose logits are wanted: the current token's, the nodes', the window's last row."""
        return 1 + len(self.tree) + (len(self.window.last_row) if self.window else 0)


@dataclass(slots=True)
class StepResult:
    """The result of a step with a draft."""

    nodes: list[int]
    """The accepted nodes, in the order of the text."""
    tokens: list[Token]
    """Those that join the text: the accepted ones and the bonus token."""
    best: Sequence[int]
    """The most probable token after the current token and each tree node, then after each cell of
    the window's last row.  Logits processors do not count, nor does a repetition penalty beside
    them."""
    successors: Successors = ()
    """The most probable tokens after the same outputs."""

    def detail(self, current: int, draft: Draft) -> Detail:
        """Return the step after a current token as plain numbers, for display."""
        tree, window = draft.tree, draft.window
        return Detail(
            current,
            tuple(tree.tokens),
            tuple(tree.parents),
            tuple(tree.sources),
            tuple(self.nodes),
            window.rows(current) if window else (),
            tuple(self.best[1 + len(tree) :]) if window else (),
            window.filled if window else False,
        )


class Strategy:
    """Proposes a draft for each step and observes what the model made of it.

    This one proposes nothing: one token per step, the oracle of all other strategies.
    """

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State, room: Room) -> Draft:
        """What to try after the current token, within the room that there is.

        If memory does not suffice for the draft, this method is called again with less room, and
        the first draft is never observed.
        """
        return Draft()

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """A step is over; `state` holds the tokens that it committed, those of `result`.

        Args:
            state: the text.
            draft: that was tried: the proposed one, or as much of it as ranks had room for.
            result: of the model.
        """
