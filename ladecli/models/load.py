"""Load models and tokenizers; no other file does."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from ..decoder.backends import int8
from ..decoder.backends.compat import needs_eager, packs_halves
from ..decoder.backends.quiet import quiet
from ..decoder.backends.stored import keep_stored, parts_of
from ..decoder.backends.transformers_forward import input_device
from ..decoder.faults import is_out_of_memory, reason_of
from ..errors import LoadError
from ..generation_config import AnswerDefaults, AsStated, leave_out
from . import checkpoint, hub, memory, placement
from .adapters import Adapter
from .describe import empty_model, loading, merging, model_class, own_code, reading
from .fit import PlannedModel, values_of
from .memory import FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(PlannedModel):
    """A model in evaluation mode with its tokenizer."""

    model: Any
    tokenizer: Any
    again: Callable[[], Any]  # loads the model with its weights once more

    @property
    def defaults(self) -> AnswerDefaults:
        """The defaults of answers that the model's generation config states."""
        return AnswerDefaults(self.model.generation_config, self.tokenizer, self.spec.vocabulary)


def check_weights(planned: PlannedModel) -> list[str]:
    """Check without reading them that a model's weights fit its configuration, if they are plain
    ones that are here; return notices.

    Raises:
        LoadError: they do not, or transformers would refuse code in pickled ones.
    """
    files = planned.files
    _refuse_code(files.weights)
    # Other formats are unpacked as they are read, and what lacks would be downloaded.
    here = (path.suffix == ".safetensors" and path.is_file() for path in files.weights)
    headed = bool(files.weights) and all(here)
    plain = getattr(planned.config, "quantization_config", None) is None
    if not headed or not plain or files.gguf or planned.fp8_block or not find_spec("accelerate"):
        return []
    with loading(files, progress=False):
        return _from_pretrained(planned, dtype="auto", device_map="meta")[1]


def _refuse_code(paths: Iterable[Path]) -> None:
    """Refuse pickled weights that contain code with a LoadError."""
    for path in paths:
        # An old format, or a damaged file: loading finds out.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint
            if path.suffix == ".bin" and unsafe(str(path)):
                raise LoadError(f"{path} contains code, so it is refused; get safetensors instead")


def tokenizer_and_ends(planned: PlannedModel) -> tuple[Any, frozenset[int], list[str]]:
    """Return the tokenizer of a model that is here, the ids that its configs name as end tokens,
    and those fields of its generation config that are not applied."""
    tokenizer = _tokenizer(planned)
    config, wrong = _generation_config(planned)
    defaults = AnswerDefaults(config, tokenizer, planned.spec.vocabulary)
    return tokenizer, defaults.stop_ids, defaults.ignored + wrong


def _generation_config(planned: PlannedModel) -> tuple[AsStated, list[str]]:
    """Return a model's generation config, of its file or its configuration, and the values that
    were left out."""
    files, config = planned.files, None
    with loading(files, progress=False, part="its generation config"):
        if not files.gguf:
            with contextlib.suppress(OSError):  # there is no such file
                config = AsStated.from_pretrained(files.source, **files.hub_options)
        config = config or AsStated.from_model_config(planned.config)
        return config, leave_out(config, planned.config, planned.spec.vocabulary)


def load(
    planned: PlannedModel,
    *,
    progress: bool = True,
    need: memory.MemoryNeed | None = None,
    on_share: Callable[[float], None] | None = None,
    in_file: bool = True,
) -> LoadedModel:
    """Load a model and its tokenizer.

    If ranks share it, all call this, and their process group is there already.  A device map
    leaves room for what decoding takes, its `need`.  `on_share` is called with the share of a GGUF
    file that was unpacked.  With `in_file`, weights may stay in the file until they are used.

    Raises:
        LoadError: the weights cannot be read; the message says why and what helps.
    """
    tokenizer = _tokenizer(planned, progress)
    read = partial(_read_model, planned, need, progress)
    model, notices = read(on_share, in_file=in_file)
    where = planned.placement
    ours = where.own_int8 and where.is_ours(planned.facts)
    if (planned.spec.weights not in FULL and not ours) or where.split > 1:
        check_forward(planned, model)
    values = values_of(planned) | {"notices": (*planned.notices, *notices)}
    return LoadedModel(
        **values, model=model, tokenizer=tokenizer, again=lambda: read(in_file=False)[0]
    )


