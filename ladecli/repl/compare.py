"""`/compare`: how many times as fast a reply was as plain decoding of the same text."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import counted
from ..events import TextStep
from ..metrics import Tally, first_difference, ratio, total
from ..session.setup import why_not_invariant
from ..view import screen
from ..view.terminal import ctrl_c

if TYPE_CHECKING:
    from ..session.session import Settings
    from .chat import Chat, Reply

SECONDS, MOST_RUNS = 4.0, 5
"""For how many seconds a reply is decoded again, and how many times at most."""


def compare_again(chat: Chat, reply: Reply) -> None:
    """Decode a reply again, one by one and with drafts in turn, so that both are warm and on a
    machine as busy; print both speeds, and whether the text is the same."""
    plainly = replace(reply.settings, strategy="autoregressive")
    drafted, plain = list[Tally](), list[Tally]()
    began, run = time.perf_counter(), 0
    while run == 0 or (run < MOST_RUNS and time.perf_counter() - began < SECONDS):
        run += 1
        for settings, tallies in ((plainly, plain), (reply.settings, drafted)):
            tallies.append(tally := _decode_again(chat, reply, settings, run))
            if tally.reason in ("interrupted", "memory"):
                chat.note("comparison stopped")
                return
            if (index := first_difference(reply.tally.token_ids, tally.token_ids)) is not None:
                alike = why_not_invariant(chat.session.loaded) is None
                why = (
                    f"another text from token {index + 1} on: arithmetic of this precision broke a"
                    " near-tie differently in a wider step;"
                    f" {'--batch-invariant' if alike else '--dtype float32'} is exact"
                )
                screen.line(chat.console, why, "yellow")
                return
    rows = []
    for name, tallies in ((reply.settings.strategy, drafted), ("plain", plain)):
        whole, one = total(tallies), tallies[0]
        steps = f"{counted(one.steps, 'step')} for {counted(one.tokens, 'token')}"
        rows.append((name, f"{whole.tokens_per_second:.1f} tok/s", steps))
    chat.print_rows(rows)
    chat.console.print(f"same text · {_describe_speedup(drafted, plain)}", style="bold")


def _decode_again(chat: Chat, reply: Reply, settings: Settings, run: int) -> Tally:
    """Decode a reply from what the drafts knew before it; those of the chat learn nothing."""
    tally, count, session = Tally(), reply.tally.tokens, chat.session
    settings = replace(settings, max_new_tokens=count)
    how = "one by one" if settings.strategy == "autoregressive" else "with drafts"
    bar = chat.terminal.bar(f"run {run}: {counted(count, 'token')} {how}", count)
    kept, session.drafts = session.drafts, pickle.loads(reply.drafts)
    try:
        with chat.reader.watched() as look, ctrl_c() as cancelled, bar as advance:
            for event in session.stream(reply.prompt, settings, cancelled):
                tally.add(event)
                if isinstance(event, TextStep):
                    advance(len(event.token_ids))
                    look()
    finally:
        session.drafts = kept
    return tally


def _describe_speedup(drafted: Sequence[Tally], plain: Sequence[Tally]) -> str:
    """How many times as fast, and how far the runs are apart."""
    rates = [
        ratio(one.tokens_per_second, other.tokens_per_second)
        for one, other in zip(drafted, plain, strict=True)
        if one.decode_seconds and other.decode_seconds
    ]
    if not rates:  # a single step, which read the prompt too
        return "too short to compare speeds"
    spread = f"{min(rates):.2f} to {max(rates):.2f} in {len(rates)} runs"
    if len(rates) == 1:
        spread = "one run"
    return f"{statistics.median(rates):.2f}× as fast as plain decoding ({spread})"
