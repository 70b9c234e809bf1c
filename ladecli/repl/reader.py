"""Where the messages of a chat come from: what every reader can do, and plain lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TextIO

from ..errors import UsageError
from ..visualize import printable

QUOTES = '"""'
LEAVE = ("exit", "quit")
"""Words that end a chat, by themselves."""


class Reader(Protocol):
    """Where messages come from."""

    @property
    def interactive(self) -> bool:
        """Whether somebody can be asked."""

    def read(self, text: str = "") -> str:
        """The next message; `text` stands there already, to be edited.

        Raises:
            EOFError: there is none any more.
            KeyboardInterrupt: Ctrl-C, with nothing typed.
        """

    def choose(self, question: str, keys: str) -> str:
        """One of `keys`; the first of them is what Enter means.

        Raises:
            EOFError: nobody wants to choose.
        """

    def keys_watched(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """While a reply is shown: the function looks for keys, and acts on those it knows."""

    def hold(self) -> None:
        """Let what was typed during a reply stand in the input, and not be sent by itself."""


def quotes_open(text: str) -> bool:
    """Whether a message began with triple quotes and has not closed them yet."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) % 2 == 1


def unquoted(text: str) -> str:
    """A message without the quotes that held its lines together."""
    stripped = text.strip()
    if stripped.count(QUOTES) == 2 and stripped.startswith(QUOTES) and stripped.endswith(QUOTES):
        return protected(stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"))
    return text


def protected(text: str) -> str:
    """A message as an input that is no command: a space goes before what looks like one."""
    return f" {text}" if text.startswith("/") or text in LEAVE else text


def unprotected(text: str) -> str:
    """The message in an input."""
    plain = text.removeprefix(" ")
    return plain if protected(plain.rstrip()) != plain.rstrip() else text


class LineReader:
    """Messages one a line, from a pipe or a terminal that can do no better.

    Lines within triple quotes are one message.

    Args:
        stream: what to read.
        screen: where somebody waits for a prompt; None on a pipe.
    """

    def __init__(self, stream: TextIO, screen: TextIO | None = None) -> None:
        self._stream = stream
        self._screen = screen

    @property
    def interactive(self) -> bool:
        """Whether somebody can be asked."""
        return self._screen is not None

    def read(self, text: str = "") -> str:
        """The next message; `text` is shown, since it cannot stand in the input.

        Raises:
            EOFError: there is none any more.
            UsageError: the stream is no text.
        """
        self._show(f"{text}\n> " if text else "> ")
        message = self._line()
        try:
            while quotes_open(message):
                self._show("  ")
                message += "\n" + self._line()
        except EOFError:
            raise UsageError(f"standard input ends within {QUOTES}; close them") from None
        return unquoted(message)

    def choose(self, question: str, keys: str) -> str:
        """One of `keys`; the first of them is what an empty line means.

        Raises:
            EOFError: nobody is there, or nobody wants to choose.
        """
        if not self.interactive:
            raise EOFError
        while True:
            self._show(question)
            try:
                answer = self._line().strip().lower()[:1] or keys[0]
            except KeyboardInterrupt:
                raise EOFError from None
            if answer in keys:
                return answer

    @contextlib.contextmanager
    def keys_watched(self) -> Iterator[Callable[[], None]]:
        """There are no keys."""
        yield lambda: None

    def hold(self) -> None:
        """Lines that wait are messages."""

    def _show(self, text: str) -> None:
        if self._screen is not None:
            self._screen.write(printable(text))
            self._screen.flush()

    def _line(self) -> str:
        try:
            line = self._stream.readline()
            line.encode()  # some locales read any byte, and cannot write it
        except (UnicodeDecodeError, UnicodeEncodeError):
            raise UsageError(
                "standard input is not UTF-8; convert it, for example with iconv -f latin1 -t utf-8"
            ) from None
        if not line:
            raise EOFError
        return line.rstrip("\r\n")
