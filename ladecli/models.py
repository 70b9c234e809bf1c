"""The only place where models and tokenizers are loaded."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import enable_progress_bars
from transformers import GenerationConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from .decoder.backends import int8
from .decoder.backends.compat import needs_eager
from .decoder.backends.facts import model_facts
from .decoder.backends.quiet import quiet
from .decoder.backends.transformers_forward import input_device
from .decoder.errors import Error
from .decoder.faults import is_out_of_memory, reason_of
from .decoder.model.families import ModelFacts
from .errors import LoadError
from .generation_config import AnswerDefaults, AsStated, leave_out
from .options.model import ModelOptions, PlacementOptions
from .specs import adapters, checkpoint, gguf_model, hub, memory, model_files, placement
from .specs.adapters import Adapted, Adapter
from .specs.device import Device, detect, free_memory
from .specs.gguf_header import GGUFHeader
from .specs.memory import FULL, ModelSpec
from .specs.model_spec import auto_class, choose_dtype, empty_model, fp8_block, spec_of
from .specs.placement import Placement

GROWTH = 1000.0
"""How many times as long a tokenizer may make a text."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that can be loaded: what is known before any weight is read."""

    name: str  # as the user gave it
    parts: Adapted  # what that comes to: the base, and adapters to be merged into it
    options: ModelOptions
    placement: Placement
    config: Any  # of transformers
    facts: ModelFacts
    dtype: torch.dtype  # of weights that are not quantized, and of activations but on some CPUs
    spec: ModelSpec
    part: ModelSpec  # what this process holds: less where ranks share the model
    notices: tuple[str, ...]
    hub_options: dict[str, Any]  # for calls that may ask the hub
    header: GGUFHeader | None  # of a model in a GGUF file
    fp8_block: Sequence[int] | None = None  # see `model_spec.fp8_block`

    @property
    def device(self) -> Device:
        """The device that it runs on, or the first of several."""
        return self.placement.device

    @property
    def source(self) -> str:
        """The folder, or the name on the hub."""
        return hub.locate(self.parts.base, self.options.gguf_file, self.options.revision)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(PlannedModel):
    """A plan that was carried out: a model in evaluation mode with its tokenizer."""

    model: Any
    tokenizer: Any
    again: Callable[[], Any]  # loads the model with its weights once more

    @property
    def defaults(self) -> AnswerDefaults:
        """What the model says of its answers."""
        return AnswerDefaults(self.model.generation_config, self.tokenizer, self.spec.vocabulary)


def plan(
    name: str,
    options: ModelOptions | None = None,
    place: PlacementOptions | None = None,
    *,
    split: int = 1,
    progress: bool = True,
) -> PlannedModel:
    """Find a model (an id, a folder, or "demo") and read its configuration; no weights.

    `options` say which weights, `place` where they go, and `split` how many ranks share them;
    `progress` is whether a download shows a bar on stderr.

    Raises:
        UsageError: there is no such device, or the options do not go together.
        LoadError: there is no such model, or its configuration cannot be read.
        UnsupportedModelError: it cannot be decoded here.
    """
    options, place = options or ModelOptions(), place or PlacementOptions()
    device = detect(place.device)
    where = Placement(device, place.device_map, split, options.quantize)
    with _loading(name, options, progress):
        parts = adapters.find_adapters(
            name, options.adapters, options.revision, ask=not options.offline
        )
    base, options = parts.base, replace(options, revision=parts.revision)
    config, hub_options, header, method = _read_config(base, options, device, progress)
    with _loading(base, options, progress):
        facts = model_facts(config)
        block = fp8_block(device, config, method)
        placement.check(base, where, config, parts.adapters)
        empty = empty_model(config, hub_options)
        for adapter in parts.adapters:
            with _merging(adapter, base):
                checkpoint.fit_embeddings(empty, adapter.folder)
        facts = replace(facts, vocabulary=empty.config.get_text_config(decoder=True).vocab_size)
        folder = hub.folder_of(hub.resolve(base), options.revision)
        free = free_memory(device)
        dtype, notice = choose_dtype(empty, options.dtype, options.quantize, device, free, folder)
        spec = spec_of(empty, dtype, options.quantize, everything=where.own_int8)
    others = filter(None, (notice, f"{base}: weights in FP8 become plain ones" if block else None))
    return PlannedModel(
        name=name,
        parts=parts,
        options=options,
        placement=where,
        config=config,
        facts=facts,
        dtype=dtype,
        spec=spec,
        part=placement.rank_spec(base, empty, spec, split),
        notices=(*others, *_notices(parts, where, spec, header, empty)),
        hub_options=hub_options,
        header=header,
        fp8_block=block,
    )


