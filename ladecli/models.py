"""The only place where models and tokenizers are loaded."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import enable_progress_bars

from . import generation_config, memory, model_files, offload, placement, trial
from .blueprint import shape_of
from .decoder.config import SamplingConfig
from .decoder.errors import DecoderError
from .decoder.families import ModelFacts, examine
from .device import Device, detect, free_memory
from .errors import LadeError, LoadError
from .options import LoadOptions
from .shape import FULL, ModelShape
from .weight_types import choose_type, folder_of, without_fp8

DEMO = model_files.DEMO
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.(\d+)\.")
_TOWER = re.compile(r"vision|visual|audio|encoder|mtp")
"""Parts that are for pictures, sounds or drafts, and have layers of their own."""


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
        part: the same of what this process holds: less where ranks share the model.
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
    part: ModelShape
    notices: tuple[str, ...] = ()
    hub: dict[str, Any] = field(default_factory=dict)
    made_for: int | None = None

    @property
    def dtype_name(self) -> str:
        """The name of `dtype`, "bfloat16" for example."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        name: as the user gave it.
        model: a causal language model in evaluation mode.
        tokenizer: its tokenizer.
        device: where it runs.
        shape: what memory and speed depend on.
        part: the same of what this process holds: less where ranks share the model.
        notices: lines that the user should see.
        seconds: what loading took.
        made_for: tokens of the longest text that it was made for, where that was stretched.
        again: loads the model with its weights once more; None where that cannot be.
    """

    name: str
    model: Any
    tokenizer: Any
    device: Device
    shape: ModelShape
    part: ModelShape
    notices: tuple[str, ...]
    seconds: float
    made_for: int | None = None
    again: Callable[[], Any] | None = None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a text, as the model's generation config says, or its tokenizer."""
        own = self.tokenizer.eos_token_id
        config = self.model.generation_config
        said = generation_config.stop_ids(config, self.shape.vocabulary)
        return said or frozenset(() if own is None else (own,))

    @property
    def ignored_settings(self) -> list[str]:
        """Settings of the generation config that are not applied; see `generation_config`."""
        return generation_config.ignored(self.model.generation_config, self.shape.vocabulary)

    @property
    def repetition_penalty(self) -> float:
        """The penalty of the model's generation config, which holds for greedy decoding, too."""
        return generation_config.repetition_penalty(self.model.generation_config)

    @property
    def sampling(self) -> SamplingConfig:
        """How the model's own generation config wants tokens to be chosen."""
        return generation_config.sampling(self.model.generation_config)


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
    source = model_files.resolve(name)
    local = Path(source).is_dir()
    asking = {
        "revision": options.revision,
        "local_files_only": options.offline or not (local or model_files.hub_answers()),
        "trust_remote_code": options.trust_remote_code,
    }
    with _explained(name, options, "its configuration"), _quiet(progress):
        config = transformers.AutoConfig.from_pretrained(source, **asking)
    with _explained(name, options), _quiet(progress):
        facts = examine(config)
        placement.check(name, options, device, config)
        notices = without_fp8(device, config)
        folder = folder_of(source, options.revision)
        _check_generation(name, folder)
        dtype, told = choose_type(options, device, config, folder, asking, free_memory)
        notices += told
        shape = shape_of(config, dtype, options.quantize, hub=asking)
        part = placement.part_of(name, options, config, shape, asking)
    if local and options.revision:
        notices = (*notices, f"--revision {options.revision} says nothing about a folder")
    return Plan(name, options, device, config, facts, dtype, shape, part, notices, asking)


def damage(planned: Plan) -> str | None:
    """What is missing or broken among a model's files, as far as that shows without reading all of
    them; None where nothing is, or where what is missing is still to be downloaded."""
    source = model_files.resolve(planned.name)
    folder = folder_of(source, planned.options.revision)
    if folder is None:
        return None
    if damaged := model_files.damage(folder):
        return f"{damaged}; download or copy it again"
    if missing := model_files.missing(folder):
        return f"{planned.name} {missing}" if Path(source).is_dir() else None
    for path in model_files.weight_files(folder):
        if path.suffix == ".bin" and _code_in(path):
            return f"{path.name} is refused, for it may run code; get safetensors instead"
    try:
        _tokenizer(planned, source)
    except LoadError as error:
        return str(error).removeprefix(f"{planned.name}: ")
    return None