@quiet()
@torch.no_grad()
def check_forward(planned: PlannedModel, model: Any) -> None:
    """Check that quantized or split weights can be computed with here; LoadError if not.

    Kernels refuse shapes (one row, two rows) and devices only when they are called, and so do
    parts of a split model that do not fit together.
    """
    name, label, ranks = planned.name, planned.device.label, planned.placement.split
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the first forward may unpack weights
            for width in (1, 2):
                ids = torch.zeros((1, width), dtype=torch.long, device=input_device(model))
                model(input_ids=ids, use_cache=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise LoadError(
                f"{name} leaves no memory on {label} to compute with; take a smaller model, or"
                " free some memory"
            ) from error
        why, weights = reason_of(error), planned.spec.weights
        how = f"over {ranks} ranks" if ranks > 1 else f"in {weights} on {label}"
        fix = "try another --quantize, or leave it out"
        if ranks > 1:
            fix = "use --device-map auto or --parallel-mode lookahead"
        raise LoadError(f"{name} cannot be computed {how}: {why}; {fix}") from error


def _tokenizer(planned: PlannedModel, progress: bool = True) -> Any:
    files = planned.files
    name, source, hub_options = files.base, files.source, files.hub_options
    if files.tokenizer is not None:
        source, hub_options = str(files.tokenizer), {**hub_options, "gguf_file": None}
    with loading(files, progress, "its tokenizer"), reading(files):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub_options)
        if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
            kind = type(tokenizer).__name__
            raise LoadError(f"{name} has a {kind}, which is no tokenizer of one text")
        if len(tokenizer) == len(tokenizer.get_added_vocab()):  # transformers found no file
            raise LoadError(hub.no_tokenizer(name))
        if files.header is not None and files.tokenizer is None:
            from . import gguf_model

            gguf_model.complete_tokenizer(files.header, tokenizer)
        elif not getattr(tokenizer, "chat_template", None):
            # Older models that see pictures have it in a file of their processor.
            path = hub.fetch(source, "chat_template.json", hub_options, required=False)
            if path is not None:
                template = json.loads(Path(path).read_text("utf-8"))["chat_template"]
                tokenizer.chat_template = template
        return tokenizer


def _read_model(
    planned: PlannedModel,
    need: memory.MemoryNeed | None,
    progress: bool,
    on_share: Callable[[float], None] | None = None,
    *,
    in_file: bool = False,
) -> tuple[Any, list[str]]:
    """Return the model with all of its weights on its device, and notices; arguments and errors as
    `load`."""
    files, where = planned.files, planned.placement
    name = files.base
    # Nothing else hides the bars of unpacking; those of downloads are shown on a terminal.
    hides = files.gguf or not progress
    hidden = contextlib.redirect_stderr(io.StringIO()) if hides else contextlib.nullcontext()
    with loading(files, progress), reading(files), hidden:
        keywords = placement.keywords(where, planned.config, planned.dtype, need)
        stored, rows = _in_files(planned, on_share) if in_file or files.header else ({}, {})
        if stored:
            blank = torch.zeros((), dtype=planned.dtype)  # takes no memory
            blanks = {name: blank.expand(weight.shape) for name, weight in rows.items()}
            whole = where.split > 1 or files.header is None  # ranks ask for parts of them
            rest = {n: w[...] if whole else w for n, w in stored.items() if n not in rows}
            keywords["state_dict"] = rest | blanks
        # Weights that are quantised here are read as they are stored.
        dtype = "auto" if where.own_int8 and not stored else planned.dtype
        model, notices = _from_pretrained(planned, dtype=dtype, **keywords)
        if getattr(model, "quantization_method", None) == "gguf":
            model.hf_quantizer.remove_quantization_config(model)  # its weights are plain ones now
        placed = {"device_map", "distributed_config"} & keywords.keys()
        if where.device.kind != "cpu" and not placed:
            model.to(where.device.torch_name)
        model.generation_config, wrong = _generation_config(planned)
        if wrong:
            names = ", ".join(wrong)
            notices.append(f"left out of the generation config (invalid values): {names}")
        for adapter in files.adapters:
            model = _merged(model, adapter, name)
        if where.own_int8:
            int8.quantise(model, planned.dtype, rows)
        elif rows:
            keep_stored(model, rows)
        return model.eval(), notices