def _notices(
    parts: Adapted, where: Placement, spec: ModelSpec, header: GGUFHeader | None, empty: Any
) -> Iterator[str]:
    """Lines for the user about what a model takes."""
    size = memory.format_bytes(spec.weight_bytes)
    yield from parts.notices(f"{size} as {spec.weights}")
    if header:
        smaller = replace(where, quantize="8bit").own_int8 and spec.weights == "float32"
        fix = "; --quantize 8bit takes less than half of that" if smaller else ""
        name = header.path.name
        yield f"{name} is unpacked to {spec.weights}, which takes {size} of memory{fix}"
        yield from gguf_model.notices(header, empty)
    if where.own_int8 and not int8.has_vnni():
        yield "8 bits save memory here but no time: this processor has no products of them (VNNI)"


def _read_config(
    name: str, options: ModelOptions, device: Device, progress: bool
) -> tuple[Any, dict[str, Any], GGUFHeader | None, str | None]:
    """The configuration of a model, the options of calls that may ask the hub for it, the header
    of its GGUF file, if it has one, and how its weights are quantised, as far as that is known."""
    source, gguf = hub.locate(name, options.gguf_file, options.revision)
    hub_options = {
        **({"gguf_file": gguf} if gguf else {}),
        "revision": options.revision,
        "local_files_only": options.offline or not (Path(source).is_dir() or hub.hub_answers()),
        "trust_remote_code": options.trust_remote_code,
    }
    header = method = None
    with _loading(name, options, progress, "its configuration"), _reads_gguf(gguf):
        if gguf:
            header = model_files.check_gguf(name, Path(hub.fetch(source, gguf, hub_options)))
        else:
            folder = Path(hub.fetch(source, "config.json", hub_options)).parent
            model_files.check_config(name, folder)
            method = model_files.packing(folder)
            _check_known(name, folder, method, options)
        config = transformers.AutoConfig.from_pretrained(source, **hub_options)
        if not header:
            checkpoint.turn_on_biases(config, folder)
        if header:
            try:
                gguf_model.complete_config(header, config)
            except LoadError as error:
                raise LoadError(f"{name} {error}") from error
    if gguf and device.kind != "cpu":
        config.dtype = torch.bfloat16  # the file's own weights have fewer bits
    return config, hub_options, header, method


def _reads_gguf(file: str | None) -> contextlib.AbstractContextManager[None]:
    """How transformers reads a model, if that is in a GGUF file."""
    return gguf_model.quick_gguf() if file else contextlib.nullcontext()


def _check_known(name: str, folder: Path, method: str | None, options: ModelOptions) -> None:
    """Refuse with a LoadError what transformers does not read, or needs a permission for."""
    stated = model_files.read_object(folder / "config.json")
    known = stated.get("model_type") in transformers.CONFIG_MAPPING
    if stated.get("auto_map") and not (known or options.trust_remote_code):
        raise LoadError(
            f"{name} needs code of its own; read it, then allow it with --trust-remote-code"
        )
    if method not in (None, "bitsandbytes", model_files.FP8, *AUTO_QUANTIZATION_CONFIG_MAPPING):
        raise LoadError(
            f"{name} is quantised for or by {method}, which transformers does not read; take its"
            " plain weights, or a GGUF file"
        )


def check_weights(planned: PlannedModel) -> list[str]:
    """See whether a model's weights fit its configuration without reading them, as far as that can
    be told of plain ones that are here; returns notices.

    Raises:
        LoadError: they do not, or transformers would refuse code in pickled ones.
    """
    folder = hub.folder_of(planned.source, planned.options.revision)
    paths = model_files.weight_files(folder) if folder is not None else []
    _refuse_code(paths)
    # Other formats are unpacked as they are read, and what lacks would be downloaded.
    headed = bool(paths) and all(each.suffix == ".safetensors" and each.is_file() for each in paths)
    plain = getattr(planned.config, "quantization_config", None) is None
    unpacked = "gguf_file" in planned.hub_options or planned.fp8_block or not plain
    if not headed or unpacked or find_spec("accelerate") is None:
        return []
    with _loading(planned.parts.base, planned.options, progress=False):
        return _from_pretrained(planned, dtype="auto", device_map="meta")[1]


def _refuse_code(paths: Sequence[Path]) -> None:
    """Refuse pickled weights that contain code with a LoadError."""
    for path in paths:
        # An old format, or a damaged file: loading finds out.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint
            if path.suffix == ".bin" and unsafe(str(path)):
                raise LoadError(f"{path} contains code, so it is refused; get safetensors instead")


