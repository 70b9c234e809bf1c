"""A step's layout as tensors on the device of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import StepMask
from .layout import StepLayout


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of a forward of T tokens.

    Attributes:
        tokens: int64 [T].
        positions: int64 [T].
        mask: which keys each token sees.
        outputs: int64, rows whose logits are wanted; None for all.
        length: committed tokens before the step.
        last_position: the largest position.
    """

    tokens: Tensor
    positions: Tensor
    mask: StepMask
    outputs: Tensor | None
    length: int
    last_position: int


def step_inputs(layout: StepLayout, length: int, device: torch.device) -> StepInputs:
    """The tensors of a step after `length` committed tokens."""
    positions = torch.tensor(layout.positions, device=device)
    count = len(layout.tokens)
    everything = layout.outputs == [*range(count)]
    return StepInputs(
        tokens=torch.tensor(layout.tokens, device=device),
        positions=positions,
        mask=StepMask(layout.rows, layout.positions, length),
        outputs=None if everything else torch.tensor(layout.outputs, device=device).long(),
        length=length,
        last_position=max(layout.positions),
    )
