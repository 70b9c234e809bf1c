"""Choose by measurement how products are computed: by tiles of `triton_product`, or by the library.

Each shape is measured once on a machine; its times are saved with those of steps.
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
"""The seconds of a product, by the method that computed it and by its number of rows."""
ROWS = (1, 64)
"""The numbers of rows that are measured: those of a plain step and of a wide one."""
MARGIN = 1.03
"""The library is kept if the fastest tiles take more than this many times as long."""
SECONDS = 0.2
"""The time for measuring one shape."""
TOLERANCE = 2e-2
"""The largest difference from the library's result, as a ratio of norms."""
_UNCACHED = 1 << 28
"""The bytes of weights that are multiplied one after the other, so that each of them is read from
memory, as in a step."""


def choose_products(
    products: Iterable[object],
    times: Times,
    prepare: Prepare,
    machine: str,
    clock: Callable[[], float] = time.perf_counter,
) -> list[str]:
    """Let the fastest method compute each product of few rows; return notices about failed methods.

    Args:
        products: those of a model; only instances of `SkinnyProduct` change.
        times: saved times, to which new ones are added.
        prepare: turns a function that launches products into one that also waits for the device.
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
        methods = {f"{name} by tiles of {block}": block for block in BLOCKS}
        library = f"{name} by the library"
        if not {library, *methods} <= times.keys():
            new_times, lines = _race(group, {library: None, **methods}, prepare, clock)
            times.update(new_times)
            notices += lines
        ours = {method: times[method] for method in methods if method in times}
        best = fastest(ours, None if group[0].alike else times.get(library))
        for product in group:
            product.block = None if best is None else methods[best]
            product.alike &= best is not None
    return notices


def fastest(
    ours: Mapping[str, Mapping[int, float]], library: Mapping[int, float] | None
) -> str | None:
    """Return the fastest of our methods, or None if the library is clearly faster."""

    def total(method: str) -> float:
        return sum(ours[method][rows] / (library[rows] if library else 1.0) for rows in ROWS)

    best = min(ours, key=total, default=None)
    return None if best and library and total(best) > MARGIN * len(ROWS) else best


def _race(
    group: Sequence[SkinnyProduct],
    methods: Mapping[str, int | None],
    prepare: Prepare,
    clock: Callable[[], float],
) -> tuple[dict[str, dict[int, float]], list[str]]:
    """Return the times of all methods that give right results, and a notice about each other
    one."""
    first, times = group[0], defaultdict[str, dict[int, float]](dict)
    inputs = [_numbers(rows, first.weight) for rows in ROWS]
    with ThreadPoolExecutor(1 if INTERPRETED else None) as pool:
        # Compiling takes some seconds at the first load on a machine.
        for block in methods.values():
            for x in inputs:
                pool.submit(_multiplied, first, block, x)
    works: dict[tuple[str, int], Work] = {}
    notices = []
    for method, block in methods.items():
        made = _works(group, block, inputs, prepare)
        if isinstance(made, str):
            notices.append(f"no product of {method.partition(': ')[2]}: {made}")
        else:
            works |= {(method, rows): work for rows, work in zip(ROWS, made, strict=True)}
    for (method, rows), seconds in race(works, SECONDS, clock).items():
        times[method][rows] = seconds
    return times, notices


def _works(
    group: Sequence[SkinnyProduct], block: int | None, inputs: Sequence[Tensor], prepare: Prepare
) -> list[Work] | str:
    """Return a function to time for each input, or the reason why a method cannot be used."""
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
    """Return the `prepare` of `choose_products` for a GPU, and the machine's name."""
    # Captured, since launching a small product takes the host longer than computing it.
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
