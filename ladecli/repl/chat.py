"""A chat with a model: its conversation, its replies and its options."""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from ..decoder.errors import DeviceLostError, RankError
from ..errors import LadeError, UsageError, counted, describe_error, one_line, printable
from ..events import Piece
from ..metrics import Tally
from ..models.find import absolute
from ..options.answer import REPLY_TOKENS, ChatRequest
from ..profiles import select
from ..session import opening
from ..session.answer_memory import AnswerMemory
from ..session.conversation import Conversation, Message
from ..trace import record
from ..view import screen
from ..view.live import reply_view
from ..view.markdown import MarkdownRenderer
from ..view.terminal import Terminal, ctrl_c
from ..visualize import RAISE_LIMIT, SEPARATOR, legend, remarks, together
from .journal import Journal, KeptChat
from .reader import Reader, escape

if TYPE_CHECKING:
    from ..profiles import Choice
    from ..session.grammar import Grammar
    from ..session.session import Session, Settings


TURNS = 2
"""The number of exchanges of an earlier conversation that are shown."""
GO_ON = 'send "go on" for more, or change the limit with /set max-new-tokens'
"""A hint for a reply that reached the default limit."""
SAVE_INTERVAL = 3.0
"""Seconds between two writes of an unfinished reply to the journal."""


@dataclass(slots=True)
class Reply:
    """A reply, with all that `/compare` needs to decode it again."""

    prompt: list[int]  # token ids of the conversation that it answers
    settings: Settings  # with the seed
    tally: Tally = field(default_factory=Tally)  # its text and figures
    drafts: bytes = b""  # the pickled `DraftStore` as it was before the reply
    message: Message | None = None  # in the conversation, once the reply is complete


