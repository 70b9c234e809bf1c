"""The line editor of a chat: history, completion, pasting, keys; by prompt-toolkit."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..terminal import is_dumb
from .reader import QUOTES, LineReader, Reader, quotes_open, unquoted
from .tty import other_terminal

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent
    from prompt_toolkit.output import Output

    from .talk import Chat

TOGGLE_KEY = "c-t"
TAB = 4
_ENTER = ("c-m", "c-j")
_POLL_SECONDS = 0.05


class TerminalReader:
    """A line editor with history, completion, pasting and an external editor.

    Args:
        completer: of commands.
        history: file of what was typed before; None to remember nothing.
        vi: whether to edit as in vi; else as in emacs.
        toolbar: makes the parts of the line below the input, the most important first.
        on_toggle: called when the key for the colours was pressed.
        source, screen: of prompt-toolkit; None for the terminal.
    """

    interactive = True

    def __init__(
        self,
        completer: Completer,
        history: Path | None,
        *,
        vi: bool,
        toolbar: Callable[[], Sequence[str]],
        on_toggle: Callable[[], None],
        source: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.input import create_input
        from prompt_toolkit.output import create_output
        from prompt_toolkit.styles import Style

        from .long_input import TallLinesCut, keep_screen

        self._input = source or create_input(always_prefer_tty=True)
        # Where answers go to a file, the prompt goes to the terminal all the same.
        self._output = screen or create_output(other_terminal(), always_prefer_tty=True)
        self._toolbar = toolbar
        self._vi = vi
        self._drafted = False
        self._on_toggle = on_toggle
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", "> ")],
            prompt_continuation=[("", "  ")],
            input=self._input,
            output=self._output,
            multiline=True,
            vi_mode=vi,
            history=_history(history),
            auto_suggest=AutoSuggestFromHistory(),
            completer=completer,
            # Completion is for commands; prose must not open menus.
            complete_while_typing=Condition(lambda: self._session.default_buffer.text[:1] == "/"),
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            key_bindings=_bindings(completer, on_toggle, lambda: self._drafted),
            bottom_toolbar=lambda: [("class:bar", self._bar())],
            enable_suspend=True,
            style=Style.from_dict(
                {"prompt": "bold ansicyan", "bottom-toolbar": "noreverse", "bar": "ansibrightblack"}
            ),
            input_processors=[TallLinesCut(self._output)],
        )
        keep_screen(self._session)

    def read(self, text: str = "") -> str:
        """The next message; `text` stands there already, to be edited.

        Raises:
            EOFError: Ctrl-D, with nothing typed.
            KeyboardInterrupt: Ctrl-C, with nothing typed.
        """
        self._drafted = bool(text)
        return unquoted(self._session.prompt(default=text))

    def choose(self, question: str, keys: str) -> str:
        """One of `keys`, as soon as it is pressed; the first of them is what Enter means.

        What was typed before the question is no answer to it, and waits for the prompt.

        Raises:
            EOFError: Ctrl-C or Ctrl-D.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys

        typed = [*get_typeahead(self._input), *self._input.read_keys()]
        bindings = KeyBindings()

        def take(event: KeyPressEvent) -> None:
            key = event.key_sequence[0].key
            event.app.exit(result=keys[0] if key == "c-m" else key)

        for key in ("<any>", Keys.Vt100MouseEvent):
            bindings.add(key)(_ignore)
        for key in (*keys, "enter"):
            bindings.add(key)(take)
        asking: PromptSession[str] = PromptSession(
            input=self._input, output=self._output, key_bindings=bindings
        )
        try:
            return asking.prompt(question)
        except KeyboardInterrupt:
            raise EOFError from None
        finally:
            store_typeahead(self._input, [*typed, *get_typeahead(self._input)])

    def hold(self) -> None:
        """Let what was typed during a reply stand in the input, and not be sent by itself."""
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
        from prompt_toolkit.key_binding.key_processor import KeyPress
        from prompt_toolkit.keys import Keys

        typed = get_typeahead(self._input)
        while typed and typed[-1].key in _ENTER:
            typed.pop()
        line_break = KeyPress(Keys.BracketedPaste, "\n")
        held = [line_break if key.key in _ENTER else key for key in typed]
        store_typeahead(self._input, held)

    def _bar(self) -> str:
        """As many parts of the toolbar as the screen has room for."""
        if quotes_open(self._session.default_buffer.text):
            return f"{QUOTES} is open: close it to send"
        shown = ""
        mode = [self._session.app.vi_state.input_mode.value] if self._vi else []
        for part in [*mode, *self._toolbar()]:
            longer = f"{shown} · {part}" if shown else part
            if len(longer) > self._output.get_size().columns:
                break
            shown = longer
        return shown

    @contextlib.contextmanager
    def keys_watched(self) -> Iterator[Callable[[], None]]:
        """The key for the colours acts at once; whatever else is typed waits for the prompt."""
        looked = 0.0

        def look() -> None:
            nonlocal looked
            now = time.monotonic()
            if now - looked >= _POLL_SECONDS:
                looked = now
                self._take_keys()

        # What is pasted stays together, also here.
        self._output.enable_bracketed_paste()
        self._output.flush()
        try:
            yield look
        finally:
            self._take_keys()
            self._output.disable_bracketed_paste()
            self._output.flush()

    def _take_keys(self) -> None:
        from prompt_toolkit.input.typeahead import store_typeahead

        keys = self._input.read_keys()
        kept = [key for key in keys if key.key != TOGGLE_KEY]
        if len(kept) < len(keys):
            self._on_toggle()
        store_typeahead(self._input, kept)


