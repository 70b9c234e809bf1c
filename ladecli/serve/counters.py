"""What was answered so far, as counters in Prometheus' text form."""

from __future__ import annotations

import prometheus_client as prometheus

from ..metrics import Tally


class Counters:
    """Those of one server."""

    def __init__(self) -> None:
        # A series more for each, of when it began, is of no use.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        self._requests = self._counter("requests", "Requests by how they ended.", "outcome")
        self._tokens = self._counter("tokens", "Tokens of prompts and answers.", "kind")
        self._steps = self._counter("steps", "Forward passes that yielded tokens.")
        self._seconds = self._counter("seconds", "Seconds in the queue and at work.", "part")
        self._mean = self._gauge("tokens_per_step", "Tokens per step of the newest answer.")
        self._queue = self._gauge("queue", "Requests that wait or are answered now.")

    def _counter(self, name: str, help: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"lade_{name}", help, labels, registry=self._registry)

    def _gauge(self, name: str, help: str) -> prometheus.Gauge:
        return prometheus.Gauge(f"lade_{name}", help, registry=self._registry)

    def add(self, tally: Tally, outcome: str, waited: float) -> None:
        """Count a request.

        Args:
            tally: of its answer, whole or not.
            outcome: why the answer ended, or what became of the request without one.
            waited: seconds in the queue.
        """
        self._requests.labels(outcome).inc()
        tokens = {"prompt": tally.prompt, "cached": tally.cached, "completion": tally.tokens}
        for kind, count in tokens.items():
            self._tokens.labels(kind).inc(count)
        seconds = {"prefill": tally.prefill_seconds, "decode": tally.decode_seconds}
        for part, each in {"queue": waited, **seconds}.items():
            self._seconds.labels(part).inc(each)
        self._steps.inc(tally.steps)
        if tally.steps:
            self._mean.set(tally.tokens_per_step)

    def refuse(self) -> None:
        """Count a request that was refused before it came into the queue."""
        self._requests.labels("refused").inc()

    def text(self, waiting: int) -> bytes:
        """All of them; `waiting` is the number of requests in the queue or at work."""
        self._queue.set(waiting)
        return prometheus.generate_latest(self._registry)
