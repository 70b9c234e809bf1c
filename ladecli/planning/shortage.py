"""Why no such GPUs hold a model: what takes the memory, and what would help."""

from __future__ import annotations

import math
from dataclasses import replace

from .. import memory
from ..memory import LEAST_CONTEXT, smaller_forms
from ..split import evenly
from .cost import Setup, uneven
from .outlook import fewest
from .request import MOST


def too_large(model: str, gpu: str, setup: Setup, gpus: int) -> str:
    """Why a model fits in no mode on so many GPUs, and what would help, in one line.

    Args:
        model: its name.
        gpu: the name of the kind of GPU.
        setup: what is planned for.
        gpus: the most that there are to be.
    """
    most = _most(setup, gpus)
    each = memory.estimate(evenly(setup.shape, most), context=setup.context, width=setup.budget)
    where = f"{model} needs {size(each.total)}"
    if most > 1:
        where = f"{model} split over {most} × {gpu} needs {size(each.total)} on each"
    line = (
        f"{where}: {size(each.weights)} of weights in {setup.shape.weights}, {size(each.cache)} of"
        f" keys for {setup.context:,} tokens of context, {size(each.step)} for a step of"
        f" {setup.budget} tokens; one {gpu} has {size(setup.room)} that can be used"
    )
    least = fewest(setup)
    helps = _helps(setup, gpus)
    found = [line, *_numbers(setup, most, gpus, least), *helps]
    if least is None and not helps:
        found.append("take a GPU with more memory, or a smaller model")
    return "; ".join(found)


def _numbers(setup: Setup, most: int, gpus: int, least: int | None) -> list[str]:
    """Which numbers of GPUs would do, or why none does.

    Args:
        setup: what is planned for.
        most: GPUs that the model can be split over, of those that there are to be.
        gpus: that there are to be.
        least: the fewest that hold it, if any do.
    """
    problem = uneven(setup.shape, gpus)
    said = [] if problem is None else [problem]
    if least is not None:
        return [*said, f"the smallest number that fits: {least}"]
    last = _most(setup, MOST)
    if last > most:
        return [*said, f"even {last}, the most that it can be split over, are too few"]
    if problem is not None:
        return [f"it can be split over no more: {problem}"]
    following = uneven(setup.shape, 2 * last)
    return [] if following is None else [f"no larger number helps: {following}"]


def _most(setup: Setup, gpus: int) -> int:
    """The most GPUs, up to so many, that a model can be split over."""
    return next(n for n in range(gpus, 0, -1) if uneven(setup.shape, n) is None)


def _helps(setup: Setup, gpus: int) -> list[str]:
    """Options by which a model fits on so many GPUs."""
    found = []
    if (context := _shorter(setup, gpus)) is not None:
        found.append(f"--context {context} fits on {_most(setup, gpus)}")
    for flag, form in smaller_forms(setup.shape, "cuda"):
        least = fewest(replace(setup, shape=form))
        if least is not None and least <= gpus:
            return [*found, f"{flag} fits on {least}"]
    return found


def _shorter(setup: Setup, gpus: int) -> int | None:
    """A round context, shorter than what is planned for, that fits on so many GPUs.

    None where there is none that a model is of use with.
    """
    own = evenly(setup.shape, _most(setup, gpus))

    def fits(context: int) -> bool:
        need = memory.estimate(own, context=context, width=setup.budget)
        return need.total <= setup.room

    if setup.context <= LEAST_CONTEXT or not fits(LEAST_CONTEXT):
        return None
    low, high = LEAST_CONTEXT, setup.context
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    # Two digits are as much as an estimate is worth.
    unit = int(10 ** (len(str(low)) - 2))
    return max(low - low % unit, LEAST_CONTEXT)


def size(number: float) -> str:
    """A number of bytes, of whole models with any context."""
    if not math.isfinite(number) or number < 0.9995e12:
        return memory.told(number)
    return f"{number / 1e12:.3g} TB"
