"""What a comparison of two benchmarks says, as values."""

from __future__ import annotations

from dataclasses import dataclass

from ...metrics import ratio
from ..result import Contender
from .change import EQUAL, FASTER, SLOWER, UNCLEAR, Change
from .differences import Difference

MIXED = "mixed"
"""The verdict over all where something is slower and something else faster."""
UNRELATED = "unrelated"
"""The verdict where A and B did other work, so that neither is slower than the other."""
MEMORY = 0.05
"""Smaller changes of the peak memory, as a share of it, are nothing."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure in A and in B."""

    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Counted:
    """What is the same in every run of the same thing; a difference here is no noise.

    Attributes:
        tokens_per_step: completion tokens over steps.
        answers: that are in both and answer the same prompt.
        other_steps: of them, those that took another number of steps.
        other_accepted: of them, those that accepted other numbers of draft tokens by source.
        other_texts: of them, those with other tokens.
        first: the row and turn of the first with other tokens.
        settled: whether greedy repeats within A and within B agreed; where they do not, the
            figures above are not exact either.
    """

    tokens_per_step: Pair
    answers: int
    other_steps: int
    other_accepted: int
    other_texts: int
    first: tuple[str, int] | None
    settled: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """One contender in both.

    Attributes:
        contender: as A has it.
        seconds_per_token: behind the first step, of all answers that are in both.
        step_seconds: of a step behind the first, the median; None where there is none.
        raw: time per token in B over that in A, the machine's own change in it: the middle of
            its answers, as `change` is; None where no answer has two steps.
        change: of the time per token over the yardstick's; as it was measured where there is no
            yardstick.  None for the yardstick itself, and where no answer has two steps.
        first: change of the time to the first token, over the yardstick's too; None likewise.
        counted: what is exact; None where A and B did other work.
        memory: the most bytes of any run; None where it is unknown.
    """

    contender: Contender
    seconds_per_token: Pair
    step_seconds: Pair | None
    raw: float | None
    change: Change | None
    first: Change | None
    counted: Counted | None
    memory: Pair | None

    @property
    def name(self) -> str:
        """Of the contender."""
        return self.contender.name

    @property
    def memory_changed(self) -> bool:
        """Whether it needs more memory, or less, by a share that means something."""
        pair = self.memory
        return pair is not None and abs(ratio(pair.b, pair.a) - 1.0) > MEMORY


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that can be said about two benchmarks.

    Attributes:
        yardstick: the contender that changes are measured against; None where both have nothing
            to tell a change from the machine's.
        unlike: what is not the same about them.
        other_work: why no time of one can be called slower than the other's: "the model",
            "max new tokens"; empty where both did the same work.
        same_run: whether both are one and the same run.
        other_prompts: rows of one id whose prompts are not the same; they are left out.
        missing: contenders with answers in A that B has nothing to compare with.
        repeats: the fewest times that a row was measured.
        compiled: "A" and "B" where transformers' compiled steps took part.
        contenders: those in both, in A's order.
    """

    yardstick: Contender | None
    unlike: tuple[Difference, ...]
    other_work: tuple[str, ...]
    same_run: bool
    other_prompts: tuple[str, ...]
    missing: tuple[Contender, ...]
    repeats: int
    compiled: tuple[str, ...]
    contenders: tuple[Compared, ...]

    @property
    def judged(self) -> list[Compared]:
        """All contenders with a change: none for the yardstick."""
        return [each for each in self.contenders if each.change is not None]

    def verdict_on(self, change: Change) -> str:
        """The change's own, where both did the same work."""
        return UNRELATED if self.other_work else change.verdict

    @property
    def verdict(self) -> str:
        """On the time per token of all contenders: "slower", "faster", "mixed", …

        "unclear" where none changed for sure, and for one at least it cannot be told.
        """
        verdicts = {self.verdict_on(each.change) for each in self.judged if each.change}
        if {SLOWER, FASTER} <= verdicts:
            return MIXED
        for verdict in (UNRELATED, SLOWER, FASTER, UNCLEAR):
            if verdict in verdicts:
                return verdict
        return EQUAL if verdicts else UNCLEAR

    @property
    def slower(self) -> bool:
        """Whether a contender became slower, or is gone."""
        verdicts = {self.verdict_on(each.change) for each in self.judged if each.change}
        return SLOWER in verdicts or bool(self.missing)

    @property
    def foreign(self) -> bool:
        """Whether the yardstick is not our code."""
        return self.yardstick is not None and self.yardstick.foreign