def load(
    what: str | Plan,
    options: LoadOptions | None = None,
    *,
    progress: bool = True,
    beside: memory.Need | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    With `LoadOptions.tensor_parallel` this is one of as many ranks, all of which call it; their
    process group is there already.

    Args:
        what: the model's name, or what `plan` made of it.
        options: how, where a name is given.
        progress: whether downloads show progress bars on stderr.
        beside: what decoding takes beside the weights, to which a device map leaves room.

    Raises:
        RankError: there is no such group.
        UsageError, LoadError, UnsupportedModelError: as `plan`, and where the weights cannot
            be read; the message says why and what helps.
    """
    began = time.perf_counter()
    planned = plan(what, options, progress=progress) if isinstance(what, str) else what
    source = model_files.resolve(planned.name)
    with _quiet(progress):
        tokenizer = _tokenizer(planned, source)

    def complete() -> tuple[Any, tuple[str, ...]]:
        with _explained(planned.name, planned.options), _quiet(progress):
            return _complete(planned, source, beside)

    model, unused = complete()
    if planned.shape.weights not in FULL or planned.options.tensor_parallel > 1:
        trial.check(planned.name, planned.options, planned.device, planned.shape, model)
    return LoadedModel(
        planned.name,
        model,
        tokenizer,
        planned.device,
        planned.shape,
        planned.part,
        (*planned.notices, *unused),
        time.perf_counter() - began,
        planned.made_for,
        again=lambda: complete()[0],
    )


def _code_in(path: Path) -> list[str]:
    """The names in pickled weights that torch refuses to load; none in those of plain tensors."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (ValueError, RuntimeError, OSError):  # an old format, or damaged: loading tells
        return []


def _tokenizer(planned: Plan, source: str) -> Any:
    with _explained(planned.name, planned.options, "its tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(source, **planned.hub)


def _check_generation(name: str, folder: Path | None) -> None:
    """Refuse a damaged generation config, without which transformers would go on: end tokens and
    the penalty are in it."""
    if folder is None:
        return
    try:
        model_files.read_object(folder / model_files.GENERATION)
    except FileNotFoundError:
        return
    except LoadError as error:
        fix = "download or copy it again, or do without it"
        raise LoadError(f"{name}: {error}; {fix}") from error


def _complete(
    planned: Plan, source: str, beside: memory.Need | None
) -> tuple[Any, tuple[str, ...]]:
    """The model with all of its weights, where it computes, and what to tell of the others.

    Raises:
        LoadError: weights are missing, or it is no causal language model.
        RankError: the ranks that it is to be split over have not found each other.
    """
    options, device = planned.options, planned.device
    place = placement.keywords(options, device, planned.config, planned.dtype, beside)
    model, found = _with_weights(planned, source, place)
    # transformers fills what is missing with random numbers.
    missing = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    if missing:
        raise LoadError(
            f"{planned.name}: the weights are incomplete ({missing[0]} and {len(missing) - 1} more"
            " are missing or of another shape); download or copy them again"
        )
    if model.can_generate() is False:
        what = "is no causal language model, so it cannot continue a text"
        raise LoadError(f"{planned.name} {what}")
    if device.kind != "cpu" and not place.keys() & {"device_map", "distributed_config"}:
        model.to(device.torch_name)
    text = planned.config.get_text_config(decoder=True)
    layers = planned.facts.layers + (getattr(text, "num_nextn_predict_layers", None) or 0)
    return model.eval(), _unused(found["unexpected_keys"], layers)


def _unused(keys: Iterable[str], layers: int) -> tuple[str, ...]:
    """What to tell the user about weights that have no place in the model.

    There are harmless ones, but whole layers mean that the configuration is another model's.

    Args:
        keys: their names.
        layers: of the model, those included that only predict further ahead.
    """
    numbers = [
        int(number) for key in keys if not _TOWER.search(key) for number in _LAYER.findall(key)
    ]
    if max(numbers, default=-1) < layers:
        return ()
    most = max(numbers) + 1
    return (f"the weights are of {most} layers and config.json has {layers}: the rest is not used",)


def _with_weights(planned: Plan, source: str, place: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model as transformers reads it, and what it says of the weights that it found."""
    if planned.options.device_map is not None:
        # For what goes to the disk and is not in the checkpoint as it is needed.
        place["offload_folder"] = offload.make()
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        config=planned.config,
        dtype=planned.dtype,
        output_loading_info=True,
        **place,
        **planned.hub,
    )
    return model, found


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Keep what the libraries log out of the terminal, but for errors."""
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Keep the libraries' own chatter out of the terminal, and downloads too if wanted."""
    # This hides the hub's bars along with those of loading weights.
    transformers.utils.logging.disable_progress_bar()
    if progress:
        enable_progress_bars()
    try:
        with hushed():
            yield
    finally:
        transformers.utils.logging.enable_progress_bar()


@contextlib.contextmanager
def _explained(name: str, options: LoadOptions, part: str = "") -> Iterator[None]:
    """Turn the errors of loading a model, or a part of it, into one line each."""
    try:
        yield
    except (LadeError, DecoderError):
        raise
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{name} does not fit into the GPU's memory; try --quantize 4bit, or --device cpu"
        ) from error
    except MemoryError as error:
        raise LoadError(f"{name} does not fit into memory; try --dtype bfloat16") from error
    except Exception as error:
        folder = folder_of(model_files.resolve(name), options.revision)
        raise LoadError(model_files.explain(name, error, folder, part)) from error
