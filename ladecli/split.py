"""How tensor parallelism splits a model over ranks: what it cannot split, what one rank holds.

transformers' plan names, for parts of a model, the axis along which their weights are cut.  What
it does not name is on every rank.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from .errors import UsageError
from .shape import ModelShape

_CUT = ("colwise", "rowwise", "embedding_", "packed_")
"""How names of styles begin that give each rank a part of a weight; others give it to all."""
_SEPARATE = ("colwise", "packed_colwise")
"""Styles behind which each rank goes on with its own part of the numbers."""
_ATTENTION = re.compile(r"attn|attention")


def check(name: str, model: Any, shape: ModelShape, ranks: int) -> None:
    """Refuse what transformers cannot split, or splits into parts that mean nothing.

    Args:
        name: of the model, for messages.
        model: without weights.
        shape: of the whole model.
        ranks: how many there are.

    Raises:
        UsageError: naming what cannot be split, and what can be done instead.
    """
    plan = model.tp_plan or {}
    if not plan:
        raise UsageError(
            f"models of the family {model.config.model_type!r} have no tensor-parallel plan in"
            " transformers; use --device-map auto or --parallel-mode lookahead"
        )
    uneven, whole = None, 0
    if _heads_are_cut(plan):
        uneven, whole = uneven_heads(shape, ranks), math.gcd(shape.kv_heads, shape.heads)
    columns = _columns_of_experts(plan, model)
    if not uneven and columns % ranks:
        uneven = _counted(columns, "column") + " in an expert"
    if uneven:
        raise UsageError(
            f"{uneven} of {name} cannot be split over {ranks} ranks;"
            f" use {_fitting(math.gcd(whole, columns))}"
        )


def uneven_heads(shape: ModelShape, ranks: int) -> str | None:
    """Heads that cannot be shared out equally, "8 key/value heads" for example; None if all can.

    A head that is cut in two would still give a text, and another one.  Other numbers need not be
    even: ranks may hold different shares of them, of the vocabulary for example.

    Args:
        shape: of the whole model.
        ranks: how many there are.
    """
    if shape.kv_heads % ranks:
        return _counted(shape.kv_heads, "key/value head")
    if shape.heads % ranks:
        return _counted(shape.heads, "head")
    return None


def evenly(
    shape: ModelShape,
    ranks: int,
    *,
    whole: float = 0.0,
    heads: bool = True,
    inner: bool = True,
) -> ModelShape:
    """What one rank holds where nothing but some weights is on all of them.

    Args:
        shape: of the whole model.
        ranks: how many there are; with 1, nothing is split.
        whole: parameters that every rank has; most plans leave out norms and a few biases only.
        heads: whether each rank has its own heads.
        inner: whether each rank has its own part of what is inside a feed-forward block.
    """
    if ranks == 1:
        return shape
    held = whole + (shape.parameters - whole) / ranks
    # A token meets all that is no expert.
    met = min(whole, shape.active)
    return replace(
        shape,
        parameters=held,
        active=met + (shape.active - met) / ranks,
        weight_bytes=shape.weight_bytes * held / shape.parameters,
        heads=math.ceil(shape.heads / ranks) if heads else shape.heads,
        kv_heads=math.ceil(shape.kv_heads / ranks) if heads else shape.kv_heads,
        inner=math.ceil(shape.inner / ranks) if inner else shape.inner,
        linear=0.0,  # what is split is not packed by bitsandbytes
    )


def part_of(model: Any, shape: ModelShape, ranks: int) -> ModelShape:
    """What one rank holds of a model that is split as transformers plans it.

    Where a number cannot be shared out equally, ranks hold a little more or less.

    Args:
        model: without weights.
        shape: of the whole model.
        ranks: how many there are; with 1, nothing is split.
    """
    plan = model.tp_plan or {}
    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        sizes[id(parameter)] = parameter.numel()
    # A weight that two parts share is cut as soon as one of them is.
    whole = sum(
        size for key, size in sizes.items() if not any(_is_cut(plan, each) for each in names[key])
    )
    return evenly(
        shape, ranks, whole=float(whole), heads=_heads_are_cut(plan), inner=_inner_is_cut(plan)
    )


def _columns_of_experts(plan: dict[str, str], model: Any) -> int:
    """Numbers inside an expert, where its two first weights are one parameter; else 0."""
    for name, parameter in model.named_parameters():
        if _style(plan, name) == "packed_colwise" and parameter.ndim == 3:
            return int(parameter.shape[1]) // 2
    return 0


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _style(plan: dict[str, str], name: str) -> str:
    """What the plan says of the parameter of this name, or of the part that it belongs to."""
    general = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    return plan.get(general) or plan.get(general.rpartition(".")[0]) or ""


def _is_cut(plan: dict[str, str], name: str) -> bool:
    """Whether the plan cuts the parameter of this name."""
    style = _style(plan, name)
    # Products with parts of rows are summed over the ranks, and a bias is added once.
    return style.startswith(_CUT) and not (name.endswith("bias") and style.startswith("rowwise"))


def _heads_are_cut(plan: dict[str, str]) -> bool:
    """Whether each rank has heads of its own."""
    return any(style in _SEPARATE and _ATTENTION.search(name) for name, style in plan.items())


def _inner_is_cut(plan: dict[str, str]) -> bool:
    """Whether each rank has its own part of what is inside a feed-forward block."""
    inside = [style for name, style in plan.items() if not _ATTENTION.search(name)]
    return any(style in _SEPARATE for style in inside)


def _fitting(whole: int) -> str:
    """Numbers of ranks that work, or what works instead of ranks."""
    fitting = [str(n) for n in range(2, min(whole, 64) + 1) if whole % n == 0]
    if not fitting:
        return "--device-map auto or --parallel-mode lookahead"
    *others, last = fitting
    return f"--parallel {', '.join(others)} or {last}" if others else f"--parallel {last}"
