"""`lade tune`: measure what steps cost here, and write the profile that is fastest."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import launch, screen, suites, ways
from .errors import LadeError, UsageError
from .profiles import Profile, Setting, Tuned, user
from .terminal import Terminal
from .visualize import counted

if TYPE_CHECKING:
    from rich.console import Console

    from .decoder.config import LookaheadConfig
    from .options import TuneRequest
    from .session import Session
    from .tuning.curve import Curve
    from .tuning.search import Outcome

SCHEMA = 1
CURVE_SHARE, MOST = 0.25, 0.93
"""Of the time, for what steps cost, and for that and the search."""
MIN_WIDTHS = 3
"""Fewer make no curve."""
RESERVE = 1.25
"""Factor on the time that seems to be needed, or was too little, in the time that is advised."""
LONGEST = 384
"""Last tokens of a sample prompt that are used: reading is not what is measured."""
PLOT = 76
"""Columns of the plot."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `lade tune`.

    Attributes:
        model: as the user named it.
        key: what the profile holds for.
        before: the profile that was in use, and the origin of its settings.
        curve: the measured costs.
        outcome: of the search; None if there was too little time for one.
        setting: the one to use.
        seconds: what it took, without loading.
        advised: seconds to give where there was no time to compare settings.
    """

    model: str
    key: Tuned
    before: str
    curve: Curve
    outcome: Outcome | None
    setting: LookaheadConfig
    seconds: float
    advised: int

    @property
    def kept(self) -> bool:
        """Whether the search kept the settings that were in use."""
        from .tuning.search import CURRENT

        return self.outcome is not None and self.outcome.best.candidate.name == CURRENT

    @property
    def verdict(self) -> str:
        """The result in one line."""
        setting, outcome = self.setting, self.outcome
        shape = f"budget {setting.step_limit}, {'+'.join(setting.sources)}"
        if "trajectory" in setting.sources:
            shape = f"W={setting.window} N={setting.ngram} G={setting.guesses}, {shape}"
        if outcome is None:
            return f"{shape}, as before, at the costs measured here: there was no time to compare"
        if outcome.best.candidate.config is None:
            return "plain decoding is fastest here: no draft pays for itself"
        if self.kept:
            shape += f" (as before, profile {self.before.split(',')[0]})"
        slower = ", not clearly slower," if outcome.best.speed < 1.0 else ""
        prompts = counted(outcome.prompts, "sample prompt")
        return f"{shape}: {outcome.best.speed:.2f}× plain decoding{slower} on {prompts}"

    @property
    def caveats(self) -> list[str]:
        """What to know before believing these figures."""
        found, outcome, spread = [], self.outcome, self.curve.spread
        if not math.isfinite(spread):
            found.append("each step was measured once or twice only; --seconds gives more time")
        elif spread > 0.1:
            found.append(f"two halves of the step times differ by {spread:.0%}")
        if outcome is None:
            return [*found, f"--seconds {self.advised} or more is time to compare settings"]
        if outcome.agrees is None:
            found.append("there was no time for a repeat: --seconds gives more")
        elif not outcome.agrees:
            found.append(
                f"repeats differ by {outcome.disagreement:.0%}: something else runs here; tune"
                " again when this machine is quiet"
            )
        if outcome.differing:
            found.append(
                f"{outcome.differing} of {outcome.prompts} answers differed from plain decoding's:"
                " near-ties, as half precision and quantised weights have them"
            )
        return found


def run(request: TuneRequest) -> int:
    """Tune for one model, show what was found, and write the profile; returns the exit code, 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    launch.check(request)
    if not request.dry_run:
        try:
            user.make_folder()
        except LadeError as error:
            raise UsageError(f"{error}; --dry-run measures and writes nothing") from error
    watched = not request.quiet and sys.stderr.isatty()
    texts = sample_prompts(request.prompts, offline=request.offline, progress=watched)
    terminal = Terminal(request.color, request.quiet)
    session = launch.open_session(request, terminal)
    try:
        with _bar(terminal, request.seconds) as progress:
            report = tune(session, request, texts, progress)
    except KeyboardInterrupt:
        terminal.say("stopped; no profile was written")
        raise
    # What was measured is shown even where it cannot be written.
    path, failure = None, None
    try:
        if not request.dry_run:
            path = user.write(profile_of(report))
    except LadeError as error:
        failure = error
    if request.json:
        print(json.dumps(as_object(report, path)))
    else:
        show(report, terminal.console(sys.stdout))
    if failure is not None:
        raise failure
    if path is None:
        terminal.say("nothing was written (--dry-run)")
    else:
        terminal.say(f"written to {path}; it is used from now on for models like this one")
    return 0


