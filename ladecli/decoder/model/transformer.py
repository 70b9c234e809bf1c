"""Our own forward of a decoder-only transformer: a step of T tokens in, logits out.

Root mean square norms (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), grouped
heads (Ainslie et al., 2023) and gated MLPs (Shazeer, 2020): what Llama and most families since
are made of.  What sets a family apart is a row in `families`.  Weights and rotary frequencies
are those of the loaded model; activations have no batch dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..kv_cache import LayerShape
from .attention import BACKENDS, Backend, choose_backend
from .attention.invariant import one_thread
from .attention.mask import Rules, StepMask
from .cpu_formats import CpuLinear, computed_in
from .cpu_layers import ScriptedLayers, can_be_scripted
from .families import FAMILIES, Family, ModelFacts, activation, is_ours
from .form_races import Races
from .forward import Drafts, StepCache, StepInputs
from .int8 import Int8Linear, holds_int8
from .layer import Heads, Layer, Norm, Norms, gated, norm_heads, rms_norm
from .release import MappedFile, drop, mapped_files
from .rotary import Rotary, RotaryTables, rotate
from .weights import CPU_TYPES, Projection, project

MOST_PACKED = 8
"""Layers whose weights are packed at once, each of which takes room beside its weights."""


class TorchOps:
    """The operations between the products, in torch; `triton_kernels` has fused ones."""

    def rms_norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """The norm of [T, n]; `x` itself without one."""
        return rms_norm(x, norm)

    def add_rms_norm(self, residual: Tensor, update: Tensor, norm: Norm | None) -> Tensor:
        """Add `update` to `residual` in place, [T, n]; the norm of the sum."""
        return self.rms_norm(residual.add_(update), norm)

    def rope_and_write(
        self, qkv: Tensor, layer: Layer, rotary: Rotary | None, cache: StepCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """QK-norm, rotary embedding, and keys and values into the cache.

        Args:
            qkv: [T, (heads + 2 kv_heads) * head_size].
            layer: whose.
            rotary: of the step; None for a layer without positions.
            cache: where keys and values go.

        Returns:
            Queries [heads, T, head_size], and all keys and values to attend to.
        """
        queries, kv_heads, size = layer.heads
        turned = queries + kv_heads
        heads = norm_heads(qkv, layer.heads, layer.norms).view(len(qkv), -1, size)
        both = heads[:, :turned]
        if rotary is not None:
            both = rotate(both, rotary)
        both = both.transpose(0, 1)
        values = heads[:, turned:].transpose(0, 1)
        query = both[:queries]
        if rotary is not None and rotary.query_scale is not None:
            query = query * rotary.query_scale.transpose(0, 1)
        return query, *cache.write(layer.index, both[queries:], values)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """[T, 2 n] -> [T, n]: the activation of the first half times the second."""
        return gated(gate_up, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """[T, n] -> [T, n] between -cap and cap."""
        return torch.tanh(logits / cap) * cap


class InvariantOps(TorchOps):
    """Operations on a CPU whose rows do not depend on each other; see `attention.invariant`."""

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `TorchOps`."""
        # Several threads would share numbers out at any place of a row.
        with one_thread():
            return super().gate(gate_up, activation)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See `TorchOps`."""
        capped = torch.empty_like(logits)
        with one_thread():
            for row, out in zip(logits, capped, strict=True):
                torch.tanh(row / cap, out=out)
        return capped.mul_(cap)


class Transformer:
    """Runs steps of a loaded model; a `forward.Forward`.

    Args:
        model: a causal language model of a family in `FAMILIES`, on one device.
        facts: about it.
        attention: name of the attention backend.
        join: whether weights may be joined; see `weights.project`.
        pack: whether weights on a CPU may be held twice.
        races: which forms of weights are fastest on a CPU.

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
        races: Races | None = None,
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
        files: list[MappedFile] = []
        if not self.keeps_weights:
            files = mapped_files(model)
            _leave_file(model)
        self._embed = body.embed_tokens
        self._embedding_scale = float(getattr(text, "embedding_multiplier", 1.0))
        self._residual_scale = float(getattr(text, "residual_multiplier", 1.0))
        self._logit_scale = 1.0 / float(getattr(text, "logits_scaling", 1.0))
        self._logit_softcap: float | None = getattr(text, "final_logit_softcapping", None)
        self.invariant = attention == "invariant"
        races = races or Races()
        projection = partial(
            project, given, join=join, pack=pack, races=races, invariant=self.invariant
        )
        norm = partial(_norm, family, self.dtype)
        self.rotary = RotaryTables(
            body.rotary_emb, text, family, facts, body.norm.weight.to(self.dtype)
        )
        make = partial(_layer, text, family, self.rotary.kinds, projection, norm, files)
        self.layers = _make_all(make, body.layers, at_once=MOST_PACKED if on_cpu and pack else 1)
        self.final_norm = norm(body.norm)
        # What follows each layer's MLP: the norm before the next attention; `forward` has the last.
        self._next_norms = [*[layer.norms.before_attention for layer in self.layers[1:]], None]
        shared = getattr(model.lm_head, "weight", None) is body.embed_tokens.weight
        self._head = projection([model.lm_head], shared=shared)
        drop(files)
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


