"""`lade chat` as people meet it: the real program in a pseudo-terminal, key by key."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from .screens import Terminal

QUESTION = "What is lookahead decoding?"
ANSWER = "Lookahead decoding breaks the one-token-at-a-time dependency of a language model."
PROMPT = "> "
ENTER, ALT_ENTER, TAB, UP = "\r", "\x1b\r", "\t", "\x1b[A"
CTRL_C, CTRL_D, CTRL_T, EDITOR = "\x03", "\x04", "\x14", "\x18\x05"


def chat(*options: str, columns: int = 80, lines: int = 24, **env: str) -> Terminal:
    """A chat with the demo model, ready for the first message."""
    terminal = Terminal("chat", "demo", *options, columns=columns, lines=lines, env=env)
    ready(terminal)
    return terminal


def ready(terminal: Terminal) -> str:
    """Wait until the input is there again."""
    shown = re.compile(r"\n> ?[^\n]*\n[\s\S]*\d+/\d+ tokens")
    return terminal.wait(lambda text: shown.search(f"\n{text}\n"), "prompt")


def flowing(text: str) -> str:
    """A text without its line breaks."""
    return re.sub(r"\s+", " ", text)


def flows(terminal: Terminal, text: str) -> str:
    """Wait for a text, wherever its lines break."""
    return terminal.wait(lambda seen: text in flowing(seen), text)


def test_a_conversation(tmp_path: Path) -> None:
    with chat("-n", "30") as terminal:
        # A message, and what stands under its reply.
        terminal.enter(QUESTION)
        seen = terminal.wait("30 tokens in")
        assert ANSWER[:60] in flowing(seen)
        assert "(cut at max-new-tokens)" in seen
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
        terminal.send("/und" + TAB)
        terminal.wait("> /undo")
        terminal.enter("")
        terminal.wait("taken back: def f(): return 1")
        terminal.enter("/sttats")
        terminal.wait("lade: there is no command /sttats; did you mean /stats?")

        # What was typed comes back.
        terminal.send(UP)
        terminal.wait(lambda text: text.count("> /sttats") == 2)
        terminal.send(CTRL_C)

        # Saved, and left.
        path = tmp_path / "talk.json"
        terminal.enter(f"/save {path}")
        terminal.wait("saved to")
        saved = json.loads(path.read_text())
        assert [m["role"] for m in saved["messages"]] == ["user", "assistant"] * 2
        assert saved["messages"][2]["content"] == "one\ntwo"
        terminal.send(CTRL_C)
        terminal.wait("Ctrl-D or /exit leaves")
        terminal.send(CTRL_D)
        assert terminal.close() == 0
        assert "Traceback" not in terminal.text()

    # The next one remembers.
    with chat() as terminal:
        terminal.send(UP)
        terminal.wait(f"> /save {path}"[:70], "history of the chat before")
        terminal.send(CTRL_C)
        terminal.enter("/exit")
        assert terminal.close() == 0


def test_ctrl_c_in_the_middle_of_a_reply() -> None:
    # One token a step, so that there is time to press a key in.
    with chat("--ignore-eos", "--strategy", "autoregressive") as terminal:
        terminal.enter(QUESTION)
        flows(terminal, "several tokens in one step")
        terminal.send(CTRL_C)
        seen = terminal.wait("tokens per step")
        assert "Traceback" not in seen
        assert "(stopped)" in seen
        ready(terminal)
        terminal.enter("/set ignore-eos off")
        terminal.wait("ignore-eos  off")
        terminal.enter("What is the pool?")
        # What the demo says depends on where the first reply was stopped.
        terminal.wait(lambda text: text.count("tokens per step") == 2)
        terminal.send(CTRL_D)
        assert terminal.close() == 0


def test_keys_and_a_resize_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with chat("--ignore-eos", "-n", "700", columns=80, lines=12) as terminal:
        terminal.enter(QUESTION)
        terminal.wait("tok/step")
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
    # Nothing is lost: every character is there, in order, in what scrolled away and on the
    # screen; and little else, such as a row of figures that the resize left behind.
    reply = re.sub(r"\s+", "", json.loads(path.read_text())["messages"][1]["content"])
    shown = re.sub(
        r"\s+", "", seen[seen.index(QUESTION) + len(QUESTION) : seen.index("700 tokens")]
    )
    assert len(reply) > 1000
    assert len(shown) < len(reply) + 120
    rest = iter(shown)
    assert all(character in rest for character in reply)


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_message_longer_than_the_screen(end: str) -> None:
    with chat("--max-context", "200") as terminal:
        terminal.send(f"\x1b[200~{'word ' * 600}the end{end}\x1b[201~")
        terminal.wait(lambda _: any("word the end" in row for row in terminal.rows()), "the end")
        terminal.enter("")
        refusal = "lade: the message does not fit into the context of 200 tokens"
        terminal.wait(lambda text: text.count("word the end") == 2 and refusal in text, "both")
        assert any(row.startswith(refusal) for row in terminal.rows())
        assert any("word the end" in row for row in terminal.rows())


def test_a_narrow_screen_without_colours() -> None:
    with chat("-n", "60", columns=40, lines=20, NO_COLOR="1") as terminal:
        terminal.enter(QUESTION)
        terminal.wait("60 tokens in")
        ready(terminal)
        rows = terminal.rows()
        start = rows.index(f"> {QUESTION}")
        assert rows[start + 1 : start + 5] == [
            "Lookahead decoding breaks the",
            "one-token-at-a-time dependency of a",
            "language model. Beside the text it runs",
            "a window of Jacobi iterations, collects",
        ]
        # Bold and dim are no colours.
        assert not re.search(rb"\x1b\[[0-9;]*(3[1-7]|9[0-7])m", terminal.raw)
        terminal.send(CTRL_D)
        assert terminal.close() == 0


def test_colours_can_be_off_where_the_cursor_moves() -> None:
    with chat("-n", "40", "--color", "never", columns=60, lines=20) as terminal:
        terminal.enter(QUESTION)
        terminal.wait("40 tokens in")
        rows = terminal.rows()
        start = rows.index(f"> {QUESTION}")
        assert rows[start + 1] == "Lookahead decoding breaks the one-token-at-a-time dependency"
        assert not any("tok/s" in row for row in rows[start:] if "tokens in" not in row)
        reply = terminal.raw[terminal.raw.index(b"Lookahead") :]
        assert not re.search(rb"\x1b\[[0-9;]*(3[1-7]|9[0-7])m", reply[: reply.index(b"> ")])


def test_what_is_typed_before_the_prompt_stands_in_it() -> None:
    """The program as people start it, which takes a while."""
    with Terminal("chat", "demo", "-n", "9", "--ignore-eos", forked=False) as terminal:
        terminal.read(1.0)
        terminal.send("typed early")
        ready(terminal)
        terminal.wait("> typed early")
        assert terminal.text().count("typed early") == 1
        terminal.enter("")
        terminal.wait("9 tokens in")
        ready(terminal)
        terminal.send(CTRL_D)
        assert terminal.close() == 0


def test_a_program_that_is_ended_gives_the_terminal_back() -> None:
    with chat("--ignore-eos", "--strategy", "autoregressive") as terminal:
        terminal.enter(QUESTION)
        flows(terminal, "several tokens in one step")
        assert not terminal.child.getecho()
        terminal.child.kill(signal.SIGTERM)
        terminal.close()
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
        assert "Traceback" not in terminal.text()


def test_the_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "What is the budget?" > "$1"\n')
    editor.chmod(0o755)
    with chat("-n", "8", EDITOR=str(editor)) as terminal:
        terminal.send("draft" + EDITOR)
        terminal.wait("> What is the budget?")
        terminal.read(0.5)
        assert "tokens in" not in terminal.text(), "it waits for Enter"
        terminal.enter("")
        terminal.wait("8 tokens in")
        terminal.enter("/edit")
        terminal.wait(lambda text: text.count("> What is the budget?") == 2)
        terminal.send(" Now?" + ENTER)
        terminal.wait(lambda text: text.count("8 tokens in") == 2)
        terminal.enter("/show system")
        terminal.enter("/exit")
        assert terminal.close() == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_that_can_do_nothing(quiet: bool) -> None:
    options = ["--quiet"] if quiet else []
    terminal = Terminal("chat", "demo", "-n", "20", *options, env={"TERM": "dumb"})
    with terminal:
        terminal.wait(PROMPT.strip())
        assert terminal.child.getecho(), "the terminal itself shows and edits the line"
        terminal.enter("wrong\x15" + QUESTION)
        terminal.wait("Lookahead decoding breaks")
        terminal.enter("/exit")
        assert terminal.close() == 0
        assert ("tokens per step" in terminal.text()) is not quiet
        assert b"\x1b[?25l" not in terminal.raw
