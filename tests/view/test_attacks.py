"""Names, texts and files with control characters, which must not reach the terminal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ladecli.events import Ended, Piece, TextStep
from ladecli.trace.format import Header, Trace
from tests.support.scripts import FakeModel
from tests.support.terminal import Terminal
from tests.support.traces import write

pytestmark = pytest.mark.slow

SEQUENCES = (
    *("\x1b[2J", "\x1b[1;1H", "\x1b[8m", "\x1bc", "\x1b(0", "\x9b2J", "\x1b[6n"),
    *("\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x1b\\", "\x1b]0;title\x07"),
    *("\x1bP+q\x1b\\", "\x1b_x\x9c"),
)
CONTROLS = (
    *(chr(code) for code in (*range(1, 9), *range(11, 32), *range(127, 160))),
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
)
"""All control characters except tab and newline, and NUL, which no argument can contain."""
ATTACK = "".join(f"<{control}>" for control in (*SEQUENCES, *CONTROLS))
NAME = ATTACK.replace("/", "")
SHORT = "<\x1b[2J><\x1b]52;c;aGk=\x07><\r><\x08><\u202e><\u200f>"


def obeyed(written: bytes) -> list[str]:
    """Return the control characters that reached the terminal."""
    return [c for c in (*SEQUENCES, *CONTROLS) if f"<{c}>".encode() in written]


def harmless(*arguments: str, shows: str = "lade: ", lines: int = 24, **env: str) -> Terminal:
    """Run a command in a terminal, and check that its output has no control characters."""
    with Terminal(*arguments, lines=lines, env=env) as terminal:
        terminal.wait(shows)
        terminal.close()
        terminal.raw += terminal.child.before or b""
        assert obeyed(terminal.raw) == []
        assert "Traceback" not in terminal.text()
    return terminal


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a model whose answer and folder name have control characters."""
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    scripted = FakeModel(template, ["Begin", f"{ATTACK}\n\n", "End"])
    plain = scripted.write(tmp_path_factory.mktemp("models") / "plain")
    return str(shutil.copytree(plain, Path(plain).parent / SHORT.replace("/", "")))


def test_a_chat(model: str, tmp_path: Path) -> None:
    saved = {"format": "lade-chat", "version": 1, "messages": [{"role": "user", "content": ATTACK}]}
    (tmp_path / "chat").write_text(json.dumps(saved))
    with Terminal("chat", model, f"first {ATTACK}", "--temperature", "0", "-n", "9") as terminal:
        terminal.wait("End")
        terminal.wait("tokens in")
        terminal.enter("/stats")
        terminal.wait("tokens fed per step")
        terminal.enter("/reset")
        terminal.enter(f"/load {tmp_path / 'chat'}")
        terminal.wait("going on after")
        terminal.enter("/undo")
        terminal.wait("taken back")
        terminal.enter("/exit")
        terminal.close()
        assert obeyed(terminal.raw) == []
        assert "Traceback" not in terminal.text()


def test_an_answer(model: str) -> None:
    asked = ("generate", model, "-p", "hi", "-n", "9")
    for more in ((), ("--color", "never"), ("--trace", "/dev/null")):
        harmless(*asked, *more, shows="End")
    harmless(*asked, shows="End", TERM="dumb")


def test_a_trace(tmp_path: Path) -> None:
    step = TextStep((Piece(f"{ATTACK} End", "context"),), (1,), 1, 0, 0.0)
    header = Header(model=SHORT, prompt=ATTACK, prompt_tokens=1, settings={SHORT: SHORT})
    path = write(tmp_path / "a", Trace(header, (step, Ended("length", ATTACK)), {1: ATTACK}))
    harmless("replay", str(path), shows="1 token in 1 step")
    with Terminal("replay", "--step", str(path)) as terminal:
        terminal.wait("step 1 of 1")
        terminal.send("q")
        terminal.close()
        assert obeyed(terminal.raw) == []


ERRORS: list[tuple[str, ...]] = [
    ("generate", f"./{SHORT}", "-p", "a"),
    ("generate", "-f", NAME),
    ("generate", "-p", "a", "--strategy", NAME),
    ("generate", "-p", "a", f"--{NAME}"),
    ("generate", "-p", "a", "--trace", f"/nowhere/{SHORT}"),
    ("generate", "-p", "a", "--seed", NAME),
    ("generate", "-p", "a", "--chat-template", NAME),
    ("generate", "-p", "a", "--template-arg", f"{NAME}=1"),
    ("generate", "-p", "a", "--profile", NAME),
    ("chat", NAME),
    ("replay", NAME),
    ("bench", "--prompts", NAME),
    ("profiles", NAME),
    (NAME,),
]


def test_errors(lade: Any) -> None:
    """Errors are written in the same way to any stderr; here one is a terminal."""
    for arguments in ERRORS:
        done = lade(*arguments)
        assert done.err.startswith("lade: "), arguments
        assert obeyed((done.out + done.err).encode()) == [], arguments
    harmless(*ERRORS[-1])


def test_names_of_models_and_profiles(model: str, tmp_path: Path) -> None:
    profiles = tmp_path / "lade" / "profiles"
    profiles.mkdir(parents=True)
    text = (Path(__file__).parents[2] / "ladecli/profiles/cpu.toml").read_text()
    line = f"description = {json.dumps(SHORT)}"
    described = re.sub("^description.*", lambda _: line, text, flags=re.M)
    (profiles / f"{SHORT}.toml").write_text(described)
    (profiles / "broken.toml").write_text(f'"{json.dumps(SHORT)[1:-1]}" = 1')
    (tmp_path / "lade" / "config.toml").write_text(f"stop = [{json.dumps(SHORT)}]")
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    harmless("profiles", shows="Hardware", lines=60, **home)
    harmless("profiles", SHORT, shows="window", **home)
    harmless("config", shows="stop", lines=60, **home)
    harmless("doctor", model, shows="machine", lines=60, **home)
    harmless("profiles", shows="Hardware", **home, **{f"LADE_{SHORT.replace(chr(61), '')}": "1"})
