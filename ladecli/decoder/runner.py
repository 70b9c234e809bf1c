"""Runs the forward of a step; `captured` has a runner whose steps are captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .backends.quiet import quiet
from .faults import check_alive, is_out_of_memory, reason_of
from .kv_cache import KVCache
from .layout import StepLayout
from .model.forward import Forward, StepInputs
from .model.mask import StepMask
from .sampling import most_probable
from .transfer import to_device

SDPA = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All of PyTorch's kernels of attention except cuDNN's, which plans anew for every length."""


T = TypeVar("T")
Read = Callable[[Tensor], Callable[[], T]]
"""Launches what is to be found out of the logits of a step's outputs, [outputs, vocabulary], which
may be on their way yet; what it returns waits for that."""


def whole(logits: Tensor) -> Callable[[], Tensor]:
    """Read out the logits as they are; see `Read`."""
    return lambda: logits


class Runner:
    """Runs steps one operation after the other.

    Attributes:
        captures: whether steps are captured as CUDA graphs, which run on the device after
            `start` has returned, so that time until their result is asked for is not lost.
        graphs_made: CUDA graphs captured so far.
        notices: lines for the user about what steps do without.
    """

    captures = False

    def __init__(self, model: Forward, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self.graphs_made = 0
        self.notices: list[str] = []

    @property
    def device(self) -> torch.device:
        """Of the model's input and of logits."""
        return self.model.device

    def widths(self, limit: int) -> Sequence[int]:
        """The only widths that steps should have, up to a limit, which is one of them if it can be
        captured; () where any width does."""
        return ()

    def start(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        """Start one step, whose keys and values go after the committed ones, and read it out.

        Here nothing happens before the result is asked for.
        """
        return lambda: read(self.run(layout))()

    def run(self, layout: StepLayout) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary]."""
        model, cache = self.model, self.cache
        cache.reserve(cache.length + len(layout.tokens))
        outputs: Tensor | None = None
        if layout.outputs != [*range(len(layout.tokens))]:
            outputs = to_device(np.array(layout.outputs, dtype=np.int64), model.device)
        step = StepInputs(
            tokens=to_device(layout.tokens, model.device),
            positions=to_device(layout.positions, model.device),
            mask=StepMask(layout.rows, layout.positions, cache.length),
            outputs=outputs,
            length=cache.length,
            last_position=max(layout.positions),
        )
        try:
            with (
                no_gradients(model),
                quiet() if model.foreign else nullcontext(),
                sdpa_kernel(SDPA) if model.device.type == "cuda" else nullcontext(),
            ):
                return model.forward(step, cache)
        except Exception as error:
            if is_out_of_memory(error) or not uses_triton(model):
                raise
            self._do_without_kernels(error)
        return self.run(layout)

    def most_probable(self, logits: Tensor, successors: int) -> tuple[Tensor, Tensor]:
        """See `sampling.most_probable`."""
        if uses_triton(self.model):
            from .backends import triton_ranking

            try:
                if successors <= triton_ranking.MOST:
                    return triton_ranking.most_probable(logits, successors)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._do_without_kernels(error)
        return most_probable(logits, successors)

    def _do_without_kernels(self, error: Exception) -> None:
        """Go on after a kernel of ours has failed, as one can at a size that nothing has tried
        before; raises `DeviceLostError` where nothing can."""
        check_alive(self.model.device, error)
        self.model.use("sdpa")
        self.notices.append(f"steps run without Triton kernels, and slower: {reason_of(error)}")

    def forget(self) -> None:
        """Let go of what is kept for further steps."""


def no_gradients(model: Forward) -> AbstractContextManager[object]:
    """Return a context for a forward: a module of a library may keep what it makes, and change it
    later where torch allows no change to what was made in inference mode."""
    return torch.no_grad() if model.foreign else torch.inference_mode()


def uses_triton(model: Forward) -> bool:
    """Whether Triton kernels compute anything in a forward."""
    return model.kernels or model.attention == "triton"
