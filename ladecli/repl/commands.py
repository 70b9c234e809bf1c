"""The slash commands of a chat: one function each, in a table for help and completion."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from rich.console import RenderableType
from rich.text import Text

from .. import files
from ..decoder.config import SOURCES
from ..errors import UsageError, counted, printable
from ..metrics import total
from ..models.find import find
from ..options.model import ModelOptions
from ..session.conversation import Conversation
from ..session.grammar import grammar_of
from ..visualize import style_of
from .chat import Chat
from .compare import compare_again
from .journal import QUOTED, kept_chats, rows_of, saved
from .reader import escape
from .settings import LIVE, change, find_live, find_option, in_effect, suggestion, values_of

Action = Callable[[Chat, str], None]
_COMMAND = re.compile(r"/([a-z-]*|\?)(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)
NONE = "none"
"""The argument that removes something."""


class Command(NamedTuple):
    """A slash command."""

    name: str  # without the slash
    arguments: str  # as the help shows them
    help: str  # its effect in a few words
    details: str  # further paragraphs
    action: Action  # takes the text after the name

    @property
    def usage(self) -> str:
        """The command with its arguments."""
        return f"/{self.name} {self.arguments}".strip()


COMMANDS: dict[str, Command] = {}
ALIASES = {
    **{"?": "help", "bye": "exit", "quit": "exit", "q": "exit"},
    **{"clear": "reset", "new": "reset", "retry": "regenerate"},
}


def command(usage: str) -> Callable[[Action], Action]:
    """Add a function to the table; its docstring contains the help and the details."""
    name, _, arguments = usage.removeprefix("/").partition(" ")

    def register(action: Action) -> Action:
        help, _, details = inspect.cleandoc(action.__doc__ or "").partition("\n\n")
        COMMANDS[name] = Command(name, arguments, help.rstrip("."), details, action)
        return action

    return register


def perform(chat: Chat, text: str) -> bool:
    """Run the command in an input; return False if the input is a message.

    An unknown name is a misspelt command, unless the input has several lines: such text was pasted
    for the model.

    Raises:
        LadeError, DecoderError: there is no such command, or it failed.
    """
    match = _COMMAND.fullmatch(text.rstrip())
    if match is None:
        return False
    name, argument = match[1] or "help", (match[2] or "").strip()
    command = _find(name)
    if command is None:
        if "\n" in text.strip():
            return False
        hint = suggestion(name.lower(), [*COMMANDS, *ALIASES], "/") or "/help lists all"
        raise UsageError(
            f"there is no command /{name}; {hint} (put a space before it to send it to the model)"
        )
    if "FILE" in command.arguments:
        argument = argument.strip("\"'")  # as a shell would take it
    if argument and not command.arguments:
        raise UsageError(f"/{command.name} takes no arguments")
    if not argument and command.arguments in ("FILE", "NAME"):
        what = "file" if command.arguments == "FILE" else "model"
        raise UsageError(f"name a {what}: {command.usage}")
    chat.base = None
    command.action(chat, argument)
    return True


def _find(name: str) -> Command | None:
    """Return the command of this name or alias; None if there is none."""
    return COMMANDS.get(ALIASES.get(name.lower(), name.lower()))


class CommandCompleter(Completer):
    """Completes inputs that begin with a slash; all other input is a message."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        *before, typed = text[1:].split(" ")
        typed_command = _find(before[0]) if before else None
        if typed_command and "FILE" in typed_command.arguments:
            path = text.partition(" ")[2]
            yield from PathCompleter(expanduser=True).get_completions(Document(path), event)
            return
        names: Iterable[str] = ()
        match [typed_command.name, *before[1:]] if typed_command else before:
            case [] | ["help"]:
                names = COMMANDS
            case ["set" | "show"]:
                names = LIVE
            case ["set", option]:
                names = values_of(option)
        for name in names:
            if name.startswith(typed.lower()):
                help = "" if before else COMMANDS[name].help
                yield Completion(name, start_position=-len(typed), display_meta=help)


# The conversation.


@command("/system [TEXT]")
def system(chat: Chat, text: str) -> None:
    """Show or set the system message; "none" removes it."""
    if text:
        changed = replace(chat.conversation, system=None if text == NONE else text)
        chat.check_template(changed)
        chat.show_new_notices()
        chat.conversation = changed
    chat.note(chat.conversation.system or "none; the model's template may have its own")


@command("/regenerate")
def regenerate(chat: Chat, _: str) -> None:
    """Answer the last message again."""
    question = chat.conversation.without_reply()
    if chat.settings().sampling.greedy or chat.request.seed is not None:
        chat.note("the same reply again: /set temperature 0.8 and seed default give others")
    chat.answer(question)


