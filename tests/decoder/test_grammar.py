"""Texts with a grammar, on a device that chooses the tokens of all nodes at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.grammar import TokenSet
from tests.support.decoding import ids_of, run, steps_of
from tests.support.device import Circle, SimulatedDevice, simulated_decoder
from tests.support.oracle import CPU, decoder_with

pytestmark = pytest.mark.slow

VOCABULARY, NEW = 40, 60
PROMPT = [3, 4, 5, 3, 4]


class Rhythm:
    """Every third token is 7; the one after it is even, and the others are any but 6."""

    def __init__(self) -> None:
        self.length = 0

    def commit(self, token: int) -> bool:
        assert token in self.allowed([])
        self.length += 1
        return self.length == NEW

    def forced(self, path: Sequence[int]) -> int | None:
        return 7 if (self.length + len(path)) % 3 == 2 else None

    def allowed(self, path: Sequence[int]) -> TokenSet:
        place = (self.length + len(path)) % 3
        sets = (range(0, VOCABULARY, 2), [i for i in range(VOCABULARY) if i != 6], [7])
        return TokenSet(sum(1 << token for token in sets[place]).to_bytes(5, "little"))


def text(decoder: Decoder, strategy: str, sampling: SamplingConfig) -> tuple[list[int], int]:
    """Return the text and its number of steps."""
    grammar = Rhythm()
    limits = Limits(2 * NEW, should_stop=grammar.commit)
    config = LookaheadConfig(budget=16, sources=("context", "recycled"), widths=(1, 4, 8, 16))
    events = run(decoder, PROMPT, strategy, config, sampling, limits, grammar=grammar)
    return ids_of(events), len(steps_of(events))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(),
        SamplingConfig(temperature=8.0, seed=2),
        SamplingConfig(temperature=4.0, top_k=3, top_p=0.9, seed=2),
        SamplingConfig(temperature=4.0, repetition_penalty=1.2, seed=2),
    ],
)
def test_a_device_gives_the_text_of_the_host(sampling: SamplingConfig) -> None:
    host = decoder_with(Circle(VOCABULARY, CPU))
    expected, steps = text(host, "autoregressive", sampling)
    assert len(expected) == steps == NEW
    assert len({*expected}) > 2
    assert text(host, "lookahead", sampling)[0] == expected
    with SimulatedDevice() as device:
        decoder = simulated_decoder(device, VOCABULARY)
        assert text(decoder, "autoregressive", sampling)[0] == expected
        drafted, steps = text(decoder, "lookahead", sampling)
    assert drafted == expected
    assert steps < NEW * 3 / 4


def test_masks_do_not_make_the_host_wait() -> None:
    with SimulatedDevice() as device:
        decoder = simulated_decoder(device, VOCABULARY)
        text(decoder, "lookahead", SamplingConfig())
        decoder.forget(keep_memory=True)
        device.counts.clear()
        _, steps = text(decoder, "lookahead", SamplingConfig())
    assert device.counts["waits"] <= steps + 2