def history_path() -> Path | None:
    """The file of what was typed before, private to the user; None if it cannot be had."""
    from platformdirs import user_state_path

    path = user_state_path("lade", appauthor=False) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return None
    return path if path.is_file() and os.access(path, os.R_OK | os.W_OK) else None


def _history(path: Path | None) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        """A file that may vanish, or a disk that may be full: then this session remembers."""

        def load_history_strings(self) -> Iterable[str]:
            try:
                return list(super().load_history_strings())
            except OSError:
                return []

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(string)

    return InMemoryHistory() if path is None else Kept(str(path))


def _ignore(event: KeyPressEvent) -> None:
    """No key that is known here: codes of colours pass for a mouse's, and break its handler."""


def _bindings(
    completer: Completer, on_toggle: Callable[[], None], drafted: Callable[[], bool]
) -> KeyBindings:
    """Enter sends, Alt-Enter breaks the line, Ctrl-C clears and then complains.

    Args:
        completer: of commands.
        on_toggle: called for the key of the colours.
        drafted: whether the input began with a draft, which Ctrl-C gives up at once.
    """
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    keys = KeyBindings()
    keys.add(Keys.Vt100MouseEvent)(_ignore)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state and state.current_completion:
            buffer.apply_completion(state.current_completion)
        elif quotes_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.append_to_history()
        if not buffer.text or drafted():
            event.app.exit(exception=KeyboardInterrupt)
        else:
            buffer.reset()

    @keys.add("tab")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
            return
        asked = CompleteEvent(completion_requested=True)
        found = list(completer.get_completions(buffer.document, asked))
        if len(found) == 1:
            buffer.apply_completion(found[0])
        elif found:
            buffer.start_completion(insert_common_part=True)
        else:  # prose, and code in it
            buffer.insert_text(" " * TAB)

    @keys.add("c-x", "c-e")
    def _(event: KeyPressEvent) -> None:
        # Back to the prompt: whoever wrote at length wants to look before it is sent.
        event.current_buffer.open_in_editor(validate_and_handle=False)

    @keys.add(TOGGLE_KEY)
    def _(event: KeyPressEvent) -> None:
        on_toggle()
        event.app.invalidate()

    return keys


def open_reader(chat: Chat) -> Reader:
    """What the messages of a chat come from: whatever standard input is."""
    if sys.stdin is None or not sys.stdin.isatty():
        return LineReader(sys.stdin or io.StringIO())
    if is_dumb():
        return LineReader(sys.stdin, sys.stderr)
    from .completion import CommandCompleter

    return TerminalReader(
        CommandCompleter(),
        history_path(),
        vi=chat.request.editing_mode == "vi",
        toolbar=chat.toolbar,
        on_toggle=chat.toggle_colors,
    )
