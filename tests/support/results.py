"""Results with numbers chosen by tests, in place of measured ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

from ladecli.bench.result import SCHEMA, Method, Result, Run

MACHINE = {
    "device": "Test CPU", "kind": "cpu", "memory": 8 << 30, "threads": 1, "system": "Linux x86_64",
    "driver": None, "versions": {"lade": "0.1.0", "torch": "2.13.0"},
}  # fmt: skip
MODEL = {"name": "demo", "parameters": 3.15e6, "weights": "float32", "attention": "sdpa"}
CATEGORIES = ("chat", "code", "maths")
PLAIN_STEP = 0.003
SPEEDS = {
    "autoregressive": 1.0, "jacobi": 0.95, "prompt-lookup": 1.1, "paper": 0.8,
    "lookahead": 1.5, "hf": 0.8, "hf-prompt-lookup": 0.85,
}  # fmt: skip


def run(method: str, row: str, category: str, **changes: object) -> Run:
    """A run of 32 tokens in plain steps, with the fields of `changes`."""
    fields: dict[str, object] = {
        "contender": method, "row": row, "category": category, "turn": 1, "repeat": 1,
        "prompt_tokens": 20,
        "prompt_digest": digest("prompt " + row), "tokens": 32, "first_tokens": 1,
        "steps": 32, "fed": 31, "first_seconds": 0.01, "step_seconds": (PLAIN_STEP,) * 31,
        "accepted": {}, "peak_memory": 300 << 20, "reason": "length", "digest": digest(row),
    }  # fmt: skip
    return Run(**{**fields, **changes})


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result(
    speeds: Mapping[str, float] = SPEEDS,
    *,
    rows: int = 9,
    repeats: int = 3,
    noise: float = 0.03,
    seed: int = 0,
    **changes: object,
) -> Result:
    """A result of methods by their speed-up over plain decoding; `changes` are other fields.

    The noise is the relative standard deviation of a run's time.
    """
    random_ = random.Random(seed)
    runs = []
    for repeat in range(1, repeats + 1):
        for number in range(rows):
            row_factor = 0.8 + 0.4 * (number / max(rows - 1, 1))
            for name, speed in speeds.items():
                steps = max(round(32 / max(speed * row_factor, 1.0)), 2)
                seconds = 31 * PLAIN_STEP / speed / row_factor
                seconds *= max(random_.gauss(1.0, noise), 0.1)
                if name == "autoregressive":
                    steps = 32
                runs.append(
                    run(
                        name, f"row-{number}", CATEGORIES[number % len(CATEGORIES)],
                        repeat=repeat, steps=steps,
                        step_seconds=(seconds / (steps - 1),) * (steps - 1),
                        fed=None if name.startswith("hf") else 8 * (steps - 1),
                        accepted={"context": 32 - steps} if steps < 32 else {},
                    )
                )  # fmt: skip
    fields: dict[str, object] = {
        "schema": SCHEMA, "created": "2026-01-02T03:04:05+00:00", "seconds": 60.0,
        "interrupted": False, "reference": "autoregressive" if "autoregressive" in speeds else None,
        "machine": MACHINE, "model": MODEL,
        "conditions": {
            "prompts": "builtin", "rows": rows, "repeat": repeats, "max_new_tokens": 32,
            "template": True, "sampling": {}, "profile": "cpu", "sweep": {},
        },
        "contenders": tuple(
            Method(name, name, {"window": 5} if name == "lookahead" else {}) for name in speeds
        ),
        "runs": tuple(runs),
    }  # fmt: skip
    return Result(**{**fields, **changes})
