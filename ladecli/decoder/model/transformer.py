"""Our own forward of a decoder-only transformer: a step of T tokens in, logits out.

It has what Llama and most later families are made of: root mean square norms (Zhang and Sennrich,
2019), rotary positions (Su et al., 2021), grouped heads (Ainslie et al., 2023) and gated MLPs
(Shazeer, 2020).  A row in `families` says what sets a family apart.  Weights and rotary frequencies
are those of the loaded model; activations have no batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..kv_cache import LayerShape, StepCache
from .building import ModuleCalls, layer_of, norm_of
from .families import FAMILIES, ModelFacts
from .forward import Drafts, Operations, RunLayers, StepInputs
from .layer import Layer, Norm, Projection
from .mask import StepMask
from .rotary import Rotary, RotaryTables


class Transformer:
    """Runs steps of a loaded model; a `forward.Forward`.

    Without optional arguments it is the reference that every backend is tested against.

    Args:
        model: a causal language model of a family in `FAMILIES`, on one device.
        facts: facts about the model.
        operations: see `Operations`; None for plain PyTorch.
        projection: makes one product of linear modules that read the same input.
        dtype: the type of activations; None for that of the weights.
        map_layers: called like `map` to make the layers, so that a backend can work on several
            layers at once.
        context: makes the context manager that steps run in.

    Attributes:
        layers: the layers, in order.
        final_norm: the norm before the head.
        head: the product that makes logits.
        rotary: cosines and sines by position.
    """

    drafts: Drafts = "trees"

    def __init__(
        self,
        model: Any,
        facts: ModelFacts,
        operations: Operations | None = None,
        projection: Callable[[Sequence[nn.Module]], Projection] = ModuleCalls,
        *,
        dtype: torch.dtype | None = None,
        map_layers: Callable[[Callable[[int, Any], Layer], range, Any], Iterable[Layer]] = map,
        context: Callable[[], AbstractContextManager[object]] = torch.inference_mode,
    ) -> None:
        text = model.config.get_text_config(decoder=True)
        family = FAMILIES[text.model_type]
        body = model.get_decoder()
        self.device: torch.device = body.embed_tokens.weight.device
        self.dtype: torch.dtype = dtype or body.norm.weight.dtype
        self.context = context
        self._embed = body.embed_tokens
        self._embedding_scale = float(getattr(text, "embedding_multiplier", 1.0))
        self._residual_scale = float(getattr(text, "residual_multiplier", 1.0))
        self._logit_scale = 1.0 / float(getattr(text, "logits_scaling", 1.0))
        self._logit_softcap: float | None = getattr(text, "final_logit_softcapping", None)
        norm = partial(norm_of, family, self.dtype)
        self.rotary = RotaryTables(
            body.rotary_emb, text, family, facts, body.norm.weight.to(self.dtype)
        )
        make = partial(layer_of, text, family, self.rotary.kinds, projection, norm)
        # A configuration may have fewer layers than the checkpoint, for an early exit.
        self.layers = [*map_layers(make, range(facts.layers), body.layers[: facts.layers])]
        self.final_norm = norm(body.norm)
        # The norm after each layer's MLP: that of the next layer; after the last, `forward` has it.
        self._next_norms = [*[layer.norms.before_attention for layer in self.layers[1:]], None]
        self.head = projection([model.lm_head])
        self.use(operations or Operations())

    def use(self, operations: Operations) -> None:
        """See `forward.Forward`."""
        self.operations = operations
        self._run_compiled: RunLayers | None = None
        if operations.layers is not None:
            kinds = self.rotary.distinct
            self._run_compiled = operations.layers(self.layers, kinds, self._residual_scale)

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """See `forward.Forward`."""
        heads = [layer.heads for layer in self.layers]
        return [LayerShape(h.keys, h.size, h.size, self.dtype, self.device) for h in heads]

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step, which writes its keys and values to the cache.

        Returns:
            The logits of `step.outputs`, [outputs, vocabulary].
        """
        ops, rotary = self.operations.ops, self.rotary.at(step.positions, step.last_position)
        residual: Tensor = self._embed(step.tokens).to(self.dtype)
        if self._embedding_scale != 1.0:
            residual = residual * self._embedding_scale
        compiled = self._run_compiled
        if compiled is None or not compiled(residual, rotary, step.mask, cache):
            self._run_layers(residual, rotary, step.mask, cache)
        if step.outputs is not None:
            residual = residual[step.outputs]
        logits = self.head(ops.rms_norm(residual, self.final_norm))
        if self._logit_scale != 1.0:
            logits = logits * self._logit_scale
        if self._logit_softcap is not None:
            logits = ops.softcap(logits, self._logit_softcap)
        return logits

    def _run_layers(
        self, residual: Tensor, rotary: Mapping[str, Rotary], mask: StepMask, cache: StepCache
    ) -> None:
        """Run the residual stream of a step, [T, n], through all layers, in place."""
        ops, attend = self.operations.ops, self.operations.attend
        hidden = ops.rms_norm(residual, self.layers[0].norms.before_attention)
        for layer, next_norm in zip(self.layers, self._next_norms, strict=True):
            # Attention: the step's queries, and the keys and values of text and step.
            norms, angles = layer.norms, None if layer.rotary is None else rotary[layer.rotary]
            query, keys, values = ops.rope_and_write(layer.qkv(hidden), layer, angles, cache)
            attended = attend(query[None], keys[None], values[None], mask, layer.attends)
            update = layer.out(attended[0].transpose(0, 1).flatten(1))
            hidden = self._add(residual, update, norms.after_attention, norms.before_mlp)
            # MLP.
            update = layer.down(ops.gate(layer.gate_up(hidden), layer.activation))
            hidden = self._add(residual, update, norms.after_mlp, next_norm)

    def _add(
        self, residual: Tensor, update: Tensor, after: Norm | None, before_next: Norm | None
    ) -> Tensor:
        """Add what attention or the MLP computed to the residual stream, in place; return the input
        of what follows."""
        if after is not None:
            update = self.operations.ops.rms_norm(update, after)
        if self._residual_scale != 1.0:
            update = update * self._residual_scale
        return self.operations.ops.add_rms_norm(residual, update, before_next)
