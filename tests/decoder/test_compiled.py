"""Compiled functions work whatever became of the files that keep their code, and without any."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core import config

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.ngrams import kernels, model, tables
from ladecli.decoder.strategies import make_strategy

from ..families import model_of, prompt_for

PROGRAM = """
from ladecli.decoder.compiled import compiled

@compiled
def tripled(number):
    return 3 * number
"""


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small module, whose code is kept beside it."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "small_program.py").write_text(PROGRAM)


def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function as a new process has it."""
    monkeypatch.delitem(sys.modules, "small_program", raising=False)
    return importlib.import_module("small_program").tripled


def was_read(function: Any) -> bool:
    """Whether its code was read, and not compiled."""
    return bool(function.stats.cache_hits)


def test_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (False, True):
        function = fresh(monkeypatch)
        assert function(2) == 6
        assert was_read(function) == kept


@pytest.mark.parametrize("content", [b"", b"nonsense"])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_files_heal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, content: bytes
) -> None:
    fresh(monkeypatch)(2)
    (path,) = tmp_path.glob(f"__pycache__/*.{ending}")
    path.write_bytes(content)
    for kept in (False, True):
        function = fresh(monkeypatch)
        assert function(2) == 6
        assert was_read(function) == kept
    assert path.stat().st_size > 100


def test_nothing_is_kept_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Files where folders would be: also root cannot write there.
    (tmp_path / "__pycache__").touch()
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "__pycache__"))
    for _ in range(2):
        function = fresh(monkeypatch)
        assert function(2) == 6
        assert not was_read(function)


def test_a_folder_that_is_lost_before_anything_was_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    function = fresh(monkeypatch)
    (tmp_path / "__pycache__").rmdir()
    (tmp_path / "__pycache__").touch()
    assert function(2) == 6


def test_without_a_compiler_they_run_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """And find the same drafts, to the last bit of what they go by."""

    def said() -> tuple[list[object], dict[str, bytes]]:
        """What steps tried and said, and what is known then."""
        drafts, decoder = DraftState(), Decoder(model_of("llama"))
        strategy = make_strategy("lookahead", LookaheadConfig(5, 4, 5, 30), drafts)
        events = decoder.generate(prompt_for("llama"), strategy, None, Limits(30), detailed=True)
        steps = [(step.tokens, step.detail) for step in events if isinstance(step, Step)]
        assert max(drafts.model.counted.sizes) > 64, "the table was to grow"
        return [*steps], {name: each.tobytes() for name, each in drafts.to_arrays().items()}

    monkeypatch.setattr(tables, "START", 64)
    expected = said()
    monkeypatch.setattr(config, "DISABLE_JIT", True)
    spec = importlib.util.spec_from_file_location(f"{kernels.__name__}_written", kernels.__file__)
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    for user in (model, tables):
        monkeypatch.setattr(user, "kernels", written)
    assert not hasattr(written.grow, "stats"), "nothing was compiled"
    assert said() == expected
