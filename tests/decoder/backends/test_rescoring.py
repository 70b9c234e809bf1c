"""Rescored texts: plain decoding's own logits, and the distinction of rounding from faults."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.rescoring import LogitGap, Rescorer
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.model.forward import StepInputs
from tests.support.decoding import decoder_of, ids_of, run, steps_of
from tests.support.models import model_of, prompt_for
from tests.support.oracle import change_logits, run_out

pytestmark = pytest.mark.slow

GREEDY = SamplingConfig()
DRAWN = SamplingConfig(temperature=0.8, seed=3)
# Families with changing rotary frequencies, learned positions, sliding windows.
FAMILIES = ("llama", "llama_dynamic", "phi3_long", "gpt2", "mistral", "gemma2")


def gap_to(
    decoder: Decoder, family: str, sampling: SamplingConfig, other: int | None = None
) -> LogitGap:
    """Return the distance of another token from the last one that lookahead chose."""
    prompt = prompt_for(family)
    config, limits = LookaheadConfig(4, 4, 4), Limits(min(30, decoder.max_context - len(prompt)))
    events = run(decoder, prompt, "lookahead", config, sampling, limits)
    *before, last = ids_of(events)
    other = (last + 1) % 97 if other is None else other
    width = steps_of(events)[-1].width
    text = [*prompt, *before]
    gap = Rescorer(decoder).gap(text, len(prompt), (last, other), width, sampling)
    assert decoder.cache.length == 0
    return gap


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("family", FAMILIES)
def test_forwards_of_all_widths_agree(family: str, penalty: float) -> None:
    gap = gap_to(decoder_of(family), family, SamplingConfig(repetition_penalty=penalty))
    assert 0 <= gap.noise < 1e-4
    assert gap.distance == gap.gap > 1e-3
    assert not gap.explained


def test_the_distance_of_a_drawn_token_to_another() -> None:
    gap = gap_to(decoder_of("llama"), "llama", DRAWN)
    assert 0 < gap.noise < 1e-4
    assert 0 < gap.distance < math.inf
    assert not gap.explained
    # The distance of a token that top-k removes is that after which it is kept.
    narrow = SamplingConfig(temperature=0.8, top_k=1, seed=3)
    removed = gap_to(decoder_of("llama"), "llama", narrow)
    assert removed.distance == pytest.approx(removed.gap, rel=2e-3)
    assert not removed.explained


def add_noise(decoder: Decoder, noise: float, token: int = 7) -> None:
    """Raise the logit of one token in wide steps."""

    def noisy(step: StepInputs, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, token] += noise * (len(step.tokens) > 1)
        return logits

    change_logits(decoder, noisy)


def test_rounding_explains_a_near_tie() -> None:
    """A tiny gap between two tokens, and a tiny difference between forwards."""
    decoder, prompt = decoder_of("llama"), prompt_for("llama")
    rescorer = Rescorer(decoder)
    known = len(prompt) - 1  # so that plain decoding feeds the last token alone
    logits = model_of("llama")(torch.tensor([prompt])).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    sharp = rescorer.gap(prompt, known, (best, second), 30, GREEDY)
    assert not sharp.explained
    add_noise(decoder, 1e-5, second)
    noisy = Rescorer(decoder).gap(prompt, known, (best, second), 30, GREEDY)
    assert noisy.noise == pytest.approx(1e-5, rel=0.5)
    assert noisy.allowed > sharp.allowed


def test_noise_larger_than_rounding_is_not_accepted() -> None:
    decoder = decoder_of("llama")
    add_noise(decoder, 5.0)
    text = [*prompt_for("llama"), 9, 10, 11]
    gap = Rescorer(decoder).gap(text, len(text) - 3, (3, 7), 30, GREEDY)
    assert gap.noise > 4.0
    assert gap.allowed < 1e-2
    packed = Rescorer(decoder, quantised=True).gap(text, len(text) - 3, (3, 7), 30, GREEDY)
    assert packed.allowed > gap.allowed, "kernels of packed weights add noise of their own"


@pytest.mark.parametrize(("most", "widest"), [(30, 24), (0, None)])
def test_without_memory_forwards_are_narrower_or_there_is_no_result(
    most: int, widest: int | None
) -> None:
    prompt, decoder = prompt_for("llama"), decoder_of("llama")
    ran = run_out(decoder, lambda step: len(step.tokens) > most)
    gap = Rescorer(decoder).gap(prompt, len(prompt), (3, 4), 24, GREEDY)
    assert (gap is not None, max(ran, default=None)) == (bool(most), widest)
    assert decoder.cache.length == 0
