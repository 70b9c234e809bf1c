"""Steps as captured CUDA graphs: fixed shapes, one copy in, one launch, one copy out.

A step is padded to one of a few widths.  For each of them, and for each reach of attention that
the text grows through, the whole forward is captured when it is first needed: moving the keys of
the last step's accepted tokens, all layers, the output product, and what is read out of the
logits.  What does not fit (the chunks of a prompt, a step wider than any) runs as it always did.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import READS_LENGTH, STEP_KEYWORD
from .attention.fused import opaque
from .capture import Capture, Captured
from .config import FIRST_SLOTS, SamplingConfig
from .kv_cache import KVCache
from .layout import StepLayout
from .memory import is_out_of_memory
from .readout import Rows, Wanted, pack
from .runner import Runner, Running
from .static_step import MOVED, StaticCache, StaticStep, StepInputs
from .step_cost import fitting

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Tokens that a captured step may have; wider ones have a multiple of the last."""
COMPILED_WIDTHS = (1, 16, 64, 128)
"""The same where each of them has to be compiled first."""
PENDING = 32
"""A step with more committed tokens than these ends a prompt: there will be no other like it."""
LEAST_REACH = 512
"""Slots that attention reads at least, where it cannot be told on the device how many there are;
more of them come in powers of two."""
COMPILED = 256
"""Kinds of steps that are compiled; torch would stop after a few."""
KEPT = 32
"""Captured steps that are kept; each takes some memory of the driver's."""


