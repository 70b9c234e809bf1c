"""LoRA adapters: which model an adapter is for, and whether it can be merged into one.  No torch.

An adapter is a folder, or a repository on the hub, with adapter_config.json in place of
config.json: small weights that change those of another model, its base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LoadError
from . import hub
from .model_files import TOKENIZERS, is_pointer, naming, no_regular_file, read_object, version


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter on this machine."""

    name: str  # as the user gave it
    folder: Path  # with its files
    stated: dict[str, Any]  # its adapter_config.json

    @property
    def base(self) -> str | None:
        """The model that it was made for; a folder may be one of another machine."""
        return self.stated.get("base_model_name_or_path") or None

    @property
    def kind(self) -> str:
        """In words: "LoRA of rank 8"."""
        kind = str(self.stated.get("peft_type") or "unknown").replace("LORA", "LoRA")
        rank = self.stated.get("r")
        return f"{kind} of rank {rank}" if rank else kind

    @property
    def brings_tokenizer(self) -> bool:
        """Whether a tokenizer lies beside it, which may have tokens or a template of its own."""
        return any(any(self.folder.glob(pattern)) for pattern in TOKENIZERS)

    @property
    def _weights(self) -> list[Path]:
        return sorted(self.folder.glob("adapter_model.*"))

    @property
    def fault(self) -> str | None:
        """Why it can be merged into no model, to be said after its name, or None."""
        for name in ("base_model_name_or_path", "revision"):
            if not isinstance(self.stated.get(name) or "", str):
                return f"has a damaged {hub.ADAPTER} ({name} is no text); download or copy it again"
        if not self.stated.get("peft_type"):
            return f"has a damaged {hub.ADAPTER} (no peft_type); download or copy it again"
        if "num_virtual_tokens" in self.stated:
            return f"is an adapter of the kind {self.kind}, which cannot be merged into a model"
        if self.stated.get("layer_replication"):
            return "repeats layers of its base (layer_replication), so it cannot be merged into it"
        if (self.folder / "config.json").is_file():
            return (
                "holds a whole model beside an adapter, and nothing says whether that is merged;"
                f" keep the adapter's files in a folder of their own, or delete {hub.ADAPTER}"
            )
        if not self._weights:
            return f"holds no adapter_model.safetensors; download or copy it beside {hub.ADAPTER}"
        if odd := no_regular_file(self.folder):
            return odd
        if is_pointer(self._weights[0]):
            return f"holds a Git LFS pointer in place of {self._weights[0].name}; run git lfs pull"
        return None


@dataclass(frozen=True, slots=True)
class Adapted:
    """What a MODEL argument and `--adapter` options come to."""

    base: str  # the model that holds most weights, as a MODEL argument
    revision: str | None  # of it on the hub
    adapters: tuple[Adapter, ...] = ()  # to be merged into it, in this order
    tokenizer: str | None = None  # a folder whose tokenizer holds in place of the base's, or None

    def notices(self, takes: str) -> list[str]:
        """A line about each adapter, before it is merged into a base that `takes` memory."""
        found = []
        for each in self.adapters:
            other = each.base not in (None, self.base)
            made_for = f"; it was made for {each.base}" if other else ""
            found.append(
                f"adapter {each.name} ({each.kind}) is merged into {self.base}, which takes"
                f" {takes}{made_for}"
            )
        return found


def find(name: str, revision: str | None = None, *, ask: bool = False) -> Adapter | None:
    """The adapter that a name stands for, or None where it is a model, or unknown.

    With `ask`, one that is not on this machine is downloaded.

    Raises:
        LoadError: the path does not exist, or the adapter's configuration is damaged.
    """
    source = hub.resolve(name)
    folder = Path(source) if Path(source).exists() else hub.adapter_folder(source, revision, ask)
    return None if folder is None else at(folder, name)


def at(folder: Path, name: str) -> Adapter | None:
    """The adapter in a folder, or None where there is none; errors as `find`."""
    if not (folder / hub.ADAPTER).is_file():
        return None
    with naming(name):
        return Adapter(name, folder, read_object(folder / hub.ADAPTER))


def find_adapters(
    name: str,
    given: Sequence[str],
    revision: str | None,
    *,
    ask: bool = False,
    early: bool = False,
) -> Adapted:
    """The base model and the adapters of a MODEL argument and of `--adapter` options.

    Args:
        name: the MODEL argument: a model, or an adapter, whose base is looked for.
        given: the names of adapters.
        revision: of `name`, on the hub.
        ask: whether adapters that are not on this machine are downloaded.
        early: whether a name on the hub may be unknown: it is looked for later.

    Raises:
        LoadError: an adapter is none, cannot be merged, or its base is not named or not there.
    """
    own = find(name, revision, ask=ask)
    others = [find(each, ask=ask) for each in given]
    for each, found in zip(given, others, strict=True):
        if found is None and (not early or Path(hub.resolve(each)).exists()):
            raise LoadError(
                f"--adapter {each}: there is no {hub.ADAPTER}, nor could one be downloaded; check"
                " the name and the network"
            )
    adapters = tuple(filter(None, (own, *others)))
    for adapter in adapters:
        if fault := adapter.fault:
            raise LoadError(f"{adapter.name} {fault}")
    if (adapters or given) and version("peft") is None:
        raise LoadError("an adapter needs the package peft: pip install 'ladecli[lora]'")
    folders = [str(each.folder) for each in adapters if each.brings_tokenizer]
    tokenizer = folders[-1] if folders else None
    if own is None:
        return Adapted(name, revision, adapters, tokenizer)
    return Adapted(_base(own), own.stated.get("revision"), adapters, tokenizer)


def _base(adapter: Adapter) -> str:
    """The model that an adapter was made for, as a MODEL argument; LoadError if it is not here."""
    fix = f"name its base: lade chat BASE --adapter {adapter.name}"
    if adapter.base is None:
        raise LoadError(f"{adapter.name} is an adapter that names no base model; {fix}")
    try:
        hub.resolve(adapter.base)
    except LoadError as error:
        raise LoadError(
            f"{adapter.name} is an adapter for {adapter.base}, which is not on this machine; {fix}"
        ) from error
    return adapter.base


def check(
    name: str,
    given: Sequence[str] = (),
    gguf: str | None = None,
    revision: str | None = None,
    *,
    offline: bool = False,
) -> Path | None:
    """Refuse with a LoadError what cannot be loaded, as far as that shows before torch is there.

    Returns the folder or the GGUF file that has the tokenizer, if that is on this machine.
    """
    parts = find_adapters(name, given, revision, early=True)
    folder = hub.check(parts.base, gguf, parts.revision, offline=offline)
    return folder if parts.tokenizer is None else Path(parts.tokenizer)
