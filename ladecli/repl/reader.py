"""Readers of a chat's messages: a line editor by prompt-toolkit, or plain lines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TextIO

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer
from prompt_toolkit.cursor_shapes import ModalCursorShapeConfig
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.dimension import AnyDimension, Dimension, to_dimension
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.styles import Style

from .. import files
from ..errors import UsageError, printable
from ..view.terminal import handling, is_dumb

QUOTES = '"""'
LEAVE = ("exit", "quit")
"""Messages that end a chat."""
TOGGLE_KEY = "c-t"
INDENT = "    "
RESERVED_ROWS = 6
"""Rows of the screen that the input never covers: the bar, and some lines above the input."""


def quotes_open(text: str) -> bool:
    """Return True if a message has opened triple quotes and not closed them."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) % 2 == 1


def unquote(text: str) -> str:
    """Return a message without the triple quotes around it."""
    stripped = text.strip()
    if stripped.count(QUOTES) == 2 and stripped.startswith(QUOTES) and stripped.endswith(QUOTES):
        return escape(stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"))
    return text


def escape(text: str) -> str:
    """Return a message as an input that is not a command, with a space before a slash."""
    return f" {text}" if text.startswith("/") or text in LEAVE else text


def unescape(text: str) -> str:
    """Return the message of an input, without the space that `escape` adds."""
    return text[1:] if escape(text[1:].rstrip()) == text.rstrip() else text


class Reader:
    """Reads one message per line from a stream; lines within triple quotes are one message.

    Args:
        stream: a pipe, or a terminal that cannot edit.
        screen: shows the prompts to a user; None on a pipe.
    """

    edits = False
    """True if the user can edit the input."""

    def __init__(self, stream: TextIO, screen: TextIO | None = None) -> None:
        self.interactive = screen is not None  # a user types the messages
        self._stream = stream
        self._screen = screen

    def read(self, unsent: str = "") -> str:
        """Return the next message; `unsent` text is shown, or is in the input to be edited.

        Raises:
            EOFError: the input has ended.
            KeyboardInterrupt: Ctrl-C.
            UsageError, UnicodeError: the input is not a valid message.
        """
        message = self._line(f"{unsent}\n> " if unsent else "> ")
        try:
            while quotes_open(message):
                message += "\n" + self._line("  ")
        except EOFError:
            raise UsageError(f"standard input ends within {QUOTES}; close them") from None
        return unquote(message)

    def _line(self, prompt: str) -> str:
        if self._screen is not None:
            self._screen.write(printable(prompt))
            self._screen.flush()
        line = self._stream.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def take_back(self) -> str:
        """Remove and return the text that was typed at a terminal and not read yet."""
        return ""

    def watched(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Watch the keyboard during a reply; the function handles the keys pressed so far."""
        return contextlib.nullcontext(lambda: None)


