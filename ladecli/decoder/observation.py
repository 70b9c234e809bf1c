"""What a strategy is given: the text so far before a step, and what the step showed after it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .events import Detail
from .layout import Draft
from .verify import Verdict

Successors: TypeAlias = Sequence[dict[int, float]]
"""For each output of a step its most probable next tokens with their probabilities, best first;
empty where the draft asked for none."""


@dataclass(slots=True)
class State:
    """The text so far and how far ahead of it a draft may reach.

    Attributes:
        tokens: prompt and committed tokens; the last one is the current token.
        prompt_length: number of prompt tokens.
        draft_depth: the deepest tree node that could still be committed.
        room: positions after the current token that exist and are encoded as before.
        widest: the most tokens of a step, padding included, that fit in memory; with several
            ranks, of a single rank's step.
        missing: by rank, how many committed tokens before the current one it must feed first
            because it lacks their keys.
    """

    tokens: list[int]
    prompt_length: int
    draft_depth: int = 0
    room: int = 0
    widest: int = sys.maxsize
    missing: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a step showed.

    Attributes:
        draft: what was tried.
        text: prompt and committed tokens, those of this step included.
        verdict: the accepted nodes and the tokens committed.
        best: the model's most probable token after the current token and each tree node, then
            after each cell of the window's last row.
        successors: the most probable tokens after the same outputs.
    """

    draft: Draft
    text: Sequence[int]
    verdict: Verdict
    best: Sequence[int]
    successors: Successors = ()

    @property
    def before(self) -> int:
        """Length of the text before this step; its last token is the current one."""
        return len(self.text) - len(self.verdict.tokens)

    @property
    def current(self) -> int:
        """The token that the draft continued."""
        return self.text[self.before - 1]

    @property
    def window_outputs(self) -> Sequence[int]:
        """The most probable token after each cell of the window's last row."""
        return self.best[len(self.draft.tree) + 1 :]

    def detail(self) -> Detail:
        """The step as plain numbers, for display."""
        tree, window = self.draft.tree, self.draft.window
        return Detail(
            self.current,
            tuple(tree.tokens),
            tuple(tree.parents),
            tuple(tree.sources),
            self.verdict.nodes,
            window.rows(self.current) if window else (),
            tuple(self.window_outputs) if window else (),
            window.filled if window else False,
        )
