"""`lade tune`: measure what steps cost here, and write the profile that is fastest."""

from __future__ import annotations

import datetime
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import suites
from ..bench.tasks import split_usable
from ..errors import LadeError, UsageError, counted
from ..profiles import Profile, Setting, Tuned, races, summarise, user
from ..session import opening
from ..session.dialogue import Dialogue
from ..view import screen
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from ..decoder.config import LookaheadConfig
    from ..options.commands import TuneRequest
    from ..profiles import Choice
    from ..session.session import Session
    from .measure import Curve, Outcome

SCHEMA = 1
_KEPT, _BY = "with the settings of profile ", "; by lade tune"
"""Before and after the origin of settings that are kept."""
CURVE_SHARE, MOST = 0.25, 0.93
"""Shares of the time: for what steps cost, and for that and the search together."""
ROOM = 64
"""Tokens of an answer that a sample prompt must leave room for."""
LONGEST = 384
"""Last tokens of a sample prompt that are used: reading is not what is measured."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `lade tune`."""

    model: str
    key: Tuned  # what the profile holds for
    before: str  # the profile that was in use, and the origin of its settings
    curve: Curve
    outcome: Outcome
    setting: LookaheadConfig  # the one to use
    seconds: float  # that it took, without loading

    @property
    def verdict(self) -> str:
        """The result in one line."""
        shape, outcome = summarise(self.setting), self.outcome
        if outcome.best.config is None:
            return "plain decoding is fastest here: no draft pays for itself"
        speed = f"{outcome.best.speed:.2f}× plain decoding"
        prompts = counted(outcome.prompts, "sample prompt")
        if outcome.kept:
            return f"keeping {shape}: {speed} on {prompts}; nothing tried was clearly faster"
        return f"{shape}: {speed} on {prompts}"


def run(request: TuneRequest) -> int:
    """Tune for one model, show what was found, and write the profile; returns the exit code, 0."""
    if not request.dry_run:
        try:
            user.make_folder()
        except LadeError as error:
            raise UsageError(f"{error}; --dry-run measures and writes nothing") from error
        races.forget()
    name = request.prompts or suites.BUILTIN
    rows = suites.load(name, offline=request.offline)
    # Every category early: a slow machine has time for the first few prompts only.
    rows = suites.some(rows, len(rows))
    terminal = Terminal(request.color, request.quiet)
    session = opening.open_session(request, terminal, template=request)
    from ..session.bigrams import bigrams_of

    if session.decoder.runner.model.drafts == "none":
        raise LadeError(
            f"{session.loaded.name} is decoded one token at a time: there are no drafts to tune"
        )
    try:
        template = request.template(session.has_template)
        dialogues = [Dialogue(session, row, None, template, ROOM) for row in rows]
        samples = [each.first()[-LONGEST:] for each in split_usable(dialogues)[0]]
        terminal.say(*session.new_notices())
        if not request.dry_run:  # what loads would ask one after the other
            with terminal.progress("asking the model what follows single tokens"):
                session.know(bigrams_of(session, CURVE_SHARE * request.seconds))
        terminal.say(f"measuring for {request.seconds:g} s")
        report = tune(session, request, samples)
    except KeyboardInterrupt:
        terminal.say("stopped; no profile was written")
        raise
    path = None if request.dry_run else user.write(profile_of(report))
    if request.json:
        print(json.dumps(as_object(report, path)))
    else:
        show(report, terminal.console(sys.stdout))
    if path is None:
        terminal.say("nothing was written (--dry-run)")
    else:
        terminal.say(f"written to {path}; it is used from now on for models like this one")
    return 0


