"""User input: keys of the line editor, pasted text, completion, lines from a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from ladecli.errors import UsageError
from ladecli.repl.commands import CommandCompleter
from ladecli.repl.reader import Reader, TerminalReader, history_path

PASTE = "\x1b[200~{}\x1b[201~"
ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_T, TAB = "\r", "\x1b\r", "\x03", "\x04", "\x14", "\t"
UP = "\x1b[A"
RED, CLICK = "\x1b[31m", "\x1b[M~!!"  # without the marks of a paste

Make = Callable[..., TerminalReader]


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


@pytest.fixture
def make(keyboard: PipeInput, tmp_path: Path) -> Make:
    """A line editor whose keys come from the keyboard of the test."""

    def reader(**options: Any) -> TerminalReader:
        usual: dict[str, Any] = {"history": tmp_path / "history", "vi": False, "source": keyboard}
        usual |= {"toolbar": lambda: "bar", "on_toggle": lambda: None, "screen": DummyOutput()}
        return TerminalReader(CommandCompleter(), **usual | options)

    return reader


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello" + ENTER, "hello"),
        ("one" + ALT_ENTER + "two" + ENTER, "one\ntwo"),
        ('"""' + ENTER + " one" + ENTER + "two" + ENTER + '"""' + ENTER, " one\ntwo"),
        (PASTE.format("def f():\n    return 1\n") + ENTER, "def f():\n    return 1\n"),
        (PASTE.format("a\r\nb") + ENTER, "a\nb"),
        (PASTE.format('"""Doc."""\nimport os\n') + ENTER, '"""Doc."""\nimport os\n'),
        (PASTE.format("word " * 2000) + ENTER, "word " * 2000),
        ("你好 👩‍💻 é" + ENTER, "你好 👩‍💻 é"),
        ("if x:" + ALT_ENTER + TAB + "y" + ENTER, "if x:\n    y"),
        (f"a{RED}b{CLICK}c" + ENTER, "abc"),
        ("ab" + CTRL_T + "c" + ENTER, "abc"),
        ('"""/undo"""' + ENTER, " /undo"),
        ('""""""' + ENTER, ""),
        ('say """a"""' + ENTER, 'say """a"""'),
        ('"""' + ENTER + "exit" + ENTER + '"""' + ENTER, " exit"),
        (PASTE.format('"""Doc."""\nx = """y"""') + ENTER, '"""Doc."""\nx = """y"""'),
    ],
)
def test_keys_make_messages(keyboard: PipeInput, make: Make, typed: str, message: str) -> None:
    keyboard.send_text(typed)
    assert make().read() == message


def test_the_history_file_is_private_or_there_is_none(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = history_path()
    assert path is not None
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
    path.mkdir()
    assert history_path() is None
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert history_path() is None


def completed(text: str) -> list[str]:
    document = Document(text, len(text))
    return [c.text for c in CommandCompleter().get_completions(document, CompleteEvent())]


def test_completion(tmp_path: Path) -> None:
    assert completed("/und") == ["undo"]
    assert {"exit", "help", "set"} < {*completed("/")}
    assert completed("/set top") == ["top-k", "top-p"]
    assert completed("/show markd") == ["markdown"]
    assert completed("/set strategy auto") == ["autoregressive"]
    assert completed("/set markdown o") == ["on", "off"]
    assert completed("/set window ") == []
    assert completed("/set profile rtx3") == ["rtx3090"]
    assert completed("/help und") == ["undo"]
    (tmp_path / "chat.json").touch()
    assert completed(f"/load {tmp_path}/ch") == ["at.json"]


def test_lines_of_a_pipe() -> None:
    reader = Reader(io.StringIO('one\n\n"""\ntwo\n three\n"""\r\nlast'))
    assert not reader.interactive
    assert [reader.read() for _ in range(4)] == ["one", "", "two\n three", "last"]
    with pytest.raises(EOFError):
        reader.read()
    with pytest.raises(UsageError, match='"""'):
        Reader(io.StringIO('"""\nnever')).read()
