"""What is read out of a step on a device: what it is on the host, and waited for once.

The device is a simulated one.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.errors import NaNLogitsError
from ladecli.decoder.events import Token
from ladecli.decoder.sampling import Sampler
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import Choose
from tests.support.decoding import ASKED, ASKED_STEP, Asked, read_out, run, steps_of, tokens_of
from tests.support.device import DEVICE, Circle, Simulated, simulated_decoder
from tests.support.oracle import decoder_with

CPU = torch.device("cpu")
SAMPLED = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
SETTINGS = [
    SamplingConfig(),
    SamplingConfig(repetition_penalty=1.3),
    SamplingConfig(temperature=1.0, seed=1),
    SAMPLED,
    SamplingConfig(temperature=1.0, top_k=20, seed=2, repetition_penalty=1.2),
    SamplingConfig(temperature=1.5, top_k=300, top_p=0.9, seed=4),
    SamplingConfig(temperature=1.2, min_p=0.02, seed=5),
]
DRAFTS = LookaheadConfig(sources=("context", "recycled"), budget=15, widths=(1, 8, 16))
WINDOW = LookaheadConfig(4, 4, 4, sources=("trajectory",))


@pytest.mark.parametrize(
    ("strategy", "config", "sampling"),
    [
        ("autoregressive", DRAFTS, None),
        ("lookahead", DRAFTS, None),
        ("lookahead", WINDOW, None),
        ("lookahead", DRAFTS, SAMPLED),
    ],
    ids=["plain", "drafted", "window", "sampled"],
)
def test_a_step_waits_once(
    strategy: str, config: LookaheadConfig, sampling: SamplingConfig | None
) -> None:
    with Simulated() as device:
        decoder = simulated_decoder(device, 1000)
        run(decoder, [0, 1, 2], strategy, config, sampling, Limits(20))  # captures
        decoder.forget(keep_memory=True)
        device.counts.clear()
        steps = steps_of(run(decoder, [0, 1, 2], strategy, config, sampling, Limits(20)))
        assert not decoder.executor.notices
    assert device.counts["waits"] == device.counts["to host"] == len(steps)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_texts_are_those_of_the_host(sampling: SamplingConfig) -> None:
    """Log-probabilities, too, are those of the model's own logits, before any penalty."""
    host, wanted = decoder_with(Circle(1000, CPU)), {"limits": Limits(20), "logprobs": 2}
    expected = tokens_of(run(host, [0, 1, 2], sampling=sampling, **wanted))
    with Simulated() as device:
        decoder = simulated_decoder(device, 1000)
        for config in (DRAFTS, WINDOW):
            events = run(decoder, [0, 1, 2], "lookahead", config, sampling, **wanted)
            for ours, theirs in zip(tokens_of(events), expected, strict=True):
                assert (ours.id, [*dict(ours.logprobs.best)]) == (
                    theirs.id,
                    [*dict(theirs.logprobs.best)],
                )
                assert ours.logprobs.own == pytest.approx(theirs.logprobs.own, abs=1e-4)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(0.0, torch.float32), (0.5, torch.bfloat16), (4.0, torch.float32)]
)
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_a_step_is_read_out_as_on_the_host(
    sampling: SamplingConfig, scale: float, dtype: torch.dtype
) -> None:
    """Small scales leave more tokens than a shortlist holds; half precision has ties."""
    draw = torch.Generator().manual_seed(1)
    logits = (scale * torch.randn(len(ASKED_STEP.outputs), 2000, generator=draw)).to(dtype)
    expected = read_out(logits, sampling, successors=3)
    with Simulated() as device:

        class Counted(Asked):
            def walk(self, choose: Choose) -> tuple[list[int], list[Token]]:
                assert device.counts["waits"] <= 2  # one for the logits' way to the device
                return super().walk(choose)

        tree = Counted(ASKED.tokens, ASKED.parents, ASKED.depths, ASKED.sources)
        found = read_out(logits.to(DEVICE), sampling, successors=3, tree=tree)
    assert found.tokens == expected.tokens
    assert found.best == expected.best
    for ours, theirs in zip(found.successors, expected.successors, strict=True):
        assert list(ours.values()) == pytest.approx(list(theirs.values()))
        assert scale == 0.0 or dtype == torch.bfloat16 or list(ours) == list(theirs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_on_a_device(bad: float) -> None:
    for sampling in SETTINGS:
        with Simulated():
            logits = torch.randn(len(ASKED_STEP.outputs), 2000).to(DEVICE)
            logits[3, slice(None) if bad < 0 else 1999] = bad
            with pytest.raises(NaNLogitsError):
                read_out(logits, sampling, successors=3)


def test_everything_is_launched_before_anything_is_waited_for() -> None:
    with Simulated(seconds=0.02) as device:
        decoder = simulated_decoder(device, 1000)
        decoder.cache.length = 3
        sampler = Sampler(SAMPLED)
        read = partial(sampler.read, layout=ASKED_STEP, draft=Draft(ASKED, successors=3))
        decoder.executor.launch(ASKED_STEP, read)()  # captures
        device.counts.clear()
        began = time.perf_counter()
        wait = decoder.executor.launch(ASKED_STEP, read)
        launched = device.counts.copy()
        wait()
        assert time.perf_counter() - began >= 0.02
    assert launched["waits"] == 0
    assert device.counts - launched == {"waits": 1, "to host": 1}