def _in_files(
    planned: PlannedModel, on_share: Callable[[float], None] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights that files of a model hold, and those of them that are read row by row
    when they are packed for a CPU; {} and {} if transformers is to read all."""
    files, straight = planned.files, planned.placement.own_int8 and not planned.files.adapters
    if files.header is None and not _may_stay(planned):
        return {}, {}
    empty = empty_model(planned.config, files.hub_options)
    parts, stored = parts_of(empty), dict[str, Any]()
    if files.header is None:
        stored |= checkpoint.mapped_tensors(files.weights)
    else:
        from . import gguf_model

        stored |= gguf_model.stored_weights(files.header, empty, on_share, eight=straight)
    rows = {name: stored[name] for part in parts if (name := f"{part}.weight") in stored}
    if files.header is not None:
        return stored, rows if straight else {}
    # Files may have other names for them, or two weights where the model has one.
    one_to_one = len(rows) == len({part.weight for part in parts.values()})
    fit = one_to_one and all(weight.dtype.itemsize == 2 for weight in rows.values())
    return (stored, rows) if fit else ({}, {})


def _may_stay(planned: PlannedModel) -> bool:
    """Return True if the weights of a checkpoint may stay in its files until they are packed for a
    CPU, by its configuration and the names of its files."""
    files, where = planned.files, planned.placement
    plain = getattr(planned.config, "quantization_config", None) is None and not planned.fp8_block
    here = bool(files.weights) and all(path.suffix == ".safetensors" for path in files.weights)
    exact = planned.dtype == torch.float32 and not where.packs and packs_halves()
    ours = where.device.kind == "cpu" and where.is_ours(planned.facts)
    own = own_code(planned.config, files.hub_options)
    return plain and here and (exact or where.own_int8) and ours and not files.adapters and not own


def _from_pretrained(planned: PlannedModel, **keywords: Any) -> tuple[Any, list[str]]:
    """Return the model that transformers makes of a checkpoint, and notices.

    Raises:
        LoadError: weights are missing, or of another shape.
    """
    files, config = planned.files, planned.config
    name, hub_options = files.base, files.hub_options
    source: str | None = files.source
    _refuse_code(files.weights)
    if own_code(config, hub_options):
        maker: Any = transformers.AutoModelForCausalLM
    else:
        maker, config = model_class(config)
    if planned.fp8_block:
        folder = hub.snapshot(files.source, hub_options, ["*.json", "*.safetensors"])
        keywords["state_dict"] = checkpoint.plain_tensors(folder, planned.dtype, planned.fp8_block)
    if "state_dict" in keywords:
        empty, hub_options = empty_model(config, hub_options), {**hub_options, "gguf_file": None}
        maker, config, source = type(empty), empty.config, None
    model, report = maker.from_pretrained(
        source,
        config=config,
        generation_config=GenerationConfig(),  # the model's own is read by `_generation_config`
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are named below
        attn_implementation="eager" if needs_eager(config) else None,
        # If peft is installed, transformers looks for adapters too.
        adapter_kwargs={"local_files_only": hub_options["local_files_only"]},
        **keywords,
        **hub_options,
    )
    # transformers fills what is missing with random numbers.
    missing = sorted([*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    unknown = report["unexpected_keys"]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        known = f", and {min(unknown)} is unknown" if unknown else ""
        raise LoadError(
            f"{name}: the weights do not fit its {'settings' if files.header else 'config.json'}"
            f" ({missing[0]}{more} missing or of another shape{known})"
        )
    if not unknown:
        return model, []
    return model, [*checkpoint.check_unread(name, model, unknown, files.weights)]


def _merged(model: Any, adapter: Adapter, base: str) -> Any:
    """Merge an adapter into a model's weights, by peft; LoadError if they do not fit."""
    import peft

    with merging(adapter, base):
        checkpoint.fit_embeddings(model, adapter)
        tuned = peft.PeftModel.from_pretrained(model, str(adapter.folder))
        # The same again says what that leaves out without an error.
        read = tuned.load_adapter(str(adapter.folder), "default")
        # Embeddings that were resized are saved twice.
        unread = [key for key in read.unexpected_keys if ".modules_to_save." not in key]
        if wrong := [*read.missing_keys, *unread]:
            raise ValueError(f"{wrong[0]} and {len(wrong) - 1} more weights have no counterpart")
        return tuned.merge_and_unload()
