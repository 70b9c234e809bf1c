"""Linear layers for our forward: parts joined into one product, stored for speed.

The query, key and value projections of a layer read the same input, and so do gate and up: each
group becomes one matrix.  The model's own modules use views of it, so that no weight is stored
twice.  If a CPU needs another form, the modules have no weights until `restore`; modules in
8 bits use the joined product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model.building import ModuleCalls
from ..model.families import ModelFacts
from ..model.layer import Layer, Projection
from ..model.transformer import Transformer
from .attention import choose_operations, step_context
from .cpu_layouts import (
    ALIKE,
    FORMS,
    SMALL,
    CpuLinear,
    Form,
    alike_forms,
    choose_form,
    computed_in,
    halves,
    possible,
)
from .int8 import Int8Linear, holds_int8, share_product
from .stored import Rows, StackedRows, StoredLinear

_HELD = "lade_held"
"""Attribute of a detached weight: the form that holds it, and its rows there."""
CPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The types of weights that have special forms on a CPU."""
MOST_PACKED = 8
"""The most layers whose weights are packed at once, since each one takes extra memory."""


def make_transformer(
    model: Any,
    facts: ModelFacts,
    attention: str = "auto",
    *,
    join: bool = True,
    pack: bool = True,
    kernels: bool = False,
    on_layer: Callable[[int, int], None] | None = None,
) -> Transformer:
    """Return our own forward of a model, its weights stored for speed.

    Args:
        model: a causal language model of a family in `FAMILIES`, on one device.
        facts: about the model.
        attention: name of the attention backend.
        join: True if weights may be joined; see `project`.
        pack: True if weights on a CPU may be stored twice.
        kernels: True if Triton kernels compute the operations between products.
        on_layer: called with the number of completed layers, and the number of all layers.
    """
    body = model.get_decoder()
    embedding, stored = body.embed_tokens.weight, body.norm.weight.dtype
    device, on_cpu = embedding.device, embedding.device.type == "cpu" and stored in CPU_TYPES
    foreign = getattr(model, "quantization_method", None) is not None
    invariant = attention == "invariant"
    dtype: torch.dtype = stored if foreign or not (join and on_cpu) else computed_in(stored)
    if holds_int8(model) or (invariant and on_cpu):
        # The type of integer products' results, and of invariant attention.
        dtype = torch.float32
    if takes_weights(model, join=join):
        _leave_file(model)
    return Transformer(
        *(model, facts, choose_operations(attention, device, dtype, kernels=kernels)),
        partial(
            project,
            stored,
            embedding,
            join=join,
            pack=pack,
            kernels=kernels,
            invariant=invariant,
        ),
        dtype=dtype,
        map_layers=partial(_map_layers, MOST_PACKED if on_cpu and pack else 1, on_layer),
        context=step_context(device, foreign=foreign),
    )


def takes_weights(model: Any, *, join: bool) -> bool:
    """Return True if our forward detaches the weights of a model's modules, or joins them."""
    weight = model.get_decoder().norm.weight
    return join and weight.device.type == "cpu" and weight.dtype in CPU_TYPES


def _map_layers(
    at_once: int,
    on_layer: Callable[[int, int], None] | None,
    make: Callable[[int, Any], Layer],
    numbers: range,
    modules: Any,
) -> Iterator[Layer]:
    """Yield layers, making several at once, since packing takes ten times as long as reading."""
    with ThreadPoolExecutor(min(torch.get_num_threads(), at_once)) as pool:
        for done, layer in enumerate(pool.map(make, numbers, modules), start=1):
            if on_layer is not None:
                on_layer(done, len(numbers))
            yield layer


