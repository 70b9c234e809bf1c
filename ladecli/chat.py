"""`lade chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from . import launch
from .decoder.errors import DeviceLostError, RankError
from .errors import LadeError, UsageError
from .options import ChatRequest
from .repl import chat_file, commands
from .repl.line_editor import open_reader
from .repl.reader import LEAVE, unprotected
from .repl.talk import Chat
from .repl.tty import ended_tidily, unechoed
from .terminal import Terminal, ctrl_c_ignored, ctrl_c_raised

_COMMAND = re.compile(r"/([a-z-]*|\?)(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


def run(request: ChatRequest) -> int:
    """Talk until the user leaves.

    Returns:
        The exit code: 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    launch.check(request)
    terminal = Terminal(request.color, request.quiet)
    with ended_tidily(), unechoed(), launch.opened(request, terminal) as session:
        chat = Chat(session, request, terminal, open_reader)
        with launch.kept_drafts(session, request):
            greet(chat)
            with rescued(chat):
                loop(chat)
    return 0


def greet(chat: Chat) -> None:
    """Say once what answers, and how to get help."""
    if chat.reader.interactive:
        about = (
            chat.session.loaded.name,
            chat.request.strategy,
            *_ranks(chat),
            f"profile {chat.choice.profile}",
            f"{chat.session.decoder.max_context} tokens of context",
            "/help",
        )
        chat.note(" · ".join(about))


def _ranks(chat: Chat) -> list[str]:
    """How many ranks answer, where there are several, and what they share if that is the model."""
    if (count := chat.session.ranks) == 1:
        return []
    split = " (tensor)" if chat.request.parallel_mode == "tensor" else ""
    return [f"{count} ranks{split}"]


@contextlib.contextmanager
def rescued(chat: Chat) -> Iterator[None]:
    """Keep what was said where an error ends the chat, be it the line editor's own."""
    try:
        yield
    except Exception as error:
        # What came over a pipe and was wrong can come again.
        if chat.reader.interactive or isinstance(error, (DeviceLostError, RankError)):
            rescue(chat)
        raise


def rescue(chat: Chat) -> None:
    """Save what was said where nothing can be answered any more, and say where it is."""
    if not chat.conversation.messages or chat.conversation is chat.saved:
        return
    try:
        path = chat_file.save_lost(chat.conversation, chat.session.loaded.name)
    except (LadeError, OSError) as error:
        chat.complain(error)
        return
    # Also with --quiet: who does not know of it has lost it.
    Terminal().say(f"the conversation was saved to {path}; /load {path} goes on")


def loop(chat: Chat) -> None:
    """Read and answer until the user leaves.

    Raises:
        LadeError, DecoderError: on a pipe, where nobody could mend what was wrong.
    """
    if not chat.reader.interactive:
        while not chat.leaving and (text := _read(chat)) is not None:
            handle(chat, text)
        return
    with ctrl_c_ignored():  # but while reading, and in replies, which have their own way
        while not chat.leaving:
            _turn(chat)


def _turn(chat: Chat) -> None:
    """Read and act once: whatever goes wrong must not cost the conversation."""
    try:
        with ctrl_c_raised():
            text = _read(chat)
    except KeyboardInterrupt:
        chat.note("nothing was changed" if chat.base else "Ctrl-D or /exit leaves")
        chat.base = None
        return
    except LadeError as error:
        chat.complain(error)
        return
    if text is None:
        chat.leaving = True
        return
    try:
        handle(chat, text)
    except (BrokenPipeError, DeviceLostError, RankError):
        raise  # nothing more can be said, or answered
    except KeyboardInterrupt:  # a second Ctrl-C, in the middle of a step
        chat.note("(stopped)")
        chat.reader.hold()
    except Exception as error:
        chat.complain(error)


def _read(chat: Chat) -> str | None:
    """What was typed; None if nothing comes any more."""
    draft, chat.draft = chat.draft, ""
    try:
        return chat.reader.read(draft)
    except EOFError:
        return None


def handle(chat: Chat, text: str) -> None:
    """Act on one input: a command, or a message to the model.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("that is not UTF-8; check the terminal's encoding") from None
    command = _COMMAND.fullmatch(text.rstrip())
    if command and commands.is_command(command[1], text):
        chat.base = None
        commands.perform(chat, command[1] or "help", (command[2] or "").strip())
    elif text in LEAVE:
        chat.leaving = True
    else:
        chat.say(unprotected(text))
