"""`lade models`: the models in the Hugging Face cache, and whether they fit and are supported."""

from __future__ import annotations

import contextlib
import json as jsons
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import memory, model_files, screen
from .decoder.errors import DecoderError
from .errors import LadeError, told
from .model_files import CachedModel
from .options import LoadOptions
from .profiles.user import short
from .terminal import Terminal
from .visualize import counted, printable

if TYPE_CHECKING:
    from rich.table import Table

    from .device import Device
    from .shape import ModelShape

CONTEXT = 4096
"""Tokens of context that a model must have room for, or its own context where that is shorter."""
SCHEMA = 1
"""Version of what --json prints."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_GENERATES = ("ForCausalLM", "LMHead", "ForConditionalGeneration")
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class Model:
    """A model on this machine, as --json prints it.

    Attributes:
        name: as it is given to a command.
        path: of its folder, or None where there is none.
        size_bytes: on disk.
        family: transformers' model type, "" if unknown.
        dtype: of its weights, or how they are quantized ("gptq 4bit"); "" if unknown.
        parameters: number of weights, or None.
        context: the longest text in tokens, or None.
        fits: the first setting that fits this machine: a type, "8bit" or "4bit"; or None.
        needs_bytes: what that setting needs, or the smallest where none fits; None if unknown.
        supported: whether lade decodes it; None where that cannot be told.
        tested: whether its family is among those that are tested.
        notes: reasons, and what else to know.
    """

    name: str
    path: str | None
    size_bytes: int
    family: str = ""
    dtype: str = ""
    parameters: int | None = None
    context: int | None = None
    fits: str | None = None
    needs_bytes: int | None = None
    supported: bool | None = None
    tested: bool = False
    notes: tuple[str, ...] = ()


def run(color: str, *, json: bool = False) -> int:
    """List the models of the Hugging Face cache, and the bundled one.

    Args:
        color: auto, always or never.
        json: whether to print one JSON object instead of a table.

    Returns:
        The exit code, 0.
    """
    terminal = Terminal(color)
    demo = Path(model_files.resolve(model_files.DEMO))
    with terminal.progress("looking at models"):
        cached = model_files.cached_models()
        from .device import detect, free_memory

        device = detect()
        free = free_memory(device)
        bundled = CachedModel(model_files.DEMO, demo, model_files.size_on_disk(demo))
        models = [examine(each, device, free) for each in (bundled, *cached)]
    models.sort(key=lambda model: model.name.lower())
    cache = model_files.cache_folder()
    if json:
        found = {
            "schema": SCHEMA,
            "cache": str(cache),
            "device": {"name": device.torch_name, "label": device.label, "free_bytes": free},
            "context": CONTEXT,
            "models": [asdict(model) for model in models],
        }
        print(jsons.dumps(found, ensure_ascii=False))
        return 0
    console = terminal.console(sys.stdout)
    on_screen = screen.is_screen(console)
    screen.show(_table(models, notes=not on_screen), console)
    for model in models if on_screen else ():
        for note in model.notes:
            screen.line(console, printable(f"{model.name}: {note}"), "dim")
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


def examine(cached: CachedModel, device: Device, free: int) -> Model:
    """What is known of a model without loading it; damaged files become notes.

    Args:
        cached: its name and folder.
        device: where it would run.
        free: bytes of memory there.
    """
    folder = cached.folder
    if folder is None:
        note = (
            f"the download is not complete; `hf download {cached.name}` completes it (a gated"
            " model needs `hf auth login` first)"
        )
        return Model(cached.name, None, cached.bytes, notes=(note,))
    model = Model(cached.name, str(folder), cached.bytes)
    problem = model_files.damage(folder) or model_files.missing(folder)
    with contextlib.suppress(OSError, LadeError):
        config = model_files.read_object(folder / "config.json")
        model = replace(model, **_stated(config, folder))
        if (other := _other_purpose(config)) is not None:
            return replace(model, supported=False, notes=(other,))
    return replace(model, notes=(problem,)) if problem else _planned(model, device, free)


def _planned(model: Model, device: Device, free: int) -> Model:
    """The model with what planning to load it finds out: whether it is supported, and fits."""
    from . import models

    path = model.path or ""
    try:
        planned = models.plan(path, LoadOptions(offline=True), progress=False)
    except DecoderError as error:
        return replace(model, supported=False, notes=(str(error),))
    except Exception as error:  # transformers' code, on any configuration
        return replace(model, notes=(told(error).removeprefix(path).lstrip(": "),))
    facts, shape = planned.facts, planned.shape
    fits, needed = _first_fitting(shape, min(facts.context, CONTEXT), free, device.kind)
    weights = {"8bit": "int8", "4bit": "nf4"}.get(fits or "", model.dtype)
    notes = []
    if fits is None:
        usable = memory.told(memory.usable(free))
        notes.append(f"needs {memory.told(needed)}, and {usable} can be used")
    if lacking := model_files.missing_packages(weights):
        notes.append(f"needs {' and '.join(lacking)}: pip install {' '.join(lacking)}")
    if not facts.tested:
        notes.append("a family without tests here: tried before the first answer")
    return replace(
        model,
        parameters=int(shape.parameters),
        context=facts.max_positions,
        fits=fits,
        needs_bytes=int(needed),
        supported=True,
        tested=facts.tested,
        notes=tuple(notes),
    )


def _first_fitting(
    shape: ModelShape, context: int, free: int, kind: str
) -> tuple[str | None, float]:
    """The first setting that fits, from the default to the smallest, and the bytes it needs."""
    needed = 0.0
    for flag, form in [(shape.weights, shape), *memory.smaller_forms(shape, kind)]:
        needed = memory.estimate(form, context=context).total
        if needed <= memory.usable(free):
            return (flag.split()[1] if " " in flag else flag), needed
    return None, needed


def _stated(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fields of `Model` that config.json and the heads of the weights state."""
    text = config.get("text_config")
    both = {**(text if isinstance(text, dict) else {}), **config}
    limits = [both[key] for key in _CONTEXT_KEYS if isinstance(both.get(key), int)]
    dtype = str(both.get("dtype") or both.get("torch_dtype") or "auto").removeprefix("torch.")
    if isinstance(given := both.get("quantization_config"), dict):
        dtype = _method(given)
    if dtype == "auto":
        dtype = model_files.stored_type(folder) or ""
    family = str(config.get("model_type") or "")
    return {"family": family, "context": limits[0] if limits else None, "dtype": dtype}


