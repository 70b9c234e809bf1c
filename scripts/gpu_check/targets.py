"""What was wished for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .steps import cost_at, share_of_bandwidth

FIRST = "llama-2-7b"
"""The model that most wishes are about."""
STATES = ("met", "missed", "not measured")


@dataclass(frozen=True, slots=True)
class Target:
    """A wish.

    Attributes:
        what: in words.
        figure: reads it from the data; None where it was not measured.
        limit: that it shall keep.
        most: whether the limit is the most that it may be; else the least.
    """

    what: str
    figure: Callable[[dict[str, Any]], float | None]
    limit: float
    most: bool

    def judge(self, data: dict[str, Any]) -> dict[str, Any]:
        """How the figure compares with the limit; `off` is by how much of it a wish is missed."""
        try:
            value = self.figure(data)
        except (KeyError, IndexError, TypeError, ZeroDivisionError):
            value = None
        found: dict[str, Any] = {"what": self.what, "limit": self.limit, "most": self.most}
        if value is None:
            return found | {"state": STATES[2]}
        met = value <= self.limit if self.most else value >= self.limit
        off = 0.0 if met else abs(value - self.limit) / max(abs(self.limit), 1e-9)
        return found | {"state": STATES[0 if met else 1], "value": value, "off": off}


def _model(data: dict[str, Any], name: str = FIRST) -> dict[str, Any]:
    found: dict[str, Any] = data["models"][name]
    return found


def _best(data: dict[str, Any], name: str = FIRST) -> dict[str, Any]:
    model = _model(data, name)
    found: dict[str, Any] = model["steps"][model["best"]]
    return found


def fastest_plain(model: dict[str, Any]) -> float | None:
    """Seconds of the fastest of our plain steps; None where none was measured."""
    plain = {**model.get("plain", {}), "compiled": model.get("compiled", {}).get("compiled 1")}
    plain = {name: seconds for name, seconds in plain.items() if seconds is not None}
    names = ("compiled", "lean captured", "captured", "lean eager", "eager")
    return min((plain[name] for name in names if name in plain), default=None)


def plain_share(data: dict[str, Any], name: str = FIRST) -> float | None:
    """Reading the weights at the measured bandwidth, as a share of our fastest plain step."""
    model = _model(data, name)
    seconds = fastest_plain(model)
    if seconds is None:
        return None
    return share_of_bandwidth(model["read_bytes"], data["ceilings"]["copy"]["rate"], seconds)


TARGETS = (
    Target(
        "tests on the GPU that failed",
        # Those that did not come to their end say nothing.
        lambda d: d["tests"]["failed"] if d["tests"]["ended"] and d["tests"]["passed"] else None,
        0,
        True,
    ),
    Target(f"plain step of {FIRST}: share of the bandwidth", plain_share, 0.80, False),
    Target(
        "plain decoding against transformers' generate, eager, times as fast",
        lambda d: _model(d)["generate"]["times_as_fast"],
        5.0,
        False,
    ),
    Target(
        "plain decoding against transformers' generate, compiled, times as fast",
        lambda d: _model(d)["compiled generate"]["times_as_fast"],
        1.0,
        False,
    ),
    Target(
        "64 tokens behind 1,024, in plain steps", lambda d: cost_at(_best(d), 64, 1024), 1.10, True
    ),
    Target("64 tokens behind 16,384", lambda d: cost_at(_best(d), 64, 16384), 1.25, True),
    Target("128 tokens behind 1,024", lambda d: cost_at(_best(d), 128, 1024), 1.25, True),
    Target(
        "host share of a lookahead step",
        lambda d: _model(d)["host"]["lookahead"]["host_share"],
        0.05,
        True,
    ),
    Target(
        "more memory than plain decoding behind 4,096 tokens, of the model's",
        lambda d: _model(d)["memory"]["extra_used_share"],
        0.02,
        True,
    ),
    Target("seconds to capture all widths", lambda d: _best(d)["capture_total"], 10.0, True),
    Target(
        "end to end on the demo: lookahead, times as fast as plain decoding",
        lambda d: _model(d, "demo")["end to end"]["low"],
        1.0,
        False,
    ),
    Target(
        "end to end on stories260K",
        lambda d: _model(d, "stories260K")["end to end"]["low"],
        1.0,
        False,
    ),
)


def judged(data: dict[str, Any]) -> list[dict[str, Any]]:
    """All wishes against what was measured."""
    return [target.judge(data) for target in TARGETS]


def lines(data: dict[str, Any]) -> list[str]:
    """The summary for people: machine, models, wishes."""
    found = [f"{data['facts'].get('gpu', data['facts']['device'])}, {data['seconds']:.0f} s"]
    for name, ceiling in data.get("ceilings", {}).items():
        found.append(f"  {name}: {ceiling['rate'] / 1e12:.3g} T/s")
    for name, model in data.get("models", {}).items():
        found += _lines_of(name, model, data)
    found.append("")
    for row in data["targets"]:
        sign = "at most" if row["most"] else "at least"
        value = f"{row['value']:.3g}" if "value" in row else "-"
        missed = f" by {row['off']:.0%}" if row["state"] == STATES[1] else ""
        found.append(f"{row['state']}{missed}: {row['what']}: {value} ({sign} {row['limit']:g})")
    bad = {n: p for n, p in data["parts"].items() if p["state"] != "done"}
    found += ["", f"{len(data['parts']) - len(bad)} of {len(data['parts'])} parts done"]
    return found + [f"  {name}: {p['state']}: {p.get('reason', '')}" for name, p in bad.items()]


def _lines_of(name: str, model: dict[str, Any], data: dict[str, Any]) -> list[str]:
    found = [f"{name}, {model.get('parameters', 0) / 1e9:.2f} G parameters"]
    plain = {k: v for k, v in model.get("plain", {}).items() if "device" not in k}
    if plain:
        steps = ", ".join(f"{arm} {1e3 * seconds:.2f}" for arm, seconds in plain.items())
        found.append(f"  plain step, ms: {steps}")
        share = plain_share(data, name) if "copy" in data.get("ceilings", {}) else None
        if share is not None:
            speed = 1 / (fastest_plain(model) or 1)
            found.append(f"  {speed:.0f} tok/s, {share:.0%} of the bandwidth")
    for backend, steps in model.get("steps", {}).items():
        for context, row in zip(steps.get("contexts", []), steps.get("seconds", []), strict=True):
            costs = " ".join(f"{each / row[0]:.2f}" for each in row)
            found.append(f"  {backend}, {context}: {1e3 * row[0]:.2f} ms; {costs}")
    host = model.get("host", {}).get("lookahead")
    if host:
        found.append(f"  host {host['host_share']:.1%} of {1e3 * host['step_seconds']:.2f} ms")
    ends = model.get("end to end", {})
    if "times_as_fast" in ends:
        between = f"{ends['low']:.2f} to {ends['high']:.2f}"
        found.append(f"  end to end {ends['times_as_fast']:.2f} times as fast ({between})")
    texts = model.get("divergence", {})
    if "different" in texts:
        found.append(f"  {texts['different']} of {texts['texts']} bf16 texts differ")
    return found
