"""What verifying found, as values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..bench.result import Machine, Model, Skipped

LEVEL = 0.01
"""Where nothing is wrong, that share of whole runs finds a difference."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A token: its id, and its text as a terminal may show it, in quotes."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer is not plain decoding's any more.

    Attributes:
        row: id of the prompt's row.
        turn: of the conversation, from 1 on.
        position: of the token in the answer, from 1 on.
        plain: what plain decoding chose; None where its answer ended.
        other: what the strategy chose; None where its answer ended.
        width: tokens fed in the step that yielded the other token.
        gap: by how many logits plain decoding prefers its token; None where it is not known,
            because an answer ended there, or there was no memory to compute it again.
        distance: how far logits have to move for the other token: the gap, if it is greedy.
        noise: what forwards of other widths move logits by, here.
        allowed: as far as arithmetic may move them: some noise more, and their rounding.
        explained: whether that is enough.
    """

    row: str
    turn: int
    position: int
    plain: Spelled | None
    other: Spelled | None
    width: int
    gap: float | None = None
    distance: float | None = None
    noise: float | None = None
    allowed: float | None = None
    explained: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer beside plain decoding's.

    Attributes:
        row: id of the prompt's row.
        category: of the row.
        turn: of the conversation, from 1 on.
        prompt_tokens: of its prompt.
        tokens: compared: up to the end, or to the first that differs, which counts.
        steps: that the strategy made of the answer.
        reason: why the strategy's answer ended.
        divergence: None where all tokens are equal.
    """

    row: str
    category: str
    turn: int
    prompt_tokens: int
    tokens: int
    steps: int
    reason: str
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one model under one setting.

    Attributes:
        answers: that were compared, in order.
        skipped: rows that were not, or not to their end, and why.
        settings: strategy, window and so on, as they were in effect.
        sampling: temperature and so on, and the seed; empty for greedy.
        cell: its place in a sweep by axis, as typed; empty outside.
        failure: the line that says why it could not go on.
        interrupted: whether Ctrl-C ended it early.
    """

    answers: tuple[Compared, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    settings: Mapping[str, int | str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    cell: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None
    interrupted: bool = False

    @property
    def divergences(self) -> list[Divergence]:
        """Of all answers."""
        return [answer.divergence for answer in self.answers if answer.divergence is not None]

    @property
    def unexplained(self) -> int:
        """Divergences that arithmetic does not explain."""
        return sum(not divergence.explained for divergence in self.divergences)

    @property
    def tokens(self) -> int:
        """Compared in all."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def rows(self) -> int:
        """Prompts of which something was compared."""
        return len({answer.row for answer in self.answers})

    @property
    def rate(self) -> float | None:
        """Divergences in a thousand tokens compared; None if there are no tokens."""
        return 1000.0 * len(self.divergences) / self.tokens if self.tokens else None

    @property
    def distances(self) -> list[float]:
        """Of all divergences where it is known, ascending."""
        return sorted(d.distance for d in self.divergences if d.distance is not None)

    @property
    def median(self) -> float | None:
        """Of the distances."""
        return statistics.median(self.distances) if self.distances else None

    @property
    def relative(self) -> float | None:
        """The largest distance in relation to the noise at its place; None without any."""
        relations = [
            divergence.distance / divergence.noise
            for divergence in self.divergences
            if divergence.distance is not None and divergence.noise
        ]
        return max(relations, default=None)


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison of counts.

    Attributes:
        against: "model" for its probabilities, "plain" for what plain decoding drew.
        row: id of the prompt's row.
        position: of the token in the answer, from 1 on.
        prefix: ids of the answer before it, where all samples have the same; else empty.
        samples: that were counted: of the strategy.
        cells: tokens, the rare ones together.
        statistic: Pearson's.
        p: how probable one at least as large is.
        corrected: the same for all tests of a run together (Holm, 1979).
    """

    against: Literal["model", "plain"]
    row: str
    position: int
    prefix: tuple[int, ...]
    samples: int
    cells: int
    statistic: float
    p: float
    corrected: float = 1.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of testing the distribution.

    Attributes:
        samples: answers of each side that were wanted for every prompt.
        drawn: answers of the strategy that there are, to all prompts.
        plain: the same of plain decoding.
        rows: ids of the prompts' rows.
        trials: all of them.
        settings: strategy, window and so on.
        sampling: temperature and so on, and the first seed.
        skipped: rows that could not be drawn from, and why.
        interrupted: whether Ctrl-C ended it early.
    """

    samples: int
    drawn: int
    plain: int
    rows: tuple[str, ...]
    trials: tuple[Trial, ...]
    settings: Mapping[str, int | str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    interrupted: bool = False

    @property
    def different(self) -> list[Trial]:
        """Those that found a difference."""
        return [trial for trial in self.trials if trial.corrected < LEVEL]

    @property
    def passed(self) -> bool:
        """Whether something was tested, and no difference was found."""
        return bool(self.trials) and not self.different


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `lade verify`.

    Attributes:
        created: date and time, ISO 8601 with the zone.
        seconds: how long it took, loading included.
        machine: where it ran.
        model: what was run; in a sweep, as its first cell had it.
        prompts: name of the suite or file.
        max_new_tokens: of an answer.
        template: whether prompts went through the model's chat template.
        command: the command line, without paths that lead to files of the user's.
        outcomes: one, or one for each cell of a sweep; none where the distribution was tested.
        sampled: what came of testing the distribution.
    """

    created: str
    seconds: float
    machine: Machine
    model: Model
    prompts: str
    max_new_tokens: int
    template: bool
    command: str
    outcomes: tuple[Outcome, ...] = ()
    sampled: Sampled | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it early."""
        sampled = self.sampled is not None and self.sampled.interrupted
        return sampled or any(outcome.interrupted for outcome in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether something was compared, and nothing speaks against exactness.

        A cell of a sweep that could not run speaks neither for it nor against.
        """
        if self.sampled is not None:
            return self.sampled.passed
        tokens = sum(outcome.tokens for outcome in self.outcomes)
        return tokens > 0 and not any(outcome.unexplained for outcome in self.outcomes)
