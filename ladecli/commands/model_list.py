"""`lade models`: the models in the Hugging Face cache, and whether they fit and are supported.

Configurations and the heads of the weights tell; neither torch nor transformers is imported.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..decoder.model import families
from ..errors import LoadError, counted
from ..options.commands import ModelsRequest
from ..profiles.user import short
from ..specs import adapters, hub, memory, model_files
from ..specs import device as machine
from ..specs.adapters import Adapter
from ..specs.device import Device
from ..specs.hub import CachedModel
from ..specs.memory import ModelSpec
from ..specs.model_files import SIZES, Config
from ..view import screen
from ..view.terminal import Terminal

CONTEXT = 4096
"""Tokens of context that a model must have room for, or its own context where that is shorter."""
SCHEMA = 1
"""Version of what --json prints."""
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PACKED = ("nf4", "fp4", "gptq", "awq")
"""Quantized weights of 4 bits."""
_STATES = {None: "-", False: "no", True: "untested"}
"""The last column by whether a model is supported, where it is not tested."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model on this machine, as --json prints it; None and "" stand for what is unknown."""

    name: str
    path: str | None
    size_bytes: int
    family: str = ""  # transformers' model type
    dtype: str = ""  # of the weights, or how they are quantized ("gptq 4bit")
    parameters: int | None = None
    context: int | None = None  # the longest text in tokens
    fits: str | None = None  # the first setting that fits this machine: a type, "8bit" or "4bit"
    needs_bytes: int | None = None  # of that setting, or of the smallest where none fits
    supported: bool | None = None  # whether lade decodes it
    tested: bool = False  # whether its family is among those that are tested
    drafts: str = "trees"  # what it can verify in one pass: "trees", "chains" or "none"
    notes: tuple[str, ...] = ()  # reasons, and what else to know


def run(request: ModelsRequest) -> int:
    """List the models of the Hugging Face cache, and the bundled one; returns the exit code."""
    from huggingface_hub import constants as hub_constants

    terminal = Terminal(request.color)
    demo = Path(hub.resolve(hub.DEMO))
    with terminal.progress("looking at models"):
        cached = hub.cached_models()
        device = machine.glance()
        free = machine.free_memory(device)
        bundled = CachedModel(hub.DEMO, demo, hub.size_on_disk(demo))
        models = [examine(each, device, free) for each in (bundled, *cached)]
    models.sort(key=lambda model: model.name.lower())
    cache = hub_constants.HF_HUB_CACHE
    if request.json:
        found = {
            "schema": SCHEMA,
            "cache": cache,
            "device": {"name": device.torch_name, "label": device.label, "free_bytes": free},
            "context": CONTEXT,
            "models": [asdict(model) for model in models],
        }
        print(json.dumps(found, ensure_ascii=False))
        return 0
    _print_table(models, terminal)
    if not cached:
        terminal.say(
            f"no models in {cache} yet; `lade chat Qwen/Qwen2.5-1.5B-Instruct` downloads one, and"
            " any folder in Hugging Face format works too"
        )
    terminal.say(
        f"{counted(len(models), 'model')}; fits: with {CONTEXT} tokens of context in the"
        f" {memory.format_bytes(free)} free on {device.label}"
    )
    return 0


def examine(cached: CachedModel, device: Device, free: int) -> ListedModel:
    """Describe a model by its files, for a device with `free` bytes; faults become notes."""
    folder = cached.folder
    if folder is None:
        note = (
            f"the download is not complete; `hf download {cached.name}` completes it (a gated"
            " model needs `hf auth login` first)"
        )
        return ListedModel(cached.name, None, cached.bytes, notes=(note,))
    model = ListedModel(cached.name, str(folder), cached.bytes)
    files = sorted(path.name for path in folder.glob(f"*{model_files.GGUF}"))
    if files and not (folder / "config.json").is_file():
        option = f" --gguf-file {files[0]}" if len(files) > 1 else ""
        note = f"GGUF: {', '.join(files)}; `lade chat {cached.name}{option}`"
        return replace(model, dtype="gguf", notes=(note,))
    try:
        whole = (folder / "config.json").is_file()
        if not whole and (adapter := adapters.at(folder, cached.name)) is not None:
            return _as_adapter(model, adapter)
        config = Config(model_files.read_object(folder / "config.json"))
    except (OSError, LoadError) as error:
        return replace(model, notes=(str(error),))
    return _examine_config(model, config, folder, device, free)