class _History(FileHistory):
    """A history file; if it cannot be written, the history lasts only for this session."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


class TerminalReader(Reader):
    """A line editor at a terminal, with history, completion, pasting and an external editor.

    Args:
        completer: of commands.
        history: the file of earlier messages; None to keep only this session's.
        vi: True for vi keys; else emacs keys.
        toolbar: returns the line below the input.
        on_toggle: called when the key for the colors is pressed.
        source, screen: prompt-toolkit's input and output; None for the terminal.
    """

    edits = True

    def __init__(
        self,
        completer: Completer,
        history: Path | None,
        *,
        vi: bool,
        toolbar: Callable[[], str],
        on_toggle: Callable[[], None],
        source: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self.interactive = True
        self._input = source or create_input()
        # If answers go to a file, the prompt goes to stderr.
        self._output = screen or create_output(always_prefer_tty=True)
        self._on_toggle = on_toggle
        self._toolbar = toolbar
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", "> ")],
            prompt_continuation=[("", "  ")],
            input=self._input,
            output=self._output,
            multiline=True,
            vi_mode=vi,
            cursor=ModalCursorShapeConfig() if vi else None,
            history=_History(str(history)) if history else InMemoryHistory(),
            auto_suggest=AutoSuggestFromHistory(),
            completer=completer,
            complete_while_typing=Condition(self._is_command),
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            key_bindings=self._bindings(),
            bottom_toolbar=self._bar,
            enable_suspend=True,
            style=Style.from_dict(
                {
                    "prompt": "bold ansicyan",
                    "bottom-toolbar": "noreverse ansibrightblack",
                }
            ),
        )
        for window in self._session.layout.find_all_windows():
            if window.content is self._session.layout.current_control:
                window.height = partial(self._height, window.height)

    def read(self, unsent: str = "") -> str:
        """Return the next message; Enter sends it, and `unsent` text is in the input."""
        # With a line break at its end, only the empty last line of a long text would be visible.
        return unquote(self._session.prompt(default=unsent.rstrip("\n")))

    def _height(self, usual: AnyDimension) -> Dimension:
        """Return the height of the input, which leaves remarks above it visible; `usual` has room
        for a menu."""
        rows = to_dimension(usual)
        if get_app().is_done:
            return rows
        most = max(self._output.get_size().rows - RESERVED_ROWS, 1)
        return Dimension(min=min(rows.min, most), max=most)

    def take_back(self) -> str:
        """See `Reader`; keys that write no text are left out."""
        text = ""
        for key in (*get_typeahead(self._input), *self._input.read_keys()):
            if key.key in (Keys.ControlM, Keys.ControlJ):
                text += "\n"
            elif key.key == Keys.ControlH:
                text = text[:-1]
            elif key.key == Keys.BracketedPaste or not isinstance(key.key, Keys):
                text += key.data.replace("\r\n", "\n").replace("\r", "\n")
        return text.strip("\n")

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """See `Reader`: the key for the colors takes effect at once; the prompt gets all others."""

        def look() -> None:
            keys = self._input.read_keys()
            waiting = [key for key in keys if key.key != TOGGLE_KEY]
            store_typeahead(self._input, waiting)
            for _ in range(len(keys) - len(waiting)):
                self._on_toggle()

        with _whole_pastes(self._output):
            try:
                yield look
            finally:
                look()

    def _is_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _bar(self) -> str:
        """Return the line below the input."""
        if quotes_open(self._session.default_buffer.text):
            return f"{QUOTES} is open: close it to send"
        return self._toolbar()

    def _bindings(self) -> KeyBindings:
        """Return the keys that differ from prompt-toolkit's own for inputs of several lines."""
        keys = KeyBindings()
        # prompt-toolkit mistakes pasted color codes for mouse events, and fails.
        keys.add(Keys.Vt100MouseEvent)(lambda event: None)

        @keys.add("enter")
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if quotes_open(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        indents = ~Condition(self._is_command)
        keys.add("tab", filter=indents)(lambda event: event.current_buffer.insert_text(INDENT))

        @keys.add("c-x", "c-e")
        def edit(event: KeyPressEvent) -> None:
            # Back to the prompt, so that the user can read a long message before sending it.
            event.current_buffer.open_in_editor(validate_and_handle=False)

        @keys.add(TOGGLE_KEY)
        def toggle(event: KeyPressEvent) -> None:
            self._on_toggle()
            event.app.invalidate()

        return keys


def history_path() -> Path | None:
    """Return the file of earlier messages, private to the user; None if it cannot be opened."""
    path = user_state_path("lade", appauthor=False) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", opener=files.guarded):
            return path
    except OSError:
        return None


def can_edit() -> bool:
    """Return True if input and output are terminals that support editing."""
    has_input, *has_output = (
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    )
    return has_input and any(has_output) and not is_dumb()


@contextlib.contextmanager
def _whole_pastes(output: Output) -> Iterator[None]:
    """Make a paste one message even if there is no prompt."""
    output.enable_bracketed_paste()
    output.flush()
    try:
        yield
    finally:
        output.disable_bracketed_paste()
        output.flush()


@contextlib.contextmanager
def suppress_echo() -> Iterator[None]:
    """Turn echo off while there is no prompt; the next prompt shows what was typed.

    Ctrl-C stays a signal.  The terminal is restored at the end, and set again after Ctrl-Z and
    `fg`.
    """
    if os.name != "posix" or not can_edit():
        yield
        return
    import termios
    import tty

    fd, output = sys.stdin.fileno(), create_output(always_prefer_tty=True)
    before = termios.tcgetattr(fd)

    def resume(_number: int, _frame: FrameType | None) -> None:
        # A background process must not change the terminal, and a prompt (Ctrl-C is a key then)
        # sets it itself.
        if os.tcgetpgrp(fd) == os.getpgrp() and termios.tcgetattr(fd)[3] & termios.ISIG:
            tty.setcbreak(fd, termios.TCSANOW)
            output.enable_bracketed_paste()
            output.flush()

    tty.setcbreak(fd, termios.TCSANOW)  # without discarding what was typed already
    try:
        with _whole_pastes(output), handling(resume, signal.SIGCONT):
            yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
