"""What one generation was asked for, and what that means for each of its steps."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

from .layout import Draft, StepLayout
from .limits import Limits
from .meanwhile import MEANWHILE
from .parallel.group import Finding, Group
from .readout import Shown, Wanted
from .sampling import Sampler
from .stopwatch import BETWEEN, Stopwatch
from .strategies import Strategy
from .verify import walk


@dataclass(frozen=True, slots=True)
class Job:
    """What one generation was asked for.

    Attributes:
        strategy: drafts.
        sampler: chooses tokens.
        limits: where it ends.
        detailed: whether steps say what they tried.
        watch: takes the time of their parts, where somebody asked.
        group: the ranks that decode this text together.
    """

    strategy: Strategy
    sampler: Sampler
    limits: Limits
    detailed: bool
    watch: Stopwatch | None
    group: Group

    def lap(self, part: str) -> None:
        """Give the time since the last lap to a part of the step, where somebody asked."""
        if self.watch is not None:
            self.watch.lap(part)

    def pause(self, part: str) -> Generator[None, None, float]:
        """Let whoever reads the text do so.

        Args:
            part: of the step, that ends here.

        Returns:
            Seconds that it took.
        """
        self.lap(part)
        began = time.perf_counter()
        yield MEANWHILE
        self.lap(BETWEEN)
        return time.perf_counter() - began

    def end(self, prompt_length: int, context: int) -> int:
        """The length at which the text ends at the latest.

        Args:
            prompt_length: tokens of the prompt.
            context: the most tokens that the text may have.
        """
        if self.limits.max_new_tokens is None:
            return context
        return min(context, prompt_length + self.limits.max_new_tokens)

    def wanted(self, step: StepLayout, draft: Draft, length: int, *, chooses: bool) -> Wanted:
        """What to ask a step for.

        Args:
            step: to be run.
            draft: that it tries.
            length: tokens of the text.
            chooses: whether tokens are best drawn for all outputs at once: a GPU is not asked
                again for every one that the walk visits.
        """
        sampler = self.sampler
        uniforms: list[float] = []
        drawn = sampler.ahead and chooses
        if drawn:
            # Nobody asks what follows a pending token, but for the current one.
            uniforms = sampler.uniforms(length, [0] * step.pending + draft.tree.depths)
        return Wanted(
            draft.successors,
            logits=not sampler.plain,
            sampling=sampler.seedless if drawn else None,
            uniforms=uniforms,
            penalty=sampler.penalty,
            text=sampler.text,
        )

    def verify(self, shown: Shown, draft: Draft, length: int) -> Finding:
        """What a step showed of the draft that it tried behind a text of this length."""
        choose = self.sampler.chooser(shown.logits, shown.best, length, shown.chosen)
        return Finding(walk(draft.tree, choose), shown.best, shown.ranked)
