"""What the user types: keys of the line editor, pasted text, lines from a pipe."""

from __future__ import annotations

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from ladecli.errors import UsageError
from ladecli.repl.completion import CommandCompleter
from ladecli.repl.line_editor import TerminalReader, history_path
from ladecli.repl.reader import LineReader, unquoted

PASTE = "\x1b[200~{}\x1b[201~"
ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_T, TAB = "\r", "\x1b\r", "\x03", "\x04", "\x14", "\t"

RED, CLICK = "\x1b[31m", "\x1b[M~!!"  # without the marks of a paste


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as made:
        yield made


@pytest.fixture
def toggled() -> list[bool]:
    return []


@pytest.fixture
def reader(keyboard: PipeInput, tmp_path: Path, toggled: list[bool]) -> TerminalReader:
    return make_reader(keyboard, tmp_path, lambda: toggled.append(True))


def make_reader(
    keyboard: PipeInput, folder: Path, on_toggle: Callable[[], None], **options: Any
) -> TerminalReader:
    return TerminalReader(
        CommandCompleter(),
        folder / "history",
        **{"vi": False, "toolbar": lambda: ["bar"], **options},
        on_toggle=on_toggle,
        source=keyboard,
        screen=DummyOutput(),
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello" + ENTER, "hello"),
        ("one" + ALT_ENTER + "two" + ENTER, "one\ntwo"),
        ('"""' + ENTER + "one" + ENTER + "two" + ENTER + '"""' + ENTER, "one\ntwo"),
        (PASTE.format("def f():\n    return 1\n") + ENTER, "def f():\n    return 1\n"),
        (PASTE.format("a\r\nb") + ENTER, "a\nb"),
        ("你好 👩‍💻 é" + ENTER, "你好 👩‍💻 é"),
        ("wrong" + CTRL_C + "right" + ENTER, "right"),
        ("/und" + TAB + ENTER, "/undo"),
        (PASTE.format('"""Doc."""\nimport os\n') + ENTER, '"""Doc."""\nimport os\n'),
        ("if x:" + ALT_ENTER + TAB + "y" + ENTER, "if x:\n    y"),
    ],
    ids=[
        "enter",
        "alt-enter",
        "quotes",
        "paste",
        "paste-crlf",
        "unicode",
        "ctrl-c-clears",
        "tab",
        "docstring",
        "indent",
    ],
)
def test_keys_make_messages(
    keyboard: PipeInput, reader: TerminalReader, typed: str, message: str
) -> None:
    keyboard.send_text(typed)
    assert reader.read() == message


def test_ctrl_c_and_ctrl_d_with_nothing_typed(keyboard: PipeInput, reader: TerminalReader) -> None:
    keyboard.send_text(CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        reader.read()
    keyboard.send_text(CTRL_D)
    with pytest.raises(EOFError):
        reader.read()


def test_what_ctrl_c_cleared_is_in_the_history(keyboard: PipeInput, reader: TerminalReader) -> None:
    keyboard.send_text("a long thought" + CTRL_C + "short" + ENTER)
    assert reader.read() == "short"
    assert reader._session.history.get_strings() == ["a long thought", "short"]


def test_history_outlives_the_program(keyboard: PipeInput, tmp_path: Path) -> None:
    first = make_reader(keyboard, tmp_path, lambda: None)
    keyboard.send_text("one" + ALT_ENTER + "two" + ENTER)
    first.read()
    second = make_reader(keyboard, tmp_path, lambda: None)
    assert list(second._session.history.load_history_strings()) == ["one\ntwo"]


def test_a_draft_stands_in_the_input(keyboard: PipeInput, reader: TerminalReader) -> None:
    keyboard.send_text("!" + ENTER)
    assert reader.read("what I said") == "what I said!"


@pytest.mark.parametrize(("typed", "chosen"), [("s", "s"), ("d", "d"), (ENTER, "d"), ("xq7s", "s")])
def test_a_choice_is_one_key(
    keyboard: PipeInput, reader: TerminalReader, typed: str, chosen: str
) -> None:
    keyboard.send_text("so what" + ENTER)  # typed before the question: no answer to it
    threading.Timer(0.3, keyboard.send_text, [typed]).start()
    assert reader.choose("[d]rop or [s]top? ", "ds") == chosen
    assert reader.read() == "so what"


@pytest.mark.parametrize("code", [RED, CLICK])
def test_codes_of_colours_are_no_mouse(
    keyboard: PipeInput, reader: TerminalReader, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(app: Application[Any], _loop: object, context: dict[str, Any]) -> None:
        app.exit(exception=context["exception"])  # else it waits for Enter

    monkeypatch.setattr(Application, "_handle_exception", ended)
    keyboard.send_text(f"a{code}b" + ENTER)
    assert reader.read() == "ab"
    threading.Timer(0.3, keyboard.send_text, [f"{code}s"]).start()
    assert reader.choose("[d]rop or [s]top? ", "ds") == "s"


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D])
def test_a_choice_can_be_refused(keyboard: PipeInput, reader: TerminalReader, key: str) -> None:
    threading.Timer(0.3, keyboard.send_text, [key]).start()
    with pytest.raises(EOFError):
        reader.choose("[d]rop or [s]top? ", "ds")


