"""Damaged files of every kind at the doors, and what they found; `benchmarks/fuzz.py` runs more."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ladecli.session import limited

from . import fuzzing
from .hub_files import copied, stating

pytest.importorskip("gguf")
CASES = 500


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, fuzzing.Kind]:
    return fuzzing.kinds_of(tmp_path_factory.mktemp("sound"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that never end are waited for as long as it takes to see that."""
    monkeypatch.setattr(limited, "SECONDS", 0.2)
    monkeypatch.setattr(limited, "MEMORY", 100 << 20)


@pytest.mark.slow
def test_no_damaged_file_leads_to_an_internal_error(
    kinds: Mapping[str, fuzzing.Kind], tmp_path: Path
) -> None:
    total = sum(kind.share for kind in kinds.values())
    for name, kind in kinds.items():
        assert fuzzing.run(kinds, name, -1, tmp_path / "case").code == 0, "of what is sound"
        for number in range(round(CASES * kind.share / total)):
            outcome = fuzzing.run(kinds, name, number, tmp_path / "case")
            assert outcome.fault is None, (outcome.name, outcome.arguments, outcome.err[-300:])


# What was found.


def test_toml_that_is_nested_too_deeply(lade: Any) -> None:
    home = Path(os.environ["XDG_CONFIG_HOME"]) / "lade"
    home.mkdir()
    (home / "config.toml").write_text("budget = " + "[" * 5000)
    assert "is not valid TOML: it is nested too deeply" in lade("config").refused()


def test_a_window_without_an_end(lade: Any) -> None:
    for option in ("-W", "-N", "-G", "--budget"):
        assert lade("generate", "-p", "a", "--sources", "trajectory", option, "9" * 12).code == 2


def test_an_adapter_of_no_model(
    kinds: Mapping[str, fuzzing.Kind], lade: Any, tmp_path: Path
) -> None:
    (files,) = kinds["adapter"].seeds
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    stating("adapter_config.json", base_model_name_or_path=["x"])(tmp_path)
    told = lade("generate", str(tmp_path), "-p", "hi").refused(1)
    assert "base_model_name_or_path is no text" in told


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ (10 ** (10**9)) > 1 }}",
    "a long text": "{{ 'a' * 10**12 }}",
    "a text that doubles": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "a long prompt": "{{ 'a' * 9000000 }}{{ messages[0].content }}",
}


@pytest.fixture
def refused(lade: Any, model_folder: str, tmp_path: Path) -> Any:
    """The line that a chat template is refused with."""

    def call(template: str) -> str:
        (tmp_path / "t.jinja").write_text(template)
        asked = ("-p", "hi", "--chat-template", str(tmp_path / "t.jinja"), "-n", "1")
        told: str = lade("generate", model_folder, *asked).refused()
        return told

    return call


@pytest.mark.parametrize("case", ENDLESS)
def test_a_template_without_an_end_is_refused(case: str, refused: Any) -> None:
    told = refused(ENDLESS[case] + "{{ messages[0].content }}")
    assert re.match(r"the chat template .*/t\.jinja .*s more than .*--raw", told)


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
