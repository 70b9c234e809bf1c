"""The only place where models and tokenizers are loaded."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.utils import enable_progress_bars

from . import memory
from .blueprint import shape_of
from .decoder.config import SamplingConfig
from .decoder.errors import UnsupportedModelError
from .decoder.memory import is_out_of_memory
from .decoder.support import ModelFacts, examine
from .device import Device, detect, free_memory
from .errors import LoadError, UsageError
from .library import checkpoint, hub, load_errors
from .settings import LoadOptions
from .shape import FULL, ModelShape

DEMO = hub.DEMO
_NOT_APPLIED = frozenset(
    {"no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"}
    | {"forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens"}
    | {"sequence_bias", "exponential_decay_length_penalty", "guidance_scale", "num_beams"}
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A model that can be loaded: what is known before any weight is read.

    Attributes:
        name: as the user gave it.
        options: how to load it.
        device: where it will run.
        config: its configuration.
        facts: what the decoder must know of it.
        dtype: of activations, and of weights that are not quantised.
        shape: what memory and speed depend on.
        notices: lines that the user should see.
        hub: keywords of every call that may ask the hub.
        made_for: tokens of the longest text that it was made for, where that was stretched.
    """

    name: str
    options: LoadOptions
    device: Device
    config: Any
    facts: ModelFacts
    dtype: torch.dtype
    shape: ModelShape
    notices: tuple[str, ...] = ()
    hub: dict[str, Any] = field(default_factory=dict)
    made_for: int | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        name: as the user gave it.
        model: a causal language model in evaluation mode.
        tokenizer: its tokenizer.
        device: where it runs.
        shape: what memory and speed depend on.
        notices: lines that the user should see.
        seconds: what loading took.
        made_for: tokens of the longest text that it was made for, where that was stretched.
    """

    name: str
    model: Any
    tokenizer: Any
    device: Device
    shape: ModelShape
    notices: tuple[str, ...]
    seconds: float
    made_for: int | None = None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a text, as the model's generation config says."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset([ids] if isinstance(ids, int) else ids)

    @property
    def ignored_settings(self) -> list[str]:
        """Settings of the generation config that change even greedy text, and are not applied."""
        given = self.model.generation_config.to_diff_dict()
        return sorted(name for name in _NOT_APPLIED if given.get(name))

    @property
    def repetition_penalty(self) -> float:
        """The penalty of the model's generation config, which applies to greedy decoding too."""
        return float(self.model.generation_config.repetition_penalty or 1.0)

    @property
    def sampling(self) -> SamplingConfig:
        """How the model's own generation config wants tokens to be chosen.

        Raises:
            ConfigError: it holds a value that is out of range.
        """
        config = self.model.generation_config
        if not config.do_sample:
            return SamplingConfig(repetition_penalty=self.repetition_penalty)
        temperature = 1.0 if config.temperature is None else config.temperature
        return SamplingConfig(
            temperature=float(temperature),
            top_k=int(config.top_k or 0),
            top_p=1.0 if config.top_p is None else float(config.top_p),
            min_p=float(config.min_p or 0.0),
            repetition_penalty=self.repetition_penalty,
        )


def plan(name: str, options: LoadOptions | None = None, *, progress: bool = True) -> Plan:
    """Find a model and read its configuration; no weights.

    Args:
        name: a Hugging Face id, a local folder, or "demo".
        options: how it shall be loaded.
        progress: whether a download shows a progress bar on stderr.

    Raises:
        UsageError: there is no such device, or the options do not go together.
        LoadError: there is no such model, or its configuration cannot be read.
        UnsupportedModelError: it cannot be decoded here.
    """
    options = options or LoadOptions()
    device = detect(options.device)
    source = hub.resolve(name)
    local = Path(source).is_dir()
    asking = {
        "revision": options.revision,
        "local_files_only": options.offline or not (local or hub.hub_answers()),
        "trust_remote_code": options.trust_remote_code,
    }
    with _explained(name), _quiet(progress):
        config = transformers.AutoConfig.from_pretrained(source, **asking)
        facts = examine(config)
        notices = _without_fp8(device, config)
        dtype, told = _dtype(options, device, config, _folder(source, options.revision), asking)
        notices += told
        shape = shape_of(config, dtype, options.quantize, hub=asking)
    if local and options.revision:
        notices = (*notices, f"--revision {options.revision} says nothing about a folder")
    return Plan(name, options, device, config, facts, dtype, shape, notices, asking)


