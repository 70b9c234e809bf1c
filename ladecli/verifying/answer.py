"""One answer to a prompt, with the steps that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ..events import Ended, Reason, TextStep

if TYPE_CHECKING:
    from ..session import Session, Settings


@dataclass(frozen=True, slots=True)
class Answer:
    """What a strategy made of a prompt.

    Attributes:
        prompt: its token ids.
        ids: of the answer.
        steps: for each step the tokens that it was fed, and those that it yielded.
        text: of the answer.
        reason: why it ended.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    text: str
    reason: Reason

    def steps_to(self, index: int) -> tuple[tuple[int, int], ...]:
        """The steps up to the one that yielded a token, counted from 0."""
        ends = accumulate(tokens for _, tokens in self.steps)
        return self.steps[: 1 + sum(1 for end in ends if end <= index)]


@dataclass(frozen=True, slots=True)
class Watch:
    """How decoding speaks to who waits for it.

    Attributes:
        cancelled: asked after every step; true ends the answer as interrupted.
        passed: told the number of tokens that a step yielded.
    """

    cancelled: Callable[[], bool] = lambda: False
    passed: Callable[[int], None] = lambda _tokens: None


def decode(
    session: Session,
    prompt: Sequence[int],
    settings: Settings,
    watch: Watch,
) -> Answer:
    """Answer a prompt.

    Args:
        session: the model at work.
        prompt: token ids.
        settings: how to decode.
        watch: who waits for it.

    Raises:
        PromptError: the prompt is empty or too long.
    """
    ids, steps, text = list[int](), list[tuple[int, int]](), list[str]()
    reason: Reason = "interrupted"
    for event in session.stream(prompt, settings, watch.cancelled):
        if isinstance(event, TextStep):
            ids += event.token_ids
            steps.append((event.width, len(event.token_ids)))
            text += [piece.text for piece in event.pieces]
            watch.passed(len(event.token_ids))
        elif isinstance(event, Ended):
            text.append(event.rest)
            reason = event.reason
    return Answer(tuple(prompt), tuple(ids), tuple(steps), "".join(text), reason)
