"""Which form of a weight is fastest here: they are raced where a shape is first met.

That differs by processor, precision, shape and number of rows: on one AMD EPYC a transposed matrix
takes half as long again for a single row as a plain one, on another it is the other way round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from .cpu_formats import FORMS, Form, computed_in, forms_of
from .int8 import holds_int8

ONE, MANY = 1, 16
"""Rows of a plain step, and those by which forms show how fast they are for prompts."""
ROWS = (ONE, 4, 8, MANY)
"""Rows that forms are raced at: by all of them goes what steps of other widths cost."""
RACE_SECONDS = 0.3
"""Of a load, for all races: what is not raced then has the form that is usually fastest."""
RACE_BYTES = 1 << 23
"""Of a weight that is raced, and of its copies together: more than a core's own caches hold."""
CACHE_BYTES = 3 << 24
"""Read between passes, so that raced weights come from memory as in a step: from a cache that cores
share, those of float32 come twice as fast.  Weights of a whole model drive out one another."""
RACE_PASSES = 3
MARGIN = 0.1
"""Of a single row's time that one form for all rows may cost."""
PROMPT_MARGIN = 0.2
"""Of steps' time that a form which is faster for prompts may cost."""
Raced = Mapping[tuple[torch.dtype, tuple[int, ...], str], Sequence[Form]]
"""Weights by their type, shape and form."""


