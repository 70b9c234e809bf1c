"""What is read out of logits on a GPU, at the sizes of real vocabularies."""

from __future__ import annotations

import pytest
import torch

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.lean import fused
from ladecli.decoder.readout import choosing
from ladecli.decoder.readout.penalty import Penalized, maxima
from ladecli.decoder.readout.quick import CLOSE, may_rank, may_top, may_weigh, rank, top, weigh
from ladecli.decoder.readout.quick_draw import may_draw, may_pick
from ladecli.decoder.readout.ranking import most_probable, ranked

from . import DEVICE, needs_cuda, needs_gpu

pytestmark = [needs_gpu, needs_cuda]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VOCABULARIES = [259, 32_000, 128_256, 151_936]


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(vocabulary)
    return (3 * torch.randn(rows, vocabulary, device=DEVICE, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_most_probable_tokens(vocabulary: int, dtype: torch.dtype) -> None:
    for rows in (1, 64):
        logits = logits_of(rows, vocabulary, dtype)
        assert may_rank(logits, 4, ranked)
        tokens, bits = rank(logits, 4)
        expected, probabilities = ranked(logits, 4)
        assert torch.equal(tokens[:, 0].long(), logits.argmax(dim=-1))
        greatest = logits.gather(1, tokens.long())
        assert torch.equal(greatest, logits.gather(1, expected))
        torch.testing.assert_close(bits.view(torch.float32), probabilities, rtol=CLOSE, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_weights_are_the_same_to_the_last_bit(vocabulary: int, dtype: torch.dtype) -> None:
    for rows in (1, 64):
        logits = logits_of(rows, vocabulary, dtype)
        best = logits.argmax(dim=-1)
        assert may_weigh(logits, choosing.BLOCK, choosing._blocks_by_torch)
        for temperature in (0.3, 1.0):
            found = weigh(logits, best, temperature, choosing.BLOCK)
            assert torch.equal(found, choosing._blocks_by_torch(logits, best, temperature))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_penalized_ones_are_the_same_to_the_last_bit(vocabulary: int, dtype: torch.dtype) -> None:
    for rows in (1, 64):
        logits = logits_of(rows, vocabulary, dtype)
        scores = Penalized(logits, torch.rand_like(logits, dtype=torch.float32) < 0.1, 1.1)
        assert may_top(scores, 16)
        assert torch.equal(top(scores, 16), maxima(scores, 16))
        assert may_weigh(scores, choosing.BLOCK, choosing._blocks_by_torch)
        asked = scores, most_probable(scores), 0.8
        found = weigh(*asked, choosing.BLOCK)
        assert torch.equal(found, choosing._blocks_by_torch(*asked))


CUTS = [
    SamplingConfig(0.7, top_k=20, top_p=0.8),
    SamplingConfig(1.0, top_k=64, top_p=0.95, min_p=0.01),
    SamplingConfig(0.3, top_p=0.9),
    SamplingConfig(1.5, top_p=0.999, min_p=0.05),
    SamplingConfig(1.0, top_k=300),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_drawn_from_lists_are_the_same(vocabulary: int, dtype: torch.dtype) -> None:
    for rows in (1, 64):
        logits = logits_of(rows, vocabulary, dtype)
        uniforms = torch.rand(rows, dtype=torch.float64, device=DEVICE)
        for config in CUTS:
            count = choosing._enough(logits, config)
            assert may_draw(logits[:, :count].contiguous(), choosing._draw_by_torch)
            found = choosing.choose_ahead(logits, uniforms, config)
            with fused.switched(False):
                expected = choosing.choose_ahead(logits, uniforms, config)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_tokens_drawn_from_all_are_the_same(vocabulary: int, dtype: torch.dtype) -> None:
    for rows in (1, 64):
        logits = logits_of(rows, vocabulary, dtype)
        penalized = Penalized(logits, torch.rand_like(logits, dtype=torch.float32) < 0.1, 1.1)
        uniforms = torch.rand(rows, dtype=torch.float64, device=DEVICE)
        for scores in (logits, penalized):
            assert may_pick(scores, choosing.BLOCK, choosing._pick_by_torch)
            for temperature in (0.3, 1.0):
                asked = scores, uniforms, SamplingConfig(temperature)
                found = choosing.choose_ahead(*asked)
                with fused.switched(False):
                    assert torch.equal(found, choosing.choose_ahead(*asked))
