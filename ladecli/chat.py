"""`lade chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from platformdirs import user_state_path
from rich.text import Text

from . import files
from .decoder.errors import DeviceLostError, RankError
from .errors import LadeError, NoEmbeddingError, UsageError
from .options import ChatRequest
from .repl import commands
from .repl.reader import LEAVE, Reader, TerminalReader, can_edit, history_path, unechoed, unescaped
from .repl.session import Chat
from .session import opening, pool_file
from .session.conversation import Conversation, from_json
from .trace import export
from .view.terminal import Terminal
from .visualize import counted, printable

SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
KEPT = 100
"""Conversations that are kept for `--continue`; the oldest go first."""


def run(request: ChatRequest) -> int:
    """Chat until the user leaves; returns the exit code 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    export.check(request)
    pool_file.check(request.pool_file)
    path, conversation = _resumed() if request.resume else (_new_file(), None)
    following: ChatRequest | None = request
    code = 0
    with ended_tidily(), unechoed():
        while following is not None:
            following, conversation, refused = _with_model(following, conversation, path)
            code = UsageError.exit_code if refused else code
    return code


def _with_model(
    request: ChatRequest, conversation: Conversation | None, path: Path
) -> tuple[ChatRequest | None, Conversation, bool]:
    """Chat with one model until the user leaves, or goes on with another one: the request for
    that, the conversation, and whether a message of a pipe was refused."""
    terminal, texts = Terminal(request.color, request.quiet), pool_file.draft_texts(request)
    with opening.opened(request, terminal) as session:
        chat = Chat(session, request, terminal, open_reader)
        if conversation is not None:
            chat.conversation = chat.saved = conversation
        with pool_file.kept_drafts(session, request.pool_file, texts):
            greet(chat)
            with autosaved(chat, path):
                loop(chat, request.message)
    if chat.successor is None:
        return None, chat.conversation, chat.refused
    request = replace(chat.request, model=chat.successor, adapter=None, gguf_file=None)
    request = replace(request, message=None)
    return request, chat.conversation, chat.refused


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
    if count := len(chat.conversation.messages):
        chat.note(f"going on after {counted(count, 'message')}")


@contextlib.contextmanager
def autosaved(chat: Chat, path: Path) -> Iterator[None]:
    """Keep the conversation, whatever ends the chat; say where if no file of the user's has it."""
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
        raise
    finally:
        # A pipe can send its messages again, unless the machine failed.
        failed = isinstance(ended, DeviceLostError | RankError)
        if chat.conversation.messages and (chat.reader.interactive or failed):
            with contextlib.suppress(OSError, LadeError):  # the reason of the end is what counts
                _keep(chat, path)
                if chat.unsaved and ended is not None:
                    # Also with --quiet: it would be lost to a user who does not know of it.
                    Terminal().say(f"the conversation was saved to {path}; --continue goes on")


def _keep(chat: Chat, path: Path) -> None:
    """Write the conversation to a file of the user's state, beside a number of older ones."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write(path, chat.conversation.as_json(chat.session.loaded.name), "autosave")
    for old in _kept_files()[:-KEPT]:
        old.unlink(missing_ok=True)


def _folder() -> Path:
    return user_state_path("lade", appauthor=False) / "chats"


def _kept_files() -> list[Path]:
    """The conversations that were kept, the newest last: their names begin with their time."""
    return sorted(_folder().glob("*.json"))


def _new_file() -> Path:
    """A file for a new conversation; two may begin at the same moment."""
    return _folder() / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.json"


def _resumed() -> tuple[Path, Conversation]:
    """The newest conversation and its file.

    Raises:
        UsageError: there is none, or its file is damaged.
    """
    kept = _kept_files()
    if not kept:
        raise UsageError("there is no conversation to continue; leave --continue out")
    try:
        return kept[-1], from_json(files.read_text(str(kept[-1])))
    except ValueError as error:
        raise UsageError(f"{kept[-1]} is not a saved chat ({error}); delete it") from None


def loop(chat: Chat, first: str | None = None) -> None:
    """Read and answer until the user leaves; Ctrl-C and errors do not end a chat at a terminal,
    nor does a message on a pipe that the model has no embedding for.

    Args:
        chat: with its reader.
        first: a message that is not read.

    Raises:
        LadeError, DecoderError: with a line for the user.
        KeyboardInterrupt: Ctrl-C, on a pipe.
    """
    if first is not None:
        if chat.reader.interactive:
            chat.console.print(Text(f"> {printable(first)}"))
        _turn(chat, first)
    while not chat.leaving:
        _turn(chat)


def _turn(chat: Chat, text: str | None = None) -> None:
    draft, chat.draft = chat.draft, ""
    try:
        text = chat.reader.read(draft) if text is None else text
        text.encode()  # some terminals and locales let any byte through
        handle(chat, text)
    except EOFError:
        chat.leaving = True
    except (BrokenPipeError, DeviceLostError, RankError):
        raise  # nothing more can be shown, or answered
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, UnicodeError):
            data = error.object if isinstance(error, UnicodeDecodeError) else b""
            error = UsageError(f"the input is not UTF-8; {files.conversion(data)}")
        if not chat.reader.interactive and not isinstance(error, NoEmbeddingError):
            raise error from None
        if isinstance(error, KeyboardInterrupt):
            chat.base = None
            chat.note("(Ctrl-D or /exit leaves)")
        else:
            chat.refused = chat.refused or not chat.reader.interactive
            chat.complain(error)


def handle(chat: Chat, text: str) -> None:
    """Act on one input: a command, or a message to the model; errors as `loop` has them."""
    if commands.perform(chat, text):
        return
    if text in LEAVE:
        chat.leaving = True
    else:
        chat.say(unescaped(text))
