"""Cells of a sweep: their requests, what is refused before a model is loaded, and loading."""

from __future__ import annotations

from typing import Any

import pytest

from ladecli import launch
from ladecli.decoder.errors import ConfigError
from ladecli.errors import UsageError
from ladecli.session import Session
from ladecli.settings import VerifyRequest
from ladecli.terminal import Terminal
from ladecli.verifying.sweep import Models, cells

from .makers import RandomSession


def test_no_sweep_is_one_cell() -> None:
    request = VerifyRequest(window=5)
    (cell,) = cells(request)
    assert cell.request == request
    assert cell.values == {}


def test_cells_of_one_dtype_stand_together() -> None:
    found = cells(VerifyRequest(sweep=["attention=reference,sdpa dtype=float32,bfloat16"]))
    assert [cell.values for cell in found] == [
        {"attention": "reference", "dtype": "float32"},
        {"attention": "sdpa", "dtype": "float32"},
        {"attention": "reference", "dtype": "bfloat16"},
        {"attention": "sdpa", "dtype": "bfloat16"},
    ]
    assert [cell.request.dtype for cell in found][1:3] == ["float32", "bfloat16"]
    assert found[2].request.attention == "reference"


def test_values_become_options() -> None:
    found = cells(
        VerifyRequest(sweep=["W=3,7 G=W", "sources=context+recycled,all strategy=jacobi"])
    )
    assert len(found) == 4
    request = found[3].request
    assert (request.window, request.guesses, request.strategy) == (7, 7, "jacobi")
    assert [cell.request.sources for cell in found[:2]] == [
        "context,recycled",
        "trajectory,context,recycled",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("context=1k", UsageError, "--sweep context=1k: an axis is NAME=VALUE,VALUE with a name"),
        ("dtype=int3", UsageError, "unknown dtype 'int3'; use one of auto, float32"),
        ("strategy=hf", UsageError, "unknown strategy 'hf'"),
        ("attention=x", UsageError, "unknown attention 'x'"),
        ("W=five", UsageError, "--sweep W=five: needs a whole number, or the name of another"),
        ("G=W", UsageError, "--sweep G=W: needs a whole number, or the name of another axis"),
        ("N=1", ConfigError, "ngram must be at least 2, not 1"),
        ("sources=magic", ConfigError, "unknown source 'magic'"),
    ],
)
def test_mistakes(text: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as found:
        cells(VerifyRequest(sweep=[text]))
    assert str(found.value).startswith(message)


def test_each_dtype_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(request: VerifyRequest, _terminal: Any) -> Session:
        loaded.append(request.dtype)
        return RandomSession("llama", attention=request.attention, max_context=77)

    monkeypatch.setattr(launch, "open_session", load)
    models = Models(Terminal())
    found = cells(VerifyRequest(sweep=["dtype=float32,bfloat16 attention=reference,sdpa W=1,2"]))
    sessions = [models.session(cell.request) for cell in found]
    assert loaded == ["float32", "bfloat16"]
    assert len({id(session) for session in sessions}) == 4
    assert {session.decoder.max_context for session in sessions} == {77}
    assert sessions[0].loaded is sessions[3].loaded
