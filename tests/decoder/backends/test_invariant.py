"""Batch-invariant steps: a token's logits are the same, bit for bit, alone and among others."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.attention import BACKENDS
from ladecli.decoder.backends.invariant import invariant_attention
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.layout import build
from ladecli.decoder.model.mask import Rules, StepMask
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import ROOT, TokenTree
from tests.support.decoding import ALIKE_BFLOAT16, paths_of
from tests.support.models import OWN, VOCABULARY, model_of, new_model

pytestmark = pytest.mark.slow

DTYPES = (torch.float32, pytest.param(torch.bfloat16, marks=ALIKE_BFLOAT16))
EDGES = (15, 16, 95, 127, 128, 129, 191, 192, 255, 257)
"""Lengths of texts at which the computation of a step changes."""
HEADS = ((3, 3, 64), (8, 4, 128), (4, 1, 64), (1, 8, 80), (2, 7, 96), (2, 2, 16), (1, 1, 8))
"""Key heads, query heads per key head, and head size."""


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


def random_tree(draw: random.Random, nodes: int) -> TokenTree:
    tree = TokenTree()
    for node in range(nodes):
        tree.grow(draw.randint(max(ROOT, node - 9), node - 1), draw.randrange(VOCABULARY), "test")
    return tree


@pytest.mark.parametrize(
    ("seed", "threads"), [(n, 1 + (n >= 40)) for n in range(52)], indirect=["threads"]
)
def test_attention_of_a_token_does_not_depend_on_others(seed: int, threads: None) -> None:
    draw, attend = random.Random(seed), BACKENDS["invariant"]
    torch.manual_seed(seed)
    kv_heads, groups, size = draw.choice(HEADS)
    prefix = draw.choice([*EDGES, draw.randint(0, 20), draw.randint(20, 700)])
    tree = random_tree(draw, draw.choice([draw.randint(1, 95), draw.randint(96, 250)]))
    # Tokens in sequence, like the end of a prompt, and drafts after them.
    text = draw.choice([1, 1, 40, 127])
    step = build([0] * text, prefix, Draft(tree))
    count = len(step.tokens)
    window, softcap = draw.choice([None, None, 7, 50, 130]), draw.choice([None, None, 30.0])
    rules = Rules(size**-0.5, window, softcap)
    query = 2 * torch.randn(1, kv_heads * groups, count, size)
    key, value = torch.randn(2, 1, kv_heads, prefix + count, size).unbind()
    mask = StepMask(step.rows, step.positions, prefix)
    together = attend(query, key, value, mask, rules)
    expected = BACKENDS["reference"](query, key, value, mask, rules)
    torch.testing.assert_close(together, expected, atol=1e-4, rtol=1e-4)
    for node in draw.sample(range(len(tree)), min(len(tree), 5)):
        path = paths_of(tree)[node]
        # Alone, the token comes after its own path, whose keys are in the order of the text.
        seen = [*range(prefix + text), *[prefix + text + above for above in path]]
        length, row = len(seen) - 1, text + node
        own, mask = (key[:, :, seen], value[:, :, seen]), StepMask([1], [length], length)
        alone = attend(query[:, :, row : row + 1], *own, mask, rules)
        assert torch.equal(alone[:, :, 0], together[:, :, row])


def invariant_decoder(family: str, dtype: torch.dtype) -> Decoder:
    decoder = load_decoder(copy.deepcopy(model_of(family)).to(dtype), attention="invariant")
    assert decoder.batch_invariant
    assert not decoder.executor.notices
    return decoder


def read(decoder: Decoder, tokens: list[int]) -> Tensor:
    """Return the logits after the last of some tokens, which are read in one step."""
    logits = decoder.executor.run(build(tokens, decoder.cache.length, Draft()))
    decoder.cache.keep(range(len(tokens)))
    return logits[0].clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", OWN)
def test_logits_of_a_token_do_not_depend_on_others(family: str, dtype: torch.dtype) -> None:
    decoder, draw = invariant_decoder(family, dtype), random.Random(7)
    facts = decoder.facts
    context = (facts.rope_grows and facts.rope_boundary) or facts.context
    text = [draw.randrange(VOCABULARY) for _ in range(context)]
    for length, width in ((3, 2), (14, 9), (context // 3, 30), (context // 2, 124)):
        boundary = facts.rope_boundary
        width = min(width, context - length)
        tree = random_tree(draw, width - 1)
        deepest = max(range(len(tree)), key=tree.depths.__getitem__)
        if boundary is not None and length <= boundary <= length + tree.depths[deepest]:
            continue  # no draft reaches the rotary boundary
        decoder.cache.truncate(0)
        read(decoder, text[:length])
        layout = build(text[length : length + 1], length, Draft(tree))
        together = decoder.executor.run(layout).clone()
        decoder.cache.truncate(length)
        assert torch.equal(read(decoder, text[length : length + 1]), together[0])
        for node in paths_of(tree)[deepest]:
            assert torch.equal(read(decoder, [tree.tokens[node]]), together[node + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("family", "threads"), [("llama", 1), ("llama", 2), ("gemma2", 1)], indirect=["threads"]
)
def test_prompts_are_read_alike_in_steps_of_any_width(
    family: str, dtype: torch.dtype, threads: None
) -> None:
    decoder, draw = invariant_decoder(family, dtype), random.Random(3)
    text = [draw.randrange(VOCABULARY) for _ in range(200)]
    # One by one around the lengths in `EDGES`.
    singly = (13, *[1] * 5, 76, *[1] * 3, 28, *[1] * 6, 58, *[1] * 5, 6)
    whole = read(decoder, text)
    for chunks in ((150, 50), (96, 104), (1, 170, 29), singly):
        decoder.cache.truncate(0)
        for width in chunks:
            start = decoder.cache.length
            logits = read(decoder, text[start : start + width])
        assert torch.equal(logits, whole)


@pytest.mark.parametrize(
    ("family", "settings", "dtype"),
    [
        ("gpt2", {}, torch.float32),  # transformers' forward
        ("llama", {}, torch.float64),  # products of another kind
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, torch.float32),  # chains of drafts
        ("mamba", {"state_size": 8}, torch.float32),  # no drafts, and nothing to say
    ],
)
def test_a_model_without_batch_invariance_says_so(
    family: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    decoder = load_decoder(new_model(family, **settings).to(dtype), attention="invariant")
    assert not decoder.batch_invariant
    notices = " ".join(decoder.executor.notices)
    assert ("not batch-invariant" in notices) == (family != "mamba")


def test_many_keys_of_little_weight_are_not_lost() -> None:
    """Sums are exact, since weights are rounded before."""
    count, most = 4096, 18.0
    key, value = torch.zeros(1, 1, count, 16), torch.ones(1, 1, count, 16)
    key[:, :, 0], value[:, :, 0] = most / 16, 0.0
    mask = StepMask([1], [count - 1], count - 1)
    out = invariant_attention(torch.ones(1, 1, 1, 16), key, value, mask, Rules(1.0))
    others = (count - 1) * math.exp(-most)
    assert out.flatten().tolist() == pytest.approx([others / (1.0 + others)] * 16, rel=2e-3)
