"""`lade chat` in a terminal: the real program in a pseudo-terminal, key by key."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from ladecli.session.conversation import from_json
from tests.session.test_chat_template import CASES
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

QUESTION = "What is lookahead decoding?"
ALT_ENTER, TAB, UP = "\x1b\r", "\t", "\x1b[A"
CTRL_C, CTRL_D, CTRL_T, EDITOR = "\x03", "\x04", "\x14", "\x18\x05"
COLOR = re.compile(rb"\x1b\[[0-9;]*(3[1-7]|9[0-7])m")


def chat(*options: str, columns: int = 80, lines: int = 24, **env: str) -> Terminal:
    """A chat with the demo model, ready for the first message."""
    # The notice about remembered answers would come between the rows that tests check.
    asked = ("chat", "demo", "--no-memory", *options)
    terminal = Terminal(*asked, columns=columns, lines=lines, env=env)
    ready(terminal)
    return terminal


def ready(terminal: Terminal) -> str:
    """Wait until the input is there again."""
    shown = re.compile(r"\n> ?[^\n]*\n[\s\S]*\d+/\d+ tokens")
    return terminal.wait(lambda text: shown.search(f"\n{text}\n"), "prompt")


def leave(terminal: Terminal) -> None:
    """End a chat."""
    terminal.enter("/exit")
    assert terminal.close() == 0


def flows(terminal: Terminal, text: str) -> str:
    """Wait for a text, wherever its lines break."""
    return terminal.wait(lambda seen: text in re.sub(r"\s+", " ", seen), text)


def test_a_reasoning_model(tmp_path: Path) -> None:
    """Three turns, each with its reasoning above the answer, and then without it."""
    folder = CASES["qwen3"].folder.write(tmp_path)
    reply = "Reasoning:\nHm,\n\nAnswer:\nParis."
    with Terminal("chat", folder, "-n", "20", "--no-stats", columns=90, lines=50) as terminal:
        ready(terminal)
        for turn in range(1, 4):
            terminal.enter(f"Question {turn}?")
            terminal.wait(lambda text, turn=turn: text.count(reply) == turn)
        terminal.enter("/set reasoning off")
        terminal.wait("reasoning  off")
        terminal.enter("Question 4?")
        terminal.wait("> Question 4?\nParis.\n")
        leave(terminal)
    with Terminal("generate", folder, "-p", "Where?", "-n", "20") as terminal:
        assert terminal.wait("8 tokens in").startswith("Paris.\n")
        assert terminal.close() == 0


@pytest.mark.parametrize("columns", [80, 40])
def test_small_screens(columns: int) -> None:
    with chat("--raw", columns=columns) as terminal:
        terminal.enter("/help")
        seen = ready(terminal)
        if columns == 80:
            shown = seen[seen.index("> /help") :]
            assert all(word in shown for word in ("/system", "/exit", "Ctrl-T", "tokens"))
            assert len(shown.splitlines()) <= 24
            assert "/system" in "\n".join(terminal.screen.display)
        bar = [line.rstrip() for line in terminal.screen.display if "tokens ·" in line][-1]
        assert "· /help" in bar
        assert bar.endswith("Ctrl-T token colors on") == (columns == 80)
        leave(terminal)


def test_a_conversation(tmp_path: Path) -> None:
    editor, path = tmp_path / "editor", tmp_path / "chat.json"
    editor.write_text('#!/bin/sh\necho "What is the budget?" > "$1"\n')
    editor.chmod(0o755)
    with chat("-n", "30", EDITOR=str(editor)) as terminal:
        # A message, and the lines below its reply.
        terminal.enter(QUESTION)
        seen = terminal.wait("30 tokens in")
        assert "Lookahead decoding breaks the one-token-at-a-time dependency" in seen
        assert "(cut at 30 tokens; max-new-tokens sets another limit)" in seen
        assert "× plain" in seen

        # Several lines: by key, and pasted; a paste does not send itself.
        terminal.enter(f"one{ALT_ENTER}two")
        terminal.wait("> one\n  two")
        terminal.wait(lambda text: text.count("tokens per step") == 2)
        terminal.send("\x1b[200~def f():\n    return 1\n\x1b[201~")
        terminal.wait("> def f():\n      return 1")
        terminal.read(0.3)
        assert terminal.text().count("tokens per step") == 2
        terminal.enter("")
        terminal.wait(lambda text: text.count("tokens per step") == 3)

        # Completion of a command, and a misspelt one.
        terminal.send("/und")
        terminal.wait("Take back the last message", "menu")
        terminal.send(TAB)
        terminal.wait("> /undo")
        terminal.enter("")
        terminal.wait("taken back: def f(): return 1")
        terminal.enter("/sttats")
        terminal.wait("did you mean /stats?")

        # The editor's text waits for Enter.
        terminal.send("draft" + EDITOR)
        terminal.wait("> What is the budget?")
        terminal.read(0.3)
        assert terminal.text().count("tokens per step") == 3
        terminal.enter("")
        terminal.wait(lambda text: text.count("tokens per step") == 4)

        # Saved, and left.
        terminal.enter(f"/save {path}")
        terminal.wait("saved to")
        saved = [message["content"] for message in json.loads(path.read_text())["messages"]]
        assert saved[0::2] == [QUESTION, "one\ntwo", "What is the budget?"]
        terminal.send(CTRL_C)
        terminal.wait("/exit leaves")
        terminal.send(CTRL_D)
        assert terminal.close() == 0
        assert "Traceback" not in terminal.text()

    # The next chat remembers what was typed.
    with chat() as terminal:
        terminal.send(UP)
        terminal.wait(f"> /save {path}"[:70], "history of the chat before")
        terminal.send(CTRL_C)
        terminal.enter("/exit")
        assert terminal.close() == 0
        # Text pasted while the model loads is one message, since the terminal marks its end.
        greeting = terminal.raw.index(b"tokens of context")
        assert b"\x1b[?2004h" in terminal.raw[:greeting]
        assert terminal.raw.rindex(b"\x1b[?2004l") > terminal.raw.rindex(b"\x1b[?2004h")


def test_ctrl_c_and_signals_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    # One token a step, so that there is time to press a key in.
    options = ("--ignore-eos", "--strategy", "autoregressive")
    with chat(*options, XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.enter(QUESTION)
        flows(terminal, "several tokens in one step")
        # Like Ctrl-Z and `fg` in a shell with its own terminal settings.
        terminal.child.kill(signal.SIGSTOP)
        terminal.child.setecho(True)
        terminal.child.kill(signal.SIGCONT)
        terminal.read(0.3)
        assert not terminal.child.getecho()
        terminal.enter("What is")
        terminal.read(0.3)
        terminal.send(CTRL_C)
        terminal.wait("tokens per step")
        assert "(stopped)" in ready(terminal)
        # The typed text is neither sent nor lost.
        assert "> What is" in terminal.text()
        terminal.enter(" the pool?")
        terminal.wait(lambda text: text.count("tok/s") == 2)
        assert not terminal.child.getecho()
        terminal.child.kill(signal.SIGTERM)
        assert terminal.close() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.text()
    [file] = (tmp_path / "lade" / "chats").iterdir()
    assert len(from_json(file.read_text()).conversation.messages) == 4


def test_sigkill_during_a_reply_loses_no_other_reply(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    options = ("--ignore-eos", "--strategy", "autoregressive")
    with Terminal("chat", "demo", "-n", "9", env=state) as terminal:
        ready(terminal)
        for number, question in enumerate((QUESTION, "What is the pool?"), start=1):
            terminal.enter(question)
            terminal.wait(lambda text, number=number: text.count("9 tokens in") == number)
        terminal.enter("/set max-new-tokens 2000")
        terminal.enter(QUESTION)
        flows(terminal, "several tokens in one step")
        terminal.child.kill(signal.SIGKILL)
        terminal.close()
    with Terminal("chat", "demo", "--continue", *options, env=state) as terminal:
        terminal.wait(re.compile(r"going on after [56] messages").search)
        terminal.enter("/regenerate")
        terminal.wait("tok/s")
        terminal.send(CTRL_C)


def test_keys_and_a_resize_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    with chat("--ignore-eos", "-n", "700", columns=80, lines=12) as terminal:
        terminal.enter(QUESTION)
        flows(terminal, "several tokens in one step")
        terminal.send(CTRL_T)
        terminal.send("typed ahead")
        terminal.read(0.3)
        terminal.resize(100, 20)  # this screen cannot be made smaller without losing rows
        seen = terminal.wait("700 tokens in")
        terminal.wait("token colors off")
        ready(terminal)
        assert "> typed ahead" in terminal.text()
        terminal.send(CTRL_C)
        terminal.enter(f"/save {path}")
        terminal.wait("saved to")
        terminal.send(CTRL_D)
        assert terminal.close() == 0
    # Nothing is lost: every character is there, in order, in the scrollback and on the
    # screen; and little else, such as a row of figures that the resize left over.
    reply = re.sub(r"\s+", "", json.loads(path.read_text())["messages"][1]["content"])
    shown = seen[seen.index(QUESTION) + len(QUESTION) : seen.index("700 tokens")]
    shown = re.sub(r"\s+", "", shown)
    assert 1000 < len(reply) <= len(shown) < len(reply) + 120
    rest = iter(shown)
    assert all(character in rest for character in reply)


def test_a_narrow_screen_without_colors_and_a_long_message() -> None:
    options = ("-n", "60", "--max-context", "200")
    with chat(*options, columns=40, lines=20, NO_COLOR="1") as terminal:
        terminal.enter(QUESTION)
        terminal.wait("60 tokens in")
        ready(terminal)
        reply = "Lookahead decoding breaks the\none-token-at-a-time dependency of a\n"
        assert f"> {QUESTION}\n{reply}" in "\n".join(terminal.rows())
        assert not COLOR.search(terminal.raw)
        # A message longer than the screen.
        terminal.send(f"\x1b[200~{'word ' * 600}the end\n\x1b[201~")
        terminal.read(0.5)
        terminal.enter("")
        flows(terminal, "lade: the message does not fit into the context of 200 tokens")
        # The error stays visible, and so does the end of the message.
        terminal.wait(lambda _: any("e end" in row for row in terminal.screen.display))
        assert any(row.startswith("lade: the message does") for row in terminal.screen.display)
        terminal.enter("")
        terminal.wait(lambda text: text.count("lade: the message does not fit") == 2)
        terminal.send(CTRL_C)
        leave(terminal)


def test_a_dumb_terminal() -> None:
    with Terminal("chat", "demo", "-n", "20", env={"TERM": "dumb"}) as terminal:
        terminal.wait(">")
        assert terminal.child.getecho(), "the terminal itself shows and edits the line"
        terminal.enter("wrong\x15" + QUESTION)
        terminal.wait("Lookahead decoding breaks")
        terminal.wait("tokens per step")
        terminal.enter("/compare")
        terminal.wait("same text")
        assert "\n\n" not in terminal.text().strip("\n").partition("/compare")[2]
        terminal.enter("/edit")
        terminal.wait("type the new text")
        terminal.enter("")
        leave(terminal)
        assert b"\x1b[?25l" not in terminal.raw
