"""A conversation with a model: what was said, and what it takes to say more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import launch, records, ways
from ..conversation import Conversation
from ..errors import LadeError, UsageError, told
from ..events import Ended, TextStep
from ..live import LiveView
from ..markdown import MarkdownRenderer
from ..metrics import Tally
from ..options import ChatRequest
from ..terminal import Terminal, ctrl_c
from ..visualize import Together, View, ViewState, counted, memory_line, printable
from .in_effect import in_effect
from .reader import Reader, protected
from .room import with_room

if TYPE_CHECKING:
    from ..profiles import Choice
    from ..session import Session, Settings


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, and all that is needed to make it again.

    Attributes:
        prompt: token ids of the conversation that it answers.
        settings: how it was decoded, the seed included.
        token_ids: its own.
        text: what became certain of it, piece by piece.
        tally: its figures.
        part: counts from 1 where a reply went on after the context was full.
    """

    prompt: list[int]
    settings: Settings
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    part: int = 1


class Chat:
    """A conversation with a model, at a terminal or over a pipe.

    Args:
        session: the model at work.
        request: the options, which `/set` changes.
        terminal: how to speak to the user.
        open_reader: makes what messages come from, for this chat.

    Attributes:
        conversation: what was said.
        replies: all replies since the start, the newest last.
        file: where the conversation was saved to or loaded from last.
        saved: what that file holds.
        draft: text that the next input begins with.
        base: what the next message follows, where it takes the place of the last one.
        attached: text of files that goes with the next message.
        leaving: whether the user wants to go.
        plain_step: seconds of a plain step, measured at the start; None if nobody looks.

    Raises:
        UsageError: the model has no chat template, and --raw was not given.
    """

    def __init__(
        self,
        session: Session,
        request: ChatRequest,
        terminal: Terminal,
        open_reader: Callable[[Chat], Reader],
    ) -> None:
        self.session = session
        self.request = request
        self.terminal = terminal
        self.conversation = Conversation(system=request.system)
        self.replies: list[Reply] = []
        self.file: Path | None = None
        self.saved: Conversation | None = None
        self.draft = ""
        self.base: Conversation | None = None
        self.attached: list[str] = []
        self.choice: Choice = launch.choose_profile(request, session)
        # Answers alone go to stdout.
        self.console = terminal.console(sys.stderr)
        self._view: View | None = None
        self.leaving = False
        self._told_width = sys.maxsize  # of steps for want of memory: told again if it gets worse
        self._counted: tuple[Conversation, int] | None = None
        self._require_template()
        self.reader = open_reader(self)
        self.plain_step = self._measured()

    @property
    def last_reply(self) -> Reply | None:
        """The newest reply, if it still ends the conversation."""
        if not self.replies or not self.conversation.messages:
            return None
        last, reply = self.conversation.messages[-1], self.replies[-1]
        stands = last.role == "assistant" and last.content == "".join(reply.text)
        return reply if stands else None

    def note(self, line: str) -> None:
        """A remark beside the conversation."""
        if not self.request.quiet:
            soft = not self.console.is_terminal
            self.console.print(printable(line), style="dim", soft_wrap=soft)

    def complain(self, error: BaseException) -> None:
        """Say what went wrong."""
        self.console.print(printable(f"lade: {told(error)}"), style="red", soft_wrap=True)

    # A reply.

    def say(self, text: str) -> None:
        """Send a message to the model, with the files that go with it.

        Raises:
            LadeError, DecoderError: with a line for the user.
        """
        if not text.strip() and not self.attached:
            if self.base is not None:
                self.base = None
                self.note("nothing was changed")
            return
        before = self.conversation
        message = "\n\n".join([*self.attached, text.rstrip()])
        try:
            self.answer((self.base or before).asked(message))
        finally:
            if self.conversation is before:
                self.draft = protected(text)  # it was not answered, and must not be lost
            else:
                self.base, self.attached = None, []

    def answer(self, asked: Conversation) -> None:
        """Reply to the last message of a conversation; question and reply become this chat's.

        Raises:
            LadeError, DecoderError: with a line for the user.
            KeyboardInterrupt: on a pipe, after what was said until then was kept.
        """
        seen = self._fitted(asked)
        settings, ids, parts = self.settings(), list[int](), 0
        while seen is not None:
            parts += 1
            waiting = self.encode(seen)
            reply = Reply([*waiting, *ids], _less(settings, len(ids)), part=parts)
            try:
                unwritten = self._show(reply)
            finally:
                # Whatever ended it, also want of memory: what was said is kept.
                interrupted = reply.tally.reason in (None, "interrupted", "memory")
                ids += reply.token_ids
                said = "".join(reply.text)
                if parts > 1:  # a character, or a stop string, may lie across the parts
                    said = self.session.text_of(ids, waiting, settings)
                if said or not interrupted:
                    self.conversation = seen.answered(said, interrupted)
                    self.replies.append(reply)
            self._conclude(reply)
            if unwritten is not None:
                raise unwritten
            seen = self._going_on(reply, seen, len(ids))

    def _show(self, reply: Reply) -> LadeError | None:
        """Decode a reply on the screen; it grows as it comes.

        Returns:
            Why its files are not what they should be; None if they are.
        """
        unwritten = None
        files = records.views(
            self.request,
            self.session,
            reply.settings,
            reply.prompt,
            self.plain_step,
            reply.part,
        )
        self._view = self._make_view(reply)
        view = Together(self._view, *files)
        detailed = self.request.trace is not None
        try:
            with self.reader.keys_watched() as look, ctrl_c() as cancelled:
                for event in self.session.stream(
                    reply.prompt, reply.settings, cancelled, detailed=detailed
                ):
                    reply.tally.add(event)
                    match event:
                        case TextStep():
                            reply.text.extend(p.text for p in event.pieces if p.text)
                            reply.token_ids.extend(event.token_ids)
                        case Ended(rest=rest):
                            reply.text.extend([rest] if rest else [])
                    view.show(event)
                    look()
        finally:
            self._view = None
            try:
                view.finish()
            except LadeError as error:
                unwritten = error
        return unwritten

    def _make_view(self, reply: Reply) -> View:
        """What shows a reply on the screen."""
        console = self.terminal.live_console()
        if console is None or self.request.quiet:
            return self.terminal.writer(self.request.token_colors)
        state = ViewState(plain_step=self.plain_step, max_context=self.session.decoder.max_context)
        thinking = self.session.opens_thinking(reply.prompt)
        renderer = MarkdownRenderer(self.request.markdown, self.request.token_colors, thinking)
        return LiveView(console, state, renderer)

    def _conclude(self, reply: Reply) -> None:
        """What is to be said under a reply.

        Raises:
            LadeError: memory did not suffice for all of it.
            KeyboardInterrupt: on a pipe, if that was what ended it.
        """
        tally, memory = reply.tally, memory_line(reply.tally)
        if not "".join(reply.text).strip() and tally.reason != "memory":
            self.note("(the model said nothing)")
        if tally.reason == "context":
            limit = self.session.decoder.max_context
            self.note(f"(cut: the context of {limit} tokens is full)")
        elif tally.reason == "length":
            self.note("(cut at max-new-tokens)")
        elif tally.reason == "interrupted":
            self.note("(stopped)")
            self.reader.hold()
        for line in self.session.news():
            self.note(f"({line})")
        if tally.squeezed is not None and tally.squeezed < self._told_width:
            self._told_width = tally.squeezed
            if tally.reason != "memory":
                self.note(f"({memory})")
        if self.request.stats if self.request.stats is not None else not self.request.quiet:
            self.terminal.statistics(tally, self.plain_step)
        if self.reader.interactive and not self.request.quiet:
            self.console.print()
        if memory and tally.reason == "memory":
            raise LadeError(memory)
        if tally.reason == "interrupted" and not self.reader.interactive:
            raise KeyboardInterrupt

    def _fitted(self, asked: Conversation) -> Conversation | None:
        """The conversation with room for a reply; None if the user would rather stop.

        Raises:
            UsageError: the last message does not fit by itself.
            LadeError: there is no room, and nobody to ask.
        """
        limit = self.session.decoder.max_context
        fitted = with_room(asked, lambda c: len(self.encode(c)), limit)
        if fitted is None:
            files = counted(len(self.attached), "file")
            with_files = f" (/paste none drops the {files} with it)"
            raise UsageError(
                f"the message does not fit into the context of {limit} tokens with room for a"
                f" reply; shorten it{with_files if self.attached else ''}"
            )
        if fitted is asked:
            return asked
        full = f"the context of {limit} tokens is full"
        if not self.reader.interactive:
            raise LadeError(f"{full}; start a new chat, or say less in one")
        oldest = _oldest(asked, fitted)
        question = f"{full.capitalize()}: [s]top and edit, or [d]rop {oldest} and go on? "
        return fitted if self.choice_of(question, "sd") == "d" else None

    def _going_on(self, reply: Reply, seen: Conversation, said: int) -> Conversation | None:
        """After a reply that filled the context: what to see while it goes on; None to stop.

        Args:
            reply: as far as it came.
            seen: what it answers.
            said: tokens of all that was said in reply.
        """
        if reply.tally.reason != "context" or not self.reader.interactive:
            return None
        limit = self.session.decoder.max_context
        shorter = with_room(seen, lambda c: len(self.encode(c)) + said, limit)
        if shorter is None:  # the reply fills it all by itself
            return None
        question = f"[s]top here, or [d]rop {_oldest(seen, shorter)} and go on with the reply? "
        return shorter if self.choice_of(question, "sd") == "d" else None

    def choice_of(self, question: str, keys: str) -> str:
        """One of `keys`, by which the user answers; the first loses nothing, and is Enter."""
        try:
            return self.reader.choose(question, keys)
        except EOFError:
            return keys[0]

    # What holds now.

    def settings(self) -> Settings:
        """How the next reply is decoded."""
        return launch.settings_of(self.request, self.choice, self.session.loaded.sampling)

    def in_effect(self) -> dict[str, tuple[str, str]]:
        """Value and origin of every option that is shown, by the names of their flags."""
        session, loaded = self.session, self.session.loaded
        return in_effect(
            self.request,
            self.choice,
            self.settings(),
            session.ranks,
            ways.attention_of(self.request, loaded.device, loaded.part),
            ways.why_no_graphs(self.request, session),
        )

    def encode(self, conversation: Conversation, *, reply: bool = True) -> list[int]:
        """Token ids of a conversation.

        Args:
            conversation: what was said.
            reply: whether it waits for a reply.

        Raises:
            UsageError: the model's template refuses it.
        """
        if self.request.raw:
            return self.session.encode(conversation.as_text())
        return self.session.encode_chat(conversation.for_template(), reply=reply)

    def change(self, request: ChatRequest) -> None:
        """Let other options hold from now on.

        Raises:
            UsageError, ConfigError: they do not go together; then nothing changes.
        """
        choice = launch.choose_profile(request, self.session)
        launch.settings_of(request, choice, self.session.loaded.sampling)
        self.request, self.choice = request, choice

    def toggle_colors(self) -> None:
        """Colour tokens by their source, or stop doing so; also in the middle of a reply."""
        self.request = replace(self.request, token_colors=not self.request.token_colors)
        if isinstance(self._view, LiveView):
            self._view.renderer.colours = self.request.token_colors
            self._view.redraw()

    @property
    def used(self) -> int:
        """Tokens of the context that the conversation takes; 0 where a template refuses it."""
        if self._counted is None or self._counted[0] is not self.conversation:
            count = 0
            with contextlib.suppress(LadeError):
                if self.conversation.seen or self.conversation.system is not None:
                    count = len(self.encode(self.conversation, reply=False))
            self._counted = (self.conversation, count)
        return self._counted[1]

    def toolbar(self) -> list[str]:
        """What the line below the input shows, the most important first."""
        limit = self.session.decoder.max_context
        attached = [f"{len(self.attached)} attached"] if self.attached else []
        colors = []
        if not self.console.no_color:
            colors = [f"Ctrl-T token colors {'on' if self.request.token_colors else 'off'}"]
        return [
            self.session.loaded.name,
            f"{min(self.used, limit)}/{limit} tokens",
            *attached,
            "/help",
            *colors,
        ]

    def _measured(self) -> float | None:
        if self.request.quiet or not self.reader.interactive:
            return None
        # No spinner: it would draw while the clock runs.
        return self.session.measure_plain_step(self.settings().sampling)

    def _require_template(self) -> None:
        if not self.request.raw and not self.session.has_template:
            raise UsageError(
                f"{self.session.loaded.name} has no chat template: it continues texts; use"
                " lade generate, or --raw to chat with it all the same"
            )


def _less(settings: Settings, said: int) -> Settings:
    """The settings for the rest of a reply of which so many tokens were said."""
    wanted = settings.max_new_tokens
    return settings if wanted is None else replace(settings, max_new_tokens=wanted - said)


def _oldest(before: Conversation, after: Conversation) -> str:
    """What the second conversation has forgotten and the first has not, in words."""
    dropped = before.messages[before.forgotten : after.forgotten]
    exchanges = sum(message.role == "user" for message in dropped)
    return "the oldest exchange" if exchanges == 1 else f"the oldest {exchanges} exchanges"
