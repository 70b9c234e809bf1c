"""Read the configuration of a model, and build the model without weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import enable_progress_bars
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ..decoder.backends.facts import model_facts
from ..decoder.backends.quiet import quiet
from ..decoder.errors import Error, UnsupportedModelError
from ..decoder.faults import is_out_of_memory
from ..decoder.model.families import ModelFacts
from ..errors import LoadError
from . import hub, model_files
from .adapters import Adapter
from .find import ModelFiles, read_downloaded
from .gguf_header import parts_of, quick_gguf

_READ_BY_TEXT = {"gemma3n"}
"""Families that need the text class to read the whole model's weights; the full class would need
more packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model's files and configuration, before its placement is decided."""

    files: ModelFiles
    config: Any  # of transformers
    facts: ModelFacts
    packing: str | None  # the quantisation method of its weights, if it is known from the files

    @property
    def name(self) -> str:
        """The MODEL argument."""
        return self.files.name


def describe(files: ModelFiles, *, progress: bool = True) -> ModelDescription:
    """Read the configuration of a model, downloading it if necessary.

    With `progress`, a download shows a bar on stderr.

    Raises:
        LoadError: the configuration cannot be read, or needs code that is not allowed.
        UnsupportedModelError: the model cannot be decoded here.
    """
    name, packing = files.base, None
    with loading(files, progress, "its configuration"):
        if files.config is None and files.header is None:
            parts = parts_of(files.gguf or "config.json")
            paths = [hub.fetch(files.source, part, files.hub_options) for part in parts]
            files = read_downloaded(files, Path(paths[0]))
        if (stated := files.config) is not None and files.folder is not None:
            is_known = stated.stated.get("model_type") in transformers.CONFIG_MAPPING
            if stated.stated.get("auto_map") and not (is_known or files.options.trust_remote_code):
                raise LoadError(
                    f"{name} needs code of its own; read it, then allow it with --trust-remote-code"
                )
            packing = model_files.packing(stated, files.folder, files.tensors)
            readable = (None, "bitsandbytes", model_files.FP8, *AUTO_QUANTIZATION_CONFIG_MAPPING)
            if packing not in readable:
                raise LoadError(
                    f"{name} is quantised for or by {packing}, which transformers does not read;"
                    " take its plain weights, or a GGUF file"
                )
        with reading(files):
            config = transformers.AutoConfig.from_pretrained(files.source, **files.hub_options)
        if files.header is not None:
            from . import gguf_model

            try:
                gguf_model.complete_config(files.header, config)
            except LoadError as error:
                raise LoadError(f"{name} {error}") from error
        return ModelDescription(
            files=files, config=config, facts=model_facts(config), packing=packing
        )


def empty_model(config: Any, hub_options: Mapping[str, Any]) -> Any:
    """Build the model of a configuration without weights, on the meta device.

    `hub_options` are keywords for finding the model's own code, among them
    `trust_remote_code`; without that, only transformers' code is run.
    """
    # A copy, since building fills gaps of the configuration, which may belong to a live model.
    config = copy.deepcopy(config)
    with torch.device("meta"):
        if (own := own_code(config, hub_options)) is not None:
            # `from_config` would ignore the revision and run the newest code.
            others = {
                name: value for name, value in hub_options.items() if name != "trust_remote_code"
            }
            maker = get_class_from_dynamic_module(own, config.name_or_path, **others)
            return maker._from_config(config, attn_implementation=None)
        kind, config = model_class(config)
        # A configuration may name attention that this machine does not have.
        return kind._from_config(config, attn_implementation=None)


def own_code(config: Any, hub_options: Mapping[str, Any]) -> str | None:
    """Return the reference to a model's own class, if it has one and its code may be run."""
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    return own if hub_options.get("trust_remote_code") else None


def model_class(config: Any) -> tuple[Any, Any]:
    """Return the class of transformers for a configuration, and the configuration that it accepts.
    The class has only a text decoder, without the parts for images and audio.

    Raises:
        UnsupportedModelError: no class generates text.
    """
    text = config.get_text_config(decoder=True)
    mappings = (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING,
    )
    key = type(text if config.model_type in _READ_BY_TEXT else config)
    kinds = [mapping[key] for mapping in mappings if key in mapping]
    kinds += [getattr(transformers, name, None) for name in config.architectures or ()]
    for kind in kinds:
        if hasattr(kind, "generate"):
            if isinstance(text, kind.config_class):
                return kind, text
            return _text_alone(kind), config
    raise UnsupportedModelError(
        f"models of the family {config.model_type!r} are not supported: transformers continues no"
        " text with them"
    )


@cache
def _text_alone(kind: Any) -> Any:
    """Return a class of transformers with only its text decoder, so that the weights of other parts
    are never read."""

    def build(self: Any, *args: Any, **keywords: Any) -> None:
        kind.__init__(self, *args, **keywords)
        removed = _remove_others(self, (self.get_decoder(), self.get_output_embeddings()))
        self._keys_to_ignore_on_load_unexpected.update(rf"(^|\.){name}\." for name in removed)

    # The name stays, since transformers looks up renamed weights of older files by it.
    return type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})


def _remove_others(module: Any, kept: Sequence[Any]) -> list[str]:
    """Remove the submodules that neither are nor contain one of those that are kept; return their
    names."""
    removed = []
    for name, part in [*module.named_children()]:
        if part in kept:
            continue
        if any(module in kept for module in part.modules()):
            removed += _remove_others(part, kept)
        else:
            setattr(module, name, None)
            removed.append(name)
    return removed


def reading(files: ModelFiles) -> contextlib.AbstractContextManager[None]:
    """Let transformers read a model's GGUF file quickly, if it has one."""
    if files.header is None:
        return contextlib.nullcontext()
    return quick_gguf(files.header)


@contextlib.contextmanager
def loading(files: ModelFiles, progress: bool, part: str = "") -> Iterator[None]:
    """Hide the output of libraries, except download bars with `progress`, and turn errors into one
    line each; `part` is the part of the model that is loaded."""
    # The hub's bars are hidden together with those of loading weights.
    transformers.utils.logging.disable_progress_bar()
    if progress:
        enable_progress_bars()
    name = files.base
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
        line = hub.explain(
            name,
            error,
            part,
            gguf=files.gguf,
            folder=files.folder,
            offline=files.options.offline,
        )
        raise LoadError(line) from error
    finally:
        transformers.utils.logging.enable_progress_bar()


@contextlib.contextmanager
def merging(adapter: Adapter, base: str) -> Iterator[None]:
    """Turn an error of peft's into one line; out-of-memory errors pass through."""
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
