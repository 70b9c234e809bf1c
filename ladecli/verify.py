"""`lade verify`: compare a strategy's answers with those of plain autoregressive decoding.

Every prompt is decoded twice in one process, and the first divergence is reported with the gap
of the two logits and with what rounding explains.  `--chi-square` draws many answers instead,
and tests their distribution.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import chi_square, opening, suites
from .bench.result import (
    PLAIN,
    Machine,
    Method,
    Model,
    Skipped,
    command_line,
    lookahead_shown,
    sampling_shown,
)
from .bench.runners import Answer, OwnRunner
from .bench.tasks import Dialogue
from .decoder.config import SamplingConfig
from .decoder.errors import PromptError
from .errors import INTERRUPTED, LadeError, UsageError
from .events import Reason
from .memory import FULL
from .trace.format import speller
from .view import screen
from .view.terminal import Terminal, ctrl_c
from .visualize import counted, printable

if TYPE_CHECKING:
    from rich.console import Console

    from .options import VerifyRequest
    from .session import Session, Settings

SCHEMA = "lade-verify/1"
SHOWN = 5
"""Divergences and skipped rows that are printed one by one."""
SAMPLED_TOKENS, SAMPLED_ROWS = 3, 3
"""Tokens of an answer and prompts of --chi-square, without -n and --limit."""


def run(request: VerifyRequest) -> int:
    """Compare with plain decoding and print what was found.

    Returns:
        The exit code: 0 if all answers are equal, or rounding explains every divergence; 1 if it
        does not, or if nothing could be compared; 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    samples, limit = request.chi_square, request.limit
    if samples:
        new_tokens, limit = request.max_new_tokens or SAMPLED_TOKENS, limit or SAMPLED_ROWS
    else:
        new_tokens = request.new_tokens
    request = replace(request, max_new_tokens=new_tokens)
    opening.check(request)
    if samples and not request.temperature:
        raise UsageError(
            "--chi-square tests sampling, and greedy decoding draws nothing; add --temperature 1,"
            " for example"
        )
    began = time.perf_counter()
    watched = not request.quiet and sys.stderr.isatty()
    suite = suites.load(request.prompts, offline=request.offline, progress=watched)
    rows = suites.some(suite.rows, limit)
    terminal = Terminal(request.color, request.quiet)
    session = opening.open_session(request, terminal)
    answers = 2 * (samples * len(rows) if samples else sum(len(row.turns) for row in rows))
    found: Comparison | chi_square.Sampled
    with ctrl_c() as cancelled, terminal.bar("verifying", answers) as advance:
        verifier = Verifier(session, request, cancelled, advance)
        found = verifier.sample(rows, samples) if samples else verifier.compare(rows)
    now = datetime.datetime.now(datetime.timezone.utc)
    machine, model = Machine.of(session), Model.of(session, request)
    if request.json:
        data = {
            "schema": SCHEMA,
            "created": now.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - began, 3),
            "command": command_line(sys.argv[1:]),
            "machine": dataclasses.asdict(machine),
            "model": dataclasses.asdict(model),
            "prompts": Path(request.prompts).name,
            "max_new_tokens": new_tokens,
            "template": session.has_template and not request.raw,
            "interrupted": found.interrupted,
            "passed": found.passed,
            "verdict": found.verdict,
        }
        print(json.dumps(data | found.as_object(verifier.settings_shown), allow_nan=False))
    else:
        computed = f" computed in {model.compute}" if model.weights != model.compute else ""
        title = f"{request.strategy} against plain decoding: {model.name}, {model.weights}"
        _show(found, f"{title}{computed} on {machine.device}", terminal.console(sys.stdout))
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.passed else LadeError.exit_code


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `text` is quoted and has no control characters."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which an answer differs from plain decoding's.

    Attributes:
        turn, position: of the conversation, and of the token in the answer; from 1 on.
        plain: plain decoding's token; None where its answer ended.
        other: the strategy's token; None where its answer ended.
        width: tokens fed in the step that yielded the strategy's token.
        gap: by how many logits plain decoding prefers its token.  None, as all that follows,
            where an answer ended or memory does not suffice to compute it.
        distance: how far logits must move for the strategy's token: the gap, if greedy.
        noise: how far forwards of other widths move the logits here.
        allowed: how far rounding may move them.
        explained: whether rounding explains the divergence.
    """

    row: str
    turn: int
    position: int
    plain: Token | None
    other: Token | None
    width: int
    gap: float | None = None
    distance: float | None = None
    noise: float | None = None
    allowed: float | None = None
    explained: bool = False

    @property
    def lines(self) -> tuple[str, str]:
        """Where it is, and what explains it."""
        plain = f"{self.plain.text} ({self.plain.id})" if self.plain else "the end"
        other = f"{self.other.text} ({self.other.id})" if self.other else "the end"
        turn = f", turn {self.turn}" if self.turn > 1 else ""
        if self.gap is None or self.distance is None:
            ended = self.plain is None or self.other is None
            why = "rounding explains no end" if ended else "no memory to compute the logits again"
        else:
            why = f"logit gap {self.gap:.3g}"
            if self.distance != self.gap:
                why += f", {self.distance:.3g} to the other choice"
            why += f"; rounding moves {self.allowed:.3g} at most (noise {self.noise:.3g})"
        return (
            f"{self.row}{turn}, token {self.position} of the answer: {other} where plain decoding"
            f" has {plain}",
            f"  in a step of {counted(self.width, 'token')}; {why}:"
            f" {'explained' if self.explained else 'NOT explained'}",
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """One answer compared with plain decoding's.

    Attributes:
        tokens: compared: all, or up to and with the first that differs.
        steps, reason: of the strategy's answer.
        divergence: None where all tokens are equal.
    """

    row: str
    category: str
    turn: int
    prompt_tokens: int
    tokens: int
    steps: int
    reason: Reason
    divergence: Divergence | None


@dataclass(slots=True)
class Comparison:
    """Answers compared token by token.

    Attributes:
        sampling: values that are not the default, as JSON has them.
        skipped: rows, or the rest of them, that could not be answered, and why.
        interrupted: whether Ctrl-C ended it early.
    """

    sampling: dict[str, int | float]
    answers: list[Compared] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: bool = False

    @property
    def divergences(self) -> list[Divergence]:
        """Of all answers, in order."""
        return [answer.divergence for answer in self.answers if answer.divergence is not None]

    @property
    def unexplained(self) -> int:
        """Divergences that rounding does not explain."""
        return sum(not divergence.explained for divergence in self.divergences)

    @property
    def tokens(self) -> int:
        """Tokens compared."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def passed(self) -> bool:
        """Whether tokens were compared, and rounding explains every divergence."""
        return self.tokens > 0 and not self.unexplained

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.tokens:
            return "nothing could be compared"
        if count := self.unexplained:
            are = "1 divergence is" if count == 1 else f"{count} divergences are"
            return f"NOT equal: {are} larger than rounding explains"
        compared = f"{self.tokens:,} tokens of {counted(len(self.answers), 'answer')}"
        if diverged := len(self.divergences):
            return (
                f"equal but for near-ties: {counted(diverged, 'divergence')} in {compared}, none"
                " larger than rounding explains"
            )
        return f"equal: all {compared}"

    @property
    def details(self) -> list[str]:
        """Lines about single divergences, those first that rounding does not explain."""
        found = sorted(self.divergences, key=lambda divergence: divergence.explained)
        lines = [line for divergence in found[:SHOWN] for line in divergence.lines]
        if len(found) > SHOWN:
            lines.append(f"… and {len(found) - SHOWN} more; --json has all")
        return lines

    def as_object(self, settings: dict[str, int | str]) -> dict[str, Any]:
        """Its part of the JSON object; keys are part of the interface."""
        found = self.divergences
        distances = [each.distance for each in found if each.distance is not None]
        relative = [each.distance / each.noise for each in found if each.distance and each.noise]
        return {
            "settings": settings,
            "sampling": self.sampling,
            "rows": len({answer.row for answer in self.answers}),
            "tokens": self.tokens,
            "answers": [dataclasses.asdict(answer) for answer in self.answers],
            "skipped": [dataclasses.asdict(each) for each in self.skipped],
            "divergences": len(found),
            "unexplained": self.unexplained,
            "per_thousand_tokens": 1000.0 * len(found) / self.tokens if self.tokens else None,
            "median_distance": statistics.median(distances) if distances else None,
            "largest_distance": max(distances, default=None),
            "largest_over_noise": max(relative, default=None),
            "noise": max((each.noise for each in found if each.noise is not None), default=None),
            # Nothing varies within a run, and what fails ends it: kept for readers of the schema.
            "cell": {},
            "failure": None,
        }