def test_what_is_typed_during_a_reply_waits(
    keyboard: PipeInput, reader: TerminalReader, toggled: list[bool]
) -> None:
    keyboard.send_text("next" + CTRL_T + ENTER)
    with reader.keys_watched() as look:
        look()
    assert toggled == [True]
    assert reader.read() == "next", "it sends itself when the reply is over"
    keyboard.send_text("next" + ENTER + "line" + ENTER)
    with reader.keys_watched():
        pass
    reader.hold()
    keyboard.send_text("!" + ENTER)
    assert reader.read() == "next\nline!", "but not when the reply was stopped"


def test_the_bar_shows_what_fits(keyboard: PipeInput, tmp_path: Path) -> None:
    parts = ["demo", "3/2048 tokens", "x" * 50, "/help"]
    reader = make_reader(keyboard, tmp_path, lambda: None, toolbar=lambda: parts)
    assert reader._bar() == f"demo · 3/2048 tokens · {'x' * 50}"  # of 80 columns
    reader._session.default_buffer = Buffer(document=Document('"""\nhello'))
    assert reader._bar() == '""" is open: close it to send'
    vi = make_reader(keyboard, tmp_path, lambda: None, toolbar=lambda: parts[:1], vi=True)
    assert vi._bar() == "vi-insert · demo"


def test_a_poor_terminal_can_be_asked_too() -> None:
    screen = io.StringIO()
    reader = LineReader(io.StringIO("maybe\n\ns\n"), screen)
    assert reader.interactive
    assert reader.choose("[d]rop or [s]top? ", "ds") == "d"
    assert reader.choose("[d]rop or [s]top? ", "ds") == "s"
    assert screen.getvalue() == "[d]rop or [s]top? " * 3


def test_ctrl_c_gives_a_draft_up_at_once(keyboard: PipeInput, reader: TerminalReader) -> None:
    keyboard.send_text(" changed" + CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        reader.read("a draft")
    assert reader._session.history.get_strings() == ["a draft changed"], "it is not lost"


def test_a_history_that_vanishes_costs_nothing(keyboard: PipeInput, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    reader = make_reader(keyboard, folder, lambda: None)
    for text in ("one", "two"):
        keyboard.send_text(text + ENTER)
        assert reader.read() == text
        shutil.rmtree(folder, ignore_errors=True)


def test_a_folder_is_no_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "lade" / "history").mkdir(parents=True)
    assert history_path() is None


def test_a_paste_during_a_reply_stays_together(keyboard: PipeInput, reader: TerminalReader) -> None:
    keyboard.send_text(PASTE.format("def f():\n    return 1"))
    with reader.keys_watched():
        pass
    reader.hold()
    keyboard.send_text(ENTER)
    assert reader.read() == "def f():\n    return 1"


def test_the_toggle_key_changes_no_text(
    keyboard: PipeInput, reader: TerminalReader, toggled: list[bool]
) -> None:
    keyboard.send_text("ab" + CTRL_T + "c" + ENTER)
    assert reader.read() == "abc"
    assert toggled == [True]


def test_vi_keys(keyboard: PipeInput, tmp_path: Path) -> None:
    reader = make_reader(keyboard, tmp_path, lambda: None, vi=True)
    keyboard.send_text("wrong words\x1b0dwithe " + ENTER)
    assert reader.read() == "the words"


def completed(text: str) -> list[str]:
    document = Document(text, len(text))
    return [c.text for c in CommandCompleter().get_completions(document, CompleteEvent())]


def test_completion(tmp_path: Path) -> None:
    assert completed("/und") == ["undo"]
    assert completed("/set top") == ["top-k", "top-p"]
    assert completed("/set strategy auto") == ["autoregressive"]
    assert completed("/set markdown o") == ["on", "off"]
    assert completed("/profile rtx3") == ["rtx3090"]
    (tmp_path / "chat.json").touch()
    assert completed(f"/load {tmp_path}/ch") == ["at.json"]
    assert "exit" in completed("/")


@pytest.mark.parametrize("prose", ["", "hello", "what is /etc", "/set a\nb", "/unknown x"])
def test_prose_is_not_completed(prose: str) -> None:
    assert completed(prose) == []


def test_lines_of_a_pipe() -> None:
    reader = LineReader(io.StringIO('one\n\n"""\ntwo\n three\n"""\r\nlast'))
    assert [reader.read() for _ in range(4)] == ["one", "", "two\n three", "last"]
    with pytest.raises(EOFError):
        reader.read()
    with pytest.raises(EOFError):
        reader.choose("who? ", "yn")


def test_a_pipe_that_is_no_text() -> None:
    reader = LineReader(io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with pytest.raises(UsageError, match=r"^standard input is not UTF-8; convert it"):
        reader.read()


def test_bytes_that_a_locale_let_through() -> None:
    with pytest.raises(UsageError, match=r"^standard input is not UTF-8; convert it"):
        LineReader(io.StringIO("\udcff bad\n")).read()


def test_a_pipe_that_ends_within_quotes() -> None:
    with pytest.raises(UsageError, match=r'^standard input ends within """; close them$'):
        LineReader(io.StringIO('"""\nnever')).read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"""a"""', "a"),
        ('"""\n a\nb\n"""', " a\nb"),
        ('"""', '"""'),
        ('""""""', ""),
        ('say """a"""', 'say """a"""'),
        ("a", "a"),
        ('"""/undo"""', " /undo"),
        ('"""\nexit\n"""', " exit"),
        ('"""Doc."""\nx = """y"""', '"""Doc."""\nx = """y"""'),
    ],
)
def test_quotes_are_taken_off(text: str, message: str) -> None:
    assert unquoted(text) == message


def test_the_history_file_is_private() -> None:
    path = history_path()
    assert path is not None
    assert path.stat().st_mode & 0o077 == 0