class Chat:
    """A conversation with a model, at a terminal or over a pipe.

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
        request.template(session.has_template)  # refuses a model that only continues texts
        self.session = session
        self.request = request  # the options, which `/set` changes
        self.terminal = terminal
        self.memory = AnswerMemory(session, request, self.note)
        self.journal: Journal | None = None  # keeps the conversation; None if it is not kept
        self._explained = False  # the user has seen the explanation of the figures
        self._save_failed = False  # the user knows that the conversation is not kept
        self._conversation = Conversation(system=request.system)
        self.replies: list[Reply] = []  # all of them, the newest last
        self.files: list[Path] = []  # files with the conversation, the newest last
        self.unsent = ""  # the text that the next input starts with
        # The conversation before the next message, if that replaces the last one.
        self.base: Conversation | None = None
        self.attached: list[str] = []  # texts of files that go with the next message
        self.grammar: Grammar | None = None  # constrains replies
        self.leaving = False  # the user wants to leave
        self.refused = False  # a message of a pipe was refused, and the chat went on
        self.successor: str | None = None  # the model to open after leaving
        self.choice = self._choose_profile(request)  # the settings of the hardware profile
        self.console = terminal.console(sys.stderr)  # only replies go to stdout
        self.reader = open_reader(self)
        self._renderer: MarkdownRenderer | None = None  # of the newest reply
        self._counted: tuple[Conversation | None, int] = (None, 0)

    @property
    def conversation(self) -> Conversation:
        """The conversation; every change is written to the journal."""
        return self._conversation

    @conversation.setter
    def conversation(self, changed: Conversation) -> None:
        self._conversation = changed
        self.keep(changed)

    @property
    def own_file(self) -> Path | None:
        """The file in which the conversation is kept; None if it is not."""
        return self.journal.path if self.journal is not None else None

    def keep(self, conversation: Conversation) -> bool:
        """Keep a conversation for `--continue`, and return True; if that fails, print the reason
        once and return False."""
        if self.journal is None:
            return False
        try:
            self.journal.record(conversation, absolute(self.request.name))
            return True
        except LadeError as error:  # such as a full disk; the next change tries again
            if not self._save_failed:
                self.note(f"(this chat is not kept: {error})")
            self._save_failed = True
            return False

    @property
    def last_reply(self) -> Reply | None:
        """The newest reply, if it still ends the conversation."""
        last = self.conversation.messages[-1:]
        is_last = self.replies and last and last[0] is self.replies[-1].message
        return self.replies[-1] if is_last else None

    def note(self, line: str) -> None:
        """Print a remark on stderr."""
        if not self.request.quiet:
            screen.line(self.console, line, "dim")

    def print_rows(self, rows: Iterable[Sequence[RenderableType]]) -> None:
        """Print a table on stderr; see `screen.print_rows`."""
        screen.print_rows(self.console, rows)

    def show_new_notices(self) -> None:
        """Print the session's new notices."""
        for line in self.session.new_notices():
            self.note(f"({line})")

    def recall(self, chat: KeptChat) -> None:
        """Print which conversation goes on, and its last two turns."""
        messages = self.conversation.messages
        self.note(f"going on after {counted(len(messages), 'message')} · {chat.where}")
        if self.request.quiet or not self.reader.interactive:
            return
        questions = [n for n, message in enumerate(messages) if message.role == "user"]
        for message in messages[questions[-TURNS] if len(questions) >= TURNS else 0 :]:
            own = message.role == "user"
            renderer = MarkdownRenderer(self.request.markdown and not own, False, False)
            text = "> " + message.content.replace("\n", "\n  ") if own else message.content
            rows, last = renderer.feed([Piece(text)], self.console.width)
            for row in (*rows, last):
                self.console.print(row, soft_wrap=True, end=row.end)
            if message.interrupted:
                self.note("(stopped)")
            if not own:
                self.console.print()
        if messages and messages[-1].role == "user":
            self.note("this message has no answer: /regenerate gives one")

    def complain(self, error: BaseException) -> None:
        """Print the line of an error on stderr."""
        screen.line(self.console, one_line(f"lade: {describe_error(error)}"), "red")

    # Replies.

    def say(self, text: str) -> None:
        """Send a message to the model, with the files that go with it; errors as `answer`."""
        if not text.strip() and not self.attached:
            self.base = None
            return
        before = self.conversation
        message = "\n\n".join([*self.attached, text.rstrip()])
        try:
            self.answer((self.base or before).with_question(message))
        finally:
            if self.conversation is before:
                # Neither the unanswered message nor text typed since must be lost.
                self.unsent = "\n".join(filter(None, (escape(text), self.unsent)))
            else:
                self.base, self.attached = None, []

    def answer(self, question: Conversation) -> None:
        """Reply to the last message of a conversation, which becomes this chat's.

        Raises:
            LadeError, DecoderError: with a line for the user.
            KeyboardInterrupt: on a pipe, after the text so far was kept.
        """
        prompt = self._with_room(question)
        tally, ids = Tally(), self.encode(prompt)
        self.memory.recall(ids)
        drafts = pickle.dumps(self.session.drafts)  # 2 ms after a short text, 50 after the longest
        settings = opening.with_length_limit(self.request, self.settings(), self.session, ids)
        reply = Reply(ids, settings, tally, drafts)
        # If the question is not new, its old reply is kept until there is another one.
        if is_new := prompt.messages != self.conversation.messages[: len(prompt.messages)]:
            self.keep(prompt)
        self.show_new_notices()
        try:
            self._show(reply, prompt)
        except (SystemExit, DeviceLostError, RankError):
            if is_new:  # the chat ends with a question that has no reply
                self.conversation = prompt
            raise
        finally:
            # The text is kept even if an error ended the reply.
            interrupted = tally.reason in (None, "interrupted", "memory")
            if tally.text or tally.reasoning or not interrupted:
                self.conversation = prompt.with_answer(tally.text, interrupted, tally.reasoning)
                if self.replies:
                    self.replies[-1].drafts = b""  # only the last one is compared
                self.replies.append(reply)
                reply.message = self.conversation.messages[-1]
                self.memory.keep(tally.token_ids)
            else:
                self.keep(self.conversation)
        self._conclude(reply)

    def _show(self, reply: Reply, prompt: Conversation) -> None:
        """Decode a reply, and write it to the screen and into the file of --trace."""
        request, session, tally = self.request, self.session, reply.tally
        # A pipe gets only the answers.
        reasoning = request.reasoning and sys.stdout.isatty()
        renderer = MarkdownRenderer(request.markdown, request.token_colors, reasoning)
        view = reply_view(self.terminal, tally, renderer, session.decoder.max_context)
        files = record.writers(request, session, reply.settings, reply.prompt)
        self._renderer, views = renderer, together(tally, view, *files)
        detailed, saved = request.trace is not None, time.monotonic()
        with views as show, self.reader.watched() as look, ctrl_c() as cancelled:
            for event in session.stream(reply.prompt, reply.settings, cancelled, detailed=detailed):
                show(event)
                look()
                if time.monotonic() >= saved + SAVE_INTERVAL:
                    self.keep(prompt.with_answer(tally.text, True, tally.reasoning))
                    saved = time.monotonic()

    def _conclude(self, reply: Reply) -> None:
        """Print remarks and figures below a reply.

        Raises:
            LadeError: memory ran out before the end of the reply.
            KeyboardInterrupt: Ctrl-C ended the reply, on a pipe.
        """
        tally = reply.tally
        self.show_new_notices()
        limit = RAISE_LIMIT if "max_new_tokens" in self.request.origins else GO_ON
        lines = remarks(tally, self.session.decoder.max_context, limit)
        failed = LadeError("; ".join(lines)) if tally.reason == "memory" else None
        for line in () if failed else lines:
            self.note(f"({line})")
        if self.shows_stats:
            self.terminal.statistics(tally, self.request.token_colors)
            self._explain(tally)
        if self.reader.interactive and not self.request.quiet:
            self.console.print()
        if failed:
            raise failed
        if tally.reason == "interrupted":
            self.unsent = self.reader.take_back()  # text typed during the reply must not be lost
            if not self.reader.interactive:
                raise KeyboardInterrupt

    def _explain(self, tally: Tally) -> None:
        """Print an explanation of the figures, once."""
        if self._explained or self.request.quiet or not (self.reader.interactive and tally.speedup):
            return
        self._explained = True
        look = self.settings().lookahead
        colours = self.request.token_colors
        self.console.print(legend(look.sources, self.console.width, colours))

    def _with_room(self, question: Conversation) -> Conversation:
        """Return the conversation with room for a reply; its oldest messages may be forgotten.

        Raises:
            UsageError: the last message does not fit by itself.
        """
        limit = self.session.decoder.max_context
        fitted = question.with_room(lambda c: len(self.encode(c)), limit)
        if fitted is None:
            files = " (/paste none detaches the files)" if self.attached else ""
            raise UsageError(
                f"the message does not fit into the context of {limit} tokens with room for a"
                f" reply; shorten it{files}"
            )
        if fitted is not question:
            dropped = counted(fitted.forgotten - question.forgotten, "message")
            self.note(f"(the context is full: the model no longer sees the oldest {dropped})")
        return fitted

    # Options.

    @property
    def shows_stats(self) -> bool:
        """True if figures are printed below each reply."""
        return not self.request.quiet if self.request.stats is None else self.request.stats

    def settings(self) -> Settings:
        """Return the settings of the next reply."""
        sampling, template = self.session.loaded.defaults.sampling, self.request.template(True)
        settings = opening.settings_of(self.request, self.choice, sampling, template)
        settings = replace(settings, grammar=self.grammar)
        if "max_new_tokens" not in self.request.origins:
            settings = replace(settings, max_new_tokens=REPLY_TOKENS)
        return settings

    def change(self, request: ChatRequest) -> None:
        """Use other options from now on.

        Raises:
            UsageError, ConfigError: the options contradict each other; then nothing changes.
        """
        choice = self._choose_profile(request)
        opening.settings_of(request, choice, self.session.loaded.defaults.sampling)
        if (template := request.template(True)) is not None:
            self.session.template(template)
        before = self.request.without_effect(self.choice.base(self.request.wants_paper))
        for line in request.without_effect(choice.base(request.wants_paper)):
            if line not in before:
                self.note(f"({line})")
        self.request, self.choice = request, choice

    def _choose_profile(self, request: ChatRequest) -> Choice:
        """Return the profile's settings for this model."""
        loaded, captured = self.session.loaded, self.session.setup.no_graphs_reason is None
        choice = select(request.profile, loaded.device, loaded.part, captured)
        return choice.priced(self.session.step_seconds)

    def toggle_colors(self) -> None:
        """Switch the colors of tokens on or off, even during a reply."""
        self.request = replace(self.request, token_colors=not self.request.token_colors)
        if self._renderer:
            self._renderer.colours = self.request.token_colors

    # The context.

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token ids of a conversation, up to the start of the next reply.

        Raises:
            UsageError: the model's template refuses the conversation.
        """
        return self.session.encode_chat(conversation.for_template(), self.request.template(True))

    def check_template(self, conversation: Conversation) -> None:
        """Check that the template accepts a conversation, before the next message needs it.

        Raises:
            UsageError: the template refuses the conversation.
        """
        unanswered = conversation.messages and conversation.messages[-1].role == "user"
        self.encode(conversation if unanswered else conversation.with_question("?"))

    @property
    def used(self) -> int:
        """The tokens of the conversation, at most as many as the context has; 0 if the template
        refuses it."""
        conversation, count = self.conversation, 0
        if self._counted[0] is not conversation:  # the toolbar needs the number at every key press
            with contextlib.suppress(LadeError):
                if conversation.for_template():
                    count = min(len(self.encode(conversation)), self.session.decoder.max_context)
            self._counted = conversation, count
        return self._counted[1]

    def toolbar(self) -> str:
        """Return the line below the input, with the most important part first."""
        limit = self.session.decoder.max_context
        attached = f"{len(self.attached)} attached" if self.attached else ""
        switch = f"Ctrl-T token colors {'on' if self.request.token_colors else 'off'}"
        colors = "" if self.console.no_color else switch
        parts = (f"{self.used}/{limit} tokens", attached, "/help", colors)
        return printable(SEPARATOR.join(filter(None, (self.session.loaded.name, *parts))))
