"""Captures that remember how long they took, and which of their graphs were launched how often."""

from __future__ import annotations

import time
import weakref
from functools import partial

import torch
from torch import Tensor, nn

from ladecli.decoder.capture import WARM_UP, Capture, Captured, Work, capture_for

from .clock import Clock, middle


class Launch:
    """A captured step that counts its launches.

    Args:
        captured: what is launched.
        watch: who wants to know.

    Attributes:
        count: launches so far.
    """

    def __init__(self, captured: Captured, watch: Watch) -> None:
        self._captured = captured
        self._watch = watch
        self.count = 0

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """See `Captured`."""
        return self._captured.outputs

    def replay(self) -> None:
        """See `Captured`."""
        self.count += 1
        self._watch.last = self
        self._captured.replay()

    def again(self) -> None:
        """Launch it with its last inputs, uncounted."""
        self._captured.replay()


class Watch:
    """A `Capture` that hands on to another one, and remembers.

    Args:
        inner: who captures.

    Attributes:
        seconds: what each capture took, the wait for the device included.
        last: what was launched last; None before that.
    """

    def __init__(self, inner: Capture) -> None:
        self._inner = inner
        self.seconds: list[float] = []
        # To hold on to a graph would keep its memory.
        self._launches: list[weakref.ref[Launch]] = []
        self.last: Launch | None = None

    def capture(self, work: Work) -> Captured:
        """See `Capture`."""
        began = time.perf_counter()
        captured = self._inner.capture(work)
        self._inner.wait()
        self.seconds.append(time.perf_counter() - began)
        launch = Launch(captured, self)
        self._launches.append(weakref.ref(launch))
        return launch

    def wait(self) -> None:
        """See `Capture`."""
        self._inner.wait()

    def counts(self) -> dict[Launch, int]:
        """How often each of what was captured was launched so far."""
        alive = (reference() for reference in self._launches)
        return {launch: launch.count for launch in alive if launch is not None}

    def device_seconds(self, before: dict[Launch, int], clock: Clock, repeats: int) -> float:
        """What the launches since `before` took the device, by launching each kind again.

        The cache holds no text of any use afterwards.
        """
        total = 0.0
        for launch, count in self.counts().items():
            since = count - before.get(launch, 0)
            if since:
                total += since * middle(clock.burst(launch.again, repeats))
        return total


class Rerun:
    """Stands for graphs where there is no GPU: the work is done again, Python and all."""

    def capture(self, work: Work) -> Captured:
        """See `Capture`."""
        for _ in range(WARM_UP):
            work()
        return _Again(work)

    def wait(self) -> None:
        """Nothing runs by itself on a CPU."""


class _Again:
    def __init__(self, work: Work) -> None:
        self._work = work
        self.outputs = work()

    @torch.inference_mode()
    def replay(self) -> None:
        for kept, new in zip(self.outputs, self._work(), strict=True):
            kept.copy_(new)


def watch_for(model: nn.Module) -> Watch:
    """A watched capture for a model; off CUDA one that pretends."""
    return Watch(capture_for(model) or Rerun())


def sure(launch: Launch | None, trouble: str | None) -> partial[None]:
    """What launches a step again.

    Raises:
        RuntimeError: it was not captured.
    """
    if launch is None or trouble is not None:
        raise RuntimeError(f"the step was not captured: {trouble or 'memory did not suffice'}")
    return partial(launch.again)