def _examine_config(
    model: ListedModel, config: Config, folder: Path, device: Device, free: int
) -> ListedModel:
    """Describe a model by its configuration and the weights beside it."""
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    model = replace(
        model,
        family=str(config.stated.get("model_type") or ""),
        dtype=_dtype(text) or model_files.stored_type(folder) or "",
        context=context if isinstance(context, int) else None,
    )
    if config.other_purpose:
        return replace(model, supported=False, notes=(config.other_purpose,))
    if problem := config.fault or model_files.missing(folder) or model_files.damage(folder):
        return replace(model, notes=(problem,))
    if not model.family:
        return replace(model, notes=("config.json names no model_type",))
    if why := families.refusal(config):
        return replace(model, supported=False, notes=(f"not supported: {why}",))
    if why := families.no_trees(config):
        drafts = "chains" if families.may_verify_chains(config) else "none"
        how = "chains of drafts instead of trees" if drafts == "chains" else "no drafts"
        model = replace(model, supported=True, drafts=drafts, notes=(f"{how}: {why}",))
        return _with_memory(model, text, folder, device, free)
    known = {getattr(text, "model_type", ""), model.family}
    tested = bool(known & (families.FAMILIES.keys() | families.TESTED_STOCK))
    if not tested and "AutoConfig" in str(config.stated.get("auto_map")):
        note = "may need code of its own: read that, then allow it with --trust-remote-code"
        return replace(model, notes=(note,))
    model = replace(model, supported=True, tested=tested)
    return _with_memory(model, text, folder, device, free)


def _as_adapter(model: ListedModel, adapter: Adapter) -> ListedModel:
    """An adapter, which is as large as its base, and has a row of its own."""
    note = f"{adapter.kind}, an adapter for {adapter.base or 'a model that it does not name'}"
    lacking = "" if model_files.version("peft") else ": needs peft, pip install 'ladecli[lora]'"
    return replace(model, dtype="lora", notes=(adapter.fault or note + lacking,))


def _dtype(config: Config) -> str:
    """The type of the weights that a configuration states, or how they are quantized."""
    given = getattr(config, "quantization_config", None)
    if not isinstance(given, dict):
        return str(getattr(config, "dtype", "")).removeprefix("torch.").replace("auto", "")
    if given.get("load_in_4bit"):
        return str(given.get("bnb_4bit_quant_type") or "nf4")
    if given.get("load_in_8bit"):
        return "int8"
    method = str(given.get("quant_method") or "quantized").lower()
    bits = given.get("bits") or given.get("w_bit")
    return f"{method} {bits}bit" if bits else method


def _with_memory(
    model: ListedModel, config: Config, folder: Path, device: Device, free: int
) -> ListedModel:
    """The model with its number of weights, and whether and in which form it fits."""
    spec = _spec(model.dtype, config, folder, device.kind)
    notes = list(model.notes)
    if lacking := model_files.missing_packages(model.dtype):
        notes.append(f"needs {' and '.join(lacking)}: pip install {' '.join(lacking)}")
    if model.drafts == "trees" and not model.tested:
        notes.append("a family without tests here: tried before the first answer")
    if spec is None:
        return replace(model, notes=tuple(notes))
    context, fits, needed = min(model.context or CONTEXT, CONTEXT), None, 0.0
    forms = memory.smaller_forms(spec, device.kind)
    if spec.weights == "float32" and forms:  # bitsandbytes goes with bfloat16 then
        forms[1:] = memory.smaller_forms(forms[0][1], device.kind)
    for flag, form in [(spec.weights, spec), *forms]:
        if device.kind == "cpu" and form.weights in {*memory.FULL, "int8"}:
            # Keys and values of these are float32 on most CPUs, as a session's own estimate knows.
            form = replace(form, compute="float32")
        needed = memory.Asked(context).need(form).total
        if needed <= memory.usable(free):
            fits = flag.split()[1] if " " in flag else flag
            break
    else:
        usable = memory.format_bytes(memory.usable(free))
        notes.insert(0, f"needs {memory.format_bytes(needed)}, and {usable} can be used")
    return replace(
        model,
        parameters=int(spec.parameters),
        fits=fits,
        needs_bytes=int(needed),
        notes=tuple(notes),
    )


