"""LoRA adapters: small weights that modify those of another model, the base.  No torch.

An adapter is a folder, or a repository on the hub, with adapter_config.json in place of
config.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LoadError
from .model_files import ADAPTER, TOKENIZERS, is_pointer, naming, read_object, version


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter on this machine."""

    name: str  # as the user wrote it
    folder: Path
    stated: dict[str, Any]  # its adapter_config.json

    @property
    def base(self) -> str | None:
        """The base model; if it is a folder, that may be on another machine."""
        return self.stated.get("base_model_name_or_path") or None

    @property
    def kind(self) -> str:
        """A description such as "LoRA of rank 8"."""
        kind = str(self.stated.get("peft_type") or "unknown").replace("LORA", "LoRA")
        rank = self.stated.get("r")
        return f"{kind} of rank {rank}" if rank else kind

    @property
    def brings_tokenizer(self) -> bool:
        """True if the folder has a tokenizer, which may have its own tokens or template."""
        return any(any(self.folder.glob(pattern)) for pattern in TOKENIZERS)

    @property
    def fault(self) -> str | None:
        """The reason why the adapter cannot be merged into any model, or None."""
        if not self.stated.get("peft_type"):
            return f"has a damaged {ADAPTER} (no peft_type); download or copy it again"
        if "num_virtual_tokens" in self.stated:
            return f"is an adapter of the kind {self.kind}, which cannot be merged into a model"
        if self.stated.get("layer_replication"):
            return "repeats layers of its base (layer_replication), so it cannot be merged into it"
        if (self.folder / "config.json").is_file():
            return (
                "holds a whole model beside an adapter, and nothing says whether that is merged;"
                f" keep the adapter's files in a folder of their own, or delete {ADAPTER}"
            )
        weights = sorted(self.folder.glob("adapter_model.*"))
        if not weights:
            return f"holds no adapter_model.safetensors; download or copy it beside {ADAPTER}"
        if is_pointer(weights[0]):
            return f"holds a Git LFS pointer in place of {weights[0].name}; run git lfs pull"
        return None

    def check(self) -> None:
        """Raise a LoadError if the adapter cannot be merged into any model."""
        if self.fault:
            raise LoadError(f"{self.name} {self.fault}")
        if version("peft") is None:
            raise LoadError("an adapter needs the package peft: pip install 'ladecli[lora]'")


def read_adapter(folder: Path, name: str) -> Adapter:
    """Read the adapter in a folder; LoadError if its configuration is damaged."""
    with naming(name):
        return Adapter(name, folder, read_object(folder / ADAPTER))
