"""Our own forward of a decoder-only transformer: a step of T tokens in, logits out.

Root mean square norms (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), grouped
heads (Ainslie et al., 2023) and gated MLPs (Shazeer, 2020): what Llama and most families since
are made of.  What sets a family apart is a row in `families`.  Weights and rotary frequencies
are those of the loaded model; activations have no batch dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..backends.attention import BACKENDS, Backend, choose_backend
from ..backends.cpu_layers import ScriptedLayers, can_be_scripted
from ..backends.cpu_layouts import CpuLinear, computed_in
from ..backends.int8 import holds_int8
from ..backends.weights import CPU_TYPES, project
from ..kv_cache import LayerShape
from .building import MOST_PACKED, layer_of, leave_file, make_layers, norm_of
from .families import FAMILIES, ModelFacts
from .forward import Drafts, StepCache, StepInputs
from .layer import InvariantOps, Norm, TorchOps
from .mask import StepMask
from .rotary import Rotary, RotaryTables


class Transformer:
    """Runs steps of a loaded model; a `forward.Forward`.

    Args:
        model: a causal language model of a family in `FAMILIES`, on one device.
        facts: about it.
        attention: name of the attention backend.
        join: whether weights may be joined; see `weights.project`.
        pack: whether weights on a CPU may be held twice.
        on_layer: called with the number of layers that are made, and that of all.

    Attributes:
        ops: what computes the operations between products.
        rows_alike: whether no row of a product depends on the others.
        layers, final_norm, rotary: weights and tables.
    """

    drafts: Drafts = "trees"

    def __init__(
        self,
        model: Any,
        facts: ModelFacts,
        attention: str = "auto",
        *,
        join: bool = True,
        pack: bool = True,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        text = model.config.get_text_config(decoder=True)
        family = FAMILIES[text.model_type]
        body = model.get_decoder()
        self.device: torch.device = body.embed_tokens.weight.device
        self.foreign = getattr(model, "quantization_method", None) is not None
        given: torch.dtype = body.norm.weight.dtype
        on_cpu = self.device.type == "cpu" and given in CPU_TYPES
        self.keeps_weights = not (join and on_cpu)
        self.dtype = given if self.keeps_weights or self.foreign else computed_in(given)
        if holds_int8(model):
            self.dtype = torch.float32  # what products give, and norms take half as long in
        if not self.keeps_weights:
            leave_file(model)
        self._embed = body.embed_tokens
        self._embedding_scale = float(getattr(text, "embedding_multiplier", 1.0))
        self._residual_scale = float(getattr(text, "residual_multiplier", 1.0))
        self._logit_scale = 1.0 / float(getattr(text, "logits_scaling", 1.0))
        self._logit_softcap: float | None = getattr(text, "final_logit_softcapping", None)
        alike = attention == "invariant"
        projection = partial(project, given, join=join, pack=pack, invariant=alike)
        norm = partial(norm_of, family, self.dtype)
        self.rotary = RotaryTables(
            body.rotary_emb, text, family, facts, body.norm.weight.to(self.dtype)
        )
        make = partial(layer_of, text, family, self.rotary.kinds, projection, norm)
        at_once = MOST_PACKED if on_cpu and pack else 1
        # A configuration may name fewer layers than there are, as for an early exit.
        self.layers = make_layers(make, body.layers[: facts.layers], at_once, on_layer)
        self.final_norm = norm(body.norm)
        # What follows each layer's MLP: the norm before the next attention; `forward` has the last.
        self._next_norms = [*[layer.norms.before_attention for layer in self.layers[1:]], None]
        shared = getattr(model.lm_head, "weight", None) is body.embed_tokens.weight
        self._head = projection([model.lm_head], shared=shared)
        self._products = [self._head, *(each for layer in self.layers for each in layer.products)]
        self.rows_alike = all(isinstance(each, CpuLinear) and each.alike for each in self._products)
        self.use(attention)

    def use(self, attention: str, ops: TorchOps | None = None) -> None:
        """See `forward.Forward`."""
        self.attention = choose_backend(attention, self.device, self.dtype)
        self.attend: Backend = BACKENDS[self.attention]
        self.kernels = ops is not None
        self.ops = ops or (InvariantOps() if attention == "invariant" else TorchOps())
        self._script: ScriptedLayers | None = None
        alike = self.attention == "invariant"
        if (alike or self.attention == "sdpa") and ops is None and can_be_scripted(self.layers):
            self._script = ScriptedLayers(
                self.layers, self.rotary.distinct, self._residual_scale, alike
            )

    @property
    def rounding(self) -> torch.dtype:
        """See `forward.Forward`."""
        own = {each.rounding for each in self._products if isinstance(each, CpuLinear)}
        return max({self.dtype, *own}, key=lambda dtype: torch.finfo(dtype).eps)

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """What each layer writes to the cache."""
        # What it reads in every step is in the type that it computes in.
        dtype = torch.float32 if self.attention == "invariant" else self.dtype
        return [
            LayerShape(each.heads.keys, each.heads.size, each.heads.size, dtype, self.device)
            for each in self.layers
        ]

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; its keys and values are in the cache afterwards.

        Returns:
            Logits of `step.outputs`, [outputs, vocabulary].
        """
        ops, rotary = self.ops, self.rotary.at(step.positions, step.last_position)
        residual: Tensor = self._embed(step.tokens).to(self.dtype)
        if self._embedding_scale != 1.0:
            residual = residual * self._embedding_scale
        if self._script is None or not self._script.run(residual, rotary, step.mask, cache):
            self._run_layers(residual, rotary, step.mask, cache)
        # The head, for the rows that are wanted.
        if step.outputs is not None:
            residual = residual[step.outputs]
        logits = self._head(ops.rms_norm(residual, self.final_norm))
        if self._logit_scale != 1.0:
            logits = logits * self._logit_scale
        if self._logit_softcap is not None:
            logits = ops.softcap(logits, self._logit_softcap)
        return logits

    def _run_layers(
        self, residual: Tensor, rotary: Mapping[str, Rotary], mask: StepMask, cache: StepCache
    ) -> None:
        """Run a step [T, n] through all layers, which add what they find to it."""
        ops = self.ops
        hidden = ops.rms_norm(residual, self.layers[0].norms.before_attention)
        for layer, next_norm in zip(self.layers, self._next_norms, strict=True):
            # Attention: queries, keys and values of the step; keys and values join the cache's.
            norms, turns = layer.norms, None if layer.rotary is None else rotary[layer.rotary]
            query, keys, values = ops.rope_and_write(layer.qkv(hidden), layer, turns, cache)
            attended = self.attend(query[None], keys[None], values[None], mask, layer.attends)
            update = layer.out(attended[0].transpose(0, 1).flatten(1))
            hidden = self._add(residual, update, norms.after_attention, norms.before_mlp)
            # MLP: up, gated, and down.
            update = layer.down(ops.gate(layer.gate_up(hidden), layer.activation))
            hidden = self._add(residual, update, norms.after_mlp, next_norm)

    def _add(
        self, residual: Tensor, update: Tensor, own: Norm | None, following: Norm | None
    ) -> Tensor:
        """Add a branch to the residual stream in place; what the next branch reads."""
        if own is not None:
            update = self.ops.rms_norm(update, own)
        if self._residual_scale != 1.0:
            update = update * self._residual_scale
        return self.ops.add_rms_norm(residual, update, following)
