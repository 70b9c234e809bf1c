"""Damaged files: what `benchmarks/fuzz.py` found, each once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ladecli
from ladecli.commands.cli import entry
from tests.support.hub import copied, stating
from tests.support.processes import Result


def test_toml_that_is_nested_too_deeply(lade: Any) -> None:
    home = Path(os.environ["XDG_CONFIG_HOME"]) / "lade"
    home.mkdir()
    (home / "config.toml").write_text("budget = " + "[" * 5000)
    assert "is not valid TOML: it is nested too deeply" in lade("config").refused()


def test_a_window_without_an_end(lade: Any) -> None:
    for option in ("-W", "-N", "-G", "--budget"):
        assert lade("generate", "-p", "a", "--sources", "trajectory", option, "9" * 12).code == 2


@pytest.fixture
def refused(lade: Any, model_folder: str, tmp_path: Path) -> Any:
    """The line that a chat template is refused with."""

    def call(template: str) -> str:
        (tmp_path / "t.jinja").write_text(template)
        asked = ("-p", "hi", "--chat-template", str(tmp_path / "t.jinja"), "-n", "1")
        told: str = lade("generate", model_folder, *asked).refused()
        return told

    return call


def test_a_template_that_is_nested_too_deeply(refused: Any) -> None:
    assert "nested too deeply" in refused(f"{{{{ {'[' * 5000}")


REACHING = (
    "''.__class__.__mro__[1].__subclasses__()",
    "cycler.__init__.__globals__.os.getcwd()",
    "lipsum.__globals__.os",
    "messages.append(1)",
)


@pytest.mark.parametrize("expression", REACHING)
def test_a_template_does_not_reach_for_python(expression: str, refused: Any) -> None:
    assert refused(f"{{{{ {expression} }}}}{{{{ messages[0].content }}}}")


def test_what_a_template_raises_is_one_line(refused: Any) -> None:
    told = refused("{{ raise_exception('a\nb\x1b[2J' ~ 'c' * 10**6) }}")
    assert "a b[2Jccc" in told
    assert len(told) < 2000


def test_a_tokenizer_that_cannot_encode(lade: Any, model_folder: str, tmp_path: Path) -> None:
    wrong = stating("tokenizer_config.json", model_max_length="x")
    folder = copied(model_folder, tmp_path / "model", wrong)
    assert "tokenizer cannot encode" in lade("generate", folder, "-p", "hi").refused()


EXPLODING = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"}


def test_a_regular_expression_that_explodes(
    model_folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(copied(model_folder, tmp_path / "model"))
    stated = json.loads((folder / "tokenizer.json").read_text())
    whole = [EXPLODING | {"invert": False}, stated["pre_tokenizer"]]
    stated["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": whole}
    (folder / "tokenizer.json").write_text(json.dumps(stated))
    code = entry(["generate", str(folder), "-p", "x" * 40])
    assert "tokenizer cannot encode" in Result(code, *capfd.readouterr()).refused()


@pytest.mark.parametrize(
    "template",
    [[5], [None], [["a", "b"]], [{"name": "default"}], [{"template": "a"}], 5, True]
    + [[{"name": name, "template": text}] for name, text in ((5, "a"), (["a"], "a"), ("a", 5))]
    + [{"default": 5}, {"default": {"a": "b"}}, {"default": ["a"]}],
    ids=str,
)
def test_chat_templates_of_odd_shape(
    template: Any, lade: Any, model_folder: str, tmp_path: Path
) -> None:
    change = stating("tokenizer_config.json", chat_template=template)
    folder = copied(model_folder, tmp_path / "model", change)
    assert "chat_template" in lade("generate", folder, "-p", "a").refused(1)
    with pytest.raises(ladecli.LadeError, match=r"chat.template"):
        ladecli.load(folder).generate([{"role": "user", "content": "a"}])


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "template": LOOP,
    "a later turn": f"{{% if messages[1:] %}}{LOOP}{{% endif %}}",
    "tokenizer": "{{ 'ab ' * 3000000 }}",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_ctrl_c_ends_what_does_not_come_to_an_end(
    case: str, lade: Any, model_folder: str, tmp_path: Path, rows_file: Any
) -> None:
    (tmp_path / "t.jinja").write_text(ENDLESS[case] + "{{ messages[-1].content }}")
    asked = ("-f", rows_file({"turns": ["a", "b"]}), "--chat-template", str(tmp_path / "t.jinja"))
    pressed = threading.Timer(0.8, os.kill, [os.getpid(), signal.SIGINT])
    pressed.start()
    began = time.monotonic()
    assert lade("generate", model_folder, *asked, "-n", "1").code == 130
    assert time.monotonic() - began < 2.8
