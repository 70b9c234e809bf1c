"""`lade verify`: compare a strategy's answers with those of plain autoregressive decoding.

Every prompt is decoded twice in one process; the first divergence is reported with its logit gap.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import suites
from ..errors import INTERRUPTED, LadeError, counted, printable
from ..events import Reason
from ..metrics import first_difference
from ..models.memory import FULL
from ..session import opening
from ..session.dialogue import Dialogue
from ..session.text import TextDelta
from ..session.tokens import speller
from ..view import screen
from ..view.terminal import Terminal, ctrl_c
from .result import (
    PLAIN,
    Method,
    SkippedRow,
    command_line,
    describe_machine,
    describe_model,
    lookahead_shown,
    now,
    sampling_shown,
)
from .runners import Answer, OwnRunner, RunInterrupted
from .tasks import make_dialogues

if TYPE_CHECKING:
    from ..options.commands import VerifyRequest
    from ..session.session import Session, Settings

SCHEMA = "lade-verify/1"


def run(request: VerifyRequest) -> int:
    """Compare with plain decoding and print the result.

    Returns:
        The exit code: 0 if all answers are equal, or rounding explains every divergence; 1 if a
        divergence is unexplained, or nothing could be compared; 130 after Ctrl-C.
    """
    began = time.perf_counter()
    rows = suites.some(suites.load(request.prompts, offline=request.offline), request.limit)
    terminal = Terminal(request.color, request.quiet)
    session = opening.open_session(request, terminal, request, request)
    dialogues, skipped = make_dialogues(session, request, rows, terminal)
    answers = 2 * sum(row.answers for row in rows)
    with ctrl_c() as cancelled, terminal.bar("verifying", answers) as advance:
        result = Verifier(session, request, cancelled, advance).compare(dialogues)
    result.skipped[:0] = skipped
    if request.json:
        data = _as_object(result, session, request) | {
            "seconds": round(time.perf_counter() - began, 3)
        }
        print(json.dumps(data, allow_nan=False))
    else:
        console, model = terminal.console(sys.stdout), describe_model(session)
        where = f"{model['name']}, {model['weights']} on {session.loaded.device.label}"
        screen.line(console, f"{request.strategy} against plain decoding: {where}")
        for divergence in result.divergences:
            screen.line(console, str(divergence))
        for row in result.skipped:
            screen.line(console, f"skipped {row.row}: {row.reason}")
        if result.interrupted:
            screen.line(console, "stopped early: these texts were compared")
        screen.line(console, result.verdict, "bold")
    if result.interrupted:
        return INTERRUPTED
    return 0 if result.passed else LadeError.exit_code


def _as_object(result: Comparison, session: Session, request: VerifyRequest) -> dict[str, Any]:
    """Return the JSON object without the time; its keys are part of the interface."""
    return {
        "schema": SCHEMA,
        "created": now(),
        "command": command_line(sys.argv[1:]),
        "machine": describe_machine(session),
        "model": describe_model(session),
        "prompts": Path(request.prompts).name,
        "max_new_tokens": request.max_new_tokens,
        "template": request.template(session.has_template) is not None,
        "passed": result.passed,
        "verdict": result.verdict,
        **asdict(result),
        "rows": len({answer.row for answer in result.answers}),
        "tokens": result.tokens,
        "divergences": len(result.divergences),
        "unexplained": result.unexplained,
    }


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """A token id with its text, quoted and without control characters."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which an answer differs from plain decoding's."""

    row: str
    turn: int  # like `position`, starting at 1
    position: int
    plain: SpelledToken | None  # plain decoding's; None if its answer ended
    other: SpelledToken | None  # the strategy's; None if its answer ended
    width: int  # of the step that yielded the strategy's token
    gap: float | None = None  # as in `LogitGap`; None if an answer ended or memory ran out
    distance: float | None = None
    noise: float | None = None
    allowed: float | None = None
    explained: bool = False  # by rounding

    def __str__(self) -> str:
        """Return the place and the explanation, in two lines."""
        why = "no logit gap is known (an answer ended, or memory ran out)"
        if self.gap is not None:
            why = (
                f"logit gap {self.gap:.3g}, to the other choice {self.distance:.3g}; rounding"
                f" moves {self.allowed:.3g} at most (noise {self.noise:.3g})"
            )
        plain, other = (
            f"{token.text} ({token.id})" if token else "the end"
            for token in (self.plain, self.other)
        )
        return (
            f"{self.row}, turn {self.turn}, token {self.position} of the answer:"
            f" {other} where plain decoding has {plain}\n"
            f"  in a step of {counted(self.width, 'token')}; {why}:"
            f" {'explained' if self.explained else 'NOT explained'}"
        )


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """The comparison of one answer with plain decoding's."""

    row: str
    category: str
    turn: int
    prompt_tokens: int
    tokens: int  # compared tokens: all, or up to and including the first different one
    steps: int
    reason: Reason
    divergence: Divergence | None


