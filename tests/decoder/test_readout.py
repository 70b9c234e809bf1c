"""What the host waits for, by a simulated device."""

from __future__ import annotations

import pytest

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig

from ..decoding import run, steps_of
from ..simulated import Simulated, simulated_decoder

SAMPLED = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
DRAFTS = LookaheadConfig(sources=("context", "recycled"), budget=15, widths=(1, 8, 16))
WINDOW = LookaheadConfig(4, 4, 4, sources=("trajectory",))


@pytest.mark.parametrize(
    ("strategy", "config", "sampling", "waits"),
    [
        ("autoregressive", DRAFTS, None, 2),
        ("lookahead", DRAFTS, None, 4),
        ("lookahead", WINDOW, None, 2),
        ("lookahead", DRAFTS, SAMPLED, 5),
    ],
    ids=["plain", "drafted", "window", "sampled"],
)
def test_how_often_a_step_waits(
    strategy: str, config: LookaheadConfig, sampling: SamplingConfig | None, waits: int
) -> None:
    with Simulated() as device:
        decoder = simulated_decoder(device, 1000)
        run(decoder, [0, 1, 2], strategy, config, sampling, Limits(100))  # captures
        decoder.forget(keep_memory=True)
        device.counts.clear()
        steps = steps_of(run(decoder, [0, 1, 2], strategy, config, sampling, Limits(100)))
        waits_for_moves = device.counts["to device"] - len(steps)
    assert not decoder.runner.notices
    assert device.counts["waits"] == waits * len(steps) + waits_for_moves
