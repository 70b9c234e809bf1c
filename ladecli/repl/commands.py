"""The slash commands of a chat, one function each; their docstrings are the help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files
from ..conversation import Conversation
from ..errors import UsageError
from ..metrics import ratio, total
from ..terminal import ctrl_c, ctrl_c_raised
from ..visualize import SOURCE_STYLES, counted, legend
from . import chat_file, comparison
from .changes import LIVE, change
from .reader import protected
from .registry import COMMANDS, command, find, is_command, perform

if TYPE_CHECKING:
    from rich.table import Table

    from .talk import Chat

# Who takes these from here has all commands in the table.
__all__ = ["COMMANDS", "is_command", "perform"]

_NOTHING = ("none", "off", "default")
_NOISE = 0.15
"""By so much two speeds may differ though the steps are the same."""


# The conversation.


@command("[TEXT]")
def system(chat: Chat, text: str) -> None:
    """Show, or set, the system message."""
    if not text:
        shown = chat.conversation.system
        chat.note("no system message" if shown is None else shown)
        return
    wanted = replace(chat.conversation, system=None if text in _NOTHING else text)
    chat.encode(wanted.asked("?"))  # some templates refuse one, and say so now
    chat.conversation = wanted
    if wanted.system is None:
        chat.note("no system message from now on")
    else:
        chat.note("holds for the whole conversation from now on; /system none removes it")


@command("")
def regenerate(chat: Chat, _: str) -> None:
    """Answer the last message again."""
    asked = chat.conversation.without_reply()
    if not asked.messages:
        raise UsageError("there is nothing to answer again; say something first")
    settings = chat.settings()
    if settings.sampling.greedy:
        chat.note("greedy decoding says the same again, if it sees the same: /set temperature 0.8")
    elif chat.request.seed is not None:
        chat.note("the seed is fixed: the same settings say the same; /set seed default draws anew")
    chat.answer(asked)


@command("")
def undo(chat: Chat, _: str) -> None:
    """Take back the last message and its reply."""
    question = chat.conversation.last_question
    if question is None:
        raise UsageError("there is nothing to take back")
    chat.conversation = chat.conversation.without_exchange()
    chat.note(f"taken back: {_shortened(question)}")


@command("[TEXT]")
def edit(chat: Chat, text: str) -> None:
    """Change the last message, and have it answered again."""
    question = chat.conversation.last_question
    if question is None:
        raise UsageError("there is nothing to edit; say something first")
    chat.base = chat.conversation.without_exchange()
    if text:
        chat.say(text)
    elif chat.reader.interactive:
        chat.draft = protected(question)
        chat.note("edit and press Enter; Ctrl-X Ctrl-E opens your editor, Ctrl-C leaves it be")
    else:
        chat.base = None
        raise UsageError("give the new text: /edit TEXT")


@command("FILE")
def paste(chat: Chat, name: str) -> None:
    """Send a text file along with the next message, or none."""
    if not name and chat.attached:
        chat.note(
            "goes with your next message: " + ", ".join(t.split(":\n")[0] for t in chat.attached)
        )
        return
    if not name:
        raise UsageError("name a file: /paste FILE")
    if name in _NOTHING:
        chat.attached.clear()
        chat.note("no file goes with your next message")
        return
    path = _path(name)
    try:
        with ctrl_c_raised():  # nothing may ever come from a named pipe
            text = files.read(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{name} is a folder; name a file in it") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no UTF-8 text; convert it, or choose another file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{name} cannot be read: {reason}") from error
    if not text.strip():
        raise UsageError(f"{name} is empty")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    fence = "```"
    while fence in text:
        fence += "`"
    chat.attached.append(f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}")
    lines = counted(len(text.splitlines()), "line")
    chat.note(f"{path.name} ({lines}) goes with your next message")


@command("")
def reset(chat: Chat, _: str) -> None:
    """Start over; the system message stays."""
    chat.conversation = Conversation(system=chat.conversation.system)
    chat.attached.clear()
    chat.file = chat.saved = None  # the file keeps the old one
    chat.note("a new conversation")


@command("[FILE]")
def save(chat: Chat, name: str) -> None:
    """Write the conversation to a file."""
    path = _path(name) if name else chat.file
    if path is None:
        raise UsageError("name a file: /save FILE")
    if path != chat.file and path.exists():
        count = counted(len(chat_file.load(path).messages), "message")
        question = f"{path} holds another chat of {count}: [k]eep it, or [o]verwrite it? "
        if chat.choice_of(question, "ko") == "k":
            raise UsageError(f"{path} was kept; name another file")
    chat_file.save(path, chat.conversation, chat.session.loaded.name)
    chat.file, chat.saved = path, chat.conversation
    chat.note(f"saved to {path}")


@command("FILE")
def load(chat: Chat, name: str) -> None:
    """Go on with a saved conversation."""
    if not name:
        raise UsageError("name a file: /load FILE")
    path = _path(name)
    with ctrl_c_raised():
        loaded = chat_file.load(path)
    chat.encode(loaded.asked("?"))  # a template may refuse what another one took
    if chat.conversation.messages and chat.conversation is not chat.saved:
        count = counted(len(chat.conversation.messages), "message")
        question = f"This chat of {count} is not saved: [k]eep it, or [r]eplace it? "
        if chat.reader.interactive and chat.choice_of(question, "kr") == "k":
            return
    chat.conversation = chat.saved = loaded
    chat.file = path
    chat.note(f"{counted(len(loaded.messages), 'message')} loaded; you are where you left")
    if chat.conversation.messages:
        last = chat.conversation.messages[-1]
        chat.note(f"last, by the {last.role}: {_shortened(last.content)}")


# Settings.


@command("NAME VALUE")
def _set(chat: Chat, argument: str) -> None:
    """Change an option, by the name of its flag."""
    name, value = (*argument.split(None, 1), "", "")[:2]
    if not name:
        show(chat, "")
    elif not value.strip():
        show(chat, name)
    else:
        chat.change(change(chat.request, name, value.strip()))
        show(chat, name)


@command("[NAME]")
def show(chat: Chat, name: str) -> None:
    """Show what options hold, and where they come from."""
    rows = chat.in_effect()
    name = name.lstrip("-").replace("_", "-").lower()
    if name:
        if name not in rows:
            change(chat.request, name, "default")  # raises, and says what there is
        rows = {name: rows[name]}
    table = _table()
    for key, (value, origin) in rows.items():
        table.add_row(key, value, origin)
    chat.console.print(table)


@command("[NAME]")
def profile(chat: Chat, name: str) -> None:
    """Show the hardware profile, or take another."""
    if name:
        chat.change(change(chat.request, "profile", name))
    chat.console.print(f"{chat.choice.profile}: {chat.choice.origin}", soft_wrap=True)
    rows, table = chat.in_effect(), _table()
    for key in ("window", "ngram", "guesses", "budget", "sources"):
        table.add_row(key, *rows[key])
    chat.console.print(table)


# Figures.


@command("")
def stats(chat: Chat, _: str) -> None:
    """Figures of this session."""
    if not chat.replies:
        raise UsageError("there are no figures yet; say something first")
    tally, table = total([reply.tally for reply in chat.replies]), _table()
    table.add_row("replies", str(sum(reply.part == 1 for reply in chat.replies)))
    table.add_row("tokens", f"{tally.tokens} in {tally.steps} steps")
    table.add_row("tokens per step", f"{tally.tokens_per_step:.2f}")
    table.add_row("tokens per second", f"{tally.tokens_per_second:.1f}")
    if chat.plain_step and (faster := tally.speedup(chat.plain_step)):
        plain = f"a plain step took {chat.plain_step * 1000:.1f} ms at the start"
        table.add_row("speed-up", f"{faster:.2f}×", plain)
    for source, count in sorted(tally.accepted.items()):
        table.add_row(f"from {source}", f"{count}", f"{count / tally.tokens:.0%} of all tokens")
    table.add_row("step width", f"{tally.step_width:.1f} tokens on average")
    table.add_row("prompts", f"{tally.prompt} tokens", f"{tally.cached} of them were in the cache")
    limit = chat.session.decoder.max_context
    forgotten = chat.conversation.forgotten
    dropped = f"{forgotten} messages dropped" if forgotten else ""
    table.add_row("context", f"{chat.used} of {limit} tokens", dropped)
    chat.console.print(table)


@command("")
def compare(chat: Chat, _: str) -> None:
    """The last reply again by plain decoding: same text, both speeds."""
    reply = chat.last_reply
    if chat.replies and chat.replies[-1].part > 1:
        raise UsageError("a reply that went on past a full context has nothing to compare with")
    if reply is None or not reply.token_ids:
        raise UsageError("there is no reply to compare; say something first")
    chat.note(f"decoding the same {counted(len(reply.token_ids), 'token')} one by one …")
    with chat.reader.keys_watched() as look, ctrl_c() as cancelled:
        plain = comparison.compare(
            chat.session, reply.prompt, reply.token_ids, reply.settings, cancelled, look
        )
    if not plain.complete:
        chat.note("comparison stopped")
        return
    table = _table()
    for name, tally in ((reply.settings.strategy, reply.tally), ("plain", plain.tally)):
        per_second = f"{tally.tokens_per_second:.1f} tok/s"
        table.add_row(name, per_second, f"{tally.steps} steps for {tally.tokens} tokens")
    chat.console.print(table)
    faster = ratio(reply.tally.tokens_per_second, plain.tally.tokens_per_second)
    if plain.differs_at is None and not (reply.tally.decode_seconds and plain.tally.decode_seconds):
        # The one step read the prompt, which is in the cache by now: no comparison.
        chat.console.print("same text · too short to compare speeds", style="bold")
    elif plain.differs_at is None:
        alike = reply.tally.steps == plain.tally.steps and abs(faster - 1) <= _NOISE
        times = "" if alike else f"{faster:.2f}× "
        chat.console.print(f"same text · {times}as fast as plain decoding", style="bold")
    else:
        chat.console.print(
            f"another text from token {plain.differs_at + 1} on: arithmetic of this precision"
            " broke a near-tie differently in a wider step; --dtype float32 is exact",
            style="yellow",
            soft_wrap=True,
        )


# The rest.


@command("[COMMAND]")
def _help(chat: Chat, name: str) -> None:
    """This list, or more about one command."""
    table = _table()
    if name:
        each = find(name.lstrip("/"))
        if each is None:
            raise UsageError(f"there is no command /{name.lstrip('/')}; /help lists all")
        chat.console.print(f"/{each.name} {each.arguments}".strip(), style="cyan")
        chat.console.print(f"{each.help}.")
        if each.name in ("set", "show"):
            chat.note(f"Names: {', '.join(LIVE)}.")
            chat.note('The value "default" takes a change back, and "off" switches off.')
        return
    for each in COMMANDS.values():
        table.add_row(f"/{each.name} {each.arguments}".strip(), each.help)
    table.add_row("Enter, Alt-Enter", 'send; a new line (or put several between """ and """)')
    table.add_row("Ctrl-X Ctrl-E", "edit in $EDITOR")
    table.add_row("Ctrl-C", "stop the reply, keeping what was said")
    table.add_row(
        "Ctrl-T", "colors of tokens, also in the middle of a reply; code has its own without"
    )
    colors = legend(source for source in SOURCE_STYLES if source != "jacobi")
    table.add_row("Colors", colors.append(" n-grams; plain: one token, one step"))
    chat.console.print(table)


@command("")
def exit(chat: Chat, _: str) -> None:
    """Leave (Ctrl-D too)."""
    chat.leaving = True


def _table() -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    return table


def _path(name: str) -> Path:
    """A file as a shell would take it, quotes and ~ included."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UsageError(f"there is no user {name.split('/')[0]}; check the path") from None


def _shortened(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
