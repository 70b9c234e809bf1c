"""Methods at work: our own strategies, and transformers' `generate`."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from ..errors import LadeError, told
from ..events import Ended, Reason, TextStep
from .result import STOCK_COMPILED, STOCK_LOOKUP, Method

if TYPE_CHECKING:
    from ..session import Session, Settings
    from ..stock import CompiledSteps

TRIES = 4
"""An answer during which something was compiled or captured is repeated, up to this many times."""


@dataclass(slots=True)
class Answer:
    """One answer and when it came.

    Attributes:
        ids: tokens.
        text: their text.
        marks: seconds from the start to the end of each step.
        lengths: tokens of the answer at each mark.
        fed: tokens fed by the steps after the first; None if unknown.
        accepted: draft tokens by source.
        reason: why it ended.
        parts: seconds of the steps after the first, by part of a step; empty if unknown.
        loads: width and context of each of these steps.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    marks: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    fed: int | None = 0
    accepted: Counter[str] = field(default_factory=Counter)
    reason: Reason = "interrupted"
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    loads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Of every step after the first, to the microsecond."""
        return tuple(round(end - start, 6) for start, end in pairwise(self.marks))


class Runner(Protocol):
    """A method at work."""

    @property
    def method(self) -> Method:
        """What it runs."""

    def begin(self, *, keep: bool) -> None:
        """Forget earlier conversations, so that the next one starts cold.

        Args:
            keep: whether the keys of the text may stay.
        """

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt; `cancelled` is asked after every step."""

    @property
    def captured(self) -> int:
        """CUDA graphs captured for it so far, each of which takes many times as long as a step."""


@dataclass(frozen=True, slots=True)
class _Runner:
    method: Method
    session: Session
    settings: Settings


class OwnRunner(_Runner):
    """One of our own strategies."""

    __slots__ = ()

    def begin(self, *, keep: bool) -> None:
        """Forget text and drafts."""
        self.session.start_over(keep_text=keep)

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt.

        Raises:
            LadeError: memory did not suffice.
        """
        answer, texts = Answer(fed=0), list[str]()
        began = time.perf_counter()
        for event in self.session.stream(prompt, self.settings, cancelled):
            if isinstance(event, TextStep):
                answer.marks.append(time.perf_counter() - began)
                if len(answer.marks) > 1:
                    self._account(answer, event, len(prompt))
                answer.ids += event.token_ids
                answer.lengths.append(len(answer.ids))
                texts += (piece.text for piece in event.pieces)
                answer.accepted.update(piece.source for piece in event.pieces if piece.source)
            elif isinstance(event, Ended):
                texts.append(event.rest)
                answer.reason = event.reason
        if answer.reason == "memory":
            raise LadeError(f"out of memory after {len(answer.ids)} tokens of the answer")
        answer.text = "".join(texts)
        answer.fed = sum(width for width, _ in answer.loads)
        return answer

    def _account(self, answer: Answer, step: TextStep, prompt: int) -> None:
        """Add up where the time of a step goes; what the decoder did not use went to the text."""
        answer.loads.append((step.width, prompt + len(answer.ids)))
        parts = dataclasses.asdict(step.times) if step.times else {}
        for part, seconds in parts.items():
            answer.parts[part] += seconds
        wall = answer.marks[-1] - answer.marks[-2]
        answer.parts["text"] += max(wall - sum(parts.values()), 0.0)

    @property
    def captured(self) -> int:
        """CUDA graphs captured so far."""
        return self.session.decoder.runner.captured


class StockRunner(_Runner):
    """transformers' `generate`, which reads every prompt from its start."""

    __slots__ = ()
    captured = 0

    def begin(self, *, keep: bool) -> None:
        """Free the memory of our own decoder; captured steps stay, for they are slow to make."""
        decoder = self.session.decoder
        decoder.forget(keep_memory=decoder.runner.captures)

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt.

        Raises:
            Exception: any that transformers raises.
        """
        return self._answer(prompt, cancelled, None)

    def _answer(
        self,
        prompt: Sequence[int],
        cancelled: Callable[[], bool],
        compiled: CompiledSteps | None,
    ) -> Answer:
        from .. import stock

        self.session.decoder.check_prompt(prompt)
        stopped = False

        def asked() -> bool:
            nonlocal stopped
            stopped = cancelled()
            return stopped

        began = time.perf_counter()
        ids, marks = stock.generate(
            self.session,
            prompt,
            self.settings,
            lookup=self.method.strategy == STOCK_LOOKUP,
            compiled=compiled,
            cancelled=asked,
        )
        ended: Reason = "stop" if marks.stopped else "eos"
        if len(ids) == self.settings.max_new_tokens and not marks.stopped:
            ended = "length"
        return Answer(
            ids=ids,
            text=self.session.text_of(ids, prompt, self.settings),
            marks=[mark - began for mark in marks.seconds],
            lengths=[length - len(prompt) for length in marks.lengths],
            fed=None,
            reason="interrupted" if stopped else ended,
        )


@dataclass(frozen=True, slots=True)
class CompiledStockRunner(StockRunner):
    """transformers' `generate` with a static cache and compiled steps."""

    steps: CompiledSteps

    def prepare(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Compile, before anything is measured.

        Args:
            prompt: token ids of some text.
            cancelled: asked after every step; true ends it.

        Raises:
            LadeError: it cannot be compiled; the message says why.
        """
        from ..models import hushed

        self.begin(keep=False)
        try:
            with hushed():  # what matters of its output is an error
                self.steps.prepare(self.session, prompt, self.settings, cancelled)
        except Exception as error:  # the compiler raises anything
            if cancelled():  # Ctrl-C reaches the compiler, too
                return
            name = self.method.name
            raise LadeError(
                f"{name} cannot be measured: {told(error)}; leave it out of --strategies"
            ) from error

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt, again where something was compiled meanwhile.

        That happens for the first text that is longer than a sliding window or than the cache.

        Raises:
            LadeError: it happens too often.
            Exception: any that transformers raises.
        """
        from .. import stock

        for _ in range(TRIES):
            before, began = stock.compilations(), time.perf_counter()
            answer = self._answer(prompt, cancelled, self.steps)
            if answer.reason == "interrupted" or stock.compilations() == before:
                return answer
            self.steps.seconds += time.perf_counter() - began
        raise LadeError("torch compiles something anew in every answer of transformers")


def runner(method: Method, session: Session, settings: Settings, room: Callable[[], int]) -> Runner:
    """A method at work.

    Args:
        method: what it is.
        session: the model.
        settings: how to decode.
        room: returns the tokens of the longest prompt and its answer; called where a static
            cache needs them.
    """
    if method.strategy == STOCK_COMPILED:
        from ..stock import CompiledSteps

        steps = CompiledSteps(session.stock_model, room())
        return CompiledStockRunner(method, session, settings, steps)
    if method.foreign:
        return StockRunner(method, session, settings)
    strategy = "lookahead" if method.strategy == "paper" else method.strategy
    return OwnRunner(method, session, replace(settings, strategy=strategy))
