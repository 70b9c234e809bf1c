"""Conversations of a suite, answered twice: by a strategy, and by plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..bench.dialogue import Dialogue
from ..bench.result import Skipped
from ..decoder.errors import PromptError
from ..trace import speller
from ..visualize import printable
from .answer import Answer, Watch, decode
from .outcome import Compared, Divergence, Spelled

if TYPE_CHECKING:
    from ..decoder.rescoring import Rescorer
    from ..session import Session, Settings
    from ..suites import Row


class Interrupted(Exception):
    """Ctrl-C: the answer at hand says nothing any more."""


class Comparison:
    """Compares a strategy's answers with plain decoding's.

    Args:
        session: the model at work.
        settings: how to decode; plain decoding has the same but for the strategy.
        rescorer: scores texts again.
        template: whether the model's chat template frames what is said.
        system: the system message, if there is one.
        watch: who waits for it.
    """

    def __init__(
        self,
        session: Session,
        settings: Settings,
        rescorer: Rescorer,
        *,
        template: bool,
        system: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._session = session
        self._settings = settings
        self._rescorer = rescorer
        self._template = template
        self._system = system
        self._watch = watch or Watch()
        self._spell = speller(session.loaded.tokenizer)

    def row(self, row: Row) -> Iterator[Compared | Skipped]:
        """Compare a conversation, turn by turn, up to the first divergence.

        The strategy holds all of it first, so that its cache goes on from turn to turn as it
        does in a chat.  Plain decoding reads every prompt anew.

        Raises:
            Interrupted: the turn at hand was broken off.
        """
        self._session.start_over()
        answers, skipped = self._held(row)
        for turn, answer in enumerate(answers, start=1):
            compared = self._compared(row, turn, answer)
            yield compared
            if compared.divergence is not None:
                return
        if skipped is not None:
            yield skipped

    def _held(self, row: Row) -> tuple[list[Answer], Skipped | None]:
        """The strategy's answers, and why there are fewer than turns."""
        dialogue = Dialogue(self._session, row, self._template, self._system)
        answers: list[Answer] = []

        def answer(turn: int, prompt: list[int]) -> str:
            answers.append(self._decoded(prompt, self._settings))
            if answers[-1].reason == "memory":
                raise PromptError(f"{_which(row, turn)}memory did not suffice for an answer")
            return answers[-1].text

        try:
            dialogue.hold(answer)
        except PromptError as error:
            return answers, Skipped(row.id, str(error))
        return answers, None if dialogue.cut is None else Skipped(row.id, dialogue.cut)

    def _decoded(self, prompt: Sequence[int], settings: Settings) -> Answer:
        answer = decode(self._session, prompt, settings, self._watch)
        if answer.reason == "interrupted":
            raise Interrupted
        return answer

    def _compared(self, row: Row, turn: int, answer: Answer) -> Compared:
        # Not what the strategy left in the cache: plain decoding is to be plain from the start.
        self._session.decoder.forget()
        plain = self._decoded(answer.prompt, replace(self._settings, strategy="autoregressive"))
        index = _first_difference(answer, plain)
        return Compared(
            row=row.id,
            category=row.category,
            turn=turn,
            prompt_tokens=len(answer.prompt),
            tokens=min(len(answer.ids), len(plain.ids)) if index is None else index + 1,
            steps=len(answer.steps),
            reason="memory" if plain.reason == "memory" else answer.reason,
            divergence=None if index is None else self._divergence(row, turn, index, answer, plain),
        )

    def _divergence(
        self, row: Row, turn: int, index: int, answer: Answer, plain: Answer
    ) -> Divergence:
        steps = answer.steps_to(index)
        ended = index >= min(len(answer.ids), len(plain.ids))
        gap = None
        if not ended:
            gap = self._rescorer.gap(
                [*answer.prompt, *answer.ids[:index]],
                len(answer.prompt),
                (plain.ids[index], answer.ids[index]),
                steps[-1][0],
                self._settings.sampling,
            )
        found = Divergence(
            row=row.id,
            turn=turn,
            position=index + 1,
            plain=self._spelled(plain, index),
            other=self._spelled(answer, index),
            width=steps[-1][0] if steps else 0,
        )
        if gap is None:
            return found
        return replace(
            found,
            gap=gap.gap,
            distance=gap.distance,
            noise=gap.noise,
            allowed=gap.allowed,
            explained=gap.explained,
        )

    def _spelled(self, answer: Answer, index: int) -> Spelled | None:
        if index >= len(answer.ids):
            return None
        token = answer.ids[index]
        return Spelled(token, printable(repr(self._spell(token))))


def _which(row: Row, turn: int) -> str:
    return f"turn {turn}: " if len(row.turns) > 1 else ""


def _first_difference(answer: Answer, plain: Answer) -> int | None:
    """The first token that differs, counted from 0; None where there is none."""
    pairs = zip(answer.ids, plain.ids, strict=False)
    found = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    cut_short = "memory" in (answer.reason, plain.reason)
    if found is None and not cut_short and len(answer.ids) != len(plain.ids):
        return min(len(answer.ids), len(plain.ids))
    return found
