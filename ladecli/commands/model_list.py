"""`lade models`: list the models in the Hugging Face cache, and whether they fit.

Configurations and the sizes of files say that; neither torch nor transformers is imported.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import LoadError, counted
from ..models import adapters, device, hub, memory, model_files
from ..models.find import DEMO, find, resolve
from ..models.hub import CachedModel
from ..options.commands import ModelsRequest
from ..options.model import ModelOptions
from ..view import screen
from ..view.screen import NONE, Column
from ..view.terminal import Terminal

CONTEXT = 4096
"""A model fits if memory has room for this many tokens of context."""
SCHEMA = 2
"""Version of the output of --json."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model on this machine, as --json prints it."""

    name: str
    path: str | None
    size_bytes: int
    needs_bytes: int | None = None  # with `CONTEXT` tokens; None if unknown
    fits: bool | None = None
    note: str | None = None  # why it cannot be used, or how


def run(request: ModelsRequest) -> int:
    """List the models of the Hugging Face cache, and the bundled one; return the exit code."""
    from huggingface_hub import constants

    terminal = Terminal(request.color)
    demo = Path(resolve(DEMO))
    with terminal.progress("looking at models"):
        cached = [CachedModel(DEMO, demo, hub.size_on_disk(demo)), *hub.cached_models()]
        here = device.predict_device() or device.detect()
        free = device.free_memory(here)
        models = [_describe(model, free) for model in cached]
    models.sort(key=lambda model: model.name.lower())
    if request.json:
        listing = {
            "schema": SCHEMA,
            "cache": constants.HF_HUB_CACHE,
            "device": {"name": here.torch_name, "label": here.label, "free_bytes": free},
            "context": CONTEXT,
            "models": [asdict(model) for model in models],
        }
        print(json.dumps(listing, ensure_ascii=False))
        return 0
    console = terminal.console(sys.stdout)
    columns = (
        Column("model", number=False),
        Column("size"),
        Column("fits", number=False),
        Column("path", number=False, weight=1),
    )
    fits = {True: "yes", False: "no", None: NONE}
    rows = tuple(
        (model.name, memory.format_bytes(model.size_bytes), fits[model.fits], model.path or NONE)
        for model in models
    )
    screen.print_table(screen.Table("Models on this machine", columns, rows), console)
    for model in models:
        if model.note:
            screen.line(console, f"{model.name}: {model.note}", "dim")
    if len(models) == 1:
        terminal.say(
            f"no models in {constants.HF_HUB_CACHE} yet; `lade chat Qwen/Qwen2.5-1.5B-Instruct`"
            " downloads one, and any folder in Hugging Face format works too"
        )
    terminal.say(
        f"{counted(len(models), 'model')}; fits: with {CONTEXT} tokens of context in the"
        f" {memory.format_bytes(free)} free on {here.label}"
    )
    return 0


def _describe(cached: CachedModel, free: int) -> ListedModel:
    """Describe a model by its files, for a device with `free` bytes; faults become the note."""
    folder = cached.folder
    if folder is None:
        note = (
            f"the download is not complete; `hf download {cached.name}` completes it (a gated"
            " model needs `hf auth login` first)"
        )
        return ListedModel(cached.name, None, cached.bytes, note=note)
    model = ListedModel(cached.name, str(folder), cached.bytes)
    try:
        if (folder / model_files.ADAPTER).is_file():
            adapter = adapters.read_adapter(folder, cached.name)
            base = adapter.base or "a model that it does not name"
            return replace(model, note=adapter.fault or f"an adapter for {base}")
        files = find(ModelOptions(model=str(folder), offline=True))
        if (config := files.config) is None:
            return replace(model, note=f"{files.gguf}; lade doctor says whether it fits")
        if not config.stated.get("model_type"):
            return replace(model, note="config.json names no model_type")
    except LoadError as error:
        return replace(model, note=str(error).removeprefix(str(folder)).lstrip(": "))
    if getattr(config, "is_encoder_decoder", False):
        return replace(model, note="not supported: it is an encoder-decoder")
    text = config.get_text_config()
    try:
        heads = getattr(text, "num_key_value_heads", text.num_attention_heads)
        size = getattr(text, "head_dim", text.hidden_size // text.num_attention_heads)
        numbers: int = 2 * text.num_hidden_layers * heads * size * CONTEXT
    except AttributeError:  # the configuration leaves sizes open
        return model
    needed = sum(path.stat().st_size for path in files.weights) + 2 * numbers  # in 16 bits
    return replace(model, needs_bytes=needed, fits=needed <= memory.usable(free))