def tokenizer_and_ends(planned: PlannedModel) -> tuple[Any, frozenset[int], list[str]]:
    """The tokenizer of a model that is here, the ids that its configs name as end tokens, and what
    of its generation config is not applied."""
    tokenizer = _tokenizer(planned)
    stated, wrong = _stated(planned)
    defaults = AnswerDefaults(stated, tokenizer, planned.spec.vocabulary)
    return tokenizer, defaults.stop_ids, defaults.ignored + wrong


def _stated(planned: PlannedModel) -> tuple[AsStated, list[str]]:
    """A model's generation config, of its file or of its configuration, and what was left out."""
    hub_options, config = planned.hub_options, None
    with _loading(planned.parts.base, planned.options, False, "its generation config"):
        if "gguf_file" not in hub_options:
            with contextlib.suppress(OSError):  # there is no such file
                config = AsStated.from_pretrained(planned.source, **hub_options)
        config = config or AsStated.from_model_config(planned.config)
        return config, leave_out(config, planned.config, planned.spec.vocabulary)


def load(
    planned: PlannedModel, *, progress: bool = True, need: memory.Need | None = None
) -> LoadedModel:
    """Load what was planned, and its tokenizer.

    Of ranks that share it, all call this, and their process group is there already.  A device map
    leaves room for what decoding takes, its `need`.

    Raises:
        LoadError: the weights cannot be read; the message says why and what helps.
    """
    tokenizer = _tokenizer(planned, progress)
    read = partial(_read_model, planned, need, progress)
    model, left_out = read()
    where = planned.placement
    ours = where.own_int8 and where.is_ours(planned.facts)
    if (planned.spec.weights not in FULL and not ours) or where.split > 1:
        check_forward(planned, model)
    known = {each.name: getattr(planned, each.name) for each in fields(PlannedModel)}
    known["notices"] = (*planned.notices, *left_out)
    return LoadedModel(
        **known,
        model=model,
        tokenizer=tokenizer,
        again=lambda: read()[0],
    )


@quiet()
@torch.no_grad()
def check_forward(planned: PlannedModel, model: Any) -> None:
    """See whether quantized or split weights can be computed with here; LoadError if not.

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
    source, hub_options = planned.source, planned.hub_options
    if planned.parts.tokenizer is not None:
        source, hub_options = planned.parts.tokenizer, {**hub_options, "gguf_file": None}
    gguf = hub_options.get("gguf_file")
    with (
        _loading(planned.parts.base, planned.options, progress, "its tokenizer"),
        _reads_gguf(gguf),
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub_options)
        if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
            kind = type(tokenizer).__name__
            raise LoadError(f"{planned.parts.base} has a {kind}, which is no tokenizer of one text")
        if len(tokenizer) == len(tokenizer.get_added_vocab()):  # transformers found no file
            raise LoadError(hub.no_tokenizer(planned.parts.base))
        _check_growth(planned.parts.base, tokenizer)
        if gguf and planned.header:
            gguf_model.complete_tokenizer(planned.header, tokenizer)
        elif not getattr(tokenizer, "chat_template", None):
            tokenizer.chat_template = hub.processor_template(source, hub_options)
        return tokenizer


def _check_growth(name: str, tokenizer: Any) -> None:
    """Refuse a tokenizer whose replacements, one after the other, make a text so long that it
    fills the memory."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    for part in (getattr(fast, "normalizer", None), getattr(fast, "decoder", None)):
        state = {} if part is None else json.loads(part.__getstate__())
        times = 1.0
        for step in state.get("normalizers") or state.get("decoders") or [state]:
            if step.get("type") == "Replace":
                pattern = step["pattern"].get("String") or "."  # of a regular expression
                times *= max(len(step["content"]) / len(pattern), 1.0)
        if times > GROWTH:
            raise LoadError(
                f"{name} has a tokenizer that makes texts {times:.0e} times as long; take one from"
                " elsewhere"
            )


