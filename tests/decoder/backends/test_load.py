"""Every backend against the reference: `Transformer` with nothing but a model and its facts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder import layout
from ladecli.decoder.backends.int8 import available, quantise
from ladecli.decoder.backends.load import new_cache
from ladecli.decoder.backends.transformers_forward import StockModel
from ladecli.decoder.backends.trial import TOLERANCE, difference, facts_of
from ladecli.decoder.backends.triton_attention import triton_available
from ladecli.decoder.backends.weights import make_transformer
from ladecli.decoder.executor import Executor
from ladecli.decoder.model.forward import Forward
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree
from tests.support.models import model_of, prompt_for

FAMILIES = pytest.mark.parametrize("family", ["llama", "gemma3"])


def logits_of(forward: Forward, model: Any, text: list[int]) -> Tensor:
    """Return the logits of a step with two rival continuations after a prefix."""
    facts = facts_of(model)
    executor, start = Executor(forward, new_cache(forward, 64), facts, 64), len(text) - 4
    executor.run(layout.build_chunk(text[:start], 0))
    executor.cache.keep(range(start))
    tree = TokenTree()
    tree.add([(text[start + 1] + 1) % facts.vocabulary, text[3]], "test", 9)
    tree.add(text[start + 1 :], "test", 9)
    return executor.run(layout.build(text[start : start + 1], start, Draft(tree))).clone()


@FAMILIES
@pytest.mark.parametrize(
    "attention", ["sdpa", "invariant", pytest.param("triton", marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("small_weights_count")
def test_our_forward_by_every_backend(family: str, attention: str) -> None:
    kernels = attention == "triton"
    if kernels and not triton_available(torch.device("cpu")):
        pytest.skip("needs triton, and TRITON_INTERPRET=1")
    model, text = model_of(family), prompt_for(family, 12)
    facts = facts_of(model)
    expected = logits_of(Transformer(model, facts), model, text)
    forward = make_transformer(copy.deepcopy(model), facts, attention, kernels=kernels)
    torch.testing.assert_close(logits_of(forward, model, text), expected, rtol=1e-4, atol=1e-4)


@FAMILIES
def test_transformers_forward(family: str) -> None:
    model, text = model_of(family), prompt_for(family, 12)
    reference = Transformer(model, facts_of(model))
    forward = StockModel(model, reference.layer_shapes)
    expected = logits_of(reference, model, text)
    torch.testing.assert_close(logits_of(forward, model, text), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not available(), reason="needs products of integers")
@FAMILIES
def test_8_bits(family: str) -> None:
    model, text = copy.deepcopy(model_of(family)), prompt_for(family, 12)
    expected = logits_of(Transformer(model, facts_of(model)), model, text)
    quantise(model, torch.float32)
    logits = logits_of(make_transformer(model, facts_of(model)), model, text)
    assert difference(logits, expected, torch.int8) <= TOLERANCE[torch.int8]
