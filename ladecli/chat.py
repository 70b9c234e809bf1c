"""`lade chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from platformdirs import user_state_path

from . import files
from .decoder.errors import DeviceLostError, RankError
from .errors import LadeError, UsageError
from .options import ChatRequest
from .repl import commands
from .repl.reader import LEAVE, Reader, TerminalReader, can_edit, history_path, unechoed, unescaped
from .repl.session import Chat
from .session import opening, pool_file
from .trace import export
from .view.terminal import Terminal

SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def run(request: ChatRequest) -> int:
    """Chat until the user leaves; returns the exit code 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    export.check(request)
    pool_file.check(request.pool_file)
    texts = pool_file.draft_texts(request)
    terminal = Terminal(request.color, request.quiet)
    with ended_tidily(), unechoed(), opening.opened(request, terminal) as session:
        chat = Chat(session, request, terminal, open_reader)
        with pool_file.kept_drafts(session, request.pool_file, texts):
            greet(chat)
            with autosaved(chat):
                loop(chat)
    return 0


def open_reader(chat: Chat) -> Reader:
    """The reader for what standard input is."""
    if can_edit():
        return TerminalReader(
            commands.CommandCompleter(),
            history_path(),
            vi=chat.request.editing_mode == "vi",
            toolbar=chat.toolbar,
            on_toggle=chat.toggle_colors,
        )
    stdin = sys.stdin or io.StringIO()
    return Reader(stdin, sys.stderr if stdin.isatty() else None)


@contextlib.contextmanager
def ended_tidily() -> Iterator[None]:
    """Make exceptions of the signals that end the program, so that it tidies up on its way."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ends = {"SIGTERM", "SIGHUP", "SIGQUIT"} & {each.name for each in signal.Signals}
    before = {name: signal.signal(signal.Signals[name], on_signal) for name in ends}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(signal.Signals[name], handler)


def greet(chat: Chat) -> None:
    """Name the model once, and the way to get help."""
    if not chat.reader.interactive:
        return
    session, mode = chat.session, chat.request.parallel_mode
    parts = [session.loaded.name, chat.request.strategy]
    if session.ranks > 1:
        parts.append(f"{session.ranks} ranks{' (tensor)' if mode == 'tensor' else ''}")
    parts += [f"profile {chat.choice.profile}", f"{session.decoder.max_context} tokens of context"]
    chat.note(" · ".join([*parts, "/help"]))
    if session.loaded.name == "demo":
        chat.note(f"demo is a toy; a small real model: lade chat {SMALL_MODEL}")


@contextlib.contextmanager
def autosaved(chat: Chat) -> Iterator[None]:
    """Save the conversation where anything but the user's wish ends the chat."""
    try:
        yield
    except BaseException as error:
        # A pipe can send its messages again, unless the machine failed.
        failed = isinstance(error, DeviceLostError | RankError)
        if chat.unsaved and (chat.reader.interactive or failed):
            with contextlib.suppress(OSError, LadeError):  # the reason of the end is what counts
                _autosave(chat)
        raise


def _autosave(chat: Chat) -> None:
    """Write the conversation to a new file of the user's state, and name it."""
    folder = user_state_path("lade", appauthor=False) / "chats"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two chats may end at the same moment.
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.json"
    files.write(path, chat.conversation.as_json(chat.session.loaded.name), "autosave")
    # Also with --quiet: it would be lost to a user who does not know of it.
    Terminal().say(f"the conversation was saved to {path}; /load {path} goes on")


def loop(chat: Chat) -> None:
    """Read and answer until the user leaves; Ctrl-C and errors do not end a chat at a terminal.

    Raises:
        LadeError, DecoderError: with a line for the user.
        KeyboardInterrupt: Ctrl-C, on a pipe.
    """
    while not chat.leaving:
        _turn(chat)


def _turn(chat: Chat) -> None:
    draft, chat.draft = chat.draft, ""
    try:
        text = chat.reader.read(draft)
        text.encode()  # some terminals and locales let any byte through
        handle(chat, text)
    except EOFError:
        chat.leaving = True
    except (BrokenPipeError, DeviceLostError, RankError):
        raise  # nothing more can be shown, or answered
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, UnicodeError):
            error = UsageError(
                "the input is not UTF-8; convert it, for example with iconv -f latin1 -t utf-8"
            )
        if not chat.reader.interactive:
            raise error from None
        if isinstance(error, KeyboardInterrupt):
            chat.base = None
            chat.note("(Ctrl-D or /exit leaves)")
        else:
            chat.complain(error)


def handle(chat: Chat, text: str) -> None:
    """Act on one input: a command, or a message to the model; errors as `loop` has them."""
    if commands.perform(chat, text):
        return
    if text in LEAVE:
        chat.leaving = True
    else:
        chat.say(unescaped(text))
