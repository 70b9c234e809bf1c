"""Traces for tests: of the demo model, and small ones written by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import ladecli
from ladecli.api import Model
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Detail, Started
from ladecli.events import Ended, Piece, TextEvent, TextStep
from ladecli.session.session import Settings
from ladecli.session.tokens import speller
from ladecli.trace.format import Header, Trace, TraceWriter
from ladecli.trace.record import describe

PROMPT = "def read(path):\n"
SETTINGS = {
    "all sources": Settings(
        lookahead=LookaheadConfig(window=5, ngram=3, guesses=5), max_new_tokens=40
    ),
    "paper": Settings(
        lookahead=LookaheadConfig(window=5, ngram=4, guesses=5, sources=("trajectory",)),
        max_new_tokens=40,
    ),
    "plain": Settings(strategy="autoregressive", max_new_tokens=12),
    "jacobi": Settings(strategy="jacobi", max_new_tokens=12),
}


@lru_cache(maxsize=1)
def demo() -> Model:
    """The bundled model; it is loaded once."""
    return ladecli.load("demo")


@lru_cache(maxsize=8)
def events_of(name: str) -> tuple[TextEvent, ...]:
    """Return the events of the demo model under one of `SETTINGS`."""
    session = demo().session
    session.drafts = DraftStore()
    return tuple(session.stream(session.encode(PROMPT), SETTINGS[name], detailed=True))


def record(path: Path, name: str) -> Path:
    """Write the trace of one of `SETTINGS`."""
    events = events_of(name)
    header = Header(model="demo", prompt=PROMPT, prompt_tokens=7, settings=describe(SETTINGS[name]))
    return write(path, Trace(header, events, {}), speller(demo().session.loaded.tokenizer))


def write(path: Path, trace: Trace, spell: Callable[[int], str] | None = None) -> Path:
    """Write a trace, by default with its own spellings."""
    writer = TraceWriter(path, trace.header, spell or trace.spell)
    for event in trace.events:
        writer.show(event)
    writer.finish()
    return path


def step(*pieces: tuple[str, str | None], width: int = 9, seconds: float = 0.5) -> TextStep:
    """A step that commits pieces of text, each a token with its source."""
    made = tuple(Piece(text, source) for text, source in pieces)
    return TextStep(made, tuple(range(len(made))), width, len(made) - 1, seconds)


WORDS = ["∅", "The", " cat", " sat", " on", " the", " mat", ".", "\n", " 你好", " dog", " ran"]


def small_trace() -> Trace:
    """Two steps with a full window of three columns, and one without anything."""
    tree = (10, 3, 11, 4, 6, 7)
    sources = ("recycled", "trajectory", "recycled", "context", "trajectory", "recycled")
    drafted = Detail(
        2, tree, (-1, -1, 1, 1, 3, 0), sources, (1, 3), ((2, 5), (5, 6)), (9, 7), closed=True
    )
    filling = Detail(1, window=((1, 4, 5),), outputs=(2, 5, 6))
    three = (Piece(" sat", "trajectory"), Piece(" on", "context"), Piece(" the"))
    steps = (
        TextStep((Piece(" cat"),), (2,), 7, 0, 0.02, filling, cost=1.5),
        TextStep(three, (3, 4, 5), 12, 6, 0.03, drafted, cost=2.0),
        TextStep((Piece("\n", "context"),), (8,), 1, 0, 0.01, Detail(5), cost=1.0),
    )
    settings = {
        "strategy": "lookahead",
        "window": 2,
        "ngram": 3,
        "guesses": 2,
        "sources": ["trajectory", "context", "recycled"],
    }
    header = Header(model="demo", prompt="The", prompt_tokens=1, settings=settings)
    events = (Started(0, 1), *steps, Ended("length"))
    return Trace(header, events, dict(enumerate(WORDS)))