class Races:
    """The forms of products by shape, and how fast they were.

    Args:
        known: microseconds of earlier races on this processor, by `key` and form.
        seconds: for all races together; None for `RACE_SECONDS`.

    Attributes:
        known: as given, and those since.
        run: races run here.
    """

    def __init__(
        self, known: dict[str, dict[str, float]] | None = None, seconds: float | None = None
    ) -> None:
        self.known = {} if known is None else known
        self.run = 0
        self._left = RACE_SECONDS if seconds is None else seconds
        self._taken: list[list[float]] = []  # microseconds, by `ROWS`
        # Weights that have one form only, by type and shape.
        self._single: dict[tuple[torch.dtype, tuple[int, ...]], list[Form]] = {}

    def choose(
        self, dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]
    ) -> tuple[str, str]:
        """Which of the `possible` forms of a weight [out, in] is for a single row, and for more.

        They are one where it is hardly slower for a single row, so that the weight is held once.
        Weights of 16 bits always are: who asks for these wants to hold less.
        """
        times = self._times(dtype, shape, forms_of(dtype))
        if not times and self._left > 0.0:
            self._race_copies(dtype, shape)
            times = self._times(dtype, shape, forms_of(dtype))
        if not times:
            return usual(dtype, shape, forms)
        one, drafted = times[ONE], [by for rows, by in times.items() if ONE < rows < MANY]
        # Beside each form the one for a single row, and what steps take with both.
        fastest = min(forms, key=one.__getitem__)
        firsts = {form: form if dtype.itemsize == 2 else fastest for form in forms}
        steps = {
            form: one[first] + sum(by[form] for by in drafted) for form, first in firsts.items()
        }
        most = (1.0 + PROMPT_MARGIN) * min(steps.values())
        near = [form for form in forms if steps[form] <= most]
        best = min(near, key=times[MANY].__getitem__)
        first = firsts[best]
        if one[best] <= (1.0 + MARGIN) * one[first]:
            first = best
        self._taken.append([by[first if rows == ONE else best] for rows, by in times.items()])
        return first, best

    def count(self, form: Form, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Let `spread` count a weight [out, in] that has no other form."""
        self._single.setdefault((dtype, tuple(shape)), []).append(form)

    def watch_only(self, model: nn.Module) -> None:
        """Let `spread` count a model's linear layers and nothing else: a forward that is not ours
        multiplies with them as they are.  Where weights are packed, the others say nothing."""
        self._taken.clear()
        self._single.clear()
        if holds_int8(model) or getattr(model, "quantization_method", None) is not None:
            return
        for module in model.modules():
            if type(module) is nn.Linear:
                weight = module.weight.detach()
                self.count(FORMS["rows"](weight), weight.dtype, weight.shape)

    def spread(self) -> dict[int, float]:
        """How many times as long as those of one row products of more rows take, by rows, over all
        weights; {} if no race has shown."""
        names = {weight: forms[0].weight.form for weight, forms in self._single.items()}
        known = all(self._times(*weight, [name]) for weight, name in names.items())
        if not known and self._left > 0.0:
            raced = {(*weight, name): self._single[weight] for weight, name in names.items()}
            self._race({of: forms[: _count_of(*of[:2])] for of, forms in raced.items()})
        taken = [*self._taken]
        for weight, name in names.items():
            times = self._times(*weight, [name])
            if times:
                taken += [[by[name] for by in times.values()]] * len(self._single[weight])
        if not taken:
            return {}
        one, *more = map(sum, zip(*taken, strict=True))
        return {rows: time / one for rows, time in zip(ROWS[1:], more, strict=True)}

    def _times(
        self, dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]
    ) -> dict[int, dict[str, float]]:
        """Microseconds by rows and form; empty where some are not known."""
        found = {rows: self.known.get(key(dtype, shape, rows), {}) for rows in ROWS}
        return found if all({*forms} <= {*by} for by in found.values()) else {}

    def _race_copies(self, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Race weights of a shape in all forms of their type; of a head, as many rows as do."""
        most = max(RACE_BYTES // (shape[1] * dtype.itemsize), 1)
        part = min(shape[0], most), shape[1]
        began = time.perf_counter()
        copies = {
            (dtype, tuple(shape), form): [
                FORMS[form](torch.ones(part, dtype=dtype)) for _ in range(_count_of(dtype, part))
            ]
            for form in forms_of(dtype)
        }
        self._left -= time.perf_counter() - began
        self._race(copies, torch.ones(CACHE_BYTES // 4), part[0] / shape[0])

    @torch.inference_mode()
    def _race(self, raced: Raced, others: Tensor | None = None, share: float = 1.0) -> None:
        """Find the microseconds that a product takes, in its shortest pass over some weights.

        Args:
            raced: the weights.
            others: fill the processor's caches before each pass.
            share: of a weight that each of them is.
        """
        began = time.perf_counter()
        for _ in range(RACE_PASSES):
            for rows in ROWS:
                if others is not None:
                    others.sum()
                for (dtype, shape, form), weights in raced.items():
                    x = torch.ones((rows, shape[1]), dtype=computed_in(dtype))
                    taken = round(1e6 * _seconds(weights, x) / share, 1)
                    times = self.known.setdefault(key(dtype, shape, rows), {})
                    times[form] = min(times.get(form, math.inf), taken)
            if time.perf_counter() - began > self._left:  # large weights
                break
        self.run += 1
        self._left -= time.perf_counter() - began


def _seconds(weights: Sequence[Form], x: Tensor) -> float:
    """What a product takes; the first one brings the code of the form back, which a step has at
    hand."""
    for number, weight in enumerate(weights):
        if number < 2:
            start = time.perf_counter()
        weight(x, None)
    return (time.perf_counter() - start) / max(len(weights) - 1, 1)


def _count_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """How many weights of a shape are raced together."""
    return max(RACE_BYTES // (math.prod(shape) * dtype.itemsize), 2)


def key(dtype: torch.dtype, shape: Sequence[int], rows: int) -> str:
    """The name of a race."""
    return f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]} {rows}"


def usual(dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]) -> tuple[str, str]:
    """Which of some forms are usually fastest, for a single row and for more."""
    plain = "columns" if shape[0] > shape[1] else "rows"
    one = more = ["packed", "halves"]
    if dtype == torch.float32:
        one, more = ["halves", plain], ["halves", "packed", plain]

    def first(best: Sequence[str]) -> str:
        return next(form for form in (*best, *forms) if form in forms)

    return first(one), first(more)
