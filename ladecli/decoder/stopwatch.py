"""Where the time of a step goes: laps between its parts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import torch

BETWEEN = "between"
"""What lies between two steps, and belongs to none."""


class Stopwatch:
    """Adds up what the parts of a step take.

    Work on a GPU goes on behind the call that started it, so every lap waits for it.

    Args:
        device: that the model is on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Give the time since the last lap to a part."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    def take(self) -> Mapping[str, float]:
        """Seconds by part since the last call, without what lay between steps."""
        seconds = dict(self._seconds)
        seconds.pop(BETWEEN, None)
        self._seconds.clear()
        return seconds
