"""`lade models`: what lies in the local cache, whether it fits here and is supported."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import memory
from .checks import parts
from .decoder.errors import DecoderError
from .errors import told
from .library import checkpoint, hub_cache
from .library.hub_cache import Entry
from .library.model import Model
from .settings import LoadOptions
from .terminal import Terminal
from .visualize import counted

if TYPE_CHECKING:
    from .device import Device
    from .models import Plan
    from .shape import ModelShape

CONTEXT = 4096
"""Tokens of context that a model must have room for, if it can have so many."""
SCHEMA = 1
"""Version of what --json prints."""


def run(color: str, *, json: bool = False) -> int:
    """List the models of the hub's cache, and the bundled one.

    Args:
        color: auto, always or never.
        json: whether to print one JSON object instead of a table.

    Returns:
        The exit code, 0.
    """
    cache = hub_cache.location()
    terminal = Terminal(color)
    with terminal.progress("looking at models"):
        cached = hub_cache.entries(cache)
        from .device import detect, free_memory

        device = detect()
        free = free_memory(device)
        models = [examine(entry, device, free) for entry in [_demo(), *cached]]
    models.sort(key=lambda model: model.name.lower())
    if json:
        print(jsons.dumps(_object(models, cache, device, free), ensure_ascii=False))
        return 0
    from .library.model_table import table

    console = terminal.console(sys.stdout)
    for line in table(models, console.width if sys.stdout.isatty() else None):
        console.print(line, soft_wrap=True)
    if not cached:
        terminal.say(
            f"no models in {cache} yet; `lade chat Qwen/Qwen2.5-1.5B-Instruct` downloads one, and"
            " any folder in Hugging Face format works too"
        )
    terminal.say(
        f"{counted(len(models), 'model')}; fits: with {CONTEXT} tokens of context in the"
        f" {memory.told(free)} free on {device.label}"
    )
    return 0


def examine(entry: Entry, device: Device, free: int) -> Model:
    """What is known of one entry; nothing that is broken in it raises.

    Args:
        entry: of the cache.
        device: where it would run.
        free: bytes of memory there.
    """
    if entry.folder is None:
        return Model(entry.name, None, entry.bytes, notes=(entry.problem or "",))
    found = checkpoint.read(entry.folder)
    known = Model(
        name=entry.name,
        path=str(entry.folder),
        size_bytes=entry.bytes,
        family=found.family,
        dtype=found.dtype,
        parameters=found.parameters,
        context=found.context,
    )
    if found.problem is not None:
        return replace(known, supported=None if found.generates else False, notes=(found.problem,))
    try:
        planned = _plan(known)
    except DecoderError as error:
        return replace(known, supported=False, notes=(str(error),))
    except Exception as error:  # the code of any model, with the configuration of any file
        return replace(known, notes=(told(error).removeprefix(known.path or "").lstrip(": "),))
    shape, facts = planned.shape, planned.facts
    setting, needed = _setting(shape, facts.context, free, device.kind)
    weights = {"8bit": "int8", "4bit": "nf4"}.get(setting or "", found.dtype)
    lacking = parts.missing_for(weights)
    usable = memory.told(memory.usable(free))
    notes = (
        f"needs {memory.told(needed)}, and {usable} can be used" if not setting else "",
        f"needs {' and '.join(lacking)}: pip install {' '.join(lacking)}" if lacking else "",
        "" if facts.tested else "a family without tests here: tried before the first answer",
    )
    return replace(
        known,
        parameters=int(shape.parameters),
        context=facts.max_positions,
        fits=setting,
        needs_bytes=int(needed),
        supported=True,
        tested=facts.tested,
        notes=tuple(note for note in notes if note),
    )


def _plan(model: Model) -> Plan:
    """What loading would do, short of reading weights.

    Raises:
        DecoderError: it cannot be decoded here.
        Exception: its configuration cannot be read, or makes no sense.
    """
    from . import models

    return models.plan(model.path or "", LoadOptions(offline=True), progress=False)


def _setting(shape: ModelShape, context: int, free: int, kind: str) -> tuple[str | None, float]:
    """The first setting that fits, from the default to the smallest, and the bytes it needs."""
    forms = [(shape.weights, shape), *memory.smaller_forms(shape, kind)]
    needed = 0.0
    for flag, form in forms:
        needed = memory.estimate(form, context=min(context, CONTEXT)).total
        if needed <= memory.usable(free):
            return (flag.split()[1] if " " in flag else flag), needed
    return None, needed


def _demo() -> Entry:
    from .library import hub

    folder = Path(hub.resolve(hub.DEMO))
    return Entry(hub.DEMO, folder, hub_cache.size(folder))


def _object(models: Sequence[Model], cache: Path, device: Device, free: int) -> dict[str, object]:
    """What --json prints."""
    return {
        "schema": SCHEMA,
        "cache": str(cache),
        "device": {"name": device.torch_name, "label": device.label, "free_bytes": free},
        "context": CONTEXT,
        "models": [asdict(model) for model in models],
    }
