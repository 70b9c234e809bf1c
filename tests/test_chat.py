"""A chat over its turns: what the model reads again, what is kept, what every command does."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladecli import models
from ladecli.chat import handle, keep_conversation, loop
from ladecli.decoder.errors import DecoderError
from ladecli.errors import LadeError, UsageError
from ladecli.options.answer import ChatRequest
from ladecli.repl.journal import Journal
from ladecli.repl.reader import Reader
from ladecli.repl.session import Chat
from ladecli.session.conversation import Conversation, from_json
from ladecli.session.session import Session
from ladecli.session.setup import Setup
from ladecli.specs import hub
from ladecli.view.terminal import Terminal

QUESTIONS = ("What is lookahead decoding?", "What is the pool?", "How do I read a file in Python?")
END = 1  # the demo model's end of a turn


@pytest.fixture(scope="module")
def loaded() -> models.LoadedModel:
    return models.load("demo")


@pytest.fixture
def session(loaded: models.LoadedModel) -> Session:
    return Session(loaded)


class Script(Reader):
    """A reader for tests: a user who types what was planned.

    Args:
        lines: what is typed, and what is answered when asked; an exception is raised.
        during: what happens in the middle of the first reply, by the number of its event.
    """

    def __init__(
        self,
        *lines: str | type[BaseException],
        during: Mapping[int, Callable[[], object]] | None = None,
    ) -> None:
        self.interactive = True
        self._lines = iter(lines)
        self._during = dict(during or {})
        self._events = 0
        self.drafts: list[str] = []
        self.flushed = 0

    def read(self, draft: str = "") -> str:
        self.drafts.append(draft)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def flush(self) -> None:
        self.flushed += 1

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        def look() -> None:
            self._events += 1
            self._during.pop(self._events, lambda: None)()

        yield look


Make = Callable[..., Chat]


@pytest.fixture
def make(session: Session) -> Make:
    """A chat with the demo model whose user follows a script."""

    def made(
        *lines: str | type[BaseException],
        on: Session = session,
        reader: Reader | None = None,
        during: Mapping[int, Callable[[], object]] | None = None,
        **options: Any,
    ) -> Chat:
        reader = reader or Script(*lines, during=during)
        request = ChatRequest(**{"max_new_tokens": 40, **options})
        return Chat(on, request, Terminal("never"), lambda _: reader)

    return made


def said(chat: Chat) -> list[str]:
    return [message.content for message in chat.conversation.messages]


def drafts(chat: Chat) -> list[str]:
    """What the inputs began with."""
    assert isinstance(chat.reader, Script)
    return chat.reader.drafts


def fresh_reply(chat: Chat, loaded: models.LoadedModel, turn: int = -1) -> list[int]:
    """What a session that knows nothing replies to the same conversation."""
    reply = chat.replies[turn]
    tokens: list[int] = []
    for event in Session(loaded).stream(reply.prompt, reply.settings):
        tokens += getattr(event, "token_ids", ())
    return tokens


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def other_template(loaded: models.LoadedModel, change: Callable[[str], str | None]) -> Session:
    """A session with the demo model and another chat template."""
    tokenizer = type(loaded.tokenizer).from_pretrained(hub.resolve("demo"))
    tokenizer.chat_template = change(tokenizer.chat_template)
    return Session(replace(loaded, tokenizer=tokenizer))


# Turns.


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["lookahead", "autoregressive"])
def test_a_later_turn_reads_its_new_tokens_only(
    make: Make, loaded: models.LoadedModel, strategy: str
) -> None:
    chat = make(*QUESTIONS[:2], strategy=strategy, max_new_tokens=None)
    loop(chat)
    before, after = chat.replies
    known = before.prompt + before.tally.token_ids
    assert before.tally.token_ids[-1] == END
    assert after.prompt[: len(known)] == known
    # The token that ended the turn was never fed; all before it were.
    assert after.tally.cached == len(known) - 1
    assert after.tally.token_ids == fresh_reply(chat, loaded)


# Ctrl-C and errors.


@pytest.mark.slow
def test_ctrl_c_keeps_the_partial_reply_and_a_valid_cache(
    make: Make, loaded: models.LoadedModel
) -> None:
    chat = make(*QUESTIONS[:2], during={9: ctrl_c}, max_new_tokens=24)
    loop(chat)
    assert [m.interrupted for m in chat.conversation.messages] == [False, True, False, False]
    assert said(chat)[1].startswith("Lookahead decoding")
    assert isinstance(chat.reader, Script)
    assert chat.reader.flushed == 1, "what was typed until then is not sent by itself"
    before, after = chat.replies
    assert before.tally.steps <= 10, "it stops within one step"
    known = before.prompt + before.tally.token_ids
    assert after.tally.cached == len(known) - 1
    assert after.prompt[: len(known)] == known
    assert after.tally.token_ids == fresh_reply(chat, loaded)


def test_ctrl_c_before_the_first_token_gives_the_message_back(make: Make) -> None:
    chat = make("a question " * 400, EOFError, during={1: ctrl_c})
    loop(chat)
    assert said(chat) == []
    assert drafts(chat)[-1] == "a question " * 400


def test_errors_cost_neither_the_conversation_nor_the_chat(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("an illegal address")

    chat = make(
        QUESTIONS[0], "/save x\0y", "caf\udce9", "more", during={8: fail}, max_new_tokens=20
    )
    loop(chat)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lade: ")]
    assert len(lines) == 3
    for line, named in zip(lines, ("an illegal address", "/save xy", "UTF-8"), strict=True):
        assert named in line
    assert said(chat)[1].startswith("Lookahead")
    assert said(chat)[0::2] == [QUESTIONS[0], "more"]


def test_a_hostile_chat_cannot_drive_the_terminal(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]52;c;eA==\x07\x9b31m\x1b[2J"
    path, page = tmp_path / "chat.json", tmp_path / "chat.md"
    talk = Conversation(f"system{evil}").asked(f"asked{evil}").answered(f"said{evil}")
    path.write_text(talk.as_json("demo"), encoding="utf-8")
    lines = (f"/load {path}", f"/save {page}", "/system", "/undo", f"/load {evil}", f"/{evil}")
    loop(make(*lines, f"/set stop {evil}", f"/show x{evil}"))
    shown = capsys.readouterr()
    assert "asked" in shown.err
    for text in (shown.out, shown.err, page.read_text()):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


@pytest.mark.slow
def test_a_chat_is_kept_however_it_ends(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chats" / "1.jsonl"
    journal = Journal(file)

    def ended(chat: Chat, error: type[BaseException]) -> None:
        with pytest.raises(error), keep_conversation(chat, journal):
            loop(chat)

    # What a pipe sent wrongly it can send again, and an empty chat is none.
    ended(make(reader=Reader(io.StringIO(f"{QUESTIONS[0]}\n/load nowhere"))), UsageError)
    ended(make(SystemExit), SystemExit)
    assert not file.exists()
    chat = make(QUESTIONS[0], SystemExit, quiet=True)
    ended(chat, SystemExit)
    assert from_json(file.read_text()) == chat.conversation
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in capsys.readouterr().err
    # What a file of the user's has, or the user left, needs no word.
    ended(make(QUESTIONS[1], f"/save {tmp_path / 'kept.json'}", SystemExit), SystemExit)
    chat = make(QUESTIONS[2])
    with keep_conversation(chat, journal):
        loop(chat, QUESTIONS[0])
    assert str(file) not in capsys.readouterr().err
    assert said(chat)[::2] == [QUESTIONS[0], QUESTIONS[2]]
    assert from_json(file.read_text()) == chat.conversation
    # Where nothing can be written, that is said once, and the chat goes on.
    chat = make(QUESTIONS[0], QUESTIONS[1])
    with keep_conversation(chat, Journal(file / "below")):
        loop(chat)
    assert len(said(chat)) == 4
    assert capsys.readouterr().err.count("is not kept") == 1


def test_every_change_is_kept_at_once(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    chat, seen = make(), list[Conversation]()
    chat.journal = Journal(file)
    for line in (QUESTIONS[0], QUESTIONS[1], "/undo", "/system Be brief.", "/regenerate", "/reset"):
        handle(chat, line)
        seen.append(from_json(file.read_text()))
        assert seen[-1] == chat.conversation, line
    assert [len(each.messages) for each in seen] == [2, 4, 2, 2, 2, 0]


def test_lines_that_were_cut_short_cost_no_others(tmp_path: Path) -> None:
    """By SIGKILL, or by a disk that was full for a time."""
    talk = Conversation("Be brief.")
    file, states = tmp_path / "1.jsonl", [talk := talk.asked("a" * 90), talk.answered("b" * 90)]
    journal = Journal(file)
    journal.record(states[0], "demo")
    size = file.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.record(states[1], "demo")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert from_json(file.read_text()) == states[0]
    journal.record(states[1], "demo")
    assert from_json(file.read_text()) == states[1]
    data = file.read_bytes()
    for end in range(size, len(data) - 1):
        file.write_bytes(data[:end])
        assert from_json(file.read_text()) == states[0]


def test_a_reply_is_copied_to_a_file_or_the_terminals_clipboard(
    make: Make, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make("/copy", QUESTIONS[0], f"/copy {tmp_path / 'reply.txt'}", "/copy")
    loop(chat)
    assert (tmp_path / "reply.txt").read_text() == said(chat)[1] + "\n"
    seen = capsys.readouterr().err
    assert "there is no reply to copy" in seen
    assert "name a file: /copy FILE" in seen
    script = Script(QUESTIONS[0], "/copy")
    chat = Chat(session, ChatRequest(max_new_tokens=9), Terminal("always"), lambda _: script)
    loop(chat)
    code = re.search(r"\x1b]52;c;([\w+/=]+)\x07", capsys.readouterr().err)
    assert code is not None
    assert base64.b64decode(code[1]).decode() == said(chat)[1]


# A full context.


@pytest.mark.slow
def test_a_full_context_forgets_the_oldest_turns(
    make: Make, loaded: models.LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(*QUESTIONS, "x", on=Session(loaded, Setup(context=200)), system="Be brief.")
    loop(chat)
    assert "no longer sees the oldest 2 messages" in capsys.readouterr().err
    assert chat.conversation.forgotten == 2
    assert len(said(chat)) == 8, "what is forgotten can still be saved"
    text = loaded.tokenizer.decode(chat.replies[-1].prompt)
    assert "Be brief." in text
    assert QUESTIONS[0] not in text
    assert chat.replies[-1].tally.token_ids == fresh_reply(chat, loaded)


def test_a_message_that_does_not_fit_by_itself(
    make: Make, loaded: models.LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "long file.txt"
    path.write_text("long " * 300)
    chat = make(on=Session(loaded, Setup(context=150)), max_new_tokens=3)
    with pytest.raises(UsageError, match=r"does not fit .* of 150 tokens .*; shorten it$"):
        handle(chat, "long " * 300)
    assert chat.draft == "long " * 300
    handle(chat, f'/paste "{path}"')
    with pytest.raises(UsageError, match="/paste none"):
        handle(chat, "What is this?")
    handle(chat, "/paste none")
    handle(chat, "What is this?")
    assert said(chat)[0] == "What is this?"


def test_a_reply_that_fills_the_context_says_so(
    make: Make, loaded: models.LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0], on=Session(loaded, Setup(context=60)), max_new_tokens=None)
    loop(chat)
    assert "the context of 60 tokens is full" in capsys.readouterr().err
    assert chat.used >= 59


# Commands.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/sytem x", "did you mean /system?"),
        ("/xyzzy", "/help lists all"),
        ("/undo", "no message yet"),
        ("/undo 2", "/undo takes no arguments"),
        ("/stats", "no figures yet"),
        ("/compare", "no reply to compare"),
        ("/save", "name a file: /save FILE"),
        ("/save nowhere/chat.json", "nowhere does not exist"),
        ("/load", "name a file: /load FILE"),
        ("/load nowhere.json", "there is no file nowhere.json; check the path"),
        ("/paste /bin/sh", "the file /bin/sh is binary"),
        ("/draft nowhere.py", "there is no file nowhere.py"),
        ("/help xyzzy", "no command /xyzzy"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set top-k 1.5", "top-k must be a whole number, not '1.5'"),
        ("/set markdown maybe", "markdown must be on or off, not 'maybe'"),
        ('/set stop ""', "stop needs a text"),
        ("/set strategy magic", "unknown strategy 'magic'; use one of"),
        ("/set dtype float16", "dtype can only be set at start"),
        ("/set origins x", "no option 'origins'"),
        ("/profile moon", "unknown profile 'moon'; known profiles: "),
        ("/show nothing-like-it", "no option 'nothing-like-it'; one of strategy, "),
    ],
)
def test_commands_that_cannot_be_done(make: Make, text: str, named: str) -> None:
    chat = make()
    before = chat.request
    with pytest.raises((LadeError, DecoderError)) as refused:
        handle(chat, text)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    assert chat.request is before
    assert said(chat) == []


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("/set temperature 0.5", "temperature", 0.5),
        ("/set temp 0.5", "temperature", 0.5),
        ("/set --stop END OF IT", "stop", ["END OF IT"]),
        ("/set markdown off", "markdown", False),
        ("/set ignore-eos yes", "ignore_eos", True),
        ("/set max-new-tokens none", "max_new_tokens", None),
        ("/set stop off", "stop", None),
        ('/set stop " a b "', "stop", [" a b "]),
        ("/set top-k off", "top_k", 0),
        ("/set stats default", "stats", None),
        ("/SET strategy jacobi", "strategy", "jacobi"),
        ("/profile a100", "profile", "a100"),
    ],
)
def test_settings(make: Make, text: str, name: str, value: object) -> None:
    chat = make()
    handle(chat, text)
    assert getattr(chat.request, name) == value


def rows_of(shown: str) -> dict[str, str]:
    """Lines by their first words."""
    return {line.split()[0]: line.rstrip() for line in shown.splitlines() if line}


def test_show_tells_where_values_come_from(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"top_k": "LADE_TOP_K", "stats": "flag --no-stats", "markdown": "config file"}
    options: dict[str, Any] = {"top_k": 7, "stats": False, "origins": given, "profile": "cpu"}
    chat = make("/set window 9", **options)
    loop(chat)
    # The profile's budget and sources were meant for the profile's window: that is shown too.
    assert rows_of(capsys.readouterr().err).keys() == {"window", "budget", "sources"}
    handle(chat, "/show")
    rows = rows_of(capsys.readouterr().err)
    assert re.fullmatch(r"window +9 +set in this chat", rows["window"])
    ends = {
        "ngram": "profile cpu",
        **{"temperature": "the model's", "top-k": "LADE_TOP_K", "stats": "flag --no-stats"},
        **{"markdown": "config file", "ignore-eos": "default"},
        **{"budget": "follows from what you set", "sources": "follows from what you set"},
    }
    assert {name: rows[name].endswith(end) for name, end in ends.items()} == dict.fromkeys(
        ends, True
    )
    loop(make("/set window 3", "/set window default", "/show window", on=chat.session))
    assert "profile cpu" in rows_of(capsys.readouterr().err)["window"]
    loop(make("/set temperature 0", "/show temperature", origins={"temperature": "LADE_X"}))
    assert rows_of(capsys.readouterr().err)["temperature"].endswith("set in this chat")


@pytest.mark.parametrize("text", [" /undo", "/etc/hosts is what?", "/def f():\n    pass"])
def test_what_only_looks_like_a_command_is_a_message(make: Make, text: str) -> None:
    chat = make(max_new_tokens=3)
    handle(chat, text)
    assert said(chat)[0] == text.removeprefix(" ")


@pytest.mark.parametrize(
    ("lines", "messages", "draft"),
    [
        *(([word, "never said"], [], None) for word in ("exit", "quit", "/exit", "/bye")),
        (["one", "/edit", "two"], ["two"], "one"),
        (["one", "/edit two"], ["two"], None),
        (["one", "/edit", "", "two"], ["one", "two"], "one"),
        (["one", "/edit", KeyboardInterrupt, "two"], ["one", "two"], "one"),
        (["one", "two", "/edit", "/undo", "new"], ["one", "new"], "two"),
        (["one", "/edit", "/reset", "new"], ["new"], "one"),
        ([" /undo", "/edit", " /undo !"], ["/undo !"], " /undo"),
        ([" exit", "/edit", " exit"], ["exit"], " exit"),
    ],
)
def test_edit_and_words_that_leave(
    make: Make, lines: list[str | type[BaseException]], messages: list[str], draft: str | None
) -> None:
    chat = make(*lines, max_new_tokens=3)
    loop(chat)
    assert said(chat)[0::2] == messages
    assert draft is None or drafts(chat)[lines.index("/edit") + 1] == draft


def test_a_pasted_file_goes_with_the_next_message(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"one\r\n```py\nx\n```\n")
    chat = make(f"/paste {path}", "What is this?", "and now?", max_new_tokens=5)
    loop(chat)
    assert said(chat)[0] == "notes.md:\n````\none\n```py\nx\n```\n````\n\nWhat is this?"
    assert said(chat)[2] == "and now?"


def test_a_text_handed_over_is_known_and_not_read(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "known.txt"
    known.write_text("Nothing of it.")
    chat = make(f"/draft {known}", QUESTIONS[0], max_new_tokens=3)
    loop(chat)
    assert re.search(r"drafts know known.txt \(\d+ tokens\)", capsys.readouterr().err)
    assert said(chat)[0] == QUESTIONS[0]


@pytest.mark.slow
def test_save_and_load_go_on_where_one_left(
    make: Make, loaded: models.LoadedModel, tmp_path: Path
) -> None:
    path, page = tmp_path / "chat.json", tmp_path / "chat.md"
    short = {"max_new_tokens": 12}
    chat = make("/system Be brief.", QUESTIONS[0], f"/save {path}", QUESTIONS[1], "/save", **short)
    loop(chat)
    handle(chat, f"/save {page}")
    for text in ("Be brief.", *said(chat)):
        assert f"\n\n{text}\n" in page.read_text()
    again = make(f"/load {path}", QUESTIONS[2], on=Session(loaded), **short)
    loop(again)
    assert again.conversation.system == "Be brief."
    assert said(again)[:4] == said(chat)
    handle(chat, QUESTIONS[2])
    assert said(again) == said(chat)


def test_no_file_is_overwritten_but_the_chats_own(make: Make, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    other.write_text("mine")
    loop(make(QUESTIONS[0], f"/save {one}", "/reset", "x", "/save", max_new_tokens=3))
    assert from_json(one.read_text()).messages[0].content == QUESTIONS[0], "no name, no file yet"
    chat = make(max_new_tokens=3)
    with pytest.raises(UsageError, match="exists; name another file"):
        handle(chat, f"/save {other}")
    assert other.read_text() == "mine"
    other.unlink()
    for line in (QUESTIONS[1], f"/save {other}", "y", "/save"):
        handle(chat, line)
    assert from_json(other.read_text()) == chat.conversation


def test_loading_replaces_only_what_is_saved(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(Conversation("Be brief.").as_json("demo"), encoding="utf-8")
    chat = make(max_new_tokens=3)
    handle(chat, QUESTIONS[0])
    with pytest.raises(UsageError, match="/save FILE or /reset first"):
        handle(chat, f"/load {path}")
    assert said(chat)[0] == QUESTIONS[0]
    for line in (f"/save {tmp_path / 'kept.json'}", f"/load {path}"):
        handle(chat, line)
    assert chat.conversation == Conversation("Be brief.")


def test_reset_keeps_the_system_message(make: Make) -> None:
    chat = make("/system Be brief.", QUESTIONS[0], "/reset", max_new_tokens=5)
    loop(chat)
    assert chat.conversation == Conversation("Be brief.")
    handle(chat, "/system none")
    assert chat.conversation == Conversation()


def test_a_template_may_refuse_a_system_message(
    loaded: models.LoadedModel, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    chat = make(on=other_template(loaded, lambda template: refusal + template))
    handle(chat, "/system Be brief.")
    assert "before your first message" in capsys.readouterr().err
    expected = make().encode(Conversation().asked("Be brief.\n\nHello"))
    assert chat.encode(chat.conversation.asked("Hello")) == expected
    handle(chat, "/system Be kind.")
    assert "before" not in capsys.readouterr().err, "it is told once"


def test_a_template_may_refuse_everything(loaded: models.LoadedModel, make: Make) -> None:
    chat = make(on=other_template(loaded, lambda _: "{{ raise_exception('not today') }}"))
    with pytest.raises(UsageError, match="not today"):
        handle(chat, "/system Be brief.")
    assert chat.conversation.system is None


@pytest.mark.slow
def test_compare_decodes_the_same_text_again(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0], "/compare", temperature=1.0, seed=1)
    loop(chat)
    shown = capsys.readouterr().err
    assert re.search(r"^lookahead .* for (\d+) tokens\s*\nplain .* \1 steps for \1", shown, re.M)
    assert re.search(r"^same text · \d+\.\d\d× as fast .* in \d runs\)$", shown, re.M)
    chat.replies[-1].tally.token_ids[3] += 1
    handle(chat, "/compare")
    assert "another text from token 4 on" in capsys.readouterr().err
    # Of other seeds some draft nothing after the first step, and then nothing is to be learned.
    other = make(QUESTIONS[0], "/compare", QUESTIONS[1], temperature=1.0, seed=1)
    loop(other)
    before, after = (reply.tally.calibration for reply in other.replies)
    assert before is None
    assert after, "later replies know what the comparison measured"
    capsys.readouterr()
    handle(chat, "/undo")
    with pytest.raises(UsageError, match="no reply to compare"):
        handle(chat, "/compare")
    loop(make(QUESTIONS[0], "/compare", max_new_tokens=1))
    assert "too short to compare" in capsys.readouterr().err


def test_stats_add_the_replies_up(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    chat = make(QUESTIONS[0], QUESTIONS[1], stats=False)
    loop(chat)
    assert "tokens per step" not in capsys.readouterr().err
    handle(chat, "/stats")
    tallies = [reply.tally for reply in chat.replies]
    shown = capsys.readouterr().err
    assert f"{sum(t.tokens for t in tallies)} tokens in {sum(t.steps for t in tallies)}" in shown
    assert f"{sum(t.cached for t in tallies)} of {sum(t.prompt for t in tallies)} prompt" in shown


# Models and pipes.


def test_a_model_without_a_template(loaded: models.LoadedModel, make: Make) -> None:
    on = other_template(loaded, lambda _: None)
    with pytest.raises(UsageError, match=r"^demo has no chat template.*--raw"):
        make(on=on)
    chat = make("def f(x):", "    y", on=on, raw=True, max_new_tokens=5)
    loop(chat)
    text = loaded.tokenizer.decode(chat.replies[1].prompt, skip_special_tokens=True)
    assert text == f"def f(x):\n{said(chat)[1]}\n    y"  # as it is, the indent included


def test_replies_alone_go_to_stdout(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lines = io.StringIO(f"/show\n{QUESTIONS[0]}\n/stats\n{QUESTIONS[1]}\n")
    chat = make(reader=Reader(lines))
    loop(chat)
    captured = capsys.readouterr()
    assert captured.out == f"{said(chat)[1]}\n{said(chat)[3]}\n"
    assert "tokens per step" in captured.err
    loop(make(reader=Reader(io.StringIO(QUESTIONS[0])), quiet=True))
    assert capsys.readouterr().err == ""