def load(
    what: str | Plan, options: LoadOptions | None = None, *, progress: bool = True
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        what: the model's name, or what `plan` made of it.
        options: how, where a name is given.
        progress: whether downloads show progress bars on stderr.

    Raises:
        UsageError, LoadError, UnsupportedModelError: as `plan`, and where the weights cannot
            be read; the message says why and what helps.
    """
    began = time.perf_counter()
    planned = plan(what, options, progress=progress) if isinstance(what, str) else what
    name, device, source = planned.name, planned.device, hub.resolve(planned.name)
    place = _placement(planned)
    with _explained(name), _quiet(progress):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **planned.hub)
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            config=planned.config,
            dtype=planned.dtype,
            output_loading_info=True,
            **place,
            **planned.hub,
        )
    # transformers fills what is missing with random numbers.
    missing = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    if missing:
        raise LoadError(
            f"{name}: the weights are incomplete ({missing[0]} and {len(missing) - 1} more are"
            " missing or of another shape); download or copy them again"
        )
    if model.can_generate() is False:
        raise LoadError(f"{name} is no causal language model, so it cannot continue a text")
    if device.kind != "cpu" and "device_map" not in place:
        with _explained(name):
            model.to(device.torch_name)
    model.eval()
    if planned.shape.weights not in FULL:
        _try_out(planned, model)
    seconds = time.perf_counter() - began
    return LoadedModel(
        name,
        model,
        tokenizer,
        device,
        planned.shape,
        planned.notices,
        seconds,
        planned.made_for,
    )


@torch.inference_mode()
def _try_out(planned: Plan, model: Any) -> None:
    """See whether products with quantised weights can be computed here, of one row and of two.

    Kernels refuse shapes and devices only when they are called.

    Raises:
        LoadError: they cannot.
    """
    place = next(model.parameters()).device
    try:
        for width in (1, 2):
            ids = torch.zeros((1, width), dtype=torch.long, device=place)
            model(input_ids=ids, use_cache=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise LoadError(
                f"{planned.name} leaves no memory on {planned.device.label} to compute with; take"
                " a smaller model, or free some memory"
            ) from error
        other = {"nf4": "; try --quantize 8bit", "int8": "; try --quantize 4bit"}
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise LoadError(
            f"{planned.name} cannot be computed in {planned.shape.weights} on"
            f" {planned.device.label}: {words[0]}{other.get(planned.shape.weights, '')}"
        ) from error


def _dtype(
    options: LoadOptions,
    device: Device,
    config: Any,
    folder: Path | None,
    asking: dict[str, Any],
) -> tuple[torch.dtype, tuple[str, ...]]:
    """The type of activations and plain weights, and what to tell the user about it.

    Args:
        options: as the user gave them.
        device: where the model will run.
        config: of the model.
        folder: of its files, as far as they are on this machine; None where none are.
        asking: keywords of calls that may ask the hub.
    """
    if options.dtype != "auto":
        return getattr(torch, options.dtype), ()
    if device.kind != "cpu" or getattr(config, "quantization_config", None) is not None:
        return _stored(config, folder), ()
    shape = shape_of(config, torch.float32, options.quantize, hub=asking)
    least = min(examine(config).context, memory.LEAST_CONTEXT)
    needed = memory.estimate(shape, context=least).total
    usable = memory.usable(free_memory(device))
    if needed > usable:
        notice = (
            f"float32 needs {memory.told(needed)}, and {memory.told(usable)} can be used: using"
            " bfloat16"
        )
        return torch.bfloat16, (notice,)
    return torch.float32, ()


def _folder(source: str, revision: str | None) -> Path | None:
    """Where the files of a model are, as far as they are on this machine."""
    if Path(source).is_dir():
        return Path(source)
    found = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def _stored(config: Any, folder: Path | None) -> torch.dtype:
    """The type that a checkpoint's plain weights have."""
    dtype: torch.dtype | None = config.get_text_config(decoder=True).dtype or config.dtype
    if dtype is not None:
        return dtype
    name = checkpoint.stored_type(folder) if folder is not None else None
    # Nobody knows before the download, or with pickled weights: those that do not say it are old,
    # and most of them in float32, which also holds any other type.
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(name or "", torch.float32)


def _without_fp8(device: Device, config: Any) -> tuple[str, ...]:
    """Have weights in FP8 made plain where the device cannot multiply them.

    transformers does that too, but asks the machine's first GPU and not the device in use.

    Returns:
        What to tell the user about it.
    """
    given = getattr(config, "quantization_config", None)
    if not isinstance(given, dict) or given.get("quant_method") != "fp8":
        return ()
    if device.kind == "cuda" and torch.cuda.get_device_capability(device.torch_name) >= (8, 9):
        return ()
    config.quantization_config = {**given, "dequantize": True}
    return (f"{device.label} does not multiply in FP8: the weights become plain ones",)


def _placement(planned: Plan) -> dict[str, Any]:
    """Keywords that say where the weights go and in how many bits."""
    options, device = planned.options, planned.device
    accelerate = importlib.util.find_spec("accelerate") is not None
    place: dict[str, Any] = {}
    if options.device_map is not None:
        if not accelerate:
            raise UsageError("--device-map needs accelerate: pip install accelerate")
        place["device_map"] = options.device_map
    elif accelerate and (device.kind != "cpu" or _is_quantised(planned)):
        # Straight to the device; without accelerate `load` moves the model there afterwards.
        # Quantised weights would go to a GPU that is there, whatever device is in use.
        place["device_map"] = device.torch_name
    if options.quantize != "none":
        place["quantization_config"] = _packing(planned)
    return place


def _is_quantised(planned: Plan) -> bool:
    given = getattr(planned.config, "quantization_config", None)
    return planned.options.quantize != "none" or given is not None


def _packing(planned: Plan) -> Any:
    """How bitsandbytes shall pack the weights."""
    quantize = planned.options.quantize
    if (given := getattr(planned.config, "quantization_config", None)) is not None:
        raise UsageError(
            f"{planned.name} is quantised already ({given.get('quant_method', 'somehow')}); leave"
            " --quantize out"
        )
    missing = [p for p in ("bitsandbytes", "accelerate") if importlib.util.find_spec(p) is None]
    if missing:
        raise UsageError(
            f"--quantize {quantize} needs {' and '.join(missing)}: pip install 'ladecli[quant]'"
        )
    # It logs a line for every product in 8 bits, and one for kernels that it does not need.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=quantize == "4bit",
        load_in_8bit=quantize == "8bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=planned.dtype,
        # With the default threshold a result depends on the other tokens of the batch.
        llm_int8_threshold=0.0,
    )


@contextlib.contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Keep transformers' own chatter out of the terminal, and downloads too if wanted."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    # This hides the hub's bars along with those of loading weights.
    transformers.utils.logging.disable_progress_bar()
    if progress:
        enable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        transformers.utils.logging.enable_progress_bar()


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the errors of loading into one line each."""
    try:
        yield
    except (UsageError, UnsupportedModelError):
        raise
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{name} does not fit into the GPU's memory; try --quantize 4bit, or --device cpu"
        ) from error
    except MemoryError as error:
        raise LoadError(f"{name} does not fit into memory; try --dtype bfloat16") from error
    except Exception as error:
        raise LoadError(load_errors.explain(name, error)) from error
