"""Which form of a weight is fastest here: they are raced where a shape is first met.

That differs by processor, precision, shape and number of rows: on one AMD EPYC a transposed matrix
takes half as long again for a single row as a plain one, on another it is the other way round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from .cpu_formats import AS_IT_IS, FORMS, Form, computed_in, forms_of
from .int8 import holds_int8
from .release import give_back

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
share, those of float32 come twice as fast."""
RACE_PASSES = 3
UNCHANGED = "rows"
"""The form of a weight that a forward of transformers multiplies with."""
MARGIN = 0.1
"""Of a single row's time that one form for all rows may cost."""
PROMPT_MARGIN = 0.2
"""Of steps' time that a form which is faster for prompts may cost."""


class Watched(NamedTuple):
    """A weight [out, in] whose one form is timed where it is."""

    name: str  # of the form
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the weight."""
        return math.prod(self.shape) * self.dtype.itemsize

    def key(self, rows: int) -> str:
        """The name of its race."""
        return key(self.dtype, self.shape, rows)

    def input(self, rows: int) -> Tensor:
        """What is multiplied with it."""
        dtype = self.dtype if self.dtype.is_floating_point else torch.float32
        return torch.ones((rows, self.shape[1]), dtype=dtype)


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
        # Of a forward that was given up, they are to go.
        self._watched: dict[Watched, WeakSet[Form]] = {}
        self._unchanged: list[Form] = []  # else they would go at once

    def choose(
        self, dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]
    ) -> tuple[str, str]:
        """Which of the `possible` forms of a weight [out, in] is for a single row, and for more.

        They are one where it is hardly slower for a single row, so that the weight is held once.
        Weights of 16 bits always are: who asks for these wants to hold less.
        """
        times = {rows: self._times(dtype, shape, rows) for rows in ROWS}
        if not all(times.values()):
            return usual(dtype, shape, forms)
        one, drafted = times[ONE], [by for rows, by in times.items() if ONE < rows < MANY]
        # Beside each form the one for a single row, and what steps take with both.
        firsts = {
            form: min(_beside(form, forms, dtype.itemsize == 2), key=one.__getitem__)
            for form in forms
        }
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

    def watch(
        self, form: Form, name: str, shape: Sequence[int], dtype: torch.dtype = torch.int8
    ) -> None:
        """Let `spread` count a weight, [out, in], which has no other form, for as long as that is
        there."""
        self._watched.setdefault(Watched(name, dtype, tuple(shape)), WeakSet()).add(form)

    def watch_only(self, model: nn.Module) -> None:
        """Let `spread` count a model's linear layers and nothing else: a forward that is not ours
        multiplies with them as they are.  Where weights are packed, the others say nothing."""
        self._taken.clear()
        self._watched.clear()
        if holds_int8(model) or getattr(model, "quantization_method", None) is not None:
            return
        for module in model.modules():
            if type(module) is nn.Linear:
                weight = module.weight.detach()
                form = FORMS[UNCHANGED](weight)
                self._unchanged.append(form)
                self.watch(form, UNCHANGED, weight.shape, weight.dtype)

    def spread(self) -> dict[int, float]:
        """How many times as long as those of one row products of more rows take, by rows, over all
        weights; {} if no race has shown."""
        taken = self._taken + [
            times
            for watched, forms in self._watched.items()
            for times in [self._times_of(forms, watched)] * len(forms)
            if times is not None
        ]
        if not taken:
            return {}
        one, *more = map(sum, zip(*taken, strict=True))
        return {rows: time / one for rows, time in zip(ROWS[1:], more, strict=True)}

    def _times_of(self, forms: Iterable[Form], watched: Watched) -> list[float] | None:
        """Microseconds of a watched weight by `ROWS`; None where there was no time to find out."""
        name = watched.name
        names = {rows: watched.key(rows) for rows in ROWS}
        if not all(name in self.known.get(of, ()) for of in names.values()):
            if self._left <= 0.0:
                return None
            some = [*islice(forms, max(RACE_BYTES // watched.nbytes, 2))]
            evict = partial(self._read_others, forms)
            for rows, of in names.items():
                found = self._run({name: some}, watched.input(rows), evict)
                self.known.setdefault(of, {}).update(found)
            self.run += 1
            give_back()  # what products took
        return [self.known[of][name] for of in names.values()]

    def _times(self, dtype: torch.dtype, shape: Sequence[int], rows: int) -> dict[str, float]:
        """Microseconds by form; empty where there was no time to find out."""
        name = key(dtype, shape, rows)
        if {*self.known.get(name, ())} != {*forms_of(dtype)}:
            if self._left <= 0.0:
                return {}
            self._race(dtype, shape)
        return self.known[name]

    def _race(self, dtype: torch.dtype, shape: Sequence[int]) -> None:
        row = shape[1] * dtype.itemsize
        part = min(shape[0], max(RACE_BYTES // row, 1)), shape[1]  # of a head, as many rows as do
        copies = max(RACE_BYTES // (part[0] * row), 2)
        began = time.perf_counter()
        weights = {
            form: [FORMS[form](torch.ones(part, dtype=dtype)) for _ in range(copies)]
            for form in forms_of(dtype)
        }
        other = torch.ones(CACHE_BYTES // 4)
        self._left -= time.perf_counter() - began
        for rows in ROWS:
            x = torch.ones((rows, shape[1]), dtype=computed_in(dtype))
            found = self._run(weights, x, other.sum)
            whole = shape[0] / part[0]
            self.known[key(dtype, shape, rows)] = {
                form: round(time * whole, 1) for form, time in found.items()
            }
        self.run += 1

    @torch.inference_mode()
    def _run(
        self, weights: Mapping[str, Sequence[Form]], x: Tensor, evict: Callable[[], object]
    ) -> dict[str, float]:
        """Microseconds that a product takes in each form, in its shortest pass over some copies.

        The first copy brings the code of the form back, which a step has at hand; `evict` fills
        the processor's caches with something else.
        """
        began, found = time.perf_counter(), dict.fromkeys(weights, math.inf)
        for _ in range(RACE_PASSES):
            evict()
            for form, copies in weights.items():
                for number, weight in enumerate(copies):
                    if number < 2:
                        start = time.perf_counter()
                    weight(x, None)
                seconds = (time.perf_counter() - start) / max(len(copies) - 1, 1)
                found[form] = min(found[form], round(1e6 * seconds, 1))
        self._left -= time.perf_counter() - began
        return found

    def _read_others(self, raced: Iterable[Form]) -> None:
        """Read other watched weights than those that are raced: all are in memory by now, and
        anything else would come on top of them."""
        left = CACHE_BYTES
        for watched, forms in self._watched.items():
            for form in forms if forms is not raced else ():
                if left > 0:
                    form(watched.input(1), None)
                    left -= watched.nbytes


def _beside(form: str, forms: Collection[str], once: bool) -> Collection[str]:
    """The forms that a weight may have for a single row where it has this one for more; `once` is
    whether it is held once."""
    if not once:
        return forms
    return [each for each in forms if {each, form} <= AS_IT_IS] or [form]


def key(dtype: torch.dtype, shape: Sequence[int], rows: int) -> str:
    """The name of a race."""
    return f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]} {rows}"


def usual(dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]) -> tuple[str, str]:
    """Which of some forms are usually fastest, for a single row and for more."""
    plain = "columns" if shape[0] > shape[1] else "rows"
    if dtype == torch.float32:
        one, more = ["halves", plain], ["halves", "packed", plain]
    else:
        one, more = ["packed", "halves", "rows"], ["packed", "halves", "widened"]

    def first(best: Iterable[str]) -> str:
        return next(form for form in (*best, *forms) if form in forms)

    return first(one), first(more)