class _Interrupted(Exception):
    """Ctrl-C ended an answer early, so that its end cannot be compared."""


class Verifier:
    """Decodes prompts with the strategy of a request and with plain decoding.

    Args:
        session: the model.
        request: with a number of new tokens.
        cancelled: asked after every step; true ends the work.
        advance: called with the number of answers that were decoded.

    Attributes:
        settings_shown: strategy, types, attention and settings, as JSON has them.
    """

    def __init__(
        self,
        session: Session,
        request: VerifyRequest,
        cancelled: Callable[[], bool] = lambda: False,
        advance: Callable[[int], None] = lambda _answers: None,
    ) -> None:
        from .decoder.rescoring import Rescorer

        loaded = session.loaded
        greedy = SamplingConfig(repetition_penalty=loaded.repetition_penalty)
        choice = opening.choose_profile(request, session)
        self._session = session
        self._request = request
        self._cancelled = cancelled
        self._advance = advance
        self._settings = opening.settings_of(request, choice, greedy)
        self._plain = replace(self._settings, strategy=PLAIN)
        self._rescorer = Rescorer(session.decoder, quantised=loaded.spec.weights not in FULL)
        self._spell = speller(loaded.tokenizer)
        self.settings_shown: dict[str, int | str] = {
            "strategy": request.strategy,
            "weights": loaded.spec.weights,
            "compute": loaded.spec.compute,
            "attention": session.setup.attention.name,
        }
        if request.strategy == "lookahead":
            self.settings_shown |= lookahead_shown(self._settings.lookahead)

    def compare(self, rows: Sequence[suites.Row]) -> Comparison:
        """Compare the answers to rows of a suite.

        Raises:
            UsageError: no prompt leaves room for an answer.
            LadeError: no answer could be decoded, for want of memory.
        """
        found = Comparison(sampling_shown(self._settings.sampling))
        error: Exception | None = None
        try:
            for row in rows:
                try:
                    cut = self._compare_row(row, found)
                except (LadeError, PromptError) as caught:
                    error, cut = error or caught, str(caught)
                if cut is not None:
                    found.skipped.append(Skipped(row.id, cut))
        except _Interrupted:
            found.interrupted = True
        if found.skipped and not found.answers and not found.interrupted:
            first = found.skipped[0]
            kind = LadeError if type(error) is LadeError else UsageError
            raise kind(f"no prompt can be answered: {first.row}: {first.reason}")
        return found

    def _compare_row(self, row: suites.Row, found: Comparison) -> str | None:
        """Compare a conversation turn by turn, up to the first divergence.

        The strategy holds all of it first, so that its cache is reused from turn to turn as in a
        chat; plain decoding reads every prompt anew.

        Returns:
            Why it ended before its last turn, or None.
        """
        self._session.start_over()
        dialogue = self._dialogue(row)
        answers: list[tuple[list[int], Answer]] = []

        def reply(_turn: int, prompt: list[int]) -> str:
            answers.append((prompt, self._answer(prompt, self._settings)))
            return answers[-1][1].text

        dialogue.hold(reply)
        for turn, (prompt, answer) in enumerate(answers, start=1):
            # Plain decoding must not use keys that the strategy left in the cache.
            self._session.decoder.forget()
            plain = self._answer(prompt, self._plain)
            index = _first_difference(answer.ids, plain.ids)
            divergence = None
            if index is not None:
                divergence = self._divergence(row.id, turn, index, prompt, answer, plain)
            tokens = len(answer.ids) if index is None else index + 1
            found.answers.append(
                Compared(
                    row=row.id,
                    category=row.category,
                    turn=turn,
                    prompt_tokens=len(prompt),
                    tokens=tokens,
                    steps=len(answer.marks),
                    reason=answer.reason,
                    divergence=divergence,
                )
            )
            if divergence is not None:
                return None  # the prompts of later turns differ
        return dialogue.cut

    def _divergence(
        self, row: str, turn: int, index: int, prompt: list[int], answer: Answer, plain: Answer
    ) -> Divergence:
        plain_token, token = self._token(plain, index), self._token(answer, index)
        step = min(bisect_right(answer.lengths, index), len(answer.widths) - 1)
        width = answer.widths[step] if answer.widths else 0
        found = Divergence(row, turn, index + 1, plain_token, token, width)
        if plain_token is None or token is None:
            return found
        gap = self._rescorer.gap(
            [*prompt, *answer.ids[:index]],
            len(prompt),
            (plain_token.id, token.id),
            width,
            self._settings.sampling,
        )
        if gap is None:
            return found
        return replace(found, **dataclasses.asdict(gap), explained=gap.explained)

    def sample(self, rows: Sequence[suites.Row], samples: int) -> chi_square.Sampled:
        """Draw answers to rows of a suite and test their distribution.

        Args:
            rows: the first turn of each is the prompt.
            samples: answers that the strategy and plain decoding draw for every prompt.

        Raises:
            UsageError: no prompt leaves room for an answer.
            LadeError: out of memory.
        """
        sampling = self._settings.sampling
        found = chi_square.Sampled(samples, sampling=sampling_shown(sampling))
        trials = list[chi_square.Trial]()
        self._session.start_over()
        for row in rows:
            try:
                prompt = self._dialogue(row).first()
            except (PromptError, UsageError) as error:
                found.skipped.append(Skipped(row.id, str(error)))
                continue
            # Every answer has a seed of its own: equal ones would give both sides equal answers.
            first = sampling.seed + found.drawn + found.plain
            drawn = self._draw(prompt, self._settings, range(first, first + samples))
            self._session.decoder.forget()
            seeds = range(first + samples, first + 2 * samples)
            plain = self._draw(prompt, self._plain, seeds)
            found.drawn += len(drawn)
            found.plain += len(plain)
            found.rows.append(row.id)

            def after(prefix: chi_square.Ids, prompt: list[int] = prompt) -> list[float]:
                shares = self._rescorer.probabilities([*prompt, *prefix], len(prompt), sampling)
                if shares is None:
                    raise LadeError("out of memory while computing logits; take a smaller model")
                return shares

            trials += chi_square.against_model(row.id, drawn, after)
            trials += chi_square.against_plain(row.id, drawn, plain)
            if self._cancelled():
                found.interrupted = True
                break
        if not found.rows:
            skipped = found.skipped[0]
            raise UsageError(f"no prompt can be answered: {skipped.row}: {skipped.reason}")
        found.trials = chi_square.corrected(trials)
        return found

    def _draw(self, prompt: list[int], settings: Settings, seeds: range) -> list[chi_square.Ids]:
        """Answers, one for each seed; fewer after Ctrl-C."""
        found: list[chi_square.Ids] = []
        for seed in seeds:
            if self._cancelled():
                break
            sampling = replace(settings.sampling, seed=seed % 2**64)
            try:
                drawn = self._answer(prompt, replace(settings, sampling=sampling))
            except _Interrupted:
                break
            found.append(tuple(drawn.ids))
        return found

    def _answer(self, prompt: list[int], settings: Settings) -> Answer:
        """Decode a prompt.

        Raises:
            LadeError: out of memory.
            _Interrupted: Ctrl-C.
        """
        method = Method(settings.strategy, settings.strategy)
        answer = OwnRunner(method, self._session, settings).answer(prompt, self._cancelled)
        if answer.reason == "interrupted":
            raise _Interrupted
        self._advance(1)
        return answer

    def _dialogue(self, row: suites.Row) -> Dialogue:
        template = self._session.has_template and not self._request.raw
        return Dialogue(self._session, row, template, self._request.system)

    def _token(self, answer: Answer, index: int) -> Token | None:
        if index >= len(answer.ids):
            return None
        return Token(answer.ids[index], printable(repr(self._spell(answer.ids[index]))))


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, or after the end of the shorter; None if equal."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    found = next((index for index, (a, b) in pairs if a != b), shorter)
    return found if found < max(len(one), len(other)) else None


def _show(result: Comparison | chi_square.Sampled, title: str, console: Console) -> None:
    """Print single findings and, last, the verdict."""
    lines = [title, *result.details]
    lines += [f"skipped {each.row}: {each.reason}" for each in result.skipped[:SHOWN]]
    if len(result.skipped) > SHOWN:
        lines.append(f"skipped {len(result.skipped) - SHOWN} more; --json has all")
    if result.interrupted:
        lines.append("stopped early: this is what was compared until then")
    for line in lines:
        screen.line(console, printable(line))
    screen.line(console, result.verdict, "bold")
