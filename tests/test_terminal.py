"""The bar on stderr: where nobody watches it is not there, and no thread draws it."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest

from ladecli import terminal
from ladecli.terminal import Terminal


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def watched(patch: pytest.MonkeyPatch) -> Screen:
    """A screen as stderr; not a fixture, since pytest puts its own stderr back behind those."""
    screen = Screen()
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", "60")
    patch.setattr(sys, "stderr", screen)
    return screen


def shares(screen: Screen) -> list[str]:
    return re.findall(r"\d+%", screen.getvalue())


def test_a_bar_is_drawn_only_where_it_is_told_something(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    monkeypatch.setattr(terminal, "DRAWN_EVERY", 0.0)
    threads = threading.active_count()
    with Terminal().bar("measuring", 8) as done:
        assert threading.active_count() == threads
        assert "measuring" in screen.getvalue()
        assert shares(screen) == ["0%"]
        for more in (2, 1, 0, 5):
            done(more)
        assert shares(screen) == ["0%", "25%", "38%", "38%", "100%"]
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K"), "nothing of it stays"


def test_a_bar_does_not_keep_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    monkeypatch.setattr(terminal, "DRAWN_EVERY", 60.0)
    with Terminal().bar("measuring", 1000) as done:
        for _ in range(500):
            done(1)
        assert shares(screen) == ["0%"]


@pytest.mark.parametrize("quiet", [False, True])
def test_where_nobody_watches_there_is_no_bar(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch)
    if not quiet:
        monkeypatch.setattr(screen, "isatty", lambda: False)
    with Terminal(quiet=quiet).bar("measuring", 8) as done:
        done(3)
    assert screen.getvalue() == ""
