"""`lade plan`: what more GPUs would bring, estimated by a cost model, and when they stop paying."""

from __future__ import annotations

import json as jsons
import sys
from typing import TYPE_CHECKING

from . import profiles
from .errors import UsageError
from .planning import cost, gpus, growth, links, shortage, typical
from .planning.gpus import Gpu
from .planning.outlook import look
from .planning.words import Subject
from .shape import FULL
from .terminal import Terminal

if TYPE_CHECKING:
    from .planning.request import PlanRequest
    from .shape import ModelShape


def run(request: PlanRequest) -> int:
    """Estimate lookahead and tensor parallelism, and print both.

    Args:
        request: what was asked for.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: an option is out of range or unknown, or the model fits on no such GPUs.
        LoadError, UnsupportedModelError: the model's configuration cannot be read or decoded.
    """
    request.check()
    terminal = Terminal(request.color)
    # What can be refused at once is refused before a model is looked for.
    gpu = gpus.named(request.gpu) if request.gpu is not None else None
    grown = growth.growth_of(request.text)
    if gpu is None:
        gpu = _here(terminal)
    fabric = links.fabric(gpu.name, request.per_node, request.counts, request.link)
    name, shape, notes = _model(request, gpu, terminal)
    settings = profiles.choose(gpu.profile, shape)
    budget = request.lookahead(settings.lookahead).step_limit
    given = request.budget is not None
    kind = settings.origins["budget"].partition(":")[0]
    origin = "as asked for" if given else f"{kind}, profile {gpu.name}"
    setup = cost.Setup(
        shape,
        gpu.hardware.rates_for(shape.compute),
        gpu.memory,
        budget,
        request.context,
        fabric,
        grown,
    )
    outlook = look(setup, request.counts, request.gpus)
    named = request.model is not None or request.model_size is not None
    subject = Subject(name, gpu, origin, notes, named)
    if outlook.best() is None:
        most = request.gpus or request.counts[-1]
        raise UsageError(shortage.too_large(name, gpu.name, setup, most))
    if request.json:
        from .planning.as_json import as_object

        print(jsons.dumps(as_object(subject, outlook), ensure_ascii=False))
        return 0
    from .planning.report import show

    show(subject, outlook, terminal.console(sys.stdout))
    return 0


def _here(terminal: Terminal) -> Gpu:
    """The kind of GPU that this machine has."""
    with terminal.progress("looking at this machine"):
        from .device import detect

        device = detect()
    return gpus.here(device)


def _model(
    request: PlanRequest, gpu: Gpu, terminal: Terminal
) -> tuple[str, ModelShape, tuple[str, ...]]:
    """Name and shape of the model, and what is to be said of it.

    A size that is typed comes before a model that the environment or the config file names.
    """
    if request.model is None or request.model_size is not None:
        dtype = request.dtype
        if dtype == "auto":
            dtype = _half(gpu)
        size = request.model_size or typical.DEFAULT
        name, shape = typical.typical(size, dtype, request.quantize)
        if request.model_size is None:
            return name, shape, (f"no model was named, so {name} stands for one of {size}",)
        return name, shape, ()
    with terminal.progress(f"looking at {request.model}"):
        return _planned(request, request.model)


def _half(gpu: Gpu) -> str:
    """The 16-bit type that a GPU has units for."""
    rates = gpu.hardware.rates
    return "float16" if "float16" in rates and "bfloat16" not in rates else "bfloat16"


def _planned(request: PlanRequest, name: str) -> tuple[str, ModelShape, tuple[str, ...]]:
    """Name and shape of a model from its configuration, as a GPU would hold it; no weights."""
    from dataclasses import replace

    from . import models

    options = request.load_options()
    automatic = options.dtype == "auto"
    # On a processor, which this machine may have alone, `auto` would mean float32.
    if automatic:
        options = replace(options, dtype="bfloat16")
    planned = models.plan(name, replace(options, device="cpu"))
    if automatic:
        stored = str(planned.config.get_text_config(decoder=True).dtype).removeprefix("torch.")
        stored = stored if stored in FULL else "float32"
        if stored != planned.shape.compute:
            planned = models.plan(name, replace(options, device="cpu", dtype=stored))
    return name, planned.shape, planned.notices
