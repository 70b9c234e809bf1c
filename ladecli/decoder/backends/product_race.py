"""Who multiplies, by measurement: tiles of `triton_product`, or the library.

A race takes place once for a shape on a machine: its times are kept with those of steps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import triton
from torch import Tensor

from ..faults import check_alive, reason_of
from .cuda_graphs import GraphCapture
from .measuring import race
from .triton_attention_kernel import INTERPRETED
from .triton_product import BLOCKS, SkinnyProduct

Work = Callable[[], object]
Prepare = Callable[[Callable[[], None]], Work]
Times = MutableMapping[str, Mapping[int, float]]
"""Seconds by what computed a product, and by its rows."""
ROWS = (1, 64)
"""Those of a plain step and a wide one."""
NEAR = 1.03
"""The library stays where it takes less time even by this factor."""
SECONDS = 0.2
"""For the race of a shape."""
TOLERANCE = 2e-2
"""Norm of the difference from the library's result over that of the result."""
_UNCACHED = 1 << 28
"""Bytes of weights in a row, so that each comes from memory as in a step."""


def choose_products(
    products: Iterable[object],
    times: Times,
    prepare: Prepare,
    machine: str,
    clock: Callable[[], float] = time.perf_counter,
) -> list[str]:
    """Have products of few rows computed by what is fastest; return notices about what failed.

    Args:
        products: of a model; those that are no `SkinnyProduct` stay as they are.
        times: known ones, to which others are added.
        prepare: makes work that computes products and waits for the device, of some that computes
            them alone.
        machine: a name of this machine, for the keys of `times`.
        clock: returns the time in seconds.
    """
    groups: defaultdict[str, list[SkinnyProduct]] = defaultdict(list)
    for product in products:
        if isinstance(product, SkinnyProduct):
            (outputs, inputs), kind = product.weight.shape, product.weight.dtype
            groups[f"{machine}: {outputs} x {inputs} in {kind}"].append(product)
    notices: list[str] = []
    for name, group in groups.items():
        ways = {f"{name} by tiles of {block}": block for block in BLOCKS}
        library = f"{name} by the library"
        if not {library, *ways} <= times.keys():
            found, lines = _race(group, {library: None, **ways}, prepare, clock)
            times.update(found)
            notices += lines
        ours = {way: times[way] for way in ways if way in times}
        best = fastest(ours, None if group[0].alike else times.get(library))
        for product in group:
            product.block = None if best is None else ways[best]
            product.alike &= best is not None
    return notices


def fastest(
    ours: Mapping[str, Mapping[int, float]], library: Mapping[int, float] | None
) -> str | None:
    """Return the fastest of our ways, or None if the library's times are clearly better."""

    def total(way: str) -> float:
        return sum(ours[way][rows] / (library[rows] if library else 1.0) for rows in ROWS)

    best = min(ours, key=total, default=None)
    return None if best and library and total(best) > NEAR * len(ROWS) else best


def _race(
    group: Sequence[SkinnyProduct],
    ways: Mapping[str, int | None],
    prepare: Prepare,
    clock: Callable[[], float],
) -> tuple[dict[str, dict[int, float]], list[str]]:
    """Return the times of all ways to multiply but those that fail or are wrong, and why these
    are."""
    first, found = group[0], defaultdict[str, dict[int, float]](dict)
    inputs = [_numbers(rows, first.weight) for rows in ROWS]
    with ThreadPoolExecutor(1 if INTERPRETED else None) as pool:
        # To compile them takes a moment, on a machine's first load.
        for block in ways.values():
            for x in inputs:
                pool.submit(_multiplied, first, block, x)
    works: dict[tuple[str, int], Work] = {}
    notices = []
    for way, block in ways.items():
        made = _works(group, block, inputs, prepare)
        if isinstance(made, str):
            notices.append(f"no product of {way.partition(': ')[2]}: {made}")
        else:
            works |= {(way, rows): work for rows, work in zip(ROWS, made, strict=True)}
    for (way, rows), seconds in race(works, SECONDS, clock).items():
        found[way][rows] = seconds
    return found, notices


def _works(
    group: Sequence[SkinnyProduct], block: int | None, inputs: Sequence[Tensor], prepare: Prepare
) -> list[Work] | str:
    """Return work for each input, or why a way to multiply cannot be taken."""
    first = group[0]
    several = group[: max(1, _UNCACHED // first.weight.nbytes)]
    try:
        for x in inputs:
            expected = _multiplied(first, None, x).float()
            off = _multiplied(first, block, x).float() - expected
            if not off.norm() <= TOLERANCE * expected.norm():
                return "its result was wrong"
        return [prepare(partial(_multiply_all, several, block, x)) for x in inputs]
    except Exception as error:
        check_alive(first.weight.device, error)
        return reason_of(error)


def on_gpu(device: torch.device) -> tuple[Prepare, str]:
    """Return how work is prepared on a GPU, and what it is called."""
    # A launch takes the host longer than a small product the device.
    capture = GraphCapture(device)

    def prepare(work: Callable[[], None]) -> Work:
        replay = capture(work)

        def run() -> None:
            replay()
            torch.cuda.synchronize(device)

        return run

    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    return prepare, f"{torch.cuda.get_device_name(device)}, {versions}"


def _numbers(rows: int, weight: Tensor) -> Tensor:
    generator = torch.Generator(weight.device).manual_seed(rows)
    shape = rows, weight.shape[1]
    return torch.randn(shape, generator=generator, device=weight.device).to(weight.dtype)


def _multiplied(product: SkinnyProduct, block: int | None, x: Tensor) -> Tensor:
    return product.by_library(x) if block is None else product.by_tiles(x, block)


def _multiply_all(products: Iterable[SkinnyProduct], block: int | None, x: Tensor) -> None:
    for product in products:
        _multiplied(product, block, x)