@command("/undo")
def undo(chat: Chat, _: str) -> None:
    """Take back the last message and its reply."""
    question = chat.conversation.last_question
    chat.conversation = chat.conversation.without_exchange()
    chat.note(f"taken back: {shorten(question, QUOTED)}")


@command("/edit [TEXT]")
def edit(chat: Chat, text: str) -> None:
    """Change the last message, and have it answered again."""
    question = chat.conversation.last_question
    if not text and not chat.reader.interactive:
        raise UsageError("give the new text: /edit TEXT")
    chat.base = chat.conversation.without_exchange()
    if text:
        chat.say(text)
        return
    chat.unsent = escape(question)
    keys = "edit and press Enter; Ctrl-X Ctrl-E opens your editor, Ctrl-C keeps the old one"
    chat.note(keys if chat.reader.edits else "type the new text; an empty line keeps the old one")


@command("/paste FILE")
def paste(chat: Chat, name: str) -> None:
    """Attach a text file to the next message; "none" detaches."""
    if name == NONE:
        chat.attached.clear()
        chat.note("no file is attached to the next message")
        return
    text = files.read_text(name).rstrip()
    title, fence = files.expanded(name).name, "```"
    if not text:
        raise UsageError(f"{name} is empty; name another file")
    while fence in text:
        fence += "`"
    chat.attached.append(f"{title}:\n{fence}\n{text}\n{fence}")
    lines = counted(text.count("\n") + 1, "line")
    chat.note(f"{title} ({lines}) is attached to the next message")


@command("/draft FILE")
def draft(chat: Chat, name: str) -> None:
    """Use a text for drafts only: the model does not read it.

    Replies that repeat it, such as an edit of it, take fewer steps. What is in the chat already is
    drafted from anyway.
    """
    text, title = files.read_text(name), files.expanded(name).name
    added = chat.session.add_draft_text(text)
    chat.note(f"drafts know {title} ({counted(added, 'token')})")


@command("/json FILE")
def json_schema(chat: Chat, name: str) -> None:
    """Have replies be JSON that fits a schema; "none" ends that."""
    chat.grammar = None if name == NONE else grammar_of(name, None)
    chat.note("replies are text" if name == NONE else f"replies are JSON by {name}")


@command("/reset")
def reset(chat: Chat, _: str) -> None:
    """Start over; the system message stays."""
    if chat.journal is not None:
        chat.journal.begin()
    chat.conversation = Conversation(system=chat.conversation.system)
    chat.attached.clear()
    chat.files = []  # they keep the old conversation
    chat.note("a new conversation")


@command("/save [FILE]")
def save(chat: Chat, name: str) -> None:
    """Save the conversation; a FILE.md is for reading alone."""
    if not name and not chat.files:
        raise UsageError("no file has this chat yet; name a file: /save FILE")
    path = files.expanded(name) if name else chat.files[-1]
    if path not in chat.files:
        files.check_new(path, "/save")
    model, talk = chat.session.loaded.name, chat.conversation
    text = printable(talk.as_markdown(model)) if path.suffix == ".md" else talk.as_json(model)
    files.write(path, text, "/save", private=True)
    chat.files.append(path)
    chat.note(f"saved to {path}")


@command("/load FILE")
def load(chat: Chat, name: str) -> None:
    """Go on with a saved conversation, or one of /chats.

    FILE is one of /save, or a number that /chats shows. The conversation until now stays in /chats.
    """
    other = saved(name, chat.own_file)
    chat.check_template(other.conversation)
    messages = chat.conversation.messages
    if messages and chat.reader.interactive and not chat.keep(chat.conversation):
        count = counted(len(messages), "message")
        raise UsageError(
            f"this chat has {count} that are kept nowhere; /save FILE and /reset first"
        )
    if chat.journal is not None:
        chat.journal.begin()
    chat.conversation = other.conversation
    chat.files = [] if name.isdecimal() else [files.expanded(name)]
    chat.recall(other)


@command("/chats")
def chats(chat: Chat, _: str) -> None:
    """List the other conversations that are kept.

    The newest is the first. /load takes the number, and so does lade chat --load.
    """
    others = kept_chats(chat.own_file)
    chat.print_rows(rows_of(others))
    if not others:
        chat.note("no other conversation is kept")


@command("/copy")
def copy(chat: Chat, _: str) -> None:
    """Copy the last reply to the clipboard."""
    replies = [m.content for m in chat.conversation.messages if m.role == "assistant"]
    if not replies:
        raise UsageError("there is no reply to copy; send a message first")
    if not (text := replies[-1]):
        raise UsageError("the last reply has no answer to copy; /regenerate makes another")
    if not chat.console.is_terminal:
        raise UsageError("there is no terminal with a clipboard; /save FILE writes the chat")
    # OSC 52: the terminal copies the text, even over an SSH connection.
    encoded = base64.b64encode(text.encode()).decode()
    chat.console.file.write(f"\x1b]52;c;{encoded}\x07")
    chat.note(f"{counted(len(text), 'character')} sent to the terminal's clipboard")


