"""The layers of a transformer on a CPU, for TorchScript's interpreter; see `cpu_layouts` for why.

`CpuLayers` makes the same calls as the loop in `transformer`, for weights that are plain or in 8
bits, and for attention by torch's own kernel or batch-invariant attention.
"""

# Annotations are not postponed, as in `cpu_layouts`.

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kv_cache import StepCache
from ..model.layer import Heads, Layer, Norm, Norms, gated, norm_heads, part, rms_norm
from ..model.mask import StepMask
from ..model.rotary import Rotary, rotate
from .compat import script
from .cpu_layouts import CpuLinear, Linear, project
from .in_blocks import KeyBlock, attend_in_blocks
from .invariant import blocks as blocks_of

MOST_TOKENS = 64
"""The widest step that TorchScript runs.  In wider steps Python's share of the time is negligible,
and Ctrl-C takes effect between two of its calls."""


class CpuLayer(NamedTuple):
    """Weights and settings of one layer; see `layer.Layer`."""

    heads: Heads
    norms: Norms
    scaling: float
    view: int
    """Index of its mask in the arguments of `CpuLayers`."""
    rotary: int
    """Index of its rotary embedding there; -1 without positions."""
    activation: str
    residual_scale: float
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class CpuLayers(nn.Module):
    """The layers of a model, kept in TorchScript's form: converting them in every step would take
    4 % of a step of SmolLM2-135M in 8 bits."""

    layers: list[CpuLayer]

    def __init__(self) -> None:
        super().__init__()
        self.layers = []

    @torch.jit.export
    def hold(self, layers: list[CpuLayer]) -> None:
        """Hold the layers of a model."""
        self.layers = layers

    def forward(
        self,
        residual: Tensor,
        rotary: list[Rotary],
        masks: list[Tensor | None],
        firsts: list[int],
        blocks: list[list[KeyBlock]],
        keys: list[Tensor],
        values: list[Tensor],
        start: int,
    ) -> None:
        """Run a step through all layers, which add their outputs to `residual`.

        Args:
            residual: [T, n].
            rotary: embeddings of the step, by kind.
            masks, firsts: by kind, the additive mask of scores, and the first visible slot; see
                `StepMask.additive_mask`.
            blocks: by kind, of keys, for batch-invariant attention; [] for torch's own.
            keys, values: all slots of each layer, [kv_heads, slots, size].
            start: the slot of the step's first token.
        """
        for index, layer in enumerate(self.layers):
            # Attention: queries, keys and values of the step; keys and values join the cache's.
            norms = layer.norms
            queries, kv_heads, size = layer.heads
            hidden = rms_norm(residual, norms.before_attention)
            qkv = norm_heads(project(hidden, layer.qkv), layer.heads, norms)
            count, turned = qkv.shape[0], queries + kv_heads
            heads = qkv.view(count, -1, size)
            both = part(heads, 0, turned)
            if layer.rotary >= 0:
                both = rotate(both, rotary[layer.rotary])
            query = part(both, 0, queries)
            if layer.rotary >= 0:
                scale = rotary[layer.rotary].query_scale
                if scale is not None:
                    query = query * scale
            first, end = firsts[layer.view], start + count
            key, value = part(both, queries, turned), part(heads, turned, turned + kv_heads)
            part(keys[index], start, end).copy_(key.transpose(0, 1))
            part(values[index], start, end).copy_(value.transpose(0, 1))
            # Keys are read once for all query heads that share them.
            folded = query.transpose(0, 1).reshape(kv_heads, -1, size)
            key, value = part(keys[index], first, end), part(values[index], first, end)
            added = masks[layer.view]
            if len(blocks) > 0:
                attended = attend_in_blocks(
                    folded.float(), key, value, added, blocks[layer.view], layer.scaling
                ).to(hidden.dtype)
            else:
                attended = F.scaled_dot_product_attention(
                    folded[None], key[None], value[None], attn_mask=added, scale=layer.scaling
                )
            attended = attended.reshape(queries, count, size).transpose(0, 1).flatten(1)
            update = project(attended, layer.out)
            add(residual, update, norms.after_attention, layer.residual_scale)
            # MLP: up, gated, and down.
            hidden = rms_norm(residual, norms.before_mlp)
            update = project(gated(project(hidden, layer.gate_up), layer.activation), layer.down)
            add(residual, update, norms.after_mlp, layer.residual_scale)


def add(residual: Tensor, update: Tensor, norm: Norm | None, scale: float) -> None:
    """Add a branch to the residual stream in place."""
    update = rms_norm(update, norm)
    if scale != 1.0:
        update = update * scale
    residual.add_(update)


class ScriptedLayers:
    """Runs layers by TorchScript, if torch has it; a `forward.RunLayers`.

    Args:
        layers: without a soft cap, their weights in `cpu_layouts`.
        kinds: of rotary embeddings, in their order.
        residual_scale: of the output of each branch.
        invariant: True if attention is batch-invariant; see `backends.invariant`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        kinds: Sequence[str],
        residual_scale: float,
        invariant: bool,
    ) -> None:
        self._invariant = invariant
        # The shapes of masks: a sliding window, and the number of queries that share a key.
        views = [(x.attends.window, x.heads.queries // x.heads.keys) for x in layers]
        self._views = [*dict.fromkeys(views)]
        self._count = len(layers)
        self._layers = script(CpuLayers())
        self._layers.hold(
            [
                CpuLayer(
                    layer.heads,
                    layer.norms,
                    layer.attends.scaling,
                    self._views.index(view),
                    -1 if layer.rotary is None else kinds.index(layer.rotary),
                    layer.activation,
                    residual_scale,
                    *(p.linear for p in layer.products if isinstance(p, CpuLinear)),
                )
                for layer, view in zip(layers, views, strict=True)
            ]
        )

    @classmethod
    def make(
        cls, invariant: bool, layers: Sequence[Layer], kinds: Sequence[str], residual_scale: float
    ) -> "ScriptedLayers | None":
        """Return a runner of layers; None if some of them cannot be scripted."""
        for layer in layers:
            plain = all(isinstance(product, CpuLinear) for product in layer.products)
            if not plain or layer.attends.softcap is not None:
                return None
        return cls(layers, kinds, residual_scale, invariant)

    def __call__(
        self, residual: Tensor, rotary: Mapping[str, Rotary], mask: StepMask, cache: StepCache
    ) -> bool:
        """Run a step [T, n] through all layers, which add their outputs to it.

        Returns:
            False if the step cannot be run here, because it is too wide, the host does not know the
            slots of its keys, or several threads would compute batch-invariant attention.
        """
        count = len(residual)
        if count > MOST_TOKENS or (self._invariant and torch.get_num_threads() > 1):
            return False
        keys, values, starts, _ = zip(
            *(cache.target(index, count) for index in range(self._count)), strict=True
        )
        if not isinstance(starts[0], int):
            return False
        dtype = torch.float32 if self._invariant else residual.dtype
        masks = [
            mask.additive_mask(window, groups, dtype, residual.device)
            for window, groups in self._views
        ]
        firsts = [0 if window is None else mask.first_slot(window) for window, _ in self._views]
        blocks = [blocks_of(mask, window) for window, _ in self._views if self._invariant]
        turns, places = [*rotary.values()], (masks, firsts, blocks)
        self._layers(residual, turns, *places, [*keys], [*values], starts[0])
        return True
