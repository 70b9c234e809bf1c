"""A chat over its turns: what the model reads again, what is kept, what every command does."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladecli import model_files, models, reading
from ladecli.chat import handle, loop, rescue, rescued
from ladecli.conversation import Conversation
from ladecli.decoder.errors import DecoderError
from ladecli.errors import LadeError, UsageError
from ladecli.events import TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.options import ChatRequest
from ladecli.repl import chat_file, commands, comparison
from ladecli.repl.reader import LineReader
from ladecli.repl.talk import Chat
from ladecli.session import Session
from ladecli.terminal import Terminal, ctrl_c, ctrl_c_ignored, ctrl_c_raised
from ladecli.trace import TraceWriter

QUESTIONS = ("What is lookahead decoding?", "What is the pool?", "How do I read a file in Python?")
END = 1  # the demo model's end of a turn


@pytest.fixture(scope="module")
def loaded() -> models.LoadedModel:
    return models.load("demo")


@pytest.fixture
def session(loaded: models.LoadedModel) -> Session:
    return Session(loaded)


class Script:
    """A reader for tests: somebody who says what was planned.

    Args:
        lines: what is typed, and what is answered when asked; an exception is raised.
    """

    interactive = True

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)
        self.drafts: list[str] = []
        self.asked: list[str] = []
        self.held = 0

    def read(self, text: str = "") -> str:
        self.drafts.append(text)
        return self._next()

    def choose(self, question: str, keys: str) -> str:
        self.asked.append(question)
        answer = self._next()
        assert answer in keys
        return answer

    def hold(self) -> None:
        self.held += 1

    def _next(self) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    @contextlib.contextmanager
    def keys_watched(self) -> Iterator[Callable[[], None]]:
        yield lambda: None


Make = Callable[..., Chat]


@pytest.fixture
def make(session: Session) -> Make:
    """A chat with the demo model whose user follows a script."""

    def made(
        *lines: str | type[BaseException],
        on: Session = session,
        reader: Any = None,
        **options: Any,
    ) -> Chat:
        options = {"max_new_tokens": 40, **options}
        reader = reader or Script(*lines)
        return Chat(on, ChatRequest(**options), Terminal("never"), lambda _: reader)

    return made


def said(chat: Chat) -> list[str]:
    return [message.content for message in chat.conversation.messages]


def fresh_reply(chat: Chat, loaded: models.LoadedModel, turn: int = -1) -> list[int]:
    """What a session that knows nothing says to the same conversation."""
    reply = chat.replies[turn]
    tokens: list[int] = []
    for event in Session(loaded).stream(reply.prompt, reply.settings):
        tokens += getattr(event, "token_ids", ())
    return tokens


# Turns.


@pytest.mark.parametrize("strategy", ["lookahead", "autoregressive"])
def test_a_later_turn_reads_its_new_tokens_only(
    make: Make, loaded: models.LoadedModel, strategy: str
) -> None:
    chat = make(*QUESTIONS, strategy=strategy, max_new_tokens=None)
    loop(chat)
    assert len(chat.replies) == 3
    # The measurement of a plain step has left the beginning of every text.
    assert chat.replies[0].tally.cached < 5
    for before, after in zip(chat.replies, chat.replies[1:], strict=False):
        known = before.prompt + before.token_ids
        assert before.token_ids[-1] == END
        assert after.prompt[: len(known)] == known
        # The token that ended the turn was never fed; all before it were.
        assert after.tally.cached == len(known) - 1
        assert after.tally.prompt == len(after.prompt)
    for turn in range(3):
        assert chat.replies[turn].token_ids == fresh_reply(chat, loaded, turn)


def test_what_changed_is_read_again_and_nothing_else(
    make: Make, loaded: models.LoadedModel
) -> None:
    chat = make(
        QUESTIONS[0], QUESTIONS[1], "/undo", QUESTIONS[2], "/system Be brief.", QUESTIONS[1]
    )
    loop(chat)
    first, _, third, fourth = chat.replies
    # Taken back: all of the first exchange is still known.
    assert third.tally.cached >= len(first.prompt) + len(first.token_ids) - 1
    # A system message stands at the start, so that nothing but the first token is.
    assert fourth.tally.cached == 1
    for turn in range(4):
        assert chat.replies[turn].token_ids == fresh_reply(chat, loaded, turn)


def test_a_template_that_rewrites_history(loaded: models.LoadedModel, make: Make) -> None:
    """Reasoning models' templates drop the reasoning of earlier turns."""
    tokenizer = type(loaded.tokenizer).from_pretrained(model_files.resolve("demo"))
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message.content", "message.content.replace('language model', 'machine')"
    )
    on = Session(replace(loaded, tokenizer=tokenizer))
    chat = make(*QUESTIONS[:2], on=on)
    loop(chat)
    first, second = chat.replies
    known = first.prompt + first.token_ids
    pairs = zip(known, second.prompt, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert len(first.prompt) <= second.tally.cached == common < len(known) - 1
    assert second.token_ids == fresh_reply(chat, loaded)


def test_sampled_turns_draw_their_own_seeds(make: Make) -> None:
    chat = make(QUESTIONS[0], "/regenerate", "/regenerate", temperature=2.0, max_new_tokens=12)
    loop(chat)
    assert len({tuple(reply.token_ids) for reply in chat.replies}) == 3
    assert len(chat.conversation.messages) == 2
    fixed = make(QUESTIONS[0], "/regenerate", temperature=2.0, seed=7, max_new_tokens=12)
    loop(fixed)
    assert fixed.replies[0].token_ids == fixed.replies[1].token_ids


def test_a_chat_takes_the_models_own_sampling(
    loaded: models.LoadedModel, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded.model.generation_config
    for name, value in {"do_sample": True, "temperature": 0.7, "top_p": 0.9}.items():
        monkeypatch.setattr(config, name, value)
    sampling = make().settings().sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 0)
    mine = make(temperature=0.1, top_k=5).settings().sampling
    assert (mine.temperature, mine.top_p, mine.top_k) == (0.1, 0.9, 5)


# Ctrl-C.


def interrupt_after(chat: Chat, count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Press Ctrl-C after some steps; returns a list that counts those that came."""
    steps: list[int] = []
    real = chat.session.stream

    def stream(*arguments: Any, **options: Any) -> Iterator[TextEvent]:
        for event in real(*arguments, **options):
            if isinstance(event, TextStep):
                steps.append(len(event.token_ids))
                if len(steps) == count:
                    os.kill(os.getpid(), signal.SIGINT)
            yield event

    monkeypatch.setattr(chat.session, "stream", stream)
    return steps


def test_ctrl_c_keeps_the_partial_reply_and_a_valid_cache(
    make: Make, loaded: models.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = make(QUESTIONS[0], max_new_tokens=None)
    steps = interrupt_after(chat, 9, monkeypatch)
    loop(chat)
    assert len(steps) <= 10, "it stops within one step"
    reply = chat.conversation.messages[-1]
    assert reply.interrupted
    assert isinstance(chat.reader, Script)
    assert chat.reader.held == 1, "what was typed meanwhile is not sent by itself"
    assert reply.content.startswith("Lookahead decoding")
    monkeypatch.undo()
    chat.reader, chat.leaving = Script(QUESTIONS[1]), False
    loop(chat)
    before, after = chat.replies
    known = before.prompt + before.token_ids
    assert after.tally.cached == len(known) - 1
    assert after.prompt[: len(known)] == known
    assert after.token_ids == fresh_reply(chat, loaded)


def test_ctrl_c_before_the_first_token_gives_the_message_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = make(QUESTIONS[0], "a question " * 400, EOFError)
    real = chat.session.stream

    def slow(prompt: Any, *arguments: Any, **options: Any) -> Iterator[TextEvent]:
        events = real(prompt, *arguments, **options)
        for event in events:
            if len(prompt) > 500:
                os.kill(os.getpid(), signal.SIGINT)
            yield event

    monkeypatch.setattr(chat.session, "stream", slow)
    loop(chat)
    assert said(chat)[0] == QUESTIONS[0]
    assert len(said(chat)) == 2
    assert isinstance(chat.reader, Script)
    assert chat.reader.drafts[-1] == "a question " * 400


def test_a_second_ctrl_c_ends_the_reply_and_not_the_chat(
    make: Make, loaded: models.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = make(QUESTIONS[0], QUESTIONS[1])
    run = chat.session.decoder.runner.run
    calls: list[int] = []

    def impatient(layout: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return run(layout)

    monkeypatch.setattr(chat.session.decoder.runner, "run", impatient)
    loop(chat)
    assert [m.interrupted for m in chat.conversation.messages] == [False, True, False, False]
    assert chat.replies[1].token_ids == fresh_reply(chat, loaded)


def test_an_error_in_the_middle_keeps_what_was_said(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0], "/stats")
    run = chat.session.decoder.runner.run
    calls: list[int] = []

    def failing(layout: Any) -> Any:
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("an illegal address")
        return run(layout)

    monkeypatch.setattr(chat.session.decoder.runner, "run", failing)
    loop(chat)
    assert "lade: RuntimeError: an illegal address" in capsys.readouterr().err
    assert said(chat)[1].startswith("Lookahead")


@pytest.mark.parametrize("presses", [2, 5])
def test_more_ctrl_c_than_two_disturb_nothing(presses: int) -> None:
    survived = 0
    with ctrl_c() as pressed:
        for _ in range(presses):
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                survived += 1
        assert pressed()
    assert survived == presses - 1
    with ctrl_c_ignored():
        os.kill(os.getpid(), signal.SIGINT)
    with ctrl_c_ignored(), ctrl_c_raised(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_anything_that_goes_wrong_leaves_the_conversation(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0], "/stats", "/save x\0y", "caf\udce9", "more", max_new_tokens=5)
    monkeypatch.setattr(
        commands.COMMANDS["stats"].action, "__code__", (lambda c, _: 1 / 0).__code__
    )
    loop(chat)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lade: ")]
    assert lines == [
        "lade: ZeroDivisionError: division by zero",
        "lade: /save xy cannot be written: embedded null byte",
        "lade: that is not UTF-8; check the terminal's encoding",
    ]
    assert said(chat)[0::2] == [QUESTIONS[0], "more"]


def test_a_hostile_chat_cannot_drive_the_terminal(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]52;c;eA==\x07\x9b31m\x1b[2J"
    talk = Conversation(f"system{evil}").asked(f"asked{evil}").answered(f"said{evil}")
    path = tmp_path / "talk.json"
    chat_file.save(path, talk, "demo")
    loop(make(f"/load {path}", "/system", "/undo", f"/load {evil}", f"/{evil}", "/show x" + evil))
    shown = capsys.readouterr()
    assert "asked" in shown.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.err + shown.out)


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    loop(make(KeyboardInterrupt, KeyboardInterrupt))
    assert capsys.readouterr().err.count("Ctrl-D or /exit leaves") == 2


# A full context.


def test_a_full_context_drops_the_oldest_turns_when_told_to(
    make: Make, loaded: models.LoadedModel
) -> None:
    chat = make(
        QUESTIONS[0], QUESTIONS[1], QUESTIONS[2], "x", "d", "/exit",
        on=Session(loaded, max_context=200), system="Be brief.",
    )  # fmt: skip
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert chat.reader.asked[0] == (
        "The context of 200 tokens is full: [s]top and edit, or [d]rop the oldest exchange and"
        " go on? "
    )
    assert chat.conversation.forgotten == 2
    assert len(said(chat)) == 8, "what is dropped is still there to be saved"
    last = chat.replies[-1]
    assert len(last.prompt) + 25 <= 200
    text = loaded.tokenizer.decode(last.prompt)
    assert "Be brief." in text
    assert QUESTIONS[0] not in text
    assert last.token_ids == fresh_reply(chat, loaded)


def test_a_full_context_stops_when_told_to(make: Make, loaded: models.LoadedModel) -> None:
    on = Session(loaded, max_context=150)
    chat = make(*QUESTIONS, "one more", "s", on=on, max_new_tokens=30)
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert len(chat.reader.asked) == 1
    assert len(said(chat)) == 6
    assert chat.conversation.forgotten == 0
    assert chat.reader.drafts[-1] == "one more"


def test_a_full_context_on_a_pipe_is_an_error(make: Make, loaded: models.LoadedModel) -> None:
    on = Session(loaded, max_context=150)
    lines = io.StringIO("\n".join([*QUESTIONS, "one more"]))
    with pytest.raises(LadeError, match=r"^the context of 150 tokens is full; start a new chat"):
        loop(make(on=on, reader=LineReader(lines)))


def test_a_message_that_does_not_fit_by_itself(make: Make, loaded: models.LoadedModel) -> None:
    chat = make(on=Session(loaded, max_context=100))
    with pytest.raises(UsageError, match=r"^the message does not fit .* of 100 tokens .*; shorten"):
        handle(chat, "long " * 300)
    assert chat.draft == "long " * 300
    assert said(chat) == []


def test_undo_after_turns_were_dropped(
    make: Make, loaded: models.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Session(loaded, max_context=150)
    chat = make(*QUESTIONS, "one more", "d", "/undo", "/undo", "/undo", "/undo", on=on)
    used = []
    read = chat.reader.read

    def watched(text: str = "") -> str:
        used.append(chat.used)
        return read(text)

    monkeypatch.setattr(chat.reader, "read", watched)
    loop(chat)
    assert chat.conversation.messages == ()
    assert chat.conversation.forgotten == 0
    assert used[-1] == 0
    assert max(used) > 100


def test_files_that_do_not_fit_can_be_dropped(
    make: Make, loaded: models.LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "long file.txt"
    path.write_text("long " * 300)
    on = Session(loaded, max_context=150)
    chat = make(on=on, max_new_tokens=3)
    handle(chat, f'/paste "{path}"')
    with pytest.raises(UsageError, match=r"\(/paste none drops the 1 file with it\)$"):
        handle(chat, "What is this?")
    handle(chat, "/paste none")
    handle(chat, "What is this?")
    assert said(chat)[0] == "What is this?"


def test_a_reply_that_fills_the_context_says_so(
    make: Make, loaded: models.LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0], on=Session(loaded, max_context=60), max_new_tokens=None)
    loop(chat)
    assert "(cut: the context of 60 tokens is full)" in capsys.readouterr().err
    assert chat.used >= 59


@pytest.mark.parametrize("choice", ["d", "s"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_that_fills_the_context_can_go_on(
    make: Make, loaded: models.LoadedModel, choice: str, temperature: float
) -> None:
    on = Session(loaded, max_context=150)
    chat = make(
        QUESTIONS[1], "/set max-new-tokens 120", QUESTIONS[2], choice,
        on=on, max_new_tokens=30, temperature=temperature, seed=3, ignore_eos=True,
    )  # fmt: skip
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert chat.reader.asked == [
        "[s]top here, or [d]rop the oldest exchange and go on with the reply? "
    ]
    first, second, *rest = chat.replies
    assert first.tally.reason == "length"
    assert second.tally.reason == "context"
    assert len(second.prompt) + len(second.token_ids) == 150
    if choice == "s":
        assert not rest
        assert chat.conversation.forgotten == 0
        return
    (third,) = rest
    assert chat.conversation.forgotten == 2
    assert third.prompt[-len(second.token_ids) :] == second.token_ids
    assert len(second.token_ids) + len(third.token_ids) == 120
    assert third.token_ids == fresh_reply(chat, loaded)
    words = [second.token_ids, third.token_ids]
    whole = loaded.tokenizer.decode([i for part in words for i in part], skip_special_tokens=True)
    assert said(chat)[-1] == whole
    with pytest.raises(UsageError, match=r"^a reply that went on past a full context has nothing"):
        handle(chat, "/compare")
    assert len(said(chat)) == 4


# Commands.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/sytem x", "there is no command /sytem; did you mean /system? (a space before it"),
        ("/xyzzy", "there is no command /xyzzy; /help lists all (a space before it"),
        ("/undo", "there is nothing to take back"),
        ("/undo 2", "/undo takes no arguments"),
        ("/regenerate", "there is nothing to answer again; say something first"),
        ("/edit", "there is nothing to edit; say something first"),
        ("/stats", "there are no figures yet; say something first"),
        ("/compare", "there is no reply to compare; say something first"),
        ("/save", "name a file: /save FILE"),
        ("/load", "name a file: /load FILE"),
        ("/load nowhere.json", "there is no file nowhere.json; check the path"),
        ("/paste", "name a file: /paste FILE"),
        ("/load ~nobody-here/x", "there is no user ~nobody-here; check the path"),
        ('/set stop ""', "stop needs a text; off takes it back"),
        ("/paste nowhere.txt", "there is no file nowhere.txt; check the path"),
        ("/set temprature 1", "there is no setting 'temprature'; did you mean temperature?"),
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set temperature -1", "temperature must be finite and at least 0, not -1.0"),
        ("/set top-k 1.5", "top-k must be a whole number, not '1.5'"),
        ("/set markdown maybe", "markdown is on or off, not 'maybe'"),
        ("/set strategy magic", "unknown strategy 'magic'; use one of"),
        ("/set dtype float16", "dtype belongs to the start: leave, and give --dtype to lade chat"),
        ("/set sources moon", "unknown source 'moon'; known sources: trajectory"),
        ("/profile moon", "unknown profile 'moon'; known profiles: "),
        ("/show nothing-like-it", "there is no setting 'nothing-like-it'; one of strategy, "),
    ],
)
def test_commands_that_cannot_be_done(make: Make, text: str, message: str) -> None:
    chat = make()
    before = chat.request
    with pytest.raises((LadeError, DecoderError)) as refused:
        handle(chat, text)
    assert str(refused.value).startswith(message)
    assert chat.request is before
    assert said(chat) == []


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("/set temperature 0.5", "temperature", 0.5),
        ("/set top_k 7", "top_k", 7),
        ("/set --stop END OF IT", "stop", ["END OF IT"]),
        ("/set markdown off", "markdown", False),
        ("/set ignore-eos yes", "ignore_eos", True),
        ("/set max-new-tokens default", "max_new_tokens", None),
        ("/set max-new-tokens none", "max_new_tokens", None),
        ("/set stop off", "stop", None),
        ("/set stop \\n", "stop", ["\n"]),
        ('/set stop " a b "', "stop", [" a b "]),
        ("/set top-k off", "top_k", 0),
        ("/set min-p OFF", "min_p", 0.0),
        ("/set stats default", "stats", None),
        ("/SET strategy jacobi", "strategy", "jacobi"),
        ("/profile a100", "profile", "a100"),
    ],
)
def test_settings(make: Make, text: str, name: str, value: object) -> None:
    chat = make()
    handle(chat, text)
    assert getattr(chat.request, name) == value


def test_settings_hold_for_the_next_reply(make: Make) -> None:
    chat = make("/set max-new-tokens 5", QUESTIONS[0], "/set strategy autoregressive", "again")
    loop(chat)
    assert [len(reply.token_ids) for reply in chat.replies] == [5, 5]
    assert chat.replies[1].tally.accepted == {}


@pytest.mark.parametrize("text", [" /undo", "/etc/hosts is what?", "/def f():\n    pass"])
def test_what_only_looks_like_a_command_is_a_message(make: Make, text: str) -> None:
    chat = make(max_new_tokens=3)
    handle(chat, text)
    assert said(chat)[0] == text.removeprefix(" ")


def test_edit_replaces_the_last_message(make: Make) -> None:
    chat = make(QUESTIONS[0], "/edit", QUESTIONS[1], "/edit What is the budget?", max_new_tokens=5)
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert chat.reader.drafts[2] == QUESTIONS[0]
    assert len(said(chat)) == 2
    assert said(chat)[0] == "What is the budget?"


def test_an_emptied_edit_changes_nothing(make: Make) -> None:
    chat = make(QUESTIONS[0], "/edit", "", QUESTIONS[1], max_new_tokens=5)
    loop(chat)
    assert said(chat)[0::2] == [QUESTIONS[0], QUESTIONS[1]]


@pytest.mark.parametrize("text", ["/undo", "exit", "/etc/hosts"])
def test_a_message_that_looks_like_a_command_can_be_edited(make: Make, text: str) -> None:
    chat = make(f" {text}", "/edit", f" {text} !", max_new_tokens=3)
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert chat.reader.drafts[2] == f" {text}"
    assert said(chat)[0::2] == [f"{text} !" if text.startswith("/") else f" {text} !"]


@pytest.mark.parametrize("between", ["/undo", "/show markdown", "/reset", "/regenerate"])
def test_any_other_command_gives_an_edit_up(make: Make, between: str) -> None:
    chat = make(QUESTIONS[0], QUESTIONS[1], "/edit", between, "new", max_new_tokens=5)
    loop(chat)
    expected = {"/undo": [QUESTIONS[0], "new"], "/reset": ["new"]}
    assert said(chat)[0::2] == expected.get(between, [QUESTIONS[0], QUESTIONS[1], "new"])


def test_an_edit_reads_only_what_changed(make: Make, loaded: models.LoadedModel) -> None:
    chat = make(QUESTIONS[0], QUESTIONS[1], "/edit What is the window?", max_new_tokens=20)
    loop(chat)
    first, second, third = chat.replies
    pairs = zip(second.prompt, third.prompt, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert third.tally.cached == same >= len(first.prompt) + 20
    assert third.token_ids == fresh_reply(chat, loaded)


def test_an_edit_that_is_given_up_changes_nothing(make: Make) -> None:
    chat = make(QUESTIONS[0], "/edit", KeyboardInterrupt, QUESTIONS[1], max_new_tokens=5)
    loop(chat)
    assert said(chat)[0::2] == [QUESTIONS[0], QUESTIONS[1]]


def test_a_pasted_file_goes_with_the_next_message(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("one\n```py\nx\n```\n")
    chat = make(f"/paste {path}", "What is this?", "and now?", max_new_tokens=5)
    loop(chat)
    assert said(chat)[0] == "notes.md:\n````\none\n```py\nx\n```\n````\n\nWhat is this?"
    assert said(chat)[2] == "and now?"


def test_lines_of_a_pasted_file_end_in_one_way(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    chat = make()
    handle(chat, f"/paste {path}")
    assert chat.attached == ["notes.md:\n```\none\ntwo\nthree\n```"]


@pytest.mark.parametrize("command", ["/paste", "/load"])
def test_what_is_too_large_for_a_text_is_refused(
    make: Make, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIMIT", 2_000_000)
    path = tmp_path / "large"
    path.write_bytes(b"x" * 2_000_001)
    with pytest.raises(UsageError, match=r"/large cannot be read: it holds more than 2 MB$"):
        handle(make(), f"{command} {path}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("command", ["/paste", "/load"])
def test_ctrl_c_ends_the_wait_for_a_pipe(make: Make, command: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    chat = make(f"{command} {pipe}", "/set window 9")
    loop(chat)
    assert chat.request.window == 9


def test_save_and_load_go_on_where_one_left(
    make: Make, loaded: models.LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    chat = make("/system Be brief.", QUESTIONS[0], f"/save {path}", QUESTIONS[1], "/save")
    loop(chat)
    again = make(f"/load {path}", QUESTIONS[2], on=Session(loaded))
    loop(again)
    assert said(again)[:4] == said(chat)
    assert again.conversation.system == "Be brief."
    straight = make("/system Be brief.", *QUESTIONS, on=Session(loaded))
    loop(straight)
    assert said(again) == said(straight)


def test_saving_asks_before_it_replaces_another_chat(make: Make, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    first = make(QUESTIONS[0], f"/save {one}", "/reset", "x", "/save", max_new_tokens=3)
    loop(first)
    assert len(chat_file.load(one).messages) == 2
    assert chat_file.load(one).messages[0].content == QUESTIONS[0], "a new chat has no file yet"
    chat_file.save(other, first.conversation, "demo")
    kept = make(QUESTIONS[1], f"/save {other}", "k", f"/save {other}", "o", max_new_tokens=3)
    loop(kept)
    assert isinstance(kept.reader, Script)
    assert (
        kept.reader.asked
        == [f"{other} holds another chat of 2 messages: [k]eep it, or [o]verwrite it? "] * 2
    )
    assert chat_file.load(other) == kept.conversation


def test_loading_asks_before_it_replaces_what_is_not_saved(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    chat_file.save(path, Conversation("Be brief."), "demo")
    chat = make(QUESTIONS[0], f"/load {path}", "k", f"/load {path}", "r", max_new_tokens=3)
    loop(chat)
    assert isinstance(chat.reader, Script)
    assert len(chat.reader.asked) == 2
    assert chat.conversation == Conversation("Be brief.")


@pytest.mark.parametrize("word", ["exit", "quit", "/exit", "/bye"])
def test_words_that_leave(make: Make, word: str) -> None:
    chat = make(word, "never said")
    loop(chat)
    assert said(chat) == []


def test_a_damaged_file_leaves_the_conversation_as_it_is(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text('{"format": "lade-chat"')
    chat = make(QUESTIONS[0], f"/load {path}", max_new_tokens=5)
    loop(chat)
    assert said(chat)[0] == QUESTIONS[0]
    assert path.read_text() == '{"format": "lade-chat"'


def test_reset_keeps_the_system_message(make: Make) -> None:
    chat = make("/system Be brief.", QUESTIONS[0], "/reset", max_new_tokens=5)
    loop(chat)
    assert chat.conversation.messages == ()
    assert chat.conversation.system == "Be brief."


def test_a_template_may_refuse_a_system_message(
    loaded: models.LoadedModel, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = type(loaded.tokenizer).from_pretrained(model_files.resolve("demo"))
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + tokenizer.chat_template
    )
    chat = make("/system Be brief.", on=Session(replace(loaded, tokenizer=tokenizer)))
    loop(chat)
    assert chat.conversation.system is None
    assert "lade: the model's chat template refuses this: no system" in capsys.readouterr().err


def test_compare_says_that_the_text_is_the_same(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    loop(make(QUESTIONS[0], "/compare", temperature=1.0))
    shown = capsys.readouterr().err
    assert "same text · " in shown
    assert re.search(
        r"^lookahead .* steps for (\d+) tokens\s*\nplain .* \1 steps for \1", shown, re.M
    )


@pytest.mark.parametrize(
    ("steps", "seconds", "line"),
    [
        (9, 1.1, "same text · as fast as plain decoding"),
        (9, 0.9, "same text · as fast as plain decoding"),
        (9, 1.3, "same text · 1.30× as fast as plain decoding"),
        (8, 1.1, "same text · 1.10× as fast as plain decoding"),
    ],
)
def test_compare_takes_no_noise_for_a_speedup(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    steps: int,
    seconds: float,
    line: str,
) -> None:
    def tally(steps: int, seconds: float) -> Tally:
        return Tally(tokens=9, steps=steps, decode_seconds=seconds, prefill_seconds=1.0)

    chat = make(QUESTIONS[0], max_new_tokens=9)
    loop(chat)
    chat.replies[-1] = replace(chat.replies[-1], tally=tally(steps, 1.0))
    plain = comparison.Comparison(tally(9, seconds), [], None, True)
    monkeypatch.setattr(comparison, "compare", lambda *_: plain)
    handle(chat, "/compare")
    assert f"\n{line}\n" in capsys.readouterr().err


def test_compare_needs_more_than_a_step(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    loop(make(QUESTIONS[0], "/compare", max_new_tokens=1))
    assert "same text · too short to compare speeds" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["/undo", "/reset", "/edit"])
def test_compare_wants_a_reply_that_still_stands(make: Make, command: str) -> None:
    chat = make(QUESTIONS[0], command, max_new_tokens=3)
    loop(chat)
    if command == "/edit":
        handle(chat, "/compare")  # nothing was changed yet
        return
    with pytest.raises(UsageError, match=r"^there is no reply to compare"):
        handle(chat, "/compare")


def test_compare_tells_when_the_text_is_another(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = make(QUESTIONS[0])
    loop(chat)
    chat.replies[-1].token_ids[3] += 1
    handle(chat, "/compare")
    assert "another text from token 4 on" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_costs_no_reply(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    close = TraceWriter.finish

    def full(writer: TraceWriter) -> None:
        close(writer)
        raise LadeError("no space left")

    monkeypatch.setattr(TraceWriter, "finish", full)
    chat = make(QUESTIONS[0], trace=str(tmp_path / "x"))
    loop(chat)
    assert len(chat.replies[0].token_ids) == 40
    assert re.search(
        r"cut at .*40 tokens in .*\nlade: no space left\n", capsys.readouterr().err, re.S
    )


def test_stats_add_the_replies_up(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    chat = make(QUESTIONS[0], QUESTIONS[1], "/stats")
    loop(chat)
    shown = capsys.readouterr().err
    tokens = sum(reply.tally.tokens for reply in chat.replies)
    steps = sum(reply.tally.steps for reply in chat.replies)
    assert f"{tokens} in {steps} steps" in shown
    cached = sum(reply.tally.cached for reply in chat.replies)
    assert cached > 40
    assert f"{cached} of them were in the cache" in shown


def test_show_tells_where_values_come_from(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"top_k": "LADE_TOP_K", "stats": "flag --no-stats", "markdown": "config file"}
    chat = make("/set window 9", "/show", top_k=7, stats=False, origins=given, profile="cpu")
    loop(chat)
    lines = capsys.readouterr().err.splitlines()
    rows = {line.split()[0]: line.rstrip() for line in lines if line}
    assert rows["window"].split() == ["window", "9", "set", "in", "this", "chat"]
    assert rows["temperature"].split()[-2:] == ["the", "model's"]
    assert re.search(r"profile cpu: measured: AMD EPYC$", rows["ngram"])
    assert rows["top-k"].endswith("LADE_TOP_K")
    assert rows["stats"].endswith("flag --no-stats")
    # What was given counts as given, also where it is the default.
    assert rows["markdown"].endswith("config file")
    assert rows["ignore-eos"].endswith("default")
    assert rows["max-new-tokens"].endswith("given")  # by a program
    # The profile's budget and sources were meant for the profile's window.
    assert rows["budget"].endswith("follows from what you set")
    assert rows["sources"].endswith("follows from what you set")
    # What belongs to the start of the program is shown, and not changed.
    assert rows["parallel"].split() == ["parallel", "1", "default"]
    assert rows["parallel-mode"].split() == ["parallel-mode", "lookahead", "default"]
    # What was chosen for this machine comes with its reason.
    assert rows["attention"].split()[:2] == ["attention", "sdpa"]
    assert rows["cuda-graphs"].split()[:3] == ["cuda-graphs", "off", "they"]
    loop(make("/set parallel 2"))
    assert "parallel belongs to the start: leave, and give --parallel" in capsys.readouterr().err
    loop(make("/set window default", "/show window", on=chat.session))
    assert "profile cpu: measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("color", "env", "told"),
    [("always", "", True), ("never", "", False), ("auto", "1", False), ("auto", "", True)],
)
def test_colours_are_told_where_there_are_some(
    session: Session, monkeypatch: pytest.MonkeyPatch, color: str, env: str, told: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", env)
    chat = Chat(session, ChatRequest(), Terminal(color), lambda _: Script())
    assert ("Ctrl-T token colors on" in chat.toolbar()) is told


def test_a_change_in_the_chat_beats_where_a_value_was_from(make: Make) -> None:
    chat = make("/set temperature 0", temperature=1.0, origins={"temperature": "LADE_TEMPERATURE"})
    loop(chat)
    assert chat.request.origins == {"temperature": "set in this chat"}
    handle(chat, "/set temperature default")
    assert chat.request.origins == {}


# Models and pipes.


def test_a_model_without_a_template(loaded: models.LoadedModel, make: Make) -> None:
    tokenizer = type(loaded.tokenizer).from_pretrained(model_files.resolve("demo"))
    tokenizer.chat_template = None
    on = Session(replace(loaded, tokenizer=tokenizer))
    with pytest.raises(UsageError, match=r"^demo has no chat template: it continues texts; use"):
        make(on=on)
    chat = make("def f(x):", "    y", on=on, raw=True, max_new_tokens=5)
    loop(chat)
    text = loaded.tokenizer.decode(chat.replies[1].prompt, skip_special_tokens=True)
    assert text == f"def f(x):\n{said(chat)[1]}\n    y"  # as it is, the indent included


def test_replies_alone_go_to_stdout(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lines = io.StringIO(f"/show\n{QUESTIONS[0]}\n/stats\n{QUESTIONS[1]}\n")
    chat = make(reader=LineReader(lines))
    loop(chat)
    captured = capsys.readouterr()
    assert captured.out == f"{said(chat)[1]}\n{said(chat)[3]}\n"
    assert "tokens per step" in captured.err
    quiet = make(reader=LineReader(io.StringIO(QUESTIONS[0])), quiet=True)
    loop(quiet)
    assert capsys.readouterr().err == ""


def test_reasoning_that_the_template_opens(loaded: models.LoadedModel) -> None:
    """Some templates open the block of reasoning themselves: the reply begins inside it."""
    tokenizer = type(loaded.tokenizer).from_pretrained(model_files.resolve("demo"))
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    session = Session(replace(loaded, tokenizer=tokenizer))
    question = [{"role": "user", "content": "What is <think>?"}]
    assert session.opens_thinking(session.encode_chat(question))
    assert not session.opens_thinking(session.encode_chat(question, reply=False))
    assert not Session(loaded).opens_thinking(Session(loaded).encode_chat(question))


def test_an_error_of_the_line_editor_loses_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chat = make(QUESTIONS[0], RuntimeError)
    with pytest.raises(RuntimeError), rescued(chat):
        loop(chat)
    [file] = (tmp_path / "lade" / "chats").iterdir()
    assert chat_file.load(file) == chat.conversation
    # What a pipe said wrongly it can say again.
    piped = make(reader=LineReader(io.StringIO(f"{QUESTIONS[0]}\n/load nowhere")))
    with pytest.raises(UsageError), rescued(piped):
        loop(piped)
    assert list((tmp_path / "lade" / "chats").iterdir()) == [file]


def test_what_cannot_go_on_is_saved_once_and_only_if_something_was_said(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rescue(make())
    chat = make(QUESTIONS[0], f"/save {tmp_path / 'kept.json'}")
    loop(chat)
    capsys.readouterr()
    rescue(chat)  # it is in that file
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "state").exists()
    loop(resumed := make(f"/load {tmp_path / 'kept.json'}", QUESTIONS[1], quiet=True))
    rescue(resumed)
    [file] = (tmp_path / "state" / "lade" / "chats").iterdir()
    line = f"lade: the conversation was saved to {file}; /load {file} goes on\n"
    assert capsys.readouterr().err == line
    assert chat_file.load(file) == resumed.conversation
    # Where nothing can be written, the reason for the end still is the last word.
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no-folder"))
    rescue(resumed)
    assert capsys.readouterr().err.startswith("lade: ")
