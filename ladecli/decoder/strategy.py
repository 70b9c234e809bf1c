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
from .grammar import Grammar
from .tree import TokenTree
from .window import WindowBlock

Successors: TypeAlias = Sequence[dict[int, float]]
"""For each output of a step the most probable next tokens with their probabilities, best first.
Empty if the draft asked for none, or if logits are NaN."""


@dataclass(slots=True)
class State:
    """The text so far."""

    tokens: list[int]
    """Prompt and committed tokens; the last one is the current token."""
    prompt_length: int
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """The settings by which the next tokens are chosen."""
    end: int = sys.maxsize
    """The most tokens that prompt and answer may have together."""
    grammar: Grammar | None = None
    """Constrains the answer."""


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of the next step, which the executor sets."""

    depth: int = 0
    """Depth of the deepest tree node that could still be committed."""
    reach: int = 0
    """The largest distance of a window cell from the current token.  Neither the context nor the
    model's rotary frequencies may end before that."""
    width: int = sys.maxsize
    """The most tokens in a step that fit in memory, `loads` and padding included; if ranks share
    steps, in one rank's part.  The prompt tokens that the first step feeds do not count."""
    loads: Sequence[int] = (1,)
    """For each rank, the tokens that it feeds beside the draft: the current one, and committed ones
    that are fed again."""
    branches: bool = True
    """True if a tree may have more than one path."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The candidates that a strategy tries in one step."""

    tree: TokenTree = field(default_factory=TokenTree)
    """Candidates after the current token."""
    window: WindowBlock | None = None
    """Cells of the lookahead window."""
    width: int = 1
    """The step is padded to this many tokens, if it has fewer."""
    successors: int = 0
    """The number of successors of every output that the strategy asks for; 0 for none."""
    limit: int = sys.maxsize
    """For `ranks`, which divide the draft: the most tokens that one feeds, its load included."""
    widths: tuple[int, ...] = ()
    """For `ranks`: the only widths that their steps may have, ascending; () for any."""


@dataclass(slots=True)
class StepResult:
    """The result of a step with a draft."""

    nodes: list[int]
    """The accepted nodes, in the order of the text."""
    tokens: list[Token]
    """The tokens that join the text: those of the accepted nodes, and the bonus token."""
    best: Sequence[int]
    """The most probable token after each output.  Logits processors are not applied; a repetition
    penalty is, unless there are processors."""
    successors: Successors = ()
    """The most probable tokens after each output, as many as the draft asked for."""

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

    This base class proposes nothing, so it is plain decoding: one token per step.  The texts of all
    other strategies are compared with its texts.
    """

    def begin(self, state: State) -> None:
        """A generation starts; `state` holds the prompt."""

    def propose(self, state: State, room: Room) -> Draft:
        """Return what to try after the current token, within the limits of `room`.

        If memory does not suffice for the draft, this method is called again with less room, and
        the first draft is never observed.
        """
        return Draft()

    def observe(self, state: State, draft: Draft, result: StepResult) -> None:
        """Learn from a step.

        Args:
            state: the text, which ends with the tokens of `result`.
            draft: the draft that was tried: the proposed one, or as much as ranks had room for.
            result: the results of the step.
        """
