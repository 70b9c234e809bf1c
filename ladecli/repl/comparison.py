"""The last reply again by plain decoding: is it the same text, and how fast is each?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..events import TextStep
from ..metrics import Tally

if TYPE_CHECKING:
    from ..session import Session, Settings


@dataclass(frozen=True, slots=True)
class Comparison:
    """What plain decoding made of the same prompt.

    Attributes:
        tally: its figures.
        token_ids: its tokens.
        differs_at: the first token that is another one, counted from 0; None if none is.
        complete: whether neither the user nor want of memory cut it short.
    """

    tally: Tally
    token_ids: list[int]
    differs_at: int | None
    complete: bool


def compare(
    session: Session,
    prompt: list[int],
    reply: list[int],
    settings: Settings,
    cancelled: Callable[[], bool],
    between: Callable[[], None],
) -> Comparison:
    """Decode a prompt again with one token per step, as far as the reply went.

    Args:
        session: the model at work.
        prompt, reply: token ids.
        settings: how the reply was decoded, its seed included.
        cancelled: asked after every step.
        between: called between two steps.
    """
    plain = replace(settings, strategy="autoregressive", max_new_tokens=len(reply))
    tally, token_ids = Tally(), list[int]()
    for event in session.stream(prompt, plain, cancelled):
        tally.add(event)
        if isinstance(event, TextStep):
            token_ids += event.token_ids
            between()
    pairs = zip(reply, token_ids, strict=False)
    differs = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    complete = tally.reason not in ("interrupted", "memory")
    if differs is None and complete and len(reply) != len(token_ids):
        differs = min(len(reply), len(token_ids))
    return Comparison(tally, token_ids, differs, complete)