def _spec(dtype: str, config: Config, folder: Path, kind: str) -> ModelSpec | None:
    """What memory depends on, for a kind of device; None where the files do not state it."""
    given = {name: getattr(config, name, None) for name in SIZES}
    if not all(isinstance(given[name], int) for name in SIZES):
        return None
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    inner = getattr(config, "intermediate_size", 4 * hidden)
    compute = dtype if dtype in memory.FULL else model_files.stored_type(folder) or "float32"
    method = dtype.split(" ")[0]
    size = sum(path.stat().st_size for path in model_files.weight_files(folder))
    # Of 4 bits several are packed into an integer.
    packing = {"U8": 2, "I32": 8} if method in _PACKED else {}
    tensors = model_files.stored_tensors(folder)
    value_bytes = 4 if compute == "float32" else 2
    # Pickled weights do not say how many they are.
    parameters: float = sum(each.size * packing.get(each.kind, 1) for each in tensors)
    parameters = parameters or size / value_bytes
    if method in (*memory.FULL, ""):
        if kind == "cpu":
            compute, value_bytes = "float32", 4
        weights, size, linear = compute, int(parameters * value_bytes), None
    else:
        weights, linear = method, 0.0
    rank = getattr(config, "kv_lora_rank", None)
    return ModelSpec(
        parameters=float(parameters),
        active=float(parameters),
        weights=weights,
        weight_bytes=float(size),
        compute=compute,
        layers=config.num_hidden_layers,
        hidden=hidden,
        inner=max(inner) if isinstance(inner, list) else inner,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        head_size=getattr(config, "head_dim", hidden // heads),
        vocabulary=config.vocab_size,
        linear=linear,
        latent=rank + config.qk_rope_head_dim if rank else None,
    )


def _print_table(models: list[ListedModel], terminal: Terminal) -> None:
    """A row for each model, and the notes below."""
    console = terminal.console(sys.stdout)
    # On a narrow screen those of the greatest weight leave first.
    columns = (
        screen.Column("model", number=False),
        screen.Column("size", weight=1),
        screen.Column("params", weight=4),
        screen.Column("type", number=False, weight=6),
        screen.Column("dtype", number=False, weight=5),
        screen.Column("ctx", weight=3),
        screen.Column("fits", number=False),
        screen.Column("lookahead", number=False, weight=2),
    )
    rows = []
    for model in models:
        fits = _SHORT.get(model.fits or "", model.fits)
        state = "yes" if model.tested else _STATES[model.supported]
        state = state if model.drafts == "trees" else model.drafts
        rows.append(
            (
                model.name,
                memory.format_bytes(model.size_bytes),
                "-" if model.parameters is None else short(model.parameters),
                model.family or "-",
                _SHORT.get(model.dtype, model.dtype.split(" ")[0]) or "-",
                "-" if model.context is None else _tokens(model.context),
                fits or ("-" if model.needs_bytes is None else "no"),
                state,
            )
        )
    screen.print_table(screen.Table("Models on this machine", columns, tuple(rows)), console)
    for model in models:
        for note in model.notes:
            screen.line(console, f"{model.name}: {note}", "dim")


def _tokens(count: int) -> str:
    """A number of tokens: 2048, 32k for 32768."""
    if count < 10_000:
        return str(count)
    return f"{count // 1024}k" if count % 1024 == 0 else f"{round(count / 1000)}k"
