"""A chat over several turns: prompt tokens read again, kept conversations, and every command."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ladecli.decoder.decoder import Decoder
from ladecli.session.conversation import Conversation, from_json
from ladecli.trace.format import read_trace
from tests.support.files import file_sizes
from tests.support.hub import DEMO
from tests.support.oracle import change_decoders, during_forward, watch

QUESTIONS = ("What is lookahead decoding?", "What is the pool?", "How do I read a file in Python?")
KEPT = "the conversation was saved to"

Lade = Callable[..., Any]
ctrl_c = partial(signal.raise_signal, signal.SIGINT)
terminate = partial(signal.raise_signal, signal.SIGTERM)


def figures(err: str) -> list[list[int]]:
    """Return for each `/stats`: tokens, steps, cached prompt tokens, all prompt tokens."""
    form = r"(\d+) tokens in (\d+) steps? .*\nreplies: .* (\d+) of (\d+) prompt tokens"
    return [[int(number) for number in numbers] for numbers in re.findall(form, err)]


def prompt_of(trace: Path) -> str:
    return read_trace(trace).header.prompt


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["lookahead", "autoregressive"])
def test_turns_read_new_tokens_and_chats_continue(
    talk: Lade, tmp_path: Path, strategy: str
) -> None:
    path, page = tmp_path / "chat.json", tmp_path / "chat.md"
    lines = ("/system Be brief.", QUESTIONS[0], "/stats", QUESTIONS[1], "/stats")
    options = f"--strategy {strategy} --no-stats"
    saves = (f"/save {page}", f"/save {path}", "/save")  # the last one to the newest file
    chat = talk(*lines, *saves, QUESTIONS[2], f"/save {page}", options=options)
    assert f"saved to {path}\n> saved to {path}\n" in chat.err
    assert chat.notices == []
    assert "cut at" not in chat.err, "replies end by themselves"
    assert chat.err.count("tokens per step") == 2, "--no-stats"
    (tokens, steps, cached, prompt), after = figures(chat.err)
    assert cached == 0
    assert (after[0] > tokens, after[1] > steps, after[3] > 2 * prompt) == (True, True, True)
    # The token that ended the turn was never fed; all before it were.
    assert after[2] == prompt + tokens - 1
    for text in ("Be brief.", *chat.said):
        assert f"\n\n{text}\n" in page.read_text()
    again = talk(f"/load {path}", QUESTIONS[2], options=options)
    assert again.conversation == chat.conversation, "who knows nothing replies the same"


# Ctrl-C and errors.


@pytest.mark.slow
def test_ctrl_c_keeps_the_partial_reply_and_a_valid_cache(talk: Lade, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        during_forward(patch, 9, ctrl_c)
        chat = talk(QUESTIONS[0], "/stats", QUESTIONS[1], "/stats", options="-n 24")
    interrupted = [message.interrupted for message in chat.conversation.messages]
    assert interrupted == [False, True, False, False]
    assert chat.said[1].startswith("Lookahead decoding")
    (tokens, steps, _, prompt), after = figures(chat.err)
    assert steps <= 10, "it stops within one step"
    assert after[2] == prompt + tokens - 1
    assert talk(f"/load {chat.file}", "/regenerate", options="-n 24").said == chat.said


def test_early_ctrl_c_gives_the_message_back(talk: Lade, monkeypatch: Any, tmp_path: Path) -> None:
    during_forward(monkeypatch, 1, ctrl_c)
    chat = talk("a question " * 400, f"/save {tmp_path / 'chat.json'}")
    assert from_json((tmp_path / "chat.json").read_text()).conversation == Conversation()
    assert "a question " * 400 + "\n> " in chat.err


def test_an_early_signal_keeps_the_unanswered_message(talk: Lade, monkeypatch: Any) -> None:
    during_forward(monkeypatch, 1, terminate)
    chat = talk(QUESTIONS[0])
    assert (chat.code, chat.conversation) == (143, Conversation().with_question(QUESTIONS[0]))


def test_ctrl_c_before_a_new_reply_keeps_the_old_one(talk: Lade, monkeypatch: Any) -> None:
    armed: list[Callable[[], None]] = []
    arm = partial(armed.append, ctrl_c)
    change_decoders(monkeypatch, lambda model: watch(model, lambda _: armed and armed.pop()()))
    long = "a question " * 400
    chat = talk(QUESTIONS[0], arm, long, "/compare", options="-n 9")
    assert "same text" in chat.err
    for again in ("/regenerate", f"/edit {long}"):
        assert len(talk(long, arm, again, options="-n 9").conversation.messages) == 2


def test_another_model_continues_the_conversation(talk: Lade, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a remark")
    saved = tmp_path / "chat.json"
    steps = ("Hello", f"/save {saved}", f"/paste {tmp_path / 'note.txt'}", "/model demo")
    talk(*steps, "more", "/save", options="-n 5")
    messages = from_json(saved.read_text()).conversation.messages
    assert (len(messages), messages[2].content[:9]) == (4, "note.txt:")


def test_a_chat_survives_a_model_that_cannot_be_opened(talk: Lade, model_folder: str) -> None:
    chat = talk("Hello", f"/model {model_folder}", "more", options="-n 5")
    assert "has no chat template" in chat.err
    assert "going on with demo" in chat.err
    assert len(chat.conversation.messages) == 4


def test_ctrl_c_during_a_load_returns_to_the_previous_model(talk: Lade, monkeypatch: Any) -> None:
    moments = [lambda: None, ctrl_c, lambda: None]
    change_decoders(monkeypatch, lambda _: moments.pop(0)())
    chat = talk("Hello", f"/model {DEMO}", "more", options="-n 5")
    assert f"{DEMO} was not loaded; going on with demo" in chat.err
    assert len(chat.conversation.messages) == 4


def test_errors_end_neither_the_conversation_nor_the_chat(talk: Lade, monkeypatch: Any) -> None:
    during_forward(monkeypatch, 8, Mock(side_effect=RuntimeError("an illegal moment")))
    chat = talk(QUESTIONS[0], "/save x\0y", "caf\udce9", "more", options="-n 20")
    for line, words in zip(chat.notices, ("an illegal moment", "/save xy", "UTF-8"), strict=True):
        assert words in line
    assert chat.said[1].startswith("Lookahead")
    assert chat.said[0::2] == [QUESTIONS[0], "more"]


@pytest.mark.slow
def test_every_end_keeps_the_chat(talk: Lade, lade: Lade, monkeypatch: Any, tmp_path: Path) -> None:
    # A pipe can send an invalid message again, and an empty chat is not kept.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    piped = lade("chat", "-n", "3", typed=f"{QUESTIONS[0]}\n/load nowhere")
    assert (piped.code, [*tmp_path.rglob("chats/*.json")]) == (2, [])
    assert talk(terminate).file is None
    chat = talk(QUESTIONS[0], terminate, options="-n 3 -q")
    assert chat.code == 128 + signal.SIGTERM
    assert chat.said[0::2] == [QUESTIONS[0]]
    assert chat.file.stat().st_mode & 0o777 == 0o600
    assert f"{KEPT} {chat.file}" in chat.err, "--quiet hides no more than it should"
    # No notice for a chat that the user left.
    chat = talk(QUESTIONS[0], QUESTIONS[2])
    assert KEPT not in chat.err
    assert chat.said[0::2] == [QUESTIONS[0], QUESTIONS[2]]
    # If nothing can be written, one notice says so, and the chat goes on.
    (tmp_path / "lade").touch()
    chat = talk(QUESTIONS[0], QUESTIONS[1], f"/save {tmp_path / 'all.json'}", home=tmp_path)
    assert len(from_json((tmp_path / "all.json").read_text()).conversation.messages) == 4
    assert chat.err.count("is not kept") == 1
    with ExitStack() as full:
        fill = partial(full.enter_context, file_sizes(1))
        chat = talk(QUESTIONS[0], fill, QUESTIONS[1], terminate)
    assert (chat.err.count("is not kept"), chat.err.count(KEPT)) == (1, 0)
    assert chat.said[::2] == [QUESTIONS[0]]


def test_a_chat_survives_a_hangup_under_nohup(talk: Lade) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        chat = talk(partial(signal.raise_signal, signal.SIGHUP), QUESTIONS[0])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (chat.code, chat.said[::2]) == (0, [QUESTIONS[0]])


def test_every_change_is_kept_at_once(talk: Lade, tmp_path: Path) -> None:
    seen: list[Conversation] = []

    def look() -> None:
        (file,) = tmp_path.rglob("chats/*.json")
        seen.append(from_json(file.read_text()).conversation)

    lines = ("/undo", "/system Be brief.", "/regenerate", "/reset", "/system none")
    talk(*(part for line in (*QUESTIONS[:2], *lines) for part in (line, look)))
    assert [len(chat.messages) for chat in seen] == [2, 4, 2, 2, 2, 2, 2]
    assert [chat.system for chat in seen] == [*[None] * 3, *["Be brief."] * 4]
    assert {chat.messages[0].content for chat in seen[:5]} == {QUESTIONS[0]}
    assert seen[1].messages[:2] == seen[2].messages == seen[0].messages


def test_the_model_is_kept(talk: Lade, model_folder: str, tmp_path: Path, monkeypatch: Any) -> None:
    options = "--raw -n 3"
    talk(QUESTIONS[0], options=options, home=tmp_path)
    folder = Path(model_folder)
    monkeypatch.chdir(folder.parent)
    talk(QUESTIONS[0], model=folder.name, options=options, home=tmp_path)
    monkeypatch.chdir(tmp_path)  # another folder, in which that name is invalid, or another model's
    for model, shown in (("", model_folder), ("demo", "demo"), ("", "demo")):
        again = talk(QUESTIONS[1], model=model, options=f"--continue {options}", home=tmp_path)
        assert f"{shown} · " in again.err
        assert "going on after" in again.err


def test_a_conversation_goes_on_with_another_model_and_another_day(
    talk: Lade, lade: Lade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("/model ./nowhere", "/model demo", QUESTIONS[1])
    before = talk(*lines, options="-n 9 Hello", home=tmp_path)
    assert "> Hello" in before.err, "a first message is shown as if it were typed"
    assert "there is no model folder ./nowhere" in before.notices[0]
    assert "going on after 2 messages" in before.err
    assert before.said[0::2] == ["Hello", QUESTIONS[1]]
    day = before.file.rename(before.file.with_name("2020-01-01.json"))
    after = talk("/undo", options="--continue", home=tmp_path)
    assert "going on after 4 messages" in after.err
    assert f"taken back: {QUESTIONS[1]}" in after.err
    of_day = from_json(day.read_text()).conversation
    assert of_day == before.conversation, "another day has another file"
    newest = max(tmp_path.rglob("chats/*.json"))
    undone = from_json(newest.read_text()).conversation
    assert undone.messages == of_day.messages[:2]
    newest.write_text(undone.without_reply().as_json("demo"))  # killed before any reply
    killed = talk("/regenerate", options="-n 9 --continue", home=tmp_path)
    assert "going on after 1 message · demo" in killed.err
    assert "\n> Hello\n" in killed.err
    assert "this message has no answer: /regenerate" in killed.err
    assert killed.out.strip() == before.said[1]
    empty = talk("Hi", "/reset", options="-n 5", home=tmp_path)
    assert "going on after 2 messages " in talk(options="--continue", home=tmp_path).err
    assert empty.conversation.messages
    assert "Briefly." in talk("/system", options="--continue -s Briefly.", home=tmp_path).err
    os.utime(day)  # of two simultaneous chats, the one that changed last
    assert "going on after 4 messages" in talk(options="--continue", home=tmp_path).err
    monkeypatch.setenv("XDG_STATE_HOME", "/nowhere")
    assert "there is no conversation to continue" in lade("chat", "--continue").refused()


def test_a_damaged_chat_hides_no_older_one(talk: Lade, lade: Lade, tmp_path: Path) -> None:
    kept = talk("Grüße", options="-n 5", home=tmp_path).file
    cut = kept.read_bytes().index("ü".encode()) + 1
    for data in (b"", kept.read_bytes()[:cut], b"{}"):
        (newer := kept.with_name("2999-01-01.json")).write_bytes(data)
        assert "Grüße  2 messages" in lade("chat", "--list").out
    assert f"{newer} is not a saved chat" in lade("chat", "--load", str(newer)).refused()


def test_a_reply_is_copied_to_the_terminals_clipboard(talk: Lade) -> None:
    chat = talk("/copy", QUESTIONS[0], "/copy", "/copy x")
    assert "there is no reply to copy" in chat.notices[0]
    assert "no terminal with a clipboard" in chat.notices[1]
    assert "takes no arguments" in chat.notices[2]
    chat = talk(QUESTIONS[0], "/copy", options="-n 9 --color always")
    code = re.search(r"\x1b]52;c;([\w+/=]+)\x07", chat.err)
    assert code is not None
    assert base64.b64decode(code[1]).decode() == chat.said[1]


@pytest.mark.slow
def test_a_full_context_forgets_the_oldest_turns(talk: Lade, tmp_path: Path) -> None:
    options = f"-n 40 --max-context 200 --system Brief. --trace {tmp_path / 'trace'}"
    chat = talk(*QUESTIONS, "x", options=options, home=tmp_path)
    assert "no longer sees the oldest 2 messages" in chat.err
    assert chat.conversation.forgotten == 2
    assert len(chat.said) == 8, "what is forgotten can still be saved"
    prompt = prompt_of(tmp_path / "trace")
    assert "Brief." in prompt
    assert QUESTIONS[0] not in prompt
    assert QUESTIONS[1] in prompt
    talk("x", options=f"-n 3 --continue --trace {tmp_path / 'more'}", home=tmp_path)
    assert QUESTIONS[0] in prompt_of(tmp_path / "more"), "where there is more room"
    assert talk(f"/load {chat.file}", "/regenerate", options=options).said == chat.said


def test_messages_and_replies_that_do_not_fit(talk: Lade, tmp_path: Path) -> None:
    path = tmp_path / "long file.txt"
    path.write_text("long " * 300)
    lines = ("long " * 300, f'/paste "{path}"', "What is this?", "/paste none", "What is this?")
    chat = talk(*lines, "/stats", options="--max-context 150 -n 200 --ignore-eos")
    alone, attached = chat.notices
    assert re.search(r"does not fit .* of 150 tokens .*; shorten it$", alone)
    assert "long " * 300 + "\n> " in chat.err, "the message comes back"
    assert "/paste none" in attached
    assert chat.said[0::2] == ["What is this?"]
    assert "the context of 150 tokens is full" in chat.err
    ((tokens, _, _, prompt),) = figures(chat.err)
    assert prompt + tokens >= 149


# Commands.


REFUSED = (
    ("/sytem x", "did you mean /system?"),
    ("/xyzzy", "/help lists all"),
    ("/undo", "no message yet"),
    ("/regenerate", "no message yet"),
    ("/stats", "no figures yet"),
    ("/compare", "no reply to compare"),
    ("/save", "name a file: /save FILE"),
    ("/save nowhere/chat.json", "nowhere does not exist"),
    ("/load", "name a file: /load FILE"),
    ("/load nowhere.json", "there is no file nowhere.json; check the path"),
    ("/paste /bin/sh", "the file /bin/sh is binary"),
    ("/set temprature 1", "did you mean temperature?"),
    ("/set temperature hot", "temperature must be a number, not 'hot'"),
    ('/set stop ""', "stop needs a text"),
    ("/set strategy magic", "unknown strategy 'magic'; use one of"),
    ("/set dtype float16", "dtype can only be set at start"),
    ("/set system Be brief.", "/system TEXT changes it"),
    ("/set origins x", "no option 'origins'"),
    ("/set profile moon", "unknown profile 'moon'; known profiles: "),
    ("/show info", "no option 'info'; one of strategy, "),
)


def test_commands_that_fail(talk: Lade) -> None:
    chat = talk("/show", *(text for text, _ in REFUSED), "/show")
    for line, (text, words) in zip(chat.notices, REFUSED, strict=True):
        assert words in line, text
    before, *lines, after = chat.err.removesuffix("> ").split("\n> ")[1:]
    assert all("\n" not in line for line in lines)
    assert after.rstrip() == before.rstrip(), "no option has changed"
    assert chat.file is None


SETTINGS = (
    ("/set temperature 0.5", "temperature  0.5"),
    ("/set temperature=0.75", "temperature  0.75"),
    ("/set repetition_penalty 1.25", "repetition-penalty  1.25"),
    ("/set --stop END OF IT", "stop  END OF IT"),
    ("/set -t 0.125", "temperature  0.125"),
    ("/set ignore-eos yes", "ignore-eos  on"),
    ("/set max-new-tokens none", "max-new-tokens  until the context is full"),
    ("/set max-new-tokens default", "max-new-tokens  2048"),
    ("/set stop off", "stop  none"),
    ("/set stop \\n\\t", "stop  \\n\\t"),
    ('/set stop " a b "', "stop   a b "),
    ("/set stats default", "stats  on"),
    ("/SET strategy jacobi", "strategy  jacobi"),
    ("/set profile a100", "profile  a100"),
)
TAKEN_BACK = ("max-new-tokens  2048", "stats")


def test_settings(talk: Lade) -> None:
    chat = talk(*(text for text, _ in SETTINGS))
    shown = chat.err.split("\n> ")[1:-1]
    for answer, (text, row) in zip(shown, SETTINGS, strict=True):
        end = "default" if row.startswith(TAKEN_BACK) else "set in this chat"
        assert re.match(rf"{re.escape(row)} +{end}", answer), text


def test_show_prints_the_origins_of_values(talk: Lade, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TOP_K", "7"), ("TEMPERATURE", "0.5")):
        monkeypatch.setenv(f"LADE_{name}", value)
    lines = ("/set window 9", "/show", "/set window default", "/set temperature 0", "/show dtype")
    chat = talk(*lines, options="--no-stats --profile cpu")
    changed, whole, back, other, at_start = (
        {row.split()[0]: re.sub("  +", "|", row.rstrip()) for row in answer.splitlines() if row}
        for answer in chat.err.split("\n> ")[1:-1]
    )
    # The budget and sources of the profile were meant for its window, so these change, too.
    assert changed.keys() == {"window", "budget", "sources"}
    assert whole["window"] == "window|9|set in this chat"
    origins = {
        **{"ngram": "profile cpu", "top-p": "the model's", "top-k": "LADE_TOP_K"},
        **{"stats": "flag --no-stats", "temperature": "LADE_TEMPERATURE", "ignore-eos": "default"},
        **dict.fromkeys(("budget", "sources"), "follows from other settings"),
    }
    assert {name: whole[name].split("|")[-1] for name in origins} == origins
    assert back["window"].endswith("|profile cpu")
    assert other["temperature"].endswith("|set in this chat")
    assert at_start["dtype"] == "dtype|float32|default", "though it can be set then"


def test_a_text_that_only_looks_like_a_command_is_a_message(talk: Lade) -> None:
    lines = ["/undo", "/etc/hosts is what?", "/def f():\n    pass"]
    assert talk(f" {lines[0]}", *lines[1:]).said[0::2] == lines


@pytest.mark.parametrize("word", ["exit", "quit", "/bye"])
def test_words_that_end_a_chat(talk: Lade, word: str) -> None:
    chat = talk(word, "never said")
    assert (chat.code, chat.file) == (0, None)


EDITS: tuple[tuple[list[Any], list[str], str | None], ...] = (
    (["one", "/edit", "two"], ["two"], "one"),
    (["one", "/edit two"], ["two"], None),
    (["one", "/edit", "", "two"], ["one", "two"], "one"),
    (["one", "two", "/edit", "/undo", "new"], ["one", "new"], "two"),
    (["one", "/edit", "/reset", "new"], ["new"], "one"),
    ([" /undo", "/edit", " /undo !"], ["/undo !"], " /undo"),
    ([" exit", "/edit", " exit"], ["exit"], " exit"),
)


def test_edit(talk: Lade, tmp_path: Path) -> None:
    lines: list[Any] = []
    for number, (typed, _, _) in enumerate(EDITS):
        lines += [*typed, f"/save {tmp_path}/{number}.json", "/reset"]
    chat = talk(*lines)
    for number, (typed, messages, _) in enumerate(EDITS):
        saved = from_json((tmp_path / f"{number}.json").read_text()).conversation.messages
        assert [message.content for message in saved[0::2]] == messages, typed
    drafts = re.findall(r"keeps the old one\n(.*)\n> ", chat.err)
    assert drafts == [draft for _, _, draft in EDITS if draft]


def test_pasted_files_join_a_message_and_draft_texts_do_not(talk: Lade, tmp_path: Path) -> None:
    path, known = tmp_path / "notes.md", tmp_path / "known.txt"
    path.write_bytes(b"one\r\n```py\nx\n```\n")
    known.write_text("Nothing of it.")
    chat = talk(f"/paste {path}", f"/draft {known}", "What is this?", "and now?")
    assert chat.said[0] == "notes.md:\n````\none\n```py\nx\n```\n````\n\nWhat is this?"
    assert chat.said[2] == "and now?"
    assert re.search(r"drafts know known.txt \(\d+ tokens\)", chat.err)


def test_only_the_chats_own_file_is_overwritten(talk: Lade, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    other.write_text("mine")
    # After `/reset` a chat has no file yet.
    chat = talk(QUESTIONS[0], f"/save {one}", "/reset", "x", "/save", f"/save {other}")
    assert from_json(one.read_text()).conversation.messages[0].content == QUESTIONS[0]
    assert "name a file" in chat.notices[0]
    assert ("exists; name another file" in chat.notices[1], other.read_text()) == (True, "mine")
    other.unlink()
    chat = talk(QUESTIONS[1], f"/save {other}", "y", "/save")
    assert from_json(other.read_text()).conversation == chat.conversation
    assert len(chat.said) == 4


def test_loading_replaces_only_what_is_kept(talk: Lade, tmp_path: Path) -> None:
    path, home = tmp_path / "chat.json", tmp_path / "home"
    path.write_text(Conversation("Be brief.").as_json("demo"), encoding="utf-8")
    chat = talk(QUESTIONS[0], f"/load {path}", "/system", "/load 1", "/chats", home=home)
    assert "no other conversation is kept" in chat.err
    assert "> Be brief.\n" in chat.err
    assert f"> {QUESTIONS[0]}\n" in chat.err, "what was loaded is shown"
    full = tmp_path / "full"
    full.mkdir()
    (full / "lade").touch()  # a file in place of the folder of kept chats
    chat = talk(QUESTIONS[0], f"/load {path}", "/system", home=full)
    assert "2 messages that are kept nowhere; /save FILE and /reset" in chat.notices[0]
    assert "> none" in chat.err


def test_kept_chats_are_listed_and_continued(talk: Lade, lade: Lade, tmp_path: Path) -> None:
    for question in QUESTIONS:
        chat = talk(question, "and?", "more?", home=tmp_path)
        assert str(next(tmp_path.rglob("chats/*.json")).parent) in chat.err, "where it is kept"
        assert "lade chat --continue" in chat.err
    files = sorted(tmp_path.rglob("chats/*.json"), key=lambda file: file.stat().st_mtime_ns)
    for age, file in enumerate(files):
        os.utime(file, (age, age))
    # Continuing a chat makes a longer copy, which replaces the shorter one in the list.
    going_on = talk("the end", options="--load 2 -n 3", home=tmp_path)
    shown = going_on.err.split("/help")[1]
    assert f"{QUESTIONS[1]}\n" not in shown
    assert shown.index("> and?\n") < shown.index("> more?\n") < shown.index("kept in")
    rows = lade("chat", "--list").out.splitlines()
    order = [[f"{row}", QUESTIONS[number]] for row, number in ((1, 1), (2, 2), (3, 0))]
    assert [re.split("  +", row)[:2] for row in rows] == order
    assert "8 messages · demo · " in rows[0]
    assert "no kept chat 9, but 3" in lade("chat", "--load", "9").refused()


def test_templates_that_refuse(talk: Lade, tmp_path: Path) -> None:
    own, trace, plain = (tmp_path / name for name in ("own.jinja", "trace", "plain"))
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    own.write_text(refusal + (DEMO / "chat_template.jinja").read_text())
    lines = ("/system Be brief.", "Hello", "/system Be kind.")
    chat = talk(*lines, options=f"-n 3 --chat-template {own} --trace {trace}")
    assert chat.err.count("before your first message") == 1
    talk("Be brief.\n\nHello", options=f"-n 3 --trace {plain}")
    assert prompt_of(trace) == prompt_of(plain)
    own.write_text("{{ raise_exception('not today') }}")
    chat = talk("/system Be brief.", "/system", options=f"--chat-template {own}")
    assert "not today" in chat.err + chat.out
    assert "Be brief." not in chat.err


@pytest.mark.slow
def test_compare_decodes_the_same_text_again(talk: Lade, monkeypatch: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    loaded: list[Decoder] = []

    def other_text() -> None:
        model: Any = loaded[-1].executor.model
        forward = model.forward
        model.forward = lambda *inputs: -forward(*inputs)

    change_decoders(monkeypatch, loaded.append)
    # With some other seeds nothing is drafted after the first step, and nothing is learned.
    chat = talk(
        *(QUESTIONS[0], "/compare", QUESTIONS[1], other_text, "/compare"),
        *("/undo", "/undo", "/compare", "/set max-new-tokens 1", "x", "/compare"),
        options=f"-n 40 --temperature 1 --seed 1 --trace {trace}",
    )
    rows = r"^(?:> )?lookahead .* for (\d+) tokens\s*\nplain .* \1 steps for \1"
    assert re.search(rows, chat.err, re.M)
    assert re.search(r"^same text · \d+\.\d\d× as fast .*\d runs? of each\)$", chat.err, re.M)
    assert re.search(r"another text from token 1 on.*--dtype float32", chat.err, re.S)
    assert "no reply to compare" in chat.notices[0]
    assert "too short to compare" in chat.err


def test_a_model_without_a_template(talk: Lade, tmp_path: Path) -> None:
    model, trace = shutil.copytree(DEMO, tmp_path / "model"), tmp_path / "trace"
    (model / "chat_template.jinja").unlink()
    assert re.search(r"model has no chat template.*--raw", talk(model=str(model)).refused())
    chat = talk("def f(x):", "    y", model=str(model), options=f"--raw -n 5 --trace {trace}")
    # Unchanged, with its indent.
    assert prompt_of(trace).endswith(f"def f(x):\n{chat.said[1]}\n    y")


def test_only_replies_go_to_stdout(talk: Lade, lade: Lade) -> None:
    replies = talk(*QUESTIONS[:2]).said[1::2]
    lines = "/show", QUESTIONS[0], "/undo", QUESTIONS[0], "/stats", QUESTIONS[1]
    piped = lade("chat", "-n", "3", typed="\n".join(lines))
    assert piped.code == 0
    assert piped.out == "".join(f"{reply}\n" for reply in (replies[0], *replies))
    assert "tokens per step" in piped.err
    assert "\x1b" not in piped.out + piped.err
    assert lade("chat", "-n", "3", "-q", typed=QUESTIONS[0]).err == ""
