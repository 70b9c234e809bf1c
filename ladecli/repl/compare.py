"""`/compare`: decode a reply again with and without drafts, and compare the speeds."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import counted
from ..events import TextStep
from ..metrics import Tally, first_difference, ratio, total
from ..view import screen
from ..view.terminal import ctrl_c

if TYPE_CHECKING:
    from ..session.session import Settings
    from .chat import Chat, Reply

SECONDS, MOST_RUNS = 4.0, 5
"""Limits of a comparison: its time, and the number of its runs."""


def compare_again(chat: Chat, reply: Reply) -> None:
    """Decode a reply again, and print both speeds and the first difference of the texts.

    Plain runs alternate with drafted ones, so that warm-up and machine load affect both equally.
    """
    plainly = replace(reply.settings, strategy="autoregressive")
    drafted, plain = list[Tally](), list[Tally]()
    end = time.perf_counter() + SECONDS
    while not drafted or (len(drafted) < MOST_RUNS and time.perf_counter() < end):
        for settings, tallies in ((plainly, plain), (reply.settings, drafted)):
            tally = _decode_again(chat, reply, settings, len(drafted) + 1)
            if tally.reason in ("interrupted", "memory"):
                chat.note("comparison stopped")
                return
            if (index := first_difference(reply.tally.token_ids, tally.token_ids)) is not None:
                why = "arithmetic of this precision broke a near-tie differently in a wider step"
                line = f"another text from token {index + 1} on: {why}; --dtype float32 is exact"
                screen.line(chat.console, line, "yellow")
                return
            tallies.append(tally)
    rows, count = [], counted(reply.tally.tokens, "token")
    for name, tallies in ((reply.settings.strategy, drafted), ("plain", plain)):
        speed = f"{total(tallies).tokens_per_second:.1f} tok/s"
        rows.append((name, speed, f"{counted(tallies[0].steps, 'step')} for {count}"))
    chat.print_rows(rows)
    rate = ratio(total(drafted).tokens_per_second, total(plain).tokens_per_second)
    faster = f"{rate:.2f}× as fast as plain decoding ({counted(len(plain), 'run')} of each)"
    if not plain[0].decode_seconds:  # a single step, which read the prompt too
        faster = "too short to compare speeds"
    chat.console.print(f"same text · {faster}", style="bold")


def _decode_again(chat: Chat, reply: Reply, settings: Settings, run: int) -> Tally:
    """Decode a reply with the drafts as they were before it; the chat's drafts learn nothing."""
    tally, count, session = Tally(), reply.tally.tokens, chat.session
    settings = replace(settings, max_new_tokens=count)
    how = "one by one" if settings.strategy == "autoregressive" else "with drafts"
    bar = chat.terminal.bar(f"run {run}: {counted(count, 'token')} {how}", count)
    drafts, session.drafts = session.drafts, pickle.loads(reply.drafts)
    try:
        with chat.reader.watched() as look, ctrl_c() as cancelled, bar as advance:
            for event in session.stream(reply.prompt, settings, cancelled):
                tally.add(event)
                if isinstance(event, TextStep):
                    advance(len(event.token_ids))
                    look()
    finally:
        session.drafts = drafts
    return tally
