"""What can be measured: our own strategies, and transformers' `generate`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from ..errors import LadeError, UsageError, told
from ..events import Ended, Reason, TextStep
from .result import FOREIGN, PLAIN, STOCK_COMPILED, STOCK_LOOKUP, Contender

if TYPE_CHECKING:
    from ..session import Session, Settings
    from ..stock import CompiledSteps

STRATEGIES = (PLAIN, "jacobi", "prompt-lookup", "paper", "lookahead", *FOREIGN)
"""All that there are, in the order of reports."""
DEFAULT = tuple(name for name in STRATEGIES if name != STOCK_COMPILED)
"""Those that take part where nobody names any: compiling may take longer than measuring."""
TRIES = 4
"""What was measured while something was compiled or captured is measured again, up to so many times
in all."""


@dataclass(slots=True)
class Answer:
    """One answer and when it came.

    Attributes:
        ids: tokens.
        text: their text.
        marks: seconds behind the start at which steps ended.
        lengths: tokens of the answer then.
        fed: tokens fed by the steps behind the first; None where nobody knows.
        accepted: draft tokens by source.
        reason: why it ended.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    marks: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    fed: int | None = 0
    accepted: Counter[str] = field(default_factory=Counter)
    reason: Reason = "interrupted"

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Of every step behind the first, to the microsecond."""
        return tuple(round(after - before, 6) for before, after in pairwise(self.marks))


class Player(Protocol):
    """A contender at work."""

    @property
    def contender(self) -> Contender:
        """What it is called."""

    def begin(self, *, keep: bool) -> None:
        """A conversation starts: nothing of those before it may help.

        Args:
            keep: whether the keys of the text may stay.
        """

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt."""

    @property
    def captured(self) -> int:
        """How many steps were captured for it so far, which takes many times as long as a step."""


@dataclass(frozen=True, slots=True)
class _Seated:
    """A contender with what it needs.

    Attributes:
        contender: what it is called.
        session: the model at work.
        settings: how to decode.
    """

    contender: Contender
    session: Session
    settings: Settings


class Own(_Seated):
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
        answer, texts, fed = Answer(), list[str](), 0
        began = time.perf_counter()
        for event in self.session.stream(prompt, self.settings, cancelled):
            if isinstance(event, TextStep):
                answer.marks.append(time.perf_counter() - began)
                answer.ids += event.token_ids
                answer.lengths.append(len(answer.ids))
                fed += event.width if len(answer.marks) > 1 else 0
                for piece in event.pieces:
                    texts.append(piece.text)
                    if piece.source:
                        answer.accepted[piece.source] += 1
            elif isinstance(event, Ended):
                texts.append(event.rest)
                answer.reason = event.reason
        if answer.reason == "memory":
            raise LadeError(f"out of memory after {len(answer.ids)} tokens of the answer")
        answer.text, answer.fed = "".join(texts), fed
        return answer

    @property
    def captured(self) -> int:
        """How many steps were captured so far."""
        return self.session.decoder.runner.captured


class Stock(_Seated):
    """transformers' `generate`, which reads every prompt from its start."""

    __slots__ = ()
    captured = 0

    def begin(self, *, keep: bool) -> None:
        """Free what our own decoder holds: it is no use here.

        Where steps are captured it stays: else others would capture all of them again.
        """
        decoder = self.session.decoder
        decoder.forget(keep_memory=decoder.runner.captures)

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt.

        Raises:
            Exception: whatever transformers raises.
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
        lookup = self.contender.strategy == STOCK_LOOKUP
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
            lookup=lookup,
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
class StockCompiled(Stock):
    """transformers' `generate` with a static cache and compiled steps.

    Attributes:
        steps: its cache, and how its steps are compiled.
    """

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

        try:
            with hushed():  # what matters of it is an error
                self.steps.prepare(self.session, prompt, self.settings, cancelled)
        except Exception as error:  # whatever the compiler says
            if cancelled():  # Ctrl-C reaches the compiler, too
                return
            name = self.contender.name
            raise LadeError(
                f"{name} cannot be measured: {told(error)}; leave it out of --strategies"
            ) from error

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt, as often as it takes until nothing is compiled meanwhile.

        Something may be for the first text that is longer than a sliding window, or than what
        the cache has room for.

        Raises:
            LadeError: that takes too often.
            Exception: whatever transformers raises.
        """
        from .. import stock

        for _ in range(TRIES):
            before, began = stock.compilations(), time.perf_counter()
            answer = self._answer(prompt, cancelled, self.steps)
            if answer.reason == "interrupted" or stock.compilations() == before:
                return answer
            self.steps.seconds += time.perf_counter() - began
        raise LadeError("torch compiles something anew in every answer of transformers")


def named(text: str | None) -> tuple[str, ...]:
    """The strategies of a comma list; those of `DEFAULT` where nothing was said.

    Raises:
        UsageError: it names one that there is not, or one twice, or none.
    """
    if text is None:
        return DEFAULT
    names = tuple(name for word in text.split(",") if (name := word.strip()))
    for name in names:
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {name!r} in --strategies; use some of {known}")
    if len(set(names)) < len(names):
        raise UsageError(f"--strategies names one twice: {text}")
    if not names:
        raise UsageError("--strategies is empty; leave it out to measure the usual ones")
    return names


def player(
    contender: Contender, session: Session, settings: Settings, room: Callable[[], int]
) -> Player:
    """A contender at work.

    Args:
        contender: what it is.
        session: the model.
        settings: how to decode, as for our own strategies.
        room: says how many tokens the longest prompt and its answer have; asked where a cache
            has to have room for them from the start.
    """
    if contender.strategy == STOCK_COMPILED:
        from ..stock import CompiledSteps

        steps = CompiledSteps(session.stock_model, room())
        return StockCompiled(contender, session, settings, steps)
    if contender.foreign:
        return Stock(contender, session, settings)
    strategy = "lookahead" if contender.strategy == "paper" else contender.strategy
    return Own(contender, session, replace(settings, strategy=strategy))
