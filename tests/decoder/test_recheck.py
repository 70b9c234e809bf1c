"""Texts read again: the plain forward says what decoding said, and noise is told from faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.movement import Movement
from ladecli.decoder.recheck import Fed, Recheck
from ladecli.decoder.runner import Runner

from ..decoding import ids_of, run
from ..families import model_of, prompt_for

GREEDY = SamplingConfig()
DRAWN = SamplingConfig(temperature=0.8, seed=3)
# Rotary frequencies that change with the length, learned positions, sliding windows.
FAMILIES = ("llama", "llama_dynamic", "phi3_long", "gpt2", "mistral", "gemma2")


def recheck_of(decoder: Decoder, family: str) -> Recheck:
    return Recheck(decoder, model_of(family), "auto")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plain_forward_says_what_plain_decoding_said(family: str) -> None:
    decoder, prompt = Decoder(model_of(family)), prompt_for(family)
    ids = ids_of(run(decoder, prompt, limits=Limits(36)))
    recheck = recheck_of(decoder, family)
    for count in {0, 5, 14, *range(15, 18), 35} & {*range(len(ids))}:
        text = [*prompt, *ids[:count]]
        probabilities = recheck.probabilities(text, len(prompt), SamplingConfig(temperature=1.0))
        assert probabilities is not None
        assert probabilities.argmax() == ids[count]
        assert probabilities.sum() == pytest.approx(1.0)
    assert decoder.cache.length == 0
    assert ids_of(run(decoder, prompt, limits=Limits(36))) == ids


def moved(family: str, sampling: SamplingConfig, count: int = 30) -> tuple[Movement, list[int]]:
    """What it takes to choose another token than lookahead did."""
    decoder, prompt = Decoder(model_of(family)), prompt_for(family)
    events = run(decoder, prompt, "lookahead", LookaheadConfig(4, 4, 4), sampling, Limits(count))
    ids = ids_of(events)
    steps = [Fed(e.width, len(e.tokens)) for e in events if isinstance(e, Step)]
    other = (ids[-1] + 1) % 97
    movement = recheck_of(decoder, family).movement(
        [*prompt, *ids[:-1]], len(prompt), (ids[-1], other), steps, sampling
    )
    assert movement is not None
    assert decoder.cache.length == 0
    return movement, ids


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("family", FAMILIES)
def test_forwards_of_all_widths_agree(family: str, penalty: float) -> None:
    movement, _ = moved(family, SamplingConfig(repetition_penalty=penalty))
    assert 0 < movement.noise < 1e-4
    assert movement.distance == movement.gap > 1e-3
    assert not movement.explained


def test_a_drawn_token_is_told_from_another() -> None:
    movement, _ = moved("llama", DRAWN)
    assert 0 < movement.noise < 1e-4
    assert movement.distance > movement.allowed


class Counted:
    """Forwards that fail from some number on."""

    def __init__(self, patch: pytest.MonkeyPatch, fails: Any) -> None:
        forward = Runner.forward

        def counted(runner: Runner, layout: StepLayout) -> Tensor:
            if fails(layout):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(runner, layout)

        patch.setattr(Runner, "forward", counted)


def test_without_memory_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, prompt = Decoder(model_of("llama")), prompt_for("llama")
    Counted(monkeypatch, lambda _layout: True)
    recheck = recheck_of(decoder, "llama")
    assert recheck.movement(prompt, len(prompt), (3, 4), [Fed(24, 1)], GREEDY) is None
    assert recheck.probabilities(prompt, len(prompt), DRAWN) is None
    assert decoder.cache.length == 0


def test_a_text_that_cannot_be_read_at_once_is_read_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, prompt = Decoder(model_of("llama")), prompt_for("llama")
    ids = ids_of(run(decoder, prompt, limits=Limits(20)))
    Counted(monkeypatch, lambda layout: layout.pending > len(prompt))
    found = recheck_of(decoder, "llama").movement(
        [*prompt, *ids[:19]], len(prompt), (ids[19], 5), [Fed(30, 4)] * 5, GREEDY
    )
    assert found is not None
    assert found.gap > 0


def test_noise_that_no_arithmetic_makes_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Runner.forward

    def wrong(runner: Runner, layout: StepLayout) -> Tensor:
        logits = forward(runner, layout).clone()
        logits[:, 7] += 5.0 * (len(layout.tokens) > 1)
        return logits

    decoder, prompt = Decoder(model_of("llama")), prompt_for("llama")
    monkeypatch.setattr(Runner, "forward", wrong)
    text = [*prompt, 9, 10, 11]
    found = recheck_of(decoder, "llama").movement(
        text, len(prompt), (3, 7), [Fed(30, 2), Fed(30, 2)], GREEDY
    )
    assert found is not None
    assert found.noise > 4.0
    assert found.allowed < 1e-2
