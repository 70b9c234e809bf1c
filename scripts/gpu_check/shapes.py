"""Models of random numbers, in the shapes of well-known ones: what a step costs is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from ladecli.decoder.attention import bind, release
from ladecli.decoder.lean import Lean, make_lean
from ladecli.decoder.support import ModelFacts, examine

from .journal import LeftOut

SPARE_BYTES = 6e9
"""Beside weights and cache, what steps, graphs and the joining of weights may take."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's configuration.

    Attributes:
        family: the stem of its classes in transformers.
        numbers: what its configuration is made of.
    """

    family: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def _shape(family: str, *sizes: int, theta: float, tied: bool = False, eps: float = 1e-6) -> Shape:
    names = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    )
    rope = {"rope_type": "default", "rope_theta": theta}
    numbers = dict(zip(names, sizes, strict=True))
    numbers |= {"rope_parameters": rope, "tie_word_embeddings": tied, "rms_norm_eps": eps}
    return Shape(family, numbers | {"eos_token_id": None, "bos_token_id": None})


SHAPES = {
    # Vocabulary, hidden, inner, layers, heads, key heads, positions.
    "llama-2-7b": _shape("Llama", 32000, 4096, 11008, 32, 32, 32, 4096, theta=1e4, eps=1e-5),
    "llama-3-8b": _shape("Llama", 128256, 4096, 14336, 32, 32, 8, 8192, theta=5e5, eps=1e-5),
    "qwen2.5-1.5b": _shape("Qwen2", 151936, 1536, 8960, 28, 12, 2, 32768, theta=1e6, tied=True),
    "qwen2.5-32b": _shape("Qwen2", 152064, 5120, 27648, 64, 40, 8, 32768, theta=1e6),
    # For the rehearsal on a CPU.
    "tiny": _shape("Llama", 211, 32, 48, 2, 4, 2, 64, theta=1e4),
    "tiny-qwen": _shape("Qwen2", 97, 32, 48, 2, 4, 1, 64, theta=1e4, tied=True),
}


def config_of(shape: Shape, context: int) -> Any:
    """Its configuration, with room for `context` tokens: random weights mean nothing anyway."""
    numbers = dict(shape.numbers)
    numbers["max_position_embeddings"] = max(numbers["max_position_embeddings"], context)
    return getattr(transformers, f"{shape.family}Config")(**numbers)


class Subject:
    """A model of random weights on a device, its attention bound, and lean where that works.

    Args:
        config: of the model.
        device: where it is made; there is no detour over the host.
        dtype: of its weights.

    Attributes:
        model: as above.
        facts: about it.
        parameters: how many numbers it has; tied ones count once.
        weight_bytes: of all of them.
        read_bytes: of those that a plain step reads: all but a table of embeddings, of which it
            reads a row.
        lean: what made it lean; None where nothing did.
        why_not_lean: the reason.
    """

    def __init__(self, config: Any, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.config = config
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            )
        self._take(model.eval().requires_grad_(False))

    @classmethod
    def of(cls, model: nn.Module) -> Subject:
        """A model that is there already."""
        subject = cls.__new__(cls)
        subject.config = model.config
        subject._take(model)
        return subject

    def _take(self, model: Any) -> None:
        self.model = model
        self.facts: ModelFacts = examine(model.config)
        self.parameters = sum(each.numel() for each in model.parameters())
        self.weight_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
        table = model.get_input_embeddings().weight
        tied = model.get_output_embeddings().weight is table
        self.read_bytes = self.weight_bytes - (0 if tied else table.numel() * table.element_size())
        self._own = bind(model)
        self.lean: Lean | None = None
        self.why_not_lean = ""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def make_lean(self) -> None:
        """Join and replace what can be; before any graph is captured, since weights move."""
        try:
            self.lean = make_lean(self.model)
        except Exception as error:  # it goes on as it is, and says why
            self.why_not_lean = f"{type(error).__name__}: {str(error).splitlines()[:1]}"

    def be_lean(self, wanted: bool) -> None:
        """Let modules compute as they were made lean to, or as transformers has it."""
        if self.lean is not None:
            (self.lean.bind if wanted else self.lean.release)()

    def be_stock(self, wanted: bool) -> None:
        """Give the model all of its own back, attention included; or take that back."""
        self.be_lean(not wanted)
        if wanted:
            release(self._own)
        else:
            bind(self.model)


def check_room(config: Any, context: int, dtype: torch.dtype, free: int | None) -> None:
    """Refuse a model that the device has no room for.

    Args:
        config: of the model.
        context: tokens that its cache shall hold.
        dtype: of its weights.
        free: bytes of the device; None if nobody knows.

    Raises:
        LeftOut: saying how much it takes.
    """
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    weights = sum(each.numel() for each in model.parameters()) * dtype.itemsize
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # While a cache grows, the old one is still there: at most as much again.
    cache = 2 * 2 * config.num_key_value_heads * head * config.num_hidden_layers * context
    needed = weights + cache * dtype.itemsize + SPARE_BYTES
    if free is not None and needed > free:
        raise LeftOut(f"it takes {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
