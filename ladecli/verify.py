"""`lade verify`: is the text what plain decoding gives, and what explains it where it is not?"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from . import launch, suites
from .decoder.errors import DecoderError
from .errors import INTERRUPTED, LadeError, UsageError
from .terminal import Terminal, ctrl_c
from .verifying import sweep

if TYPE_CHECKING:
    from .settings import VerifyRequest
    from .verifying.outcome import Report

DRAWN = 3
"""Tokens of an answer where the distribution is tested and nobody says how many."""


def run(request: VerifyRequest) -> int:
    """Compare with plain decoding, and tell what came of it.

    Returns:
        The exit code: 0 if all is equal, or explained by the arithmetic; 1 if something is not,
        or nothing could be compared; 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    from .verifying import report as reports

    draws = request.chi_square is not None
    new = request.max_new_tokens or (DRAWN if draws else request.new_tokens)
    request = replace(request, max_new_tokens=new)
    launch.check(request)
    if draws:
        _check_draws(request)
    request = _seeded(request)
    cells = sweep.cells(request)
    watched = not request.quiet and sys.stderr.isatty()
    loaded = suites.load(request.prompts, offline=request.offline, progress=watched)
    rows = suites.some(loaded.rows, request.limit)
    terminal = Terminal(request.color, request.quiet)
    report = _verified(request, rows, cells, terminal)
    if request.json:
        print(json.dumps(reports.as_object(report), allow_nan=False))
    else:
        reports.show(report, terminal.console(sys.stdout))
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.passed else 1


def _check_draws(request: VerifyRequest) -> None:
    if not request.temperature:
        raise UsageError(
            "--chi-square tests what is drawn, and greedy decoding draws nothing; add"
            " --temperature 1, for example"
        )
    if request.sweep:
        raise UsageError("--chi-square and --sweep do not go together; run one after the other")


def _seeded(request: VerifyRequest) -> VerifyRequest:
    """The same random numbers in every cell, and for plain decoding."""
    from .decoder.config import SamplingConfig

    sampling = request.sampling(SamplingConfig())
    return request if sampling.greedy else replace(request, seed=sampling.seed)


def _verified(
    request: VerifyRequest,
    rows: tuple[suites.Row, ...],
    cells: list[sweep.Cell],
    terminal: Terminal,
) -> Report:
    from .verifying.verification import PROMPTS, Progress, Verification

    models = sweep.Models(terminal)
    turns = sum(len(row.turns) for row in rows)
    total = 2 * turns * request.new_tokens * len(cells)
    if request.chi_square is not None:
        total = 2 * request.chi_square * min(len(rows), request.limit or PROMPTS)
    # Loaded before a bar is drawn.  Of several cells, one that cannot be loaded is told later.
    forgiven = (LadeError, DecoderError) if len(cells) > 1 else ()
    with contextlib.suppress(*forgiven):
        models.session(cells[0].request)
    models.hush()
    with ctrl_c() as cancelled, terminal.bar("verifying", total) as show:
        verification = Verification(request, rows, models, Progress(show, cancelled))
        return verification.draw() if request.chi_square else verification.compare(cells)