# Options.


@command("/model NAME")
def model(chat: Chat, name: str) -> None:
    """Go on with another model."""
    find(ModelOptions(model=name, offline=chat.request.offline))
    chat.successor, chat.leaving = name, True


@command("/set NAME VALUE")
def set_option(chat: Chat, argument: str) -> None:
    """Change an option, by the name of its flag.

    "default" is the value without flags and config file; "off" switches off.
    """
    name, *value = re.split(r"[ =]", argument, maxsplit=1)  # NAME=VALUE does, too
    if not value or not value[0]:
        show(chat, name)
        return
    before, name = in_effect(chat), find_live(name).name
    chat.change(change(chat.request, name, value[0].strip()))
    chat.show_new_notices()
    # With the options that changed as a consequence.
    rows = in_effect(chat)
    changed = (key for key in LIVE if rows[key] != before[key])
    chat.print_rows((key, *rows[key]) for key in dict.fromkeys((name, *changed)))


@command("/show [NAME]")
def show(chat: Chat, name: str) -> None:
    """Show options, and where their values come from.

    A lookahead window (window, ngram, guesses) runs if sources have trajectory.

    The profile says how large a step pays on a machine: budget is the most tokens of a step,
    sources are where drafts come from. lade tune measures one for this machine.
    """
    rows = in_effect(chat)
    names = [find_option(name).name] if name else LIVE
    chat.print_rows((key, *rows[key]) for key in names)


# Figures.


@command("/stats")
def stats(chat: Chat, _: str) -> None:
    """Figures of all replies of this model.

    A step is one pass through the model; plain decoding has a token for each. "1.4× plain" is 1.4
    times as fast as plain decoding, estimated if a ≈ stands before it.

    Accepted are the tokens that a draft guessed right, by its source. context: copied from this
    chat, or from a draft text. recycled: what the model itself expected after such tokens before.
    trajectory: from the lookahead window.

    The bars beside a reply are its last steps, by their tokens: the lowest is one, the highest
    eight or more.
    """
    if not chat.replies:
        raise UsageError("there are no figures yet; send a message first")
    tally = total([reply.tally for reply in chat.replies])
    chat.terminal.statistics(tally, chat.request.token_colors)
    limit, forgotten = chat.session.decoder.max_context, chat.conversation.forgotten
    parts = [
        f"replies: {len(chat.replies)}",
        f"{tally.step_width:.1f} tokens fed per step",
        f"{tally.cached} of {tally.prompt} prompt tokens were in the cache",
        f"{chat.used} of {limit} tokens of context used",
        *([f"{counted(forgotten, 'message')} dropped"] if forgotten else []),
    ]
    chat.console.print(" · ".join(parts))


@command("/compare")
def compare(chat: Chat, _: str) -> None:
    """Decode the last reply with drafts and without, and compare.

    Both take turns, up to five times in some seconds. The first row is the reply with drafts, the
    second one plain decoding, which takes a step for each token: tok/s are tokens per second.

    Below 1.00× drafts cost more than they gained. "same text" means that both gave the same tokens.
    """
    reply = chat.last_reply
    if reply is None or not reply.tally.tokens:
        raise UsageError("there is no reply to compare; send a message first")
    compare_again(chat, reply)


# The rest.


@command("/help [COMMAND]")
def show_help(chat: Chat, name: str) -> None:
    """List commands and keys, or explain one command."""
    if name:
        command = _find(name.lstrip("/"))
        if command is None:
            raise UsageError(f"there is no command /{name.lstrip('/')}; /help lists all")
        chat.console.print(f"{command.usage}: {command.help}.")
        for part in command.details.split("\n\n") if command.details else ():
            chat.note(" ".join(part.split()))
        if command.name in ("set", "show"):
            chat.note(f"Names: {', '.join(LIVE)}.")
        return
    colours = chat.request.token_colors
    sources = Text(" ").join(Text(name, style_of(name) if colours else "") for name in SOURCES)
    # The whole list fits on a screen of 24 lines, with the prompt.
    rows: list[Sequence[RenderableType]] = [
        *((row.usage, row.help) for row in COMMANDS.values() if row.name != "exit"),
        ("Alt-Enter", 'new line (or """ around lines); Ctrl-X Ctrl-E: $EDITOR'),
        ("Ctrl-C, -D, -T", Text("stop; leave (/exit); colors: ").append_text(sources)),
    ]
    chat.print_rows(rows)


@command("/exit")
def leave(chat: Chat, _: str) -> None:
    """Leave (Ctrl-D too)."""
    chat.leaving = True