class _Kind(NamedTuple):
    """What is fixed for good in a captured step."""

    width: int
    reach: int
    successors: int
    logits: bool
    sampling: SamplingConfig | None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A captured step.

    Attributes:
        inputs: what it reads.
        captured: all that it computes.
        home: where its words arrive.
    """

    inputs: StepInputs
    captured: Captured
    home: Tensor


def captured_width(tokens: int, widths: tuple[int, ...] = WIDTHS) -> int:
    """The width of the captured step that holds so many tokens."""
    widest = widths[-1]
    return fitting(tokens, widths) if tokens <= widest else -(-tokens // widest) * widest


class GraphRunner(Runner):
    """A runner whose steps are captured once and launched as a whole.

    Where a step cannot be captured, it runs as those of `Runner` do.

    Args:
        model: a causal language model of transformers, on one device.
        cache: where its layers write.
        attention: name of the attention backend.
        capture: captures work on that device.
        compiled: whether the forward is compiled by torch before it is captured, which takes
            minutes for a large model and fuses what lies between its products.

    Attributes:
        trouble, uncompiled: see `Runner`; something can go wrong at any step.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: KVCache,
        attention: str,
        capture: Capture,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, cache, attention)
        self._feed: Callable[..., Any] = _compiled(model) if compiled else model
        self._widths = COMPILED_WIDTHS if compiled else WIDTHS
        self.chooses = True
        self._capture = capture
        self._steady = attention in READS_LENGTH
        self._inputs: dict[int, StepInputs] = {}
        # By width, those that somebody may look at: all kinds of step share them.
        self._logits: dict[int, Tensor] = {}
        self._steps: OrderedDict[_Kind, _Ready] = OrderedDict()
        self._no_memory: set[_Kind] = set()
        self._edition = cache.edition
        cache.defers = True
        cache.first = FIRST_SLOTS

    @property
    def captures(self) -> bool:
        """See `Runner`: until something went wrong."""
        return self.trouble is None

    @property
    def compiles(self) -> bool:
        """See `Runner`."""
        return self.captures and self._feed is not self._model

    def widths(self, limit: int) -> tuple[int, ...]:
        """See `Runner`."""
        return (*(width for width in self._widths if width < limit), limit)

    def forget(self) -> None:
        """Let go of everything captured, and of its memory."""
        self._steps.clear()
        self._inputs.clear()
        self._logits.clear()
        self._no_memory.clear()

    @torch.inference_mode()
    def start(self, layout: StepLayout, wanted: Wanted) -> Running:
        """See `Runner.start`; returns while the device is at work."""
        cache = self.cache
        moves = cache.moves
        if moves is not None and len(moves.slots) > MOVED:
            cache.settle()
        width = captured_width(len(layout.tokens), self._widths)
        step = self._step(layout, wanted, width) if layout.pending <= PENDING else None
        if step is None:
            return super().start(layout, wanted)
        try:
            step.inputs.fill(layout, cache.length, cache.moves, wanted.uniforms)
            step.inputs.send()
            step.captured.replay()
            cache.moved()
        except BaseException:
            # Ctrl-C may have come before the replay, or behind it.
            cache.lose_moves()
            raise
        step.home.copy_(step.captured.outputs[0], non_blocking=True)
        logits = Rows(self._logits[width] if wanted.logits else None, layout.outputs)
        return Running(step.home, logits, width, wanted, self._capture.wait)

    def _step(self, layout: StepLayout, wanted: Wanted, width: int) -> _Ready | None:
        """The captured step that a layout fits in; None if there is none."""
        cache = self.cache
        if self.trouble is not None or cache.tensors is None:
            return None
        cache.reserve(cache.length + width)
        if cache.edition != self._edition:
            self.forget()
            self._edition = cache.edition
        kind = _Kind(
            width,
            self._reach(cache.length + width),
            wanted.successors,
            wanted.logits,
            wanted.sampling,
        )
        step = self._steps.get(kind)
        if step is None:
            return None if kind in self._no_memory else self._make(kind, layout, wanted)
        self._steps.move_to_end(kind)
        return step

    def _reach(self, needed: int) -> int:
        """Slots that attention is handed."""
        if self._steady:
            return self.cache.slots
        reach = LEAST_REACH
        while reach < needed:
            reach *= 2
        return min(reach, self.cache.slots)

    def _make(self, kind: _Kind, layout: StepLayout, wanted: Wanted) -> _Ready | None:
        """Capture a step; that one cannot be captured is remembered."""
        cache = self.cache
        if kind.width not in self._inputs:
            self._inputs[kind.width] = StepInputs(kind.width, self.device)
        inputs = self._inputs[kind.width]
        # It runs more than once, so nothing may be left that moves something the first time.
        cache.settle()
        inputs.fill(layout, cache.length, None, wanted.uniforms)
        inputs.send()
        try:
            captured = self._capture.capture(partial(self._work, kind, inputs))
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if is_out_of_memory(error):
                self._no_memory.add(kind)
            elif self._feed is not self._model:
                # It may be the compiler's fault, or want of one.
                self._feed, self.uncompiled = self._model, why
                return self._make(kind, layout, wanted)
            else:
                self.trouble = why
            return None
        (words,) = captured.outputs
        pinned = words.device.type == "cuda"
        home = torch.empty(words.shape, dtype=words.dtype, pin_memory=pinned)
        step = self._steps[kind] = _Ready(inputs, captured, home)
        while len(self._steps) > KEPT:
            self._steps.popitem(last=False)
        return step

    def _work(self, kind: _Kind, inputs: StepInputs) -> tuple[Tensor, ...]:
        """All that a captured step computes."""
        cache = StaticCache(self.cache, inputs, kind.reach)
        cache.move()
        step = StaticStep(self._backend, inputs, cache, kind.reach)
        result = self._feed(
            input_ids=inputs.tokens.long()[None],
            attention_mask=None,
            position_ids=step.positions[None],
            past_key_values=cache,
            use_cache=True,
            # All rows: to select those wanted would take another index, and save little.
            logits_to_keep=0,
            **{STEP_KEYWORD: step},
        )
        logits: Tensor = result.logits[0]
        if kind.logits:
            # The first run, which is not captured yet, finds out how large they are.
            if kind.width not in self._logits:
                self._logits[kind.width] = torch.empty_like(logits)
            self._logits[kind.width].copy_(logits)
        return (pack(logits, kind.successors, kind.sampling, inputs.uniforms),)


def _compiled(model: nn.Module) -> Callable[..., Any]:
    """The forward of a model, compiled for each kind of step when it is first asked for."""
    # Not before somebody wants it: it takes seconds to import.
    from torch._dynamo import config

    opaque()
    feed = torch.compile(model, dynamic=False)

    def forward(**inputs: Any) -> Any:
        with config.patch(recompile_limit=COMPILED):
            return feed(**inputs)

    return forward
