"""Damaged files: one test for each fault that `benchmarks/fuzz.py` has found."""

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
from tests.support.hub import stating
from tests.support.processes import Result


def test_toml_that_is_nested_too_deeply(lade: Any) -> None:
    home = Path(os.environ["XDG_CONFIG_HOME"]) / "lade"
    home.mkdir()
    (home / "config.toml").write_text("budget = " + "[" * 5000)
    assert "is not valid TOML: it is nested too deeply" in lade("config").refused()


def test_a_huge_window(lade: Any) -> None:
    for option in ("-W", "-N", "-G", "--budget"):
        assert lade("generate", "-p", "a", "--sources", "trajectory", option, "9" * 12).code == 2


TEMPLATES = {
    f"{{{{ {'[' * 5000}": "nested too deeply",
    "{{ raise_exception('a\nb\x1b[2J' ~ 'c' * 10**6) }}": "a b[2Jccc",
    # No template can reach Python.
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "chat template",
    "{{ cycler.__init__.__globals__.os.getcwd() }}": "chat template",
    "{{ lipsum.__globals__.os }}": "chat template",
    "{{ messages.append(1) }}": "chat template",
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda text: text[:20])
def test_templates_that_fail(template: str, lade: Any, model_folder: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(template + "{{ messages[0].content }}")
    options = ("-p", "hi", "--chat-template", str(tmp_path / "t.jinja"), "-n", "1")
    refusal = lade("generate", model_folder, *options).refused()
    assert (TEMPLATES[template] in refusal, len(refusal) < 2000) == (True, True)


def test_a_tokenizer_that_cannot_encode(lade: Any, model_with: Any) -> None:
    folder = model_with(stating("tokenizer_config.json", model_max_length="x"))
    assert "tokenizer cannot encode" in lade("generate", folder, "-p", "hi").refused()


@pytest.mark.parametrize(
    "template",
    [[5], [None], [["a", "b"]], [{"name": "default"}], [{"template": "a"}], 5, True]
    + [[{"name": name, "template": text}] for name, text in ((5, "a"), (["a"], "a"), ("a", 5))]
    + [{"default": 5}, {"default": {"a": "b"}}, {"default": ["a"]}],
    ids=str,
)
def test_chat_templates_of_odd_shape(template: Any, lade: Any, model_with: Any) -> None:
    folder = model_with(stating("tokenizer_config.json", chat_template=template))
    assert "chat_template" in lade("generate", folder, "-p", "a").refused(1)
    with pytest.raises(ladecli.LadeError, match=r"chat.template"):
        ladecli.load(folder).generate([{"role": "user", "content": "a"}])


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "template": LOOP,
    "a later turn": f"{{% if messages[1:] %}}{LOOP}{{% endif %}}",
    "tokenizer": "{{ 'ab ' * 3000000 }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDLESS)
def test_ctrl_c_ends_an_endless_template(
    case: str, lade: Any, model_folder: str, tmp_path: Path, rows_file: Any
) -> None:
    (tmp_path / "t.jinja").write_text(ENDLESS[case] + "{{ messages[-1].content }}")
    asked = ("-f", rows_file({"turns": ["a", "b"]}), "--chat-template", str(tmp_path / "t.jinja"))
    timer = threading.Timer(0.8, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    began = time.monotonic()
    assert lade("generate", model_folder, *asked, "-n", "1").code == 130
    assert time.monotonic() - began < 2.8


def explode(folder: Path) -> None:
    """Put a regular expression that takes exponential time into a tokenizer."""
    first = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"}
    steps = {"type": "Sequence", "pretokenizers": [split | {"invert": False}, first]}
    stating("tokenizer.json", pre_tokenizer=steps)(folder)


def test_a_regular_expression_that_explodes(model_with: Any, capfd: Any) -> None:
    code = entry(["generate", model_with(explode), "-p", "x" * 40])
    assert "tokenizer cannot encode" in Result(code, *capfd.readouterr()).refused()