def _method(given: dict[str, Any]) -> str:
    """The quantization of a checkpoint, with its bits where they are known."""
    if given.get("load_in_4bit"):
        return str(given.get("bnb_4bit_quant_type") or "nf4")
    if given.get("load_in_8bit"):
        return "int8"
    method = str(given.get("quant_method") or "quantized").lower()
    bits = given.get("bits") or given.get("w_bit")
    return f"{method} {bits}bit" if bits else method


def _other_purpose(config: dict[str, Any]) -> str | None:
    """Why a model was not made to continue texts, or None; embedding models are common."""
    names = str(config.get("architectures") or "").strip("[]'")
    if "AutoModelForCausalLM" in str(config.get("auto_map")):  # code of its own
        return None
    generates = not names or any(part in names for part in _GENERATES)
    return None if generates else f"is no causal language model but a {names}"


def _table(models: list[Model], *, notes: bool) -> Table:
    """One row for each model.

    Args:
        models: in order.
        notes: whether a last column holds the notes.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", overflow="fold")
    for head in ("size", "params", "type", "dtype", "ctx", "fits", "lookahead"):
        right = head in ("size", "params", "ctx")
        widest = {"type": 11, "dtype": 8}.get(head)
        table.add_column(head, justify="right" if right else "left", max_width=widest, no_wrap=True)
    if notes:
        table.add_column("")
    for model in models:
        state, style = _state(model)
        cells = (
            model.name,
            memory.told(model.size_bytes),
            "-" if model.parameters is None else short(model.parameters),
            model.family or "-",
            _SHORT.get(model.dtype, model.dtype.split(" ")[0]) or "-",
            _tokens(model.context),
            _SHORT.get(model.fits or "", model.fits)
            or ("-" if model.needs_bytes is None else "no"),
        )
        row = [*(Text(printable(cell)) for cell in cells), Text(state, style)]
        table.add_row(*row, *([Text(printable("; ".join(model.notes)))] if notes else []))
    return table


def _state(model: Model) -> tuple[str, str]:
    """The last column: whether lookahead decodes the model, and the style of the word."""
    if model.supported is None:
        return "-", ""
    if not model.supported:
        return "no", "red"
    return ("yes", "green") if model.tested else ("untested", "yellow")


def _tokens(count: int | None) -> str:
    """A number of tokens: 2048, 32k for 32768."""
    if count is None:
        return "-"
    if count < 10_000:
        return str(count)
    return f"{count // 1024}k" if count % 1024 == 0 else f"{round(count / 1000)}k"
