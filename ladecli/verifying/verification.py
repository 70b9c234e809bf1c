"""From a request to what verifying it found."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import launch, ways
from ..bench.dialogue import Dialogue
from ..bench.facts import command_line, described_sampling, machine_of, model_of
from ..bench.lineup import described
from ..bench.result import Skipped
from ..decoder.config import SamplingConfig
from ..decoder.errors import DecoderError, PromptError
from ..errors import LadeError, UsageError, told
from ..shape import FULL
from .answer import Watch
from .chi_square import Sampling, corrected
from .comparison import Comparison, Interrupted
from .outcome import Compared, Outcome, Report, Sampled, Trial
from .sweep import Cell, Models

if TYPE_CHECKING:
    from ..bench.result import Machine, Model
    from ..decoder.rescoring import Rescorer
    from ..session import Session, Settings
    from ..settings import VerifyRequest
    from ..suites import Row

PROMPTS = 3
"""The distribution is tested behind so many, if nobody says how many."""


@dataclass(slots=True)
class Progress:
    """How far it is, in tokens that may have to be decoded; also how it is stopped.

    Attributes:
        show: told how many more are done.
        cancelled: asked after every step.
    """

    show: Callable[[int], None] = lambda _more: None
    cancelled: Callable[[], bool] = lambda: False
    _done: int = 0
    _end: int = 0

    def begin(self, tokens: int) -> None:
        """A part begins that takes at most so many; what is left of the last one is not needed."""
        self.passed(self._end - self._done)
        self._end += tokens

    def passed(self, tokens: int) -> None:
        """So many more are done."""
        more = min(tokens, self._end - self._done)
        self._done += more
        self.show(more)

    @property
    def watch(self) -> Watch:
        """For those who decode."""
        return Watch(self.cancelled, self.passed)


class Verification:
    """One call of `lade verify`.

    Args:
        request: what was asked for, with a length.
        rows: of the suite.
        models: loads what the cells need.
        progress: how far it is.
    """

    def __init__(
        self, request: VerifyRequest, rows: Sequence[Row], models: Models, progress: Progress
    ) -> None:
        self._request = request
        self._rows = rows
        self._models = models
        self._progress = progress
        self._began = time.perf_counter()
        self._seen: tuple[Machine, Model, bool] | None = None

    def compare(self, cells: Sequence[Cell]) -> Report:
        """Compare answers in every cell.

        Raises:
            LadeError, DecoderError: nothing could be run.
            UsageError: no prompt leaves room for an answer.
        """
        outcomes: list[Outcome] = []
        for cell in cells:
            if self._progress.cancelled():
                break
            outcomes.append(self._outcome(cell, alone=len(cells) == 1))
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        if not outcomes:
            raise KeyboardInterrupt
        if self._seen is None:
            raise LadeError(failures[0])
        if self._progress.cancelled():
            outcomes[-1] = replace(outcomes[-1], interrupted=True)
        else:
            _refuse_if_all_are_too_long(outcomes)
        return self._report(tuple(outcomes), None)

    def draw(self) -> Report:
        """Test the distribution that tokens are drawn from.

        Raises:
            LadeError, DecoderError: nothing could be run.
            UsageError: no prompt leaves room for an answer.
        """
        request, samples = self._request, self._request.chi_square or 1
        session = self._session(request)
        settings, rescorer = self._settings(session, request), _rescorer(session)
        sampling = Sampling(session, settings, rescorer, self._progress.watch)
        trials, rows, skipped = list[Trial](), list[str](), list[Skipped]()
        session.start_over()
        for row in self._rows[: request.limit or PROMPTS]:
            self._progress.begin(2 * samples)
            dialogue = Dialogue(session, row, self._template(session), request.system)
            try:
                trials += sampling.trials(row.id, dialogue.first(), samples)
            except (PromptError, UsageError) as error:
                skipped.append(Skipped(row.id, str(error)))
                continue
            rows.append(row.id)
            if self._progress.cancelled():
                break
        if not rows:
            raise UsageError(f"no prompt can be drawn from: {skipped[0].row}: {skipped[0].reason}")
        sampled = Sampled(
            samples=samples,
            drawn=sampling.drawn,
            plain=sampling.plain,
            rows=tuple(rows),
            trials=corrected(trials),
            settings=_described(session, request, settings),
            sampling=described_sampling(settings.sampling),
            skipped=tuple(skipped),
            interrupted=self._progress.cancelled(),
        )
        return self._report((), sampled)

    def _outcome(self, cell: Cell, *, alone: bool) -> Outcome:
        """What came of one cell; where it is not alone, also of one that cannot run."""
        found, skipped = list[Compared](), list[Skipped]()
        try:
            cell.request.check()
            session = self._session(cell.request)
            settings = self._settings(session, cell.request)
            self._rows_of(session, cell.request, settings, found, skipped)
        except (LadeError, DecoderError, RuntimeError) as error:
            if alone:
                raise
            # The next cell is another setting, and may well run.
            return Outcome(tuple(found), tuple(skipped), cell=cell.values, failure=told(error))
        return Outcome(
            answers=tuple(found),
            skipped=tuple(skipped),
            settings=_described(session, cell.request, settings),
            sampling=described_sampling(settings.sampling),
            cell=cell.values,
        )

    def _rows_of(
        self,
        session: Session,
        request: VerifyRequest,
        settings: Settings,
        found: list[Compared],
        skipped: list[Skipped],
    ) -> None:
        """Compare row by row; what was found is in the lists also where it is broken off."""
        comparison = Comparison(
            session,
            settings,
            _rescorer(session),
            template=self._template(session),
            system=request.system,
            watch=self._progress.watch,
        )
        for row in self._rows:
            self._progress.begin(2 * len(row.turns) * (settings.max_new_tokens or 0))
            try:
                for each in comparison.row(row):
                    if isinstance(each, Skipped):
                        skipped.append(each)
                    else:
                        found.append(each)
            except Interrupted:
                return

    def _session(self, request: VerifyRequest) -> Session:
        session = self._models.session(request)
        if self._seen is None:
            self._seen = machine_of(session), model_of(session, request), self._template(session)
        return session

    def _template(self, session: Session) -> bool:
        return session.has_template and not self._request.raw

    def _settings(self, session: Session, request: VerifyRequest) -> Settings:
        choice = launch.choose_profile(request, session)
        greedy = SamplingConfig(repetition_penalty=session.loaded.repetition_penalty)
        return launch.settings_of(request, choice, greedy)

    def _report(self, outcomes: tuple[Outcome, ...], sampled: Sampled | None) -> Report:
        assert self._seen is not None
        machine, model, template = self._seen
        now = datetime.datetime.now(datetime.timezone.utc)
        return Report(
            created=now.isoformat(timespec="seconds"),
            seconds=round(time.perf_counter() - self._began, 3),
            machine=machine,
            model=model,
            prompts=Path(self._request.prompts).name,
            max_new_tokens=self._request.max_new_tokens or 0,
            template=template,
            command=command_line(sys.argv[1:]),
            outcomes=outcomes,
            sampled=sampled,
        )


def _refuse_if_all_are_too_long(outcomes: Sequence[Outcome]) -> None:
    skipped = [skipped for outcome in outcomes for skipped in outcome.skipped]
    # Answers that memory did not suffice for are there, with no tokens.
    if skipped and not any(outcome.answers for outcome in outcomes):
        raise UsageError(f"no prompt can be answered: {skipped[0].row}: {skipped[0].reason}")


def _rescorer(session: Session) -> Rescorer:
    from ..decoder.rescoring import Rescorer

    quantised = session.loaded.shape.weights not in FULL
    return Rescorer(session.decoder, quantised=quantised)


def _described(
    session: Session, request: VerifyRequest, settings: Settings
) -> dict[str, int | str]:
    """How answers were made, as a report names it."""
    loaded, shape = session.loaded, session.loaded.shape
    found: dict[str, int | str] = {
        "strategy": settings.strategy,
        "weights": shape.weights,
        "compute": shape.compute,
        "attention": ways.attention_of(request, loaded.device, loaded.part).name,
    }
    return found | (described(settings.lookahead) if settings.strategy == "lookahead" else {})
