"""Linear layers as our forward calls them: parts joined into one product, stored for speed.

The query, key and value projections of a layer read the same input, and so do gate and up: each
group becomes one matrix.  The model's own modules keep working on views of it, so that nothing
is held twice; where a CPU needs another form alone, they are without weights until `restore`.
Those of 8 bits go on with the joined product.
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
from .stored import Rows, Stacked, StoredLinear

_HELD = "lade_held"
"""Attribute of a weight that was taken: the form that holds it, and which of its rows it is."""
CPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The types of weights that have forms of their own on a CPU."""
MOST_PACKED = 8
"""Layers whose weights are packed at once, each of which takes room beside its weights."""


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
        facts: about it.
        attention: name of the attention backend.
        join: whether weights may be joined; see `project`.
        pack: whether weights on a CPU may be held twice.
        kernels: whether Triton kernels compute what is between products.
        on_layer: called with the number of layers that are made, and that of all.
    """
    body = model.get_decoder()
    embedding, given = body.embed_tokens.weight, body.norm.weight.dtype
    device, on_cpu = embedding.device, embedding.device.type == "cpu" and given in CPU_TYPES
    foreign = getattr(model, "quantization_method", None) is not None
    invariant = attention == "invariant"
    dtype: torch.dtype = given if foreign or not (join and on_cpu) else computed_in(given)
    if holds_int8(model) or (invariant and on_cpu):
        # What products of integers give, and what invariant attention computes in.
        dtype = torch.float32
    if takes_weights(model, join=join):
        _leave_file(model)
    return Transformer(
        *(model, facts, choose_operations(attention, device, dtype, kernels=kernels)),
        partial(project, given, embedding, join=join, pack=pack, invariant=invariant),
        dtype=dtype,
        map_layers=partial(_map_layers, MOST_PACKED if on_cpu and pack else 1, on_layer),
        context=step_context(device, foreign=foreign),
    )


def takes_weights(model: Any, *, join: bool) -> bool:
    """Whether the modules of a model lose their weights to our forward, or share joined ones."""
    weight = model.get_decoder().norm.weight
    return join and weight.device.type == "cpu" and weight.dtype in CPU_TYPES


def _map_layers(
    at_once: int,
    on_layer: Callable[[int, int], None] | None,
    make: Callable[[int, Any], Layer],
    numbers: range,
    modules: Any,
) -> Iterator[Layer]:
    """Make layers, several at once: to pack a weight takes ten times as long as to read it."""
    with ThreadPoolExecutor(min(torch.get_num_threads(), at_once)) as pool:
        for done, layer in enumerate(pool.map(make, numbers, modules), start=1):
            if on_layer is not None:
                on_layer(done, len(numbers))
            yield layer


def _leave_file(model: nn.Module) -> None:
    """Have copies of all but the weights of linear layers: where these have forms of their own,
    nothing keeps the checkpoint's file in memory then."""
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
    invariant: bool = False,
) -> Projection:
    """Return one projection of linear modules that read the same input.

    Args:
        dtype: of the input of modules that are called.
        embedding: the weight of the embedding, which stays as it is.
        parts: in the order of their outputs.
        join: whether plain linear modules may be joined, which leaves them views of one matrix;
            quantised and other modules are always called as they are.
        pack: whether weights on a CPU may be held twice; see `join_plain`.
        invariant: whether a row of the product must not depend on the others, on a CPU.
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
        _hand_back(linear, joined)
    return partial(F.linear, weight=joined, bias=_joined_bias(linear))


def is_plain(module: nn.Module) -> bool:
    """Return whether a module is a linear layer in floating point, and no packed one."""
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
    """One product of plain weights on a CPU.

    If its form is not what the modules can use, the weight leaves them until `restore` is called,
    so that it is held once.

    Args:
        parts: joined.
        pack: whether there is room to hold weights twice.
        shared: whether the weight is that of the embedding, too, which stays as it is.
        invariant: whether rows are to be alike, where a form has that.
    """
    weight = _stacked(parts)
    name = "rows"
    alike = alike_forms(weight) if invariant else []
    if alike or (math.prod(weight.shape) >= SMALL and (pack or not shared)):
        name = choose_form(weight.dtype, alike or possible(weight))
    if name == "halves":  # it leaves the modules: no other copy is needed
        form = halves(weight, alike=bool(alike), spend=not shared)
    else:
        form = (ALIKE if alike else FORMS)[name](weight[...])
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    if isinstance(weight, Stacked):
        weight.leave_memory()
    elif name == "rows" and not shared:
        _hand_back(linear, weight[...])
    elif not shared:
        _take(linear, form)
    return CpuLinear(form, _joined_bias(parts), bool(alike))


def _take(parts: Sequence[nn.Linear], form: Form) -> None:
    """Take their weights from modules, which are rows of a form."""
    start = 0
    for part in parts:
        rows = slice(start, start := start + part.out_features)
        _give(part, part.weight.new_empty(0))
        setattr(part.weight, _HELD, (form, rows))


def _give(module: Any, weight: Tensor) -> None:
    module.weight = nn.Parameter(weight, requires_grad=False)


def restore(model: nn.Module) -> None:
    """Put the original weights back into the modules of a model."""
    for module in model.modules():
        if held := getattr(getattr(module, "weight", None), _HELD, None):
            form, rows = held
            _give(module, form.dense()[rows])


def _stacked(parts: Sequence[nn.Linear | StoredLinear]) -> Rows:
    """Return the weights above one another."""
    stored = [part.weight for part in parts if isinstance(part, StoredLinear)]
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    return Stacked(stored) if stored else _joined_weight(linear)


def _joined_weight(parts: Sequence[nn.Linear]) -> Tensor:
    """Return the weights above one another; that of a single part as it is."""
    weights = [part.weight.detach() for part in parts]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _joined_bias(parts: Sequence[nn.Linear | StoredLinear | Int8Linear]) -> Tensor | None:
    """Return the biases side by side; None for parts without them."""
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    return torch.cat(biases) if biases else None


def _hand_back(parts: Sequence[nn.Linear], joined: Tensor) -> None:
    """Let modules use views of the joined matrix, so that their own weights are freed."""
    weights = torch.split(joined, [part.out_features for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        _give(part, weight)
