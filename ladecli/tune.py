"""`lade tune`: measure what steps cost here, and write the profile that is fastest."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from . import launch, suites, ways
from .errors import LadeError, UsageError
from .profiles import Profile, Setting, Tuned, user
from .terminal import Terminal
from .tuning.outcome import UNTIL_NOW

if TYPE_CHECKING:
    from .session import Session
    from .settings import TuneRequest
    from .tuning.report import Report

CURVE_SHARE, MOST = 0.25, 0.93
"""Of the time, for what steps cost, and for that and the search."""
LEAST_WIDTHS = 3
"""Fewer make no curve."""
RESERVE = 1.25
"""Times what seems to be needed, or what was too little, is what is advised."""
LONGEST = 384
"""Of every sample prompt, the last so many tokens: reading is not what is measured."""


def run(request: TuneRequest) -> int:
    """Tune for one model, show what was found, and write the profile.

    Returns:
        The exit code, 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    from .tuning import report as reports

    launch.check(request)
    if not request.dry_run:
        _check_folder()
    texts = sample_prompts(
        request.prompts,
        offline=request.offline,
        progress=not request.quiet and sys.stderr.isatty(),
    )
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
        print(json.dumps(reports.as_object(report, path)))
    else:
        reports.show(report, terminal.console(sys.stdout))
    if failure is not None:
        raise failure
    if path is None:
        terminal.say("nothing was written (--dry-run)")
    else:
        terminal.say(f"written to {path}; it is used from now on for models like this one")
    return 0


def _check_folder() -> None:
    """Refuse to measure what could not be written, before a model is loaded.

    Raises:
        UsageError: profiles cannot be written here.
    """
    try:
        user.make_folder()
    except LadeError as error:
        raise UsageError(f"{error}; --dry-run measures and writes nothing") from error


def sample_prompts(name: str | None, *, offline: bool = False, progress: bool = False) -> list[str]:
    """The prompts to try settings on: first turns, every category early.

    Args:
        name: a suite's or a file's; None for the builtin suite.
        offline: whether the hub must not be asked.
        progress: whether a download shows a bar on stderr.

    Raises:
        UsageError: there is no such suite or file, or a row of it makes no sense.
        LadeError: a suite cannot be fetched.
    """
    suite = suites.load(
        suites.BUILTIN if name is None else name, offline=offline, progress=progress
    )
    # A slow machine has time for the first few prompts only.
    return [row.turns[0] for row in suites.some(suite.rows, len(suite.rows))]


def tune(
    session: Session,
    request: TuneRequest,
    texts: list[str],
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """Measure what steps cost, and find the settings that are fastest at that.

    Args:
        session: the model at work.
        request: `seconds`, and what else the user asked for.
        texts: sample prompts.
        progress: called every now and then.

    Raises:
        UsageError: no prompt leaves room for an answer.
        LadeError: the model is too slow to measure anything in the time.
    """
    from .tuning.curve import measure_curve
    from .tuning.report import Report
    from .tuning.search import candidates, enough, search, setting_of

    began = time.perf_counter()
    decoder, loaded = session.decoder, session.loaded
    samples = _encoded(session, texts)
    choice = launch.choose_profile(request, session)
    text = [token for sample in samples for token in sample]
    curve = measure_curve(decoder, text, CURVE_SHARE * request.seconds, progress=progress)
    if len(curve.cost.widths) < LEAST_WIDTHS:
        raise LadeError(
            f"{request.seconds:g} s are too few to measure steps, of which a plain one takes"
            f" {curve.plain[0]:.2g} s; give --seconds"
            f" {advised(max(10, 400 * curve.plain[0]), request.seconds)}"
        )
    outcome = search(
        decoder,
        samples,
        candidates(curve.cost, choice.lookahead, loaded.device.kind == "cpu"),
        began + MOST * request.seconds - time.perf_counter(),
        curve.plain[0],
        stop_ids=loaded.stop_ids,
        progress=progress,
    )
    key = Tuned(
        device=user.key_of(loaded.device),
        parameters=loaded.shape.parameters,
        weights=loaded.shape.weights,
        attention=ways.attention_of(request, loaded.device, loaded.part).name,
        versions=user.versions_here(),
        date=datetime.date.today().isoformat(),
    )
    return Report(
        model=loaded.name,
        key=key,
        until_now=f"{choice.profile}, {choice.origin}",
        curve=curve,
        outcome=outcome,
        setting=setting_of(outcome.best if outcome else None, choice.lookahead, curve.cost),
        seconds=time.perf_counter() - began,
        advised=advised(RESERVE * enough(curve.plain[0]) / (MOST - CURVE_SHARE), request.seconds),
    )


def advised(needed: float, given: float) -> int:
    """Seconds to give where those that were given are too few: never as many again."""
    return math.ceil(max(needed, RESERVE * given))


def profile_of(report: Report) -> Profile:
    """The profile that holds what was found."""
    key, outcome = report.key, report.outcome
    how = f"step costs measured, the rest as in profile {report.until_now};"
    if outcome is not None:
        how = f"{outcome.best.speed:.2f}× plain decoding"
        if outcome.best.candidate.name == UNTIL_NOW:
            how += f" with the settings of profile {report.until_now};"
    versions = ", ".join(f"{name} {version}" for name, version in key.versions.items())
    return Profile(
        name=user.name_for(key),
        description=f"tuned for {user.short(key.parameters)} parameters in {key.weights}",
        settings=(
            Setting.of(
                report.setting,
                f"measured: {how} by lade tune, {key.date}, {key.device}, {versions}",
            ),
        ),
        tuned=key,
    )


def _encoded(session: Session, texts: list[str]) -> list[list[int]]:
    """Token ids of the prompts that leave room for an answer."""
    room = session.decoder.max_context - 64
    ids = []
    for text in texts:
        if session.has_template:
            ids.append(session.encode_chat([{"role": "user", "content": text}]))
        else:
            ids.append(session.encode(text))
    fitting = [sample[-LONGEST:] for sample in ids if 0 < len(sample) <= room]
    if not fitting:
        raise UsageError(
            f"no sample prompt leaves room for an answer in {session.decoder.max_context} tokens"
            " of context; raise --max-context, or give shorter --prompts"
        )
    return fitting


@contextlib.contextmanager
def _bar(terminal: Terminal, seconds: float) -> Iterator[Callable[[], None]]:
    """A bar on stderr that fills with time, where somebody is watching."""
    if terminal.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console(sys.stderr), transient=True) as bar:
        task = bar.add_task("tuning", total=seconds)
        began = time.monotonic()
        yield lambda: bar.update(task, completed=min(time.monotonic() - began, seconds))
