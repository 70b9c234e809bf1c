"""`lade chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from . import files
from .decoder.errors import DeviceLostError, Error, RankError
from .errors import NoEmbeddingError, UsageError, counted
from .options.answer import KEEP_MEMORY, ChatRequest, bytes_in
from .options.model import SMALL_MODEL, TOY
from .repl import commands
from .repl.chat import Chat
from .repl.journal import Journal, KeptChat, kept_chats, newest, rows_of, saved
from .repl.reader import (
    LEAVE,
    Reader,
    TerminalReader,
    can_edit,
    history_path,
    suppress_echo,
    unescape,
)
from .session import opening
from .trace import record
from .view import screen
from .view.terminal import Terminal


def run(request: ChatRequest) -> int:
    """Chat until the user leaves; return 0, or the exit code of a refused message on a pipe.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    record.check(request)
    texts = request.draft_texts()
    if request.list_chats:
        terminal = Terminal(request.color)
        screen.print_rows(terminal.console(sys.stdout), rows_of(kept_chats()))
        return 0
    journal, talk, earlier = Journal(), None, None
    saved_in, attached = list[Path](), list[str]()
    if request.load is not None or request.resume:
        earlier = newest() if request.load is None else saved(request.load)
        talk = earlier.conversation
        if request.typed_system is not None:
            talk = replace(talk, system=request.typed_system)
        if request.origins.get("model") != "argument":
            request = replace(request, model=earlier.model or request.model)
    following: ChatRequest | None = request
    before, code = None, 0
    with suppress_echo():
        while following is not None:
            with contextlib.ExitStack() as stack:
                try:
                    chat = _open(following, texts, stack)
                except (Error, KeyboardInterrupt) as error:
                    if before is None:
                        raise
                    why = str(error) or f"{following.name} was not loaded"  # Ctrl-C: no message
                    Terminal(before.color).say(f"{why}; going on with {before.name}")
                    following, before = before, None
                    continue
                if talk is not None:
                    # This model's context may have room for messages that the last one forgot.
                    chat.conversation = replace(talk, forgotten=0)
                chat.files, chat.attached = saved_in, attached
                greet(chat, earlier)
                with keep_conversation(chat, journal):
                    loop(chat, following.message)
            code = UsageError.exit_code if chat.refused else code
            # On a pipe, an error ends the chat, so there is no model to return to.
            before = replace(chat.request, message=None) if chat.reader.interactive else None
            talk, saved_in, attached, earlier = chat.conversation, chat.files, chat.attached, None
            following = _with_another(chat.request, chat.successor) if chat.successor else None
            del chat  # frees the memory of its model for the next one
    return code


def _open(request: ChatRequest, texts: list[str], stack: contextlib.ExitStack) -> Chat:
    """Open a chat with the model of a request, until the stack is closed."""
    terminal = Terminal(request.color, request.quiet)
    session = stack.enter_context(opening.open_with_ranks(request, terminal))
    session.keep_texts(bytes_in(KEEP_MEMORY))  # for /load, and a conversation that was left
    chat = Chat(session, request, terminal, open_reader)
    for text in texts:
        session.add_draft_text(text)
    return chat


def _with_another(request: ChatRequest, model: str) -> ChatRequest:
    """Return the request for another model, without the options that belong to the last one."""
    names = ("adapter", "gguf_file", "chat_template", "revision")
    own: dict[str, Any] = {**dict.fromkeys(names), "trust_remote_code": False}
    origins = {key: origin for key, origin in request.origins.items() if key not in own}
    return replace(request, model=model, message=None, origins=origins, **own)


def open_reader(chat: Chat) -> Reader:
    """Return a line editor if input and output are terminals, else a reader of lines."""
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


def greet(chat: Chat, earlier: KeptChat | None) -> None:
    """Print the model, its settings, a hint at /help, and the conversation that goes on."""
    if not chat.reader.interactive:
        return
    session, mode = chat.session, chat.request.parallel_mode
    parts = [session.loaded.name, chat.request.strategy]
    if session.ranks > 1:
        parts.append(f"{session.ranks} ranks{' (tensor)' if mode == 'tensor' else ''}")
    parts += [f"profile {chat.choice.profile}", f"{session.decoder.max_context} tokens of context"]
    chat.note(" · ".join([*parts, "/help"]))
    if session.loaded.name == "demo":
        chat.note(f"{TOY} lade chat {SMALL_MODEL}")
    if earlier is not None:
        chat.recall(earlier)
    elif chat.conversation.messages:
        chat.note(f"going on after {counted(len(chat.conversation.messages), 'message')}")


@contextlib.contextmanager
def keep_conversation(chat: Chat, journal: Journal) -> Iterator[None]:
    """Keep the conversation during the chat, and print its file if an error ends the chat."""
    if chat.reader.interactive:
        chat.journal = journal
    try:
        yield
        if not chat.successor and chat.journal and journal.path.exists():
            chat.note(f"kept in {journal.path}")
            chat.note("lade chat --continue goes on with it, and lade chat --list shows older ones")
    except BaseException as error:
        # The conversation of a pipe is kept only if the machine failed.
        if isinstance(error, DeviceLostError | RankError):
            chat.journal = journal
        if chat.keep(chat.conversation) and chat.conversation.messages:
            # Even with --quiet, since the user needs to know the file.
            Terminal().say(f"the conversation was saved to {journal.path}; --continue goes on")
        raise


def loop(chat: Chat, first: str | None) -> None:
    """Read and answer messages until the user leaves.

    Ctrl-C and errors do not end a chat at a terminal.  On a pipe they do, except for a message with
    tokens that have no embedding.

    Args:
        chat: with its reader.
        first: the first message, if it is known.

    Raises:
        LadeError, DecoderError: with a line for the user.
        KeyboardInterrupt: Ctrl-C, on a pipe.
    """
    if first is not None:
        if chat.reader.interactive:
            chat.console.print(Text(f"> {first}"))
        _turn(chat, first)
    while not chat.leaving:
        _turn(chat)


def _turn(chat: Chat, text: str | None = None) -> None:
    unsent, chat.unsent = chat.unsent, ""
    try:
        text = chat.reader.read(unsent) if text is None else text
        text.encode()  # fails for surrogates, which stand for invalid bytes
        if text in LEAVE:
            chat.leaving = True
        elif not commands.perform(chat, text):
            chat.say(unescape(text))
    except EOFError:
        chat.leaving = True
    except (BrokenPipeError, DeviceLostError, RankError):
        raise  # no output, or no model, is left
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, UnicodeError):
            error = UsageError(f"the input is not UTF-8; {files.CONVERT}")
        if not chat.reader.interactive and not isinstance(error, NoEmbeddingError):
            raise error from None
        if isinstance(error, KeyboardInterrupt):
            chat.base = None
            chat.note("(Ctrl-D or /exit leaves)")
        else:
            chat.refused = chat.refused or not chat.reader.interactive
            chat.complain(error)
