"""The host's work between two captured steps, on a simulated device, without a GPU.

    python benchmarks/host.py

Per step: waits for the device, copies to it and operations launched there; and microseconds of our
own Python from the end of the last wait to the launch of the next step, torch's own left out
(medians; a launch of torch's takes 3 to 6 microseconds more).
"""

from __future__ import annotations

import statistics

from common import print_head, print_row

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from tests.support.decoding import run, steps_of
from tests.support.device import SimulatedDevice, simulated_decoder

SAMPLING = {
    "greedy": SamplingConfig(),
    "temperature": SamplingConfig(temperature=0.8, seed=1),
    "top-p": SamplingConfig(temperature=0.8, top_p=0.95, seed=1),
}


def measure(vocabulary: int, budget: int, sampling: SamplingConfig) -> list[object]:
    """Return the waits, copies and launches of a step, and the microseconds of our own code."""
    config = LookaheadConfig(
        budget=budget, sources=("context", "recycled"), widths=(1, 8, 16, 32, 64)
    )
    strategy, prompt = "lookahead" if budget > 1 else "autoregressive", [0, 1, 2]
    with SimulatedDevice() as device:
        decoder = simulated_decoder(device, vocabulary)
        for _ in range(2):  # the first one captures
            decoder.forget(keep_memory=True)
            device.counts.clear()
            device.gaps.clear()
            limits = Limits(60)
            steps = len(steps_of(run(decoder, prompt, strategy, config, sampling, limits)))
    counts = [device.counts[kind] / steps for kind in ("waits", "to device", "launches")]
    return [*counts, round(1e6 * statistics.median(device.gaps))]


def main() -> None:
    """Print the table."""
    print_head("vocabulary", "budget", "sampling", "waits", "copies in", "launches", "own µs")
    for vocabulary in (32_000, 128_000):
        for budget in (1, 16, 64):
            for name, sampling in SAMPLING.items():
                print_row(vocabulary, budget, name, *measure(vocabulary, budget, sampling))


if __name__ == "__main__":
    main()
