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
"""Words that end a chat when they are all of a message."""
TOGGLE_KEY = "c-t"
INDENT = "    "
SAID_ROWS = 6
"""Rows of the screen that no input takes: the bar, and some of what stands above it."""


def quotes_open(text: str) -> bool:
    """Whether a message began with triple quotes and has not closed them yet."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) % 2 == 1


def unquote(text: str) -> str:
    """Return a message without the quotes that held its lines together."""
    stripped = text.strip()
    if stripped.count(QUOTES) == 2 and stripped.startswith(QUOTES) and stripped.endswith(QUOTES):
        return escape(stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"))
    return text


def escape(text: str) -> str:
    """Return a message as input that is no command: a space goes before what looks like one."""
    return f" {text}" if text.startswith("/") or text in LEAVE else text


def unescape(text: str) -> str:
    """Return the message in an input."""
    return text[1:] if escape(text[1:].rstrip()) == text.rstrip() else text


class Reader:
    """Messages one a line, from a stream; lines within triple quotes are one message.

    Args:
        stream: a pipe, or a terminal that cannot edit.
        screen: takes the prompts, if a user reads them; None on a pipe.
    """

    edits = False
    """Whether what stands in the input can be edited."""

    def __init__(self, stream: TextIO, screen: TextIO | None = None) -> None:
        self.interactive = screen is not None  # whether a user types the messages
        self._stream = stream
        self._screen = screen

    def read(self, unsent: str = "") -> str:
        """Return the next message; one not sent yet is shown, or stands in the input to be edited.

        Raises:
            EOFError: there is none any more.
            KeyboardInterrupt: Ctrl-C.
            UsageError, UnicodeError: the input is not text that can be sent.
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
        """Return the text that was typed at a terminal and not read yet; no message has it then."""
        return ""

    def watched(self) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """Watch the keyboard while a reply is shown; the function acts on the keys until then."""
        return contextlib.nullcontext(lambda: None)


class _History(FileHistory):
    """A file that may vanish, on a disk that may be full: then this session alone remembers."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


class TerminalReader(Reader):
    """A line editor at a terminal, with history, completion, pasting and an external editor.

    Args:
        completer: of commands.
        history: the file of earlier messages; None to remember this session's alone.
        vi: whether to edit as in vi; else as in emacs.
        toolbar: makes the line below the input.
        on_toggle: called when the key for the colors was pressed.
        source, screen: of prompt-toolkit; None for the terminal.
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
        # Where answers go to a file, the prompt goes to stderr.
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
        """Return the next message; Enter sends it, and one not sent yet stands in the input."""
        # After a last line break only an empty line of a long text would be in sight.
        return unquote(self._session.prompt(default=unsent.rstrip("\n")))

    def _height(self, usual: AnyDimension) -> Dimension:
        """Return the rows of the input: what was said of a message stays in sight while that is
        edited.  `usual` has room for a menu."""
        rows = to_dimension(usual)
        if get_app().is_done:
            return rows
        most = max(self._output.get_size().rows - SAID_ROWS, 1)
        return Dimension(min=min(rows.min, most), max=most)

    def take_back(self) -> str:
        """See `Reader`; without keys that write no text."""
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
        """See `Reader`: the key for the colors acts at once, and all others wait for the prompt."""

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
        # It takes codes of colors that are typed or pasted for a mouse, and fails.
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
            # Back to the prompt: a long message can be read once more before it is sent.
            event.current_buffer.open_in_editor(validate_and_handle=False)

        @keys.add(TOGGLE_KEY)
        def toggle(event: KeyPressEvent) -> None:
            self._on_toggle()
            event.app.invalidate()

        return keys


def history_path() -> Path | None:
    """Return the file of earlier messages, private to the user; None if it cannot be had."""
    path = user_state_path("lade", appauthor=False) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+", opener=files.guarded):
            return path
    except OSError:
        return None


def can_edit() -> bool:
    """Whether there is a terminal to type in, and one that shows it."""
    typed, *shown = (
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    )
    return typed and any(shown) and not is_dumb()


@contextlib.contextmanager
def _whole_pastes(output: Output) -> Iterator[None]:
    """Let what is pasted while no prompt is there be one message."""
    output.enable_bracketed_paste()
    output.flush()
    try:
        yield
    finally:
        output.disable_bracketed_paste()
        output.flush()


@contextlib.contextmanager
def suppress_echo() -> Iterator[None]:
    """Do not echo what is typed while no prompt is there, which takes it later.

    Ctrl-C stays a signal.  The terminal is given back as it was, and set again if Ctrl-Z and `fg`
    have changed it.
    """
    if os.name != "posix" or not can_edit():
        yield
        return
    import termios
    import tty

    fd, output = sys.stdin.fileno(), create_output(always_prefer_tty=True)
    before = termios.tcgetattr(fd)

    def resume(_number: int, _frame: FrameType | None) -> None:
        # In the background nothing may be set, and a prompt, which takes Ctrl-C as a key, does it.
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