def can_run(model: Any) -> bool:
    """Whether a model is of a family and form that `Transformer` is for: one device, plain parts.

    A trial at load has the last word (`trial.Trial`).
    """
    ours = is_ours(model.config.get_text_config(decoder=True))
    body = model.get_decoder() if hasattr(model, "get_decoder") else None
    if not ours or body is None or (getattr(model, "tp_size", None) or 1) > 1:
        return False
    parts = ("embed_tokens", "layers", "norm", "rotary_emb")
    linear = nn.Linear | Int8Linear
    if not all(hasattr(body, part) for part in parts) or not isinstance(model.lm_head, linear):
        return False
    devices = {parameter.device for parameter in model.parameters()}
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())
    return len(devices) == 1 and not hooked


def _make_all(make: Callable[[int, Any], Layer], layers: Any, at_once: int) -> list[Layer]:
    """Make layers from a model's: to pack a weight takes ten times as long as to read it."""
    first = make(0, layers[0])  # by it forms are raced, without neighbours
    with ThreadPoolExecutor(min(torch.get_num_threads(), at_once)) as pool:
        return [first, *pool.map(make, range(1, len(layers)), layers[1:])]


def _layer(
    text: Any,
    family: Family,
    rotary: Sequence[str],
    projection: Callable[[Sequence[nn.Module]], Projection],
    norm: Callable[[nn.Module], Norm],
    files: Sequence[MappedFile],
    index: int,
    layer: Any,
) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    fused = hasattr(attention, "qkv_proj")
    qkv = [attention.qkv_proj] if fused else [attention.q_proj, attention.k_proj, attention.v_proj]
    gate_up = [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]
    window = {
        "": None,
        "layer": getattr(attention, "sliding_window", None),
        "config": getattr(text, "sliding_window", None),
    }[family.sliding]
    softcap = text.attn_logit_softcapping if family.attention_softcap else None
    act = activation(text)
    assert act is not None  # `can_run` leaves others out
    norms = Norms(
        query=norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key=norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        **{
            name: norm(getattr(layer, module)) if module else None
            for name, module in family.norms._asdict().items()
        },
    )
    made = Layer(
        index=index,
        heads=Heads(text.num_attention_heads, text.num_key_value_heads, attention.head_dim),
        norms=norms,
        attends=Rules(float(attention.scaling), window, softcap),
        rotary=rotary[index] if getattr(attention, "use_rope", True) else None,
        qkv=projection(qkv),
        out=projection([attention.o_proj]),
        gate_up=projection(gate_up),
        down=projection([mlp.down_proj]),
        activation=act,
    )
    drop(files)
    return made


def _leave_file(model: nn.Module) -> None:
    """Have copies of all but the weights of linear layers: where these have forms of their own,
    nothing keeps the checkpoint's file in memory then."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name != "weight" or not isinstance(module, nn.Linear):
                parameter.data = parameter.data.clone()


def _norm(family: Family, dtype: torch.dtype, module: Any) -> Norm:
    eps = getattr(module, "variance_epsilon", None) or module.eps
    weight = module.weight.detach()
    if dtype == torch.float32:
        weight = weight.float()
    if family.unit_offset:
        weight = 1.0 + weight.float()
    if weight.device.type != "cpu":
        return Norm(weight, float(eps))
    root = math.sqrt(weight.numel())
    return Norm(weight, float(eps), root * weight.float(), torch.tensor(root * math.sqrt(eps)))