def sample_prompts(name: str | None, *, offline: bool = False, progress: bool = False) -> list[str]:
    """The first turns of a suite or a file (None: the builtin suite), every category early.

    Args:
        name: of the suite or the file.
        offline: whether the hub must not be asked.
        progress: whether a download shows a bar on stderr.

    Raises:
        UsageError: there is no such suite or file, or a row of it makes no sense.
        LadeError: a suite cannot be fetched.
    """
    suite = suites.load(name or suites.BUILTIN, offline=offline, progress=progress)
    # A slow machine has time for the first few prompts only.
    return [row.turns[0] for row in suites.some(suite.rows, len(suite.rows))]


def tune(
    session: Session,
    request: TuneRequest,
    texts: Sequence[str],
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """Measure what steps cost, and find the settings that are fastest at that.

    Args:
        session: an open session.
        request: `seconds`, and what else the user asked for.
        texts: sample prompts.
        progress: called now and then.

    Raises:
        UsageError: no prompt leaves room for an answer.
        LadeError: the model is too slow to measure anything in the time.
    """
    from .tuning.curve import measure_curve
    from .tuning.search import candidates, min_seconds, search, setting_of

    began = time.perf_counter()
    decoder, loaded, seconds = session.decoder, session.loaded, request.seconds
    samples = _encoded(session, texts)
    choice = launch.choose_profile(request, session)
    text = [token for sample in samples for token in sample]
    curve = measure_curve(decoder, text, CURVE_SHARE * seconds, progress=progress)
    plain = curve.plain[0]
    if len(curve.cost.widths) < MIN_WIDTHS:
        raise LadeError(
            f"{seconds:g} s are too few to measure steps, of which a plain one takes"
            f" {plain:.2g} s; give --seconds {advised(max(10, 400 * plain), seconds)}"
        )
    outcome = search(
        decoder,
        samples,
        candidates(curve.cost, choice.lookahead, loaded.device.kind == "cpu"),
        began + MOST * seconds - time.perf_counter(),
        plain,
        stop_ids=loaded.stop_ids,
        progress=progress,
    )
    return Report(
        model=loaded.name,
        key=Tuned(
            device=user.key_of(loaded.device),
            parameters=loaded.shape.parameters,
            weights=loaded.shape.weights,
            attention=ways.attention_of(request, loaded.device, loaded.part).name,
            versions=user.versions_here(),
            date=datetime.date.today().isoformat(),
        ),
        before=f"{choice.profile}, {choice.origin}",
        curve=curve,
        outcome=outcome,
        setting=setting_of(outcome.best if outcome else None, choice.lookahead, curve.cost),
        seconds=time.perf_counter() - began,
        advised=advised(RESERVE * min_seconds(plain) / (MOST - CURVE_SHARE), seconds),
    )


def advised(needed: float, given: float) -> int:
    """Seconds to give where `given` were too few: always more."""
    return math.ceil(max(needed, RESERVE * given))


def profile_of(report: Report) -> Profile:
    """The profile that holds what was found."""
    key, outcome = report.key, report.outcome
    how = f"step costs measured, the rest as in profile {report.before};"
    if outcome is not None:
        how = f"{outcome.best.speed:.2f}× plain decoding"
        if report.kept:
            how += f" with the settings of profile {report.before};"
    versions = ", ".join(f"{name} {version}" for name, version in key.versions.items())
    origin = f"measured: {how} by lade tune, {key.date}, {key.device}, {versions}"
    return Profile(
        name=user.name_for(key),
        description=f"tuned for {user.short(key.parameters)} parameters in {key.weights}",
        settings=(Setting.of(report.setting, origin),),
        tuned=key,
    )


def _encoded(session: Session, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of the prompts that leave room for an answer."""
    room = session.decoder.max_context - 64
    ids = [
        session.encode_chat([{"role": "user", "content": text}])
        if session.has_template
        else session.encode(text)
        for text in texts
    ]
    fitting = [sample[-LONGEST:] for sample in ids if 0 < len(sample) <= room]
    if not fitting:
        raise UsageError(
            f"no sample prompt leaves room for an answer in {session.decoder.max_context} tokens"
            " of context; raise --max-context, or give shorter --prompts"
        )
    return fitting


@contextlib.contextmanager
def _bar(terminal: Terminal, seconds: float) -> Iterator[Callable[[], None]]:
    """A bar on stderr that fills with time, on a terminal."""
    if terminal.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console(sys.stderr), transient=True) as bar:
        task = bar.add_task("tuning", total=seconds)
        began = time.monotonic()
        yield lambda: bar.update(task, completed=min(time.monotonic() - began, seconds))


def show(report: Report, console: Console) -> None:
    """Print the costs as a plot and a table, the settings that were compared, and the verdict."""
    curve, outcome = report.curve, report.outcome
    title = f"Cost of a step by its tokens, in plain steps ({report.key.device})"
    screen.line(console, title, "bold")
    if screen.draws(console, PLOT):
        console.print(_plot(curve))
    costs = screen.bare_table()
    costs.add_column("tokens", justify="right")
    for number, context in enumerate(curve.cost.contexts, start=1):
        costs.add_column(f"{number}: after {context:,}", justify="right")
    costs.add_row("1", *(f"1 ({plain * 1e3:.3g} ms)" for plain in curve.plain))
    for column, width in enumerate(curve.cost.widths):
        if width > 1 and width & (width - 1) == 0:
            costs.add_row(str(width), *(f"{row[column]:.2f}" for row in curve.cost.costs))
    screen.show(costs, console)
    if math.isfinite(curve.ridge):
        ridge = f"{curve.ridge:.0f} tokens take as much arithmetic as a plain step takes time"
        screen.line(console, f"ridge: {ridge}")
    console.print()
    if outcome is not None:
        prompts = counted(outcome.prompts, "sample prompt")
        screen.line(console, f"What is fastest ({prompts})", "bold")
        settings = screen.bare_table()
        settings.add_column("setting", overflow="fold")
        settings.add_column("speed", justify="right")
        settings.add_column("repeats", justify="right")
        for score in outcome.scores:
            mark = " ←" if score is outcome.best else ""
            repeats = " ".join(f"{repeat:.2f}" for repeat in score.repeats[:4])
            settings.add_row(f"{score.candidate.name}{mark}", f"{score.speed:.2f}×", repeats)
        screen.show(settings, console)
    for caveat in report.caveats:
        screen.line(console, f"note: {caveat}")
    screen.line(console, report.verdict, "bold")


def _plot(curve: Curve) -> str:
    """The cost of a step over its width, one line with its number for each length of text."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = 50, 10
    figure.with_colors = False
    # Marks are ten columns and one row apart; these limits put them on round numbers.
    figure.set_x_limits(0, 25 * math.ceil(curve.cost.widths[-1] / 25))
    top = max(max(row) for row in curve.cost.costs)
    figure.set_y_limits(0, next((y for y in (2, 5, 10, 20, 50) if y >= top), math.ceil(top)))
    figure.x_label, figure.y_label = "tokens", "cost"
    figure.x_ticks_fkt = lambda low, _high: f"{low:.0f}"
    figure.y_ticks_fkt = lambda low, _high: f"{low:.1f}"
    for number, row in enumerate(curve.cost.costs, start=1):
        figure.plot(curve.cost.widths, row, marker=str(number))
    return str(figure.show())


def as_object(report: Report, path: Path | None) -> dict[str, Any]:
    """The figures as JSON, with the path of the profile if one was written; keys are fixed."""
    curve, setting, outcome, key = report.curve, report.setting, report.outcome, report.key
    return {
        "schema": SCHEMA,
        "model": report.model,
        "device": key.device,
        "parameters": key.parameters,
        "weights": key.weights,
        "attention": key.attention,
        "versions": dict(key.versions),
        "date": key.date,
        "seconds": round(report.seconds, 3),
        "step_cost": {
            "widths": curve.cost.widths,
            "contexts": curve.cost.contexts,
            "costs": curve.cost.costs,
            "plain_seconds": curve.plain,
            "spread": curve.spread if math.isfinite(curve.spread) else None,
            "steps": curve.steps,
            "ridge": curve.ridge if math.isfinite(curve.ridge) else None,
        },
        "search": outcome
        and {
            "candidates": [
                {"name": score.candidate.name, "speed": score.speed, "repeats": score.repeats}
                for score in outcome.scores
            ],
            "best": outcome.best.candidate.name,
            "agrees": outcome.agrees,
            "prompts": outcome.prompts,
            "differing": outcome.differing,
        },
        "setting": {
            "window": setting.window,
            "ngram": setting.ngram,
            "guesses": setting.guesses,
            "budget": setting.step_limit,
            "sources": setting.sources,
            "widths": setting.widths,
        },
        "profile": None if path is None else str(path),
    }
