"""Find a model: the bundled one, a folder, a GGUF file, an adapter, or a name on the hub.

Nothing here imports torch, so that a wrong name is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import LoadError
from ..files import expanded
from ..options.model import ModelOptions
from .adapters import Adapter, read_adapter
from .gguf_header import GGUFHeader, first_part
from .model_files import (
    ADAPTER,
    GGUF,
    Config,
    Tensor,
    chat_templates,
    check_gguf,
    holds_model,
    missing,
    naming,
    read_config,
    require_gguf,
    snapshot_within,
    stored_tensors,
    weight_files,
)

DEMO = "demo"
"""Name of the bundled model; a folder of that name is ./demo."""
_PAGE = re.compile(
    r"(?:https://)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#:]+)(?:/tree/main/?|[?#:].*)?"
)
"""The address of a model on the hub, or Ollama's form of it with a tag after a colon."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The location of a model and the content of its files, read without torch."""

    name: str  # the MODEL argument
    options: ModelOptions  # of the user, but with the revision of the base
    base: str  # MODEL itself, or the model for which an adapter was made
    source: str  # its folder, or its name on the hub
    local_only: bool  # nothing is fetched from the hub
    folder: Path | None = None  # with config.json or a GGUF file, if that is on this machine
    gguf: str | None = None  # the name of the GGUF file, if the model is one
    header: GGUFHeader | None = None  # of that file
    config: Config | None = None  # its config.json
    weights: tuple[Path, ...] = ()  # its files of weights, on this machine or not
    tensors: tuple[Tensor, ...] = ()  # those of safetensors files on this machine
    adapters: tuple[Adapter, ...] = ()  # to be merged into it, in this order
    tokenizer: Path | None = None  # an adapter's folder, whose tokenizer replaces the base's

    @property
    def hub_options(self) -> dict[str, Any]:
        """The options for calls of transformers that may access the hub."""
        return {
            **({"gguf_file": self.gguf} if self.gguf else {}),
            "revision": self.options.revision,
            "local_files_only": self.local_only,
            "trust_remote_code": self.options.trust_remote_code,
        }

    def chat_templates(self) -> dict[str, str] | None:
        """Return the chat templates by name; None if they are not known yet."""
        if self.tokenizer is None and self.header is not None:
            return self.header.chat_templates
        folder = self.tokenizer or (self.folder if self.config else None)
        if folder is None:
            return None
        with naming(self.name):
            return chat_templates(folder)


def find(options: ModelOptions) -> ModelFiles:
    """Find a model and its adapters, and check their files.

    Adapters that are not on this machine are downloaded.  A model that is not must be on the hub.

    Raises:
        LoadError: there is no such model, or it is damaged; the message has the fix.
    """
    name, revision = options.name, options.revision

    @cache
    def online() -> bool:
        from . import hub

        return hub.is_online(options.offline)

    own = _find_adapter(name, revision, online)
    adapters = [own] if own is not None else []
    for other in options.adapters:
        if (adapter := _find_adapter(other, None, online)) is None:
            raise LoadError(
                f"--adapter {other}: there is no {ADAPTER}, nor could one be downloaded; check"
                " the name and the network"
            )
        adapters.append(adapter)
    for adapter in adapters:
        adapter.check()
    if own is not None:
        name, revision = _base_of(own), own.stated.get("revision")
    tokenizers = [adapter.folder for adapter in adapters if adapter.brings_tokenizer]
    tokenizer = tokenizers[-1] if tokenizers else None
    source = resolve(name)
    in_folder = Path(source).exists()
    files = ModelFiles(
        name=options.name,
        options=replace(options, revision=revision),
        base=name,
        source=source,
        local_only=options.offline or not (in_folder or online()),
        adapters=tuple(adapters),
        tokenizer=tokenizer,
    )
    if in_folder:
        return _read(_choose_gguf(files, Path(source)))
    return _in_cache(files, online)