def _read_model(
    planned: PlannedModel, need: memory.Need | None, progress: bool
) -> tuple[Any, list[str]]:
    """The model with all of its weights, where it computes, and notices; errors as `load`."""
    name, options, device = planned.parts.base, planned.options, planned.device
    # Nothing else hides the bars of unpacking; those of downloads are shown on a terminal.
    gguf = planned.hub_options.get("gguf_file")
    hides = gguf or not progress
    hidden = contextlib.redirect_stderr(io.StringIO()) if hides else contextlib.nullcontext()
    with _loading(name, options, progress), _reads_gguf(gguf), hidden:
        place = placement.keywords(planned.placement, planned.config, planned.dtype, need)
        # What is quantised here is read as it is stored.
        dtype = "auto" if planned.placement.own_int8 else planned.dtype
        model, notices = _from_pretrained(planned, dtype=dtype, **place)
        if getattr(model, "quantization_method", None) == "gguf":
            model.hf_quantizer.remove_quantization_config(model)  # its weights are plain ones now
        if model.can_generate() is False:
            raise LoadError(f"{name} is no causal language model, so it cannot continue a text")
        if device.kind != "cpu" and not place.keys() & {"device_map", "distributed_config"}:
            model.to(device.torch_name)
        model.generation_config, wrong = _stated(planned)
        if wrong:
            names = ", ".join(wrong)
            notices.append(f"left out of the generation config, as it makes no sense: {names}")
        for adapter in planned.parts.adapters:
            model = _merged(model, adapter, name)
        if planned.placement.own_int8:
            int8.quantise(model, planned.dtype)
        return model.eval(), notices


def _from_pretrained(planned: PlannedModel, **keywords: Any) -> tuple[Any, list[str]]:
    """The model that transformers makes of a checkpoint, and notices.

    Raises:
        LoadError: weights are missing, or of another shape.
    """
    name, config, hub_options = planned.parts.base, planned.config, planned.hub_options
    here = hub.folder_of(planned.source, planned.options.revision)
    _refuse_code(model_files.weight_files(here) if here else [])
    source: str | None = planned.source
    maker = auto_class(config)
    if planned.fp8_block:
        folder = hub.fetch_weights(planned.source, hub_options)
        keywords["state_dict"] = checkpoint.plain_tensors(folder, planned.dtype, planned.fp8_block)
        empty = empty_model(config, hub_options)
        maker, config, source = type(empty), empty.config, None
    model, found = maker.from_pretrained(
        source,
        config=config,
        generation_config=GenerationConfig(),  # the model's own is read by `_stated`
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are named below
        attn_implementation="eager" if needs_eager(config) else None,
        # Where peft is installed, transformers looks for adapters too.
        adapter_kwargs={"local_files_only": hub_options["local_files_only"]},
        **keywords,
        **hub_options,
    )
    # transformers fills what is missing with random numbers.
    missing = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    unknown = found["unexpected_keys"]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        known = f", and {min(unknown)} is unknown" if unknown else ""
        raise LoadError(
            f"{name}: the weights do not fit its config.json ({missing[0]}{more} missing or of"
            f" another shape{known})"
        )
    return model, [*checkpoint.check_unread(name, model, unknown, here)]


def _merged(model: Any, adapter: Adapter, base: str) -> Any:
    """A model with an adapter merged into its weights, by peft; LoadError if they do not fit."""
    import peft

    with _merging(adapter, base):
        checkpoint.fit_embeddings(model, adapter.folder)
        tuned = peft.PeftModel.from_pretrained(model, str(adapter.folder))
        # The same again says what that leaves out without an error.
        read = tuned.load_adapter(str(adapter.folder), "default")
        # Embeddings that were resized are saved twice.
        unread = [key for key in read.unexpected_keys if ".modules_to_save." not in key]
        if wrong := [*read.missing_keys, *unread]:
            raise ValueError(f"{wrong[0]} and {len(wrong) - 1} more weights have no counterpart")
        return tuned.merge_and_unload()


@contextlib.contextmanager
def _merging(adapter: Adapter, base: str) -> Iterator[None]:
    """Make one line of an error of peft's; memory that ran out is for others."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        other = f"; it was made for {adapter.base}" if adapter.base not in (None, base) else ""
        raise LoadError(
            f"adapter {adapter.name} cannot be merged into {base}:"
            f" {hub.first_line(error).rstrip('.')}{other}"
        ) from error


@contextlib.contextmanager
def _loading(name: str, options: ModelOptions, progress: bool, part: str = "") -> Iterator[None]:
    """Keep the libraries' own output out of the terminal, and the bars of downloads if wanted; turn
    errors of loading a model, or a part of it, into one line each."""
    # This hides the hub's bars along with those of loading weights.
    transformers.utils.logging.disable_progress_bar()
    if progress:
        enable_progress_bars()
    try:
        with quiet():
            yield
    except Error:
        raise
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{name} does not fit into the GPU's memory; try --quantize 4bit, or --device cpu"
        ) from error
    except MemoryError as error:
        raise LoadError(f"{name} does not fit into memory; try --dtype bfloat16") from error
    except Exception as error:
        where = options.gguf_file, options.revision, options.offline
        raise LoadError(hub.explain(name, error, part, *where)) from error
    finally:
        transformers.utils.logging.enable_progress_bar()