@dataclass(slots=True)
class Comparison:
    """The comparison of all answers, token by token."""

    settings: dict[str, int | str]  # of the strategy
    sampling: dict[str, int | float]  # values that are not the default
    answers: list[AnswerComparison] = field(default_factory=list)
    skipped: list[SkippedRow] = field(default_factory=list)
    interrupted: bool = False  # by Ctrl-C

    @property
    def divergences(self) -> list[Divergence]:
        """The divergences of all answers, the unexplained ones first."""
        divergences = [answer.divergence for answer in self.answers if answer.divergence]
        return sorted(divergences, key=lambda divergence: divergence.explained)

    @property
    def unexplained(self) -> int:
        """The number of divergences that rounding does not explain."""
        return sum(not divergence.explained for divergence in self.divergences)

    @property
    def tokens(self) -> int:
        """The number of compared tokens."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def passed(self) -> bool:
        """True if tokens were compared, and rounding explains every divergence."""
        return self.tokens > 0 and not self.unexplained

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.tokens:
            return "nothing could be compared"
        if self.unexplained:
            count = counted(self.unexplained, "divergence")
            return f"NOT equal: {count} larger than rounding explains"
        compared = f"{self.tokens:,} tokens of {counted(len(self.answers), 'answer')}"
        if self.divergences:
            count = counted(len(self.divergences), "divergence")
            return f"equal but for near-ties: {count} in {compared}, which rounding explains"
        return f"equal: all {compared}"


class Verifier:
    """Decodes prompts with the strategy of a request and with plain decoding.

    `cancelled` is called after every step, and True ends the work; `advance` is called with the
    number of further decoded answers.
    """

    def __init__(
        self,
        session: Session,
        request: VerifyRequest,
        cancelled: Callable[[], bool],
        advance: Callable[[int], None],
    ) -> None:
        from ..decoder.backends.rescoring import Rescorer

        loaded = session.loaded
        self._session, self._cancelled, self._advance = session, cancelled, advance
        template = request.template(session.has_template)
        self._settings = opening.settings_of(
            request, session.choice, loaded.defaults.without_samples, template
        )
        self._rescorer = Rescorer(session.decoder, quantised=loaded.spec.weights not in FULL)
        self._spell = speller(loaded.tokenizer)
        self._shown: dict[str, int | str] = {
            "strategy": request.strategy,
            "weights": loaded.spec.weights,
            "compute": loaded.spec.compute,
            "attention": session.setup.attention.name,
        }
        if request.strategy == "lookahead":
            self._shown |= lookahead_shown(self._settings.lookahead)

    def compare(self, dialogues: Sequence[Dialogue]) -> Comparison:
        """Compare answers token by token; if memory runs out, the rest of a dialogue is skipped."""
        result = Comparison(self._shown, sampling_shown(self._settings.sampling))
        for dialogue in dialogues:
            try:
                result.answers.extend(self._compare_turns(dialogue))
                reason = dialogue.cut
            except LadeError as error:
                reason = str(error)
            except (RunInterrupted, KeyboardInterrupt):
                result.interrupted = True
                break
            if reason is not None:
                result.skipped.append(SkippedRow(dialogue.id, reason))
        return result

    def _compare_turns(self, dialogue: Dialogue) -> Iterator[AnswerComparison]:
        """Compare a conversation turn by turn, up to the first divergence.

        The strategy answers all turns first, so that its cache is reused from turn to turn as in a
        chat; plain decoding reads every prompt from the start.
        """
        self._session.start_over()
        answers: list[tuple[list[int], Answer]] = []

        def reply(_turn: int, prompt: list[int]) -> TextDelta:
            answers.append((prompt, self._answer(prompt, self._settings)))
            return answers[-1][1].delta

        dialogue.hold(reply)
        for turn, (prompt, answer) in enumerate(answers, start=1):
            # Plain decoding must not use keys that the strategy left in the cache.
            self._session.decoder.forget()
            plain = self._answer(prompt, replace(self._settings, strategy=PLAIN))
            index, divergence = first_difference(answer.ids, plain.ids), None
            if index is not None:
                divergence = self._describe_divergence(
                    dialogue.id, turn, index, prompt, answer, plain
                )
                dialogue.cut = None  # the prompts of later turns differ
            yield AnswerComparison(
                row=dialogue.id,
                category=dialogue.category,
                turn=turn,
                prompt_tokens=len(prompt),
                tokens=len(answer.ids) if index is None else index + 1,
                steps=len(answer.marks),
                reason=answer.reason,
                divergence=divergence,
            )
            if divergence is not None:
                return

    def _describe_divergence(
        self, row: str, turn: int, index: int, prompt: list[int], answer: Answer, plain: Answer
    ) -> Divergence:
        """Describe the tokens at the first index at which two answers to a prompt differ."""
        ours, theirs = (
            SpelledToken(ids[index], printable(repr(self._spell(ids[index]))))
            if index < len(ids)
            else None
            for ids in (plain.ids, answer.ids)
        )
        step = min(bisect_right(answer.lengths, index), len(answer.widths) - 1)
        width = answer.widths[step] if answer.widths else 0
        divergence = Divergence(row, turn, index + 1, ours, theirs, width)
        if ours is None or theirs is None:
            return divergence
        text, tokens = [*prompt, *answer.ids[:index]], (ours.id, theirs.id)
        chosen = self._session.choosing(prompt, self._settings)
        gap = self._rescorer.gap(text, len(prompt), tokens, width, *chosen)
        return replace(divergence, **asdict(gap), explained=gap.explained) if gap else divergence

    def _answer(self, prompt: list[int], settings: Settings) -> Answer:
        """Decode a prompt; Ctrl-C raises `RunInterrupted`."""
        if self._cancelled():
            raise RunInterrupted
        method = Method(settings.strategy, settings.strategy)
        runner = OwnRunner(method, self._session, settings)
        answer = runner.answer(prompt, self._cancelled).whole()
        self._advance(1)
        return answer
