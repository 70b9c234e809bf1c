"""Methods at work: our own strategies, and transformers' `generate`."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from ..errors import LadeError, told
from ..events import Ended, Reason, TextStep
from .result import STOCK_COMPILED, STOCK_LOOKUP, Method

if TYPE_CHECKING:
    from ..session import Session, Settings
    from ..stock import CompiledSteps


@dataclass(slots=True)
class Answer:
    """One answer and when it came.

    Attributes:
        ids: tokens.
        text: their text.
        marks: seconds from the start to the end of each step.
        lengths: tokens of the answer at each mark.
        widths: tokens fed by each step; empty if unknown.
        accepted: draft tokens by source.
        reason: why it ended.
        parts: seconds of the steps after the first, by part of a step; empty if unknown.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    marks: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)
    reason: Reason = "interrupted"
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Of every step after the first, to the microsecond."""
        return tuple(round(end - start, 6) for start, end in pairwise(self.marks))


class OwnRunner:
    """One of our own strategies.

    Args:
        method: what it runs.
        session: the model.
        settings: how to decode.
    """

    def __init__(self, method: Method, session: Session, settings: Settings) -> None:
        self.method = method
        self._session = session
        self._settings = settings

    @property
    def built(self) -> int:
        """CUDA graphs captured so far, each of which takes many times as long as a step."""
        return self._session.decoder.runner.captured

    def begin(self) -> None:
        """Forget text and drafts, so that the next conversation starts cold."""
        self._session.start_over()

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt.

        Args:
            prompt: token ids.
            cancelled: asked after every step; true ends the answer.

        Raises:
            LadeError: out of memory.
        """
        answer, texts = Answer(), list[str]()
        began = time.perf_counter()
        for event in self._session.stream(prompt, self._settings, cancelled):
            if isinstance(event, TextStep):
                answer.marks.append(time.perf_counter() - began)
                answer.ids += event.token_ids
                answer.lengths.append(len(answer.ids))
                answer.widths.append(event.width)
                texts += (piece.text for piece in event.pieces)
                answer.accepted.update(piece.source for piece in event.pieces if piece.source)
                if len(answer.marks) > 1:
                    _account(answer, event)
            elif isinstance(event, Ended):
                texts.append(event.rest)
                answer.reason = event.reason
        if answer.reason == "memory":
            raise LadeError(f"out of memory after {len(answer.ids)} tokens of the answer")
        answer.text = "".join(texts)
        return answer


def _account(answer: Answer, step: TextStep) -> None:
    """Add up where the time of a step goes; what the decoder did not use went to the text."""
    parts = dataclasses.asdict(step.times) if step.times else {}
    for part, seconds in parts.items():
        answer.parts[part] += seconds
    wall = answer.marks[-1] - answer.marks[-2]
    answer.parts["text"] += max(wall - sum(parts.values()), 0.0)


class StockRunner:
    """transformers' `generate`, which reads every prompt from its start.

    Args:
        method: what it runs.
        session: the model.
        settings: how to decode.
        steps: a static cache and compiled steps, for the method that has them.
    """

    def __init__(
        self,
        method: Method,
        session: Session,
        settings: Settings,
        steps: CompiledSteps | None = None,
    ) -> None:
        self.method = method
        self.steps = steps
        self._session = session
        self._settings = settings

    @property
    def built(self) -> int:
        """Steps compiled so far: a text that is longer than any before it may need another."""
        from .. import stock

        return stock.compilations() if self.steps else 0

    def begin(self) -> None:
        """Free the memory of our own decoder; captured steps stay, for they are slow to make."""
        decoder = self._session.decoder
        decoder.forget(keep_memory=decoder.runner.captures)

    def compile(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Compile steps, before anything is measured.

        Args:
            prompt: token ids of some text.
            cancelled: asked after every step; true ends it.

        Raises:
            LadeError: they cannot be compiled; the message says why.
        """
        from ..models import hushed

        if self.steps is None:
            return
        self.begin()
        try:
            with hushed():  # what matters of its output is an error
                self.steps.prepare(self._session, prompt, self._settings, cancelled)
        except Exception as error:  # the compiler raises anything
            if cancelled():  # Ctrl-C reaches the compiler, too
                return
            name = self.method.name
            raise LadeError(
                f"{name} cannot be measured: {told(error)}; leave it out of --strategies"
            ) from error

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt; arguments as for `OwnRunner.answer`.

        Raises:
            Exception: any that transformers raises.
        """
        from .. import stock

        self._session.decoder.check_prompt(prompt)
        stopped = False

        def asked() -> bool:
            nonlocal stopped
            stopped = cancelled()
            return stopped

        began = time.perf_counter()
        ids, marks = stock.generate(
            self._session,
            prompt,
            self._settings,
            lookup=self.method.strategy == STOCK_LOOKUP,
            compiled=self.steps,
            cancelled=asked,
        )
        reason: Reason = "stop" if marks.stopped else "eos"
        if len(ids) == self._settings.max_new_tokens and not marks.stopped:
            reason = "length"
        return Answer(
            ids=ids,
            text=self._session.text_of(ids, prompt, self._settings),
            marks=[mark - began for mark in marks.seconds],
            lengths=[length - len(prompt) for length in marks.lengths],
            reason="interrupted" if stopped else reason,
        )


Runner: TypeAlias = OwnRunner | StockRunner


def runner(method: Method, session: Session, settings: Settings, room: int) -> Runner:
    """A method at work.

    Args:
        method: what it is.
        session: the model.
        settings: how to decode.
        room: tokens of the longest prompt and its answer, for a static cache.
    """
    if method.strategy == STOCK_COMPILED:
        from ..stock import CompiledSteps

        steps = CompiledSteps(session.stock_model, room)
        return StockRunner(method, session, settings, steps)
    if method.foreign:
        return StockRunner(method, session, settings)
    strategy = "lookahead" if method.strategy == "paper" else method.strategy
    return OwnRunner(method, session, replace(settings, strategy=strategy))