def _in_cache(files: ModelFiles, online: Callable[[], bool]) -> ModelFiles:
    """Complete the files of a model on the hub with those in the cache."""
    from . import hub

    name, source, options = files.base, files.source, files.options
    snapshot, gguf = hub.snapshot_of(source, options.revision), options.gguf_file
    if gguf is not None and not (snapshot and (snapshot / gguf).exists()):
        require_gguf(name)
        files = replace(files, gguf=gguf)
    elif snapshot is not None:
        return _read(_choose_gguf(files, snapshot))
    if snapshot is None:
        hub.check_name(name, source, options.revision, options.offline, online())
    return files


def resolve(name: str) -> str:
    """Return the folder, the GGUF file, or the name on the hub of a MODEL argument.

    Raises:
        LoadError: the path does not exist, or is not a model.
    """
    if name == DEMO:
        return str(Path(__file__).parents[1] / "demo")
    path = snapshot_within(expanded(name))
    if not path.exists():
        if page := _PAGE.fullmatch(name):
            return page[1]
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            from .hub import suggest

            raise LoadError(f"there is no model folder {name}{suggest(name)}")
        return name
    if path.is_file() and path.suffix != GGUF:
        raise LoadError(f"{name} is a file; give the folder that holds config.json, or a GGUF file")
    if path.is_dir() and not holds_model(path):
        raise LoadError(f"{name} {missing(path)}")
    return str(path)


def absolute(name: str) -> str:
    """Return a MODEL argument that is valid in any folder."""
    path = expanded(name)
    return str(path.absolute()) if name != DEMO and path.exists() else name


def _find_adapter(name: str, revision: str | None, online: Callable[[], bool]) -> Adapter | None:
    """Return the adapter of a name; None if the name is a model's, or unknown."""
    source = resolve(name)
    folder: Path | None = Path(source)
    if not Path(source).exists():
        from .hub import adapter_folder

        folder = adapter_folder(source, revision, online)
    if folder is None or not (folder / ADAPTER).is_file():
        return None
    return read_adapter(folder, name)


def _base_of(adapter: Adapter) -> str:
    """Return the base model of an adapter; LoadError if it is not named or not on this machine."""
    fix = f"name its base: lade chat BASE --adapter {adapter.name}"
    if adapter.base is None:
        raise LoadError(f"{adapter.name} is an adapter that names no base model; {fix}")
    try:
        resolve(adapter.base)
    except LoadError as error:
        raise LoadError(
            f"{adapter.name} is an adapter for {adapter.base}, which is not on this machine; {fix}"
        ) from error
    return adapter.base


def _choose_gguf(files: ModelFiles, path: Path) -> ModelFiles:
    """Complete the files with the folder of a path, and with the GGUF file of the model, if any."""
    if path.is_file():
        return replace(files, source=str(path.parent), folder=path.parent, gguf=path.name)
    gguf, files = files.options.gguf_file, replace(files, folder=path)
    if gguf is None and (path / "config.json").is_file():
        return files
    names = sorted(file.name for file in path.glob(f"*{GGUF}"))
    models = first_part(names)
    if gguf is None and len(models) > 1:
        raise LoadError(
            f"{files.base} holds {len(models)} GGUF files: name one with --gguf-file, of"
            f" {', '.join(models)}"
        )
    if gguf is not None and gguf not in names:
        raise LoadError(
            f"{files.base} holds no {gguf}; it has {', '.join(names) or 'no GGUF files'}"
        )
    return replace(files, gguf=gguf or next(iter(models), None))


def _read(files: ModelFiles) -> ModelFiles:
    """Complete the files with their checked content."""
    name, folder = files.base, files.folder
    assert folder is not None
    if files.gguf is not None:
        return read_downloaded(files, folder / files.gguf)
    in_cache = not Path(files.source).is_dir()
    if in_cache and not (folder / "config.json").is_file():
        return files
    config = read_config(name, folder)
    absent = missing(folder)
    if absent and not in_cache:  # the rest of a model in the cache is downloaded
        raise LoadError(f"{name} {absent}")
    with naming(name):
        weights = tuple(weight_files(folder))
        return replace(files, config=config, weights=weights, tensors=stored_tensors(weights))


def read_downloaded(files: ModelFiles, path: Path) -> ModelFiles:
    """Complete the files with the content of a GGUF file or config.json after its download."""
    if files.gguf is not None:
        header = check_gguf(files.base, path)
        return replace(files, header=header, gguf=header.path.name)
    return _read(replace(files, folder=path.parent))
