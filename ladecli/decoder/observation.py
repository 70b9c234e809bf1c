"""What strategies and draft sources learn of a step when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .events import Detail
from .layout import Draft
from .successors import NONE, Successors
from .verify import Verdict


@dataclass(frozen=True, slots=True)
class Observation:
    """What a step showed.

    Attributes:
        draft: what was tried.
        text: prompt and committed tokens, those of this step included.
        verdict: the nodes accepted, as far as they were committed, and the tokens committed.
        best: the model's most probable token after the current token and after each node
            of the tree (n + 1 tokens), then after each cell of the window's last row.
        ranked: the most probable tokens after every output, as many as the draft asked for;
            `NONE` where it asked for none.
    """

    draft: Draft
    text: Sequence[int]
    verdict: Verdict
    best: Sequence[int]
    ranked: Successors = NONE

    @property
    def before(self) -> int:
        """Length of the text before this step; the token before that is the current one."""
        return len(self.text) - len(self.verdict.tokens)

    @property
    def current(self) -> int:
        """The token that the draft was tried behind."""
        return self.text[self.before - 1]

    @property
    def window_outputs(self) -> Sequence[int]:
        """The most probable token after each cell of the window's last row."""
        return self.best[len(self.draft.tree) + 1 :]

    def detail(self) -> Detail:
        """The step as plain numbers, for those who watch it."""
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