def tune(session: Session, request: TuneRequest, samples: list[list[int]]) -> Report:
    """Measure what steps cost, and find the settings that are fastest on samples of token ids.

    Raises:
        LadeError: the model is too slow to compare settings in the time.
    """
    from ..session.session import Settings
    from .measure import MIN_WIDTHS, Tuner, make_candidates, setting_of

    began = time.perf_counter()
    loaded, seconds, choice = session.loaded, request.seconds, session.choice
    template = request.template(session.has_template)
    tuner = Tuner(session.decoder, session.stop_ids(Settings(template=template)))
    curve = tuner.measure_curve(list(chain(*samples)), CURVE_SHARE * seconds)
    plain = curve.plain[0]
    outcome = None
    if len(curve.cost.widths) >= MIN_WIDTHS:
        tried = make_candidates(curve.cost, choice.lookahead, loaded.device.kind == "cpu")
        left = began + MOST * seconds - time.perf_counter()
        outcome = tuner.search(samples, tried, left, plain)
    if outcome is None:
        raise LadeError(
            f"{seconds:g} s are too few to compare settings, since a plain step takes {plain:.2g} s"
            f" here; give --seconds {math.ceil(max(10, 400 * plain, 2 * seconds))}"
        )
    return Report(
        model=loaded.name,
        key=Tuned(
            device=user.key_of(loaded.device),
            parameters=loaded.spec.parameters,
            weights=loaded.spec.weights,
            attention=session.setup.attention.name,
            versions=user.versions_here(),
            date=datetime.date.today().isoformat(),
        ),
        before=source_of(choice),
        curve=curve,
        outcome=outcome,
        setting=setting_of(outcome.best, curve.cost),
        seconds=time.perf_counter() - began,
    )


def source_of(choice: Choice) -> str:
    """The profile in use and the origin of its settings, told on where an earlier call kept them:
    that call's profile is the one to be replaced."""
    return choice.origin.partition(_KEPT)[2].rpartition(_BY)[0] or (
        f"{choice.profile}, {choice.origin}"
    )


def profile_of(report: Report) -> Profile:
    """The profile that holds what was found."""
    key, outcome = report.key, report.outcome
    how = f"{outcome.best.speed:.2f}× plain decoding"
    if outcome.kept:
        how += f" {_KEPT}{report.before}"
    origin = f"measured: {how}{_BY}, {key.date}, {key.device}, {key.packages}"
    return Profile(
        name=user.name_for(key),
        description=f"tuned for {user.short(key.parameters)} parameters in {key.weights}",
        setting=(Setting.of(report.setting, origin),),
        tuned=key,
    )


def show(report: Report, console: Console) -> None:
    """Print the costs of steps, the settings that were compared, and the verdict."""
    cost, outcome = report.curve.cost, report.outcome
    contexts = (screen.Column(f"after {context:,}") for context in cost.contexts)
    rows = [("1", *(f"1 ({plain * 1e3:.3g} ms)" for plain in report.curve.plain))]
    for width, *costs in zip(cost.widths, *cost.costs, strict=True):
        if width > 1 and width.bit_count() == 1:
            rows.append((str(width), *(f"{each:.2f}" for each in costs)))
    title = f"Cost of a step, in plain steps ({report.key.device})"
    columns = (screen.Column("tokens"), *contexts)
    screen.print_table(screen.Table(title, columns, tuple(rows)), console)
    console.print()
    title = f"What is fastest ({counted(outcome.prompts, 'sample prompt')})"
    columns = (screen.Column("setting", number=False), screen.Column("speed"))
    rows = [
        (f"{each.name}{' ←' if each is outcome.best else ''}", f"{each.speed:.2f}×")
        for each in outcome.finalists
    ]
    screen.print_table(screen.Table(title, columns, tuple(rows)), console)
    screen.line(console, report.verdict, "bold")


def as_object(report: Report, path: Path | None) -> dict[str, Any]:
    """The figures as JSON, with the path of the profile if one was written."""
    curve, setting, outcome = report.curve, report.setting, report.outcome
    names = ("window", "ngram", "guesses", "sources", "widths")
    return {
        "schema": SCHEMA,
        "model": report.model,
        **report.key.model_dump(),
        "seconds": round(report.seconds, 3),
        "step_cost": {**asdict(curve.cost), "plain_seconds": curve.plain, "steps": curve.steps},
        "search": {
            "candidates": [{"name": each.name, "speed": each.speed} for each in outcome.finalists],
            "best": outcome.best.name,
            "prompts": outcome.prompts,
        },
        "setting": {"budget": setting.step_limit}
        | {name: getattr(setting, name) for name in names},
        "profile": None if path is None else str(path),
    }
