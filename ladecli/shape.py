"""The size of a model in the numbers that memory and speed depend on."""

from __future__ import annotations

from dataclasses import dataclass

FULL = ("float32", "float16", "bfloat16")
"""Types of weights that are multiplied as they are stored."""
PACKED = {"8bit": ("int8", 1.0), "4bit": ("nf4", 0.5 + 4 / 64)}
"""What bitsandbytes makes of a weight: its type, and bytes, with a scale for 64 of them."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What memory and speed depend on; known before any weight is read.

    Attributes:
        parameters: of the whole model; tied ones count once.
        active: of them, those that one token meets: fewer with a mixture of experts.
        weights: how they are stored: a name of `FULL`, "nf4" or "int8" (bitsandbytes), or the
            method of a checkpoint that is quantised already, "gptq" for example.
        weight_bytes: of all of them.
        compute: the type of activations, keys and values: a name of `FULL`.
        layers: hidden layers.
        hidden: numbers in a token's state.
        inner: numbers inside a feed-forward block.
        heads: query heads.
        kv_heads: heads of keys and values.
        head_size: numbers in a head.
        vocabulary: token ids.
        linear: weights of linear layers but the last, which bitsandbytes can pack, 0 where they
            are quantised already; None for all but the embeddings and the last layer.
        latent: numbers in what one layer caches of a token, where that is no keys and values but
            a compressed state of them (DeepSeek); else None.
    """

    parameters: float
    active: float
    weights: str
    weight_bytes: float
    compute: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    linear: float | None = None
    latent: int | None = None

    @property
    def value_bytes(self) -> int:
        """Of one activation, key or value."""
        return 4 if self.compute == "float32" else 2

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of one token."""
        numbers = self.latent or 2 * self.kv_heads * self.head_size
        return self.layers * numbers * self.value_bytes

    @property
    def exactness(self) -> str:
        """What can be claimed of a text under any strategy, in words."""
        if self.weights == "float32":
            return "token for token the text of plain decoding"
        if self.weights in FULL:
            why = f"{self.weights} rounds steps of different widths differently"
        else:
            why = f"{self.weights} kernels for one token and for several round differently"
        return f"the text of plain decoding but for near-ties: {why}"
