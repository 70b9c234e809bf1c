"""The interface of measured methods, and our own strategies, timed step by step."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from ..errors import LadeError
from ..events import Reason, TextStep
from ..metrics import Tally
from ..session.text import TextDelta
from .result import Method

if TYPE_CHECKING:
    from ..session.session import Session, Settings


class RunInterrupted(Exception):
    """Ctrl-C interrupted an answer."""


@dataclass(slots=True)
class Answer:
    """One answer with its times."""

    ids: list[int] = field(default_factory=list)
    delta: TextDelta = field(default_factory=TextDelta)  # the whole text and reasoning
    marks: list[float] = field(default_factory=list)  # seconds from the start to each step's end
    lengths: list[int] = field(default_factory=list)  # tokens of the answer at each mark
    widths: list[int] = field(default_factory=list)  # tokens fed by each step; empty if unknown
    accepted: Counter[str] = field(default_factory=Counter)  # draft tokens by source
    reason: Reason = "interrupted"
    # Seconds of the steps after the first, by part of a step; empty if unknown.
    parts: Counter[str] = field(default_factory=Counter)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """The seconds of every step after the first, to the microsecond."""
        return tuple(round(end - start, 6) for start, end in pairwise(self.marks))

    def whole(self) -> Answer:
        """Return the answer, or raise `RunInterrupted` if Ctrl-C ended it."""
        if self.reason == "interrupted":
            raise RunInterrupted
        return self


class MethodRunner(Protocol):
    """A method on a loaded model."""

    method: Method

    @property
    def built(self) -> int:
        """The number of steps compiled or captured so far, which takes far longer than a step."""

    def begin(self) -> None:
        """Start a conversation without cache and drafts."""

    def answer(self, prompt: list[int], cancelled: Callable[[], bool], /) -> Answer:
        """Answer one prompt; `cancelled` is called after every step, and True ends the answer."""


class OwnRunner:
    """One of our own strategies, named by the method and not by the settings."""

    def __init__(self, method: Method, session: Session, settings: Settings) -> None:
        self.method = method
        self._session = session
        strategy = "lookahead" if method.strategy == "paper" else method.strategy
        self._settings = replace(settings, strategy=strategy)

    @property
    def built(self) -> int:
        """The number of CUDA graphs captured so far."""
        return self._session.decoder.executor.graphs_made

    def begin(self) -> None:
        """Forget text and drafts."""
        self._session.start_over()

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt; out of memory is a `LadeError`."""
        answer, tally = Answer(), Tally()
        began = time.perf_counter()
        for event in self._session.stream(prompt, self._settings, cancelled):
            tally.add(event)
            if isinstance(event, TextStep):
                answer.marks.append(time.perf_counter() - began)
                answer.lengths.append(tally.tokens)
                answer.widths.append(event.width)
                # The rest of a step's time was spent on the text.
                if len(answer.marks) > 1:
                    parts = dataclasses.asdict(event.times) if event.times else {}
                    rest = answer.marks[-1] - answer.marks[-2] - sum(parts.values())
                    answer.parts.update({**parts, "text": max(rest, 0.0)})
        if tally.reason == "memory":
            raise LadeError(f"out of memory after {tally.tokens} tokens of the answer")
        answer.ids, answer.accepted = tally.token_ids, tally.accepted
        answer.delta = TextDelta(tally.reasoning, tally.text)
        answer.reason = tally.reason or answer.reason
        return answer