def _leave_file(model: nn.Module) -> None:
    """Copy all parameters except the weights of linear layers.  If those are stored in other forms,
    nothing keeps the checkpoint's file in memory afterwards."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name != "weight" or not isinstance(module, nn.Linear):
                parameter.data = parameter.data.clone()


def project(
    dtype: torch.dtype,
    embedding: Tensor,
    parts: Sequence[nn.Module],
    *,
    join: bool,
    pack: bool,
    kernels: bool = False,
    invariant: bool = False,
) -> Projection:
    """Return one projection of linear modules that read the same input.

    Args:
        dtype: of the input of modules that are called.
        embedding: the weight of the embedding, which must not change.
        parts: in the order of their outputs.
        join: True if plain linear modules may be joined, which makes their weights views of one
            matrix; quantised and other modules are always called unchanged.
        pack: True if weights on a CPU may be stored twice; see `join_plain`.
        kernels: True if Triton may multiply, on a GPU.
        invariant: True if a row of the product must not depend on the others.
    """
    eight = [part for part in parts if isinstance(part, Int8Linear)]
    if join and len(eight) == len(parts):
        return CpuLinear(share_product(eight), _joined_bias(eight), alike=True)
    stored = [part for part in parts if isinstance(part, StoredLinear)]
    if join and len(stored) == len(parts):
        return join_plain(stored, pack=pack, shared=False, invariant=invariant)
    if not join or not all(is_plain(part) for part in parts):
        calls = ModuleCalls(parts)
        return lambda x: calls(x.to(dtype)).to(x.dtype)
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    first = linear[0].weight
    if first.device.type == "cpu" and first.dtype in CPU_TYPES:
        shared = first is embedding
        return join_plain(linear, pack=pack, shared=shared, invariant=invariant)
    joined = _joined_weight(linear)
    if len(linear) > 1:
        _attach_views(linear, joined)
    if kernels and joined.dtype in (torch.bfloat16, torch.float16):
        from .triton_product import SkinnyProduct  # it imports triton

        return SkinnyProduct(joined, _joined_bias(linear), alike=invariant)
    return partial(F.linear, weight=joined, bias=_joined_bias(linear))


def is_plain(module: nn.Module) -> bool:
    """Return True if a module is a linear layer in floating point, not a packed one."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.is_floating_point()
        and "forward" not in vars(module)  # compressed-tensors puts its own there
    )


def join_plain(
    parts: Sequence[nn.Linear] | Sequence[StoredLinear],
    *,
    pack: bool,
    shared: bool,
    invariant: bool = False,
) -> CpuLinear:
    """Return one product of plain weights on a CPU.

    If the modules cannot use its form, the weights are detached from them until `restore`,
    so that they are stored once.

    Args:
        parts: the joined modules.
        pack: True if memory has room to store weights twice.
        shared: True if the weight is also the embedding's, which must not change.
        invariant: True to use a form with rows alike, if there is one.
    """
    weight = _stacked(parts)
    name = "rows"
    alike = alike_forms(weight) if invariant else []
    if alike or (math.prod(weight.shape) >= SMALL and (pack or not shared)):
        name = choose_form(weight.dtype, alike or possible(weight))
    if name == "halves":  # the weight is detached, so no other copy is needed
        form = halves(weight, alike=bool(alike), spend=not shared)
    else:
        form = (ALIKE if alike else FORMS)[name](weight[...])
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    if isinstance(weight, StackedRows):
        weight.leave_memory()
    elif name == "rows" and not shared:
        _attach_views(linear, weight[...])
    elif not shared:
        _detach_weights(linear, form)
    return CpuLinear(form, _joined_bias(parts), bool(alike))


def _detach_weights(parts: Sequence[nn.Linear], form: Form) -> None:
    """Replace the weights of modules, which are rows of a form, by empty ones."""
    start = 0
    for part in parts:
        rows = slice(start, start := start + part.out_features)
        _set_weight(part, part.weight.new_empty(0))
        setattr(part.weight, _HELD, (form, rows))


def _set_weight(module: Any, weight: Tensor) -> None:
    module.weight = nn.Parameter(weight, requires_grad=False)


def restore(model: nn.Module) -> None:
    """Put the original weights back into the modules of a model."""
    for module in model.modules():
        if held := getattr(getattr(module, "weight", None), _HELD, None):
            form, rows = held
            _set_weight(module, form.dense()[rows])


def _stacked(parts: Sequence[nn.Linear | StoredLinear]) -> Rows:
    """Return the weights above one another."""
    stored = [part.weight for part in parts if isinstance(part, StoredLinear)]
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    return StackedRows(stored) if stored else _joined_weight(linear)


def _joined_weight(parts: Sequence[nn.Linear]) -> Tensor:
    """Return the weights above one another; the weight of a single part without a copy."""
    weights = [part.weight.detach() for part in parts]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _joined_bias(parts: Sequence[nn.Linear | StoredLinear | Int8Linear]) -> Tensor | None:
    """Return the biases side by side; None for parts without them."""
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    return torch.cat(biases) if biases else None


def _attach_views(parts: Sequence[nn.Linear], joined: Tensor) -> None:
    """Let modules use views of the joined matrix, so that their own weights are freed."""
    weights = torch.split(joined, [part.out_features for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        _set_weight(part, weight)
