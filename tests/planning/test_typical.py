"""Typical models: their figures agree with one another, and slips are told."""

from __future__ import annotations

import pytest

from ladecli.errors import UsageError
from ladecli.planning import typical
from ladecli.planning.typical import _MODELS, _SHORT

TIED = {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "llama-3.2-1b", "llama-3.2-3b"}
EXPERTS = {"mixtral-8x7b": (8, 2)}


@pytest.mark.parametrize("name", _MODELS)
def test_parameters_follow_from_the_other_figures(name: str) -> None:
    _, shape = typical.typical(name)
    count, chosen = EXPERTS.get(name, (1, 1))
    attention = 2 * shape.hidden * shape.head_size * (shape.heads + shape.kv_heads)
    product = 3 * shape.hidden * shape.inner
    embeddings = shape.vocabulary * shape.hidden * (1 if name in TIED else 2)
    every = embeddings + shape.layers * (attention + count * product)
    active = embeddings + shape.layers * (attention + chosen * product)
    assert shape.parameters == pytest.approx(every, rel=0.003)
    assert shape.active == pytest.approx(active, rel=0.003)


def test_models_stand_by_size() -> None:
    sizes = [typical.typical(name)[1].parameters for name in _MODELS]
    assert sizes == sorted(sizes)
    assert set(_SHORT.values()) <= set(_MODELS)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        *(("7b", "llama-2-7b"), ("7B", "llama-2-7b"), (" 8b ", "llama-3-8b")),
        *(("1.5b", "qwen2.5-1.5b"), ("8x7b", "mixtral-8x7b"), ("Llama-3-8B", "llama-3-8b")),
        *(("meta-llama/Llama-3.1-70B", "llama-3-70b"), ("405b", "llama-3-405b")),
        *(("7", "llama-2-7b"), ("70.0b", "llama-2-70b"), ("1.50", "qwen2.5-1.5b")),
    ],
)
def test_sizes_are_found(typed: str, name: str) -> None:
    assert typical.typical(typed)[0] == name


KNOWN = (
    "known: 0.5b, 1b, 1.5b, 3b, 7b, 8b, 13b, 14b, 32b, 34b, 8x7b, 70b, 72b, 405b, and names such as"
    " llama-3-70b, qwen2.5-72b, llama-3-405b"
)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        *(("9b", " (next to it: 8b and 13b)"), ("30", " (next to it: 14b and 32b)")),
        *(("0.1b", " (next to it: 0.5b)"), ("1000b", " (next to it: 405b)")),
        *(("huge", ""), ("", ""), ("-7b", ""), ("llama-4", "")),
    ],
)
def test_unknown_sizes(typed: str, near: str) -> None:
    with pytest.raises(UsageError) as error:
        typical.typical(typed)
    assert str(error.value) == f"unknown model size {typed!r}{near}; {KNOWN}"


def test_types_and_quantisation() -> None:
    plain = typical.typical("7b")[1]
    assert (plain.weights, plain.weight_bytes) == ("bfloat16", 2 * plain.parameters)
    full = typical.typical("7b", "float32")[1]
    assert (full.compute, full.weight_bytes) == ("float32", 4 * plain.parameters)
    packed = typical.typical("7b", "bfloat16", "4bit")[1]
    assert packed.weights == "nf4"
    assert packed.weight_bytes < 0.33 * plain.weight_bytes
    assert typical.typical("7b", "float16", "8bit")[1].weights == "int8"
