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

from .attention import READS_LENGTH, STEP_KEYWORD, choose_backend
from .attention.fused import opaque
from .capture import Capture, Captured
from .config import (
    CAPTURED_WIDTHS,
    COMPILED_WIDTHS,
    FIRST_SLOTS,
    LOGIT_ROWS,
    SamplingConfig,
    captured_width,
)
from .errors import DeviceLostError
from .kv_cache import KVCache
from .ladder import Ladder, ladder_for
from .layout import StepLayout
from .lean import fused
from .memory import is_out_of_memory
from .readout import Rows, Wanted, pack
from .readout.choosing import draws_from_all
from .readout.penalty import Penalized, Scores, SeenTokens, present
from .runner import Runner, Running, without_plans
from .static_step import MOVED, StaticCache, StaticStep, StepInputs
from .step_cost import fitting

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
    penalty: float


@dataclass(frozen=True, slots=True)
class _Ready:
    """A captured step.

    Attributes:
        inputs: what it reads.
        captured: all that it computes.
        home: where its words arrive.
        logits: where it leaves them; None if nobody will look.
    """

    inputs: StepInputs
    captured: Captured
    home: Tensor
    logits: Tensor | None


class GraphRunner(Runner):
    """A runner whose steps are captured once and launched as a whole.

    Where a step cannot be captured, that is tried again without what is ours; and if nothing
    helps, steps run as those of `Runner` do.

    Args:
        model: a causal language model of transformers, on one device.
        cache: where its layers write.
        attention: name of the attention backend.
        capture: captures work on that device.
        compiled: whether the forward is compiled by torch before it is captured, which takes
            minutes for a large model and fuses what lies between its products.
        ladder: what steps may use of ours, if that is known already.

    Attributes:
        trouble, uncompiled, attention: see `Runner`; something can go wrong at any step.
        captured: see `Runner`.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: KVCache,
        attention: str,
        capture: Capture,
        *,
        compiled: bool = False,
        ladder: Ladder | None = None,
    ) -> None:
        super().__init__(model, cache, attention)
        self._ladder = ladder or ladder_for(model, attention)
        self._feed: Callable[..., Any] = _compiled(model) if compiled else model
        self._widths = COMPILED_WIDTHS if compiled else CAPTURED_WIDTHS
        self.chooses = True
        self._capture = capture
        self._inputs: dict[int, StepInputs] = {}
        # By rows, those that somebody may look at: only the last step's are of interest.
        self._logits: dict[int, Tensor] = {}
        self._steps: OrderedDict[_Kind, _Ready] = OrderedDict()
        self._no_memory: set[_Kind] = set()
        self._seen = SeenTokens()
        self._edition = cache.edition
        self._flying = False
        self._take_way()
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

    @property
    def given_up(self) -> str | None:
        """See `Runner`."""
        return self._ladder.given_up

    def widths(self, limit: int) -> tuple[int, ...]:
        """See `Runner`."""
        return (*(width for width in self._widths if width < limit), limit)

    def is_ready(self, layout: StepLayout, wanted: Wanted) -> bool:
        """See `Runner`: whether it is captured, and the cache need not grow for it."""
        cache, width = self.cache, captured_width(len(layout.tokens), self._widths)
        fits = self._edition == cache.edition and cache.length + width <= cache.slots
        return fits and layout.pending <= PENDING and self._kind(width, wanted) in self._steps

    def forget(self) -> None:
        """Let go of everything captured, and of its memory."""
        self._land()
        self._steps.clear()
        self._inputs.clear()
        self._logits.clear()
        self._no_memory.clear()

    def forward(self, layout: StepLayout) -> Tensor:
        """See `Runner`."""
        with fused.switched(self._ladder.way.kernels):
            return super().forward(layout)

    @torch.inference_mode()
    def start(self, layout: StepLayout, wanted: Wanted) -> Running:
        """See `Runner.start`; returns while the device is at work."""
        self._land()
        cache = self.cache
        moves = cache.moves
        if moves is not None and len(moves.slots) > MOVED:
            cache.settle()
        width = captured_width(len(layout.tokens), self._widths)
        step = self._step(layout, wanted, width) if layout.pending <= PENDING else None
        if step is None:
            return super().start(layout, wanted)
        try:
            joined = self._seen.joined(wanted.text) if wanted.penalty != 1.0 else ()
            step.inputs.fill(layout, cache.length, cache.moves, wanted.uniforms, joined)
            self._flying = True
            step.inputs.send()
            step.captured.replay()
            cache.moved()
            if wanted.penalty != 1.0:
                self._seen.added()
        except BaseException:
            # Ctrl-C may have come before the replay, or behind it.
            cache.lose_moves()
            raise
        step.home.copy_(step.captured.outputs[0], non_blocking=True)
        logits = Rows(step.logits, layout.outputs)
        return Running(step.home, logits, width, wanted, self._land)

    def _land(self) -> None:
        """Wait for the step that is under way, if there is one.

        Whoever asked for it may have given it up: then it has yet to read its inputs, which the
        next one of this width overwrites.
        """
        if self._flying:
            self._capture.wait()
            self._flying = False

    def _step(self, layout: StepLayout, wanted: Wanted, width: int) -> _Ready | None:
        """The captured step that a layout fits in; None if there is none."""
        cache = self.cache
        if self.trouble is not None or cache.tensors is None:
            return None
        cache.reserve(cache.length + width)
        if cache.edition != self._edition:
            self.forget()
            self._edition = cache.edition
        kind = self._kind(width, wanted)
        step = self._steps.get(kind)
        if step is None:
            return None if kind in self._no_memory else self._make(kind, layout, wanted)
        self._steps.move_to_end(kind)
        return step

    def _kind(self, width: int, wanted: Wanted) -> _Kind:
        """The kind of a captured step of this width, as things stand now."""
        reach, sampling = self._reach(self.cache.length + width), wanted.sampling
        # Where every token that is drawn is certain, nobody will look.
        logits = wanted.logits and not (sampling and draws_from_all(sampling))
        return _Kind(width, reach, wanted.successors, logits, sampling, wanted.penalty)

    def _reach(self, needed: int) -> int:
        """Slots that attention is handed."""
        if self._steady:
            return self.cache.slots
        reach = LEAST_REACH
        while reach < needed:
            reach *= 2
        return min(reach, self.cache.slots)

    def _make(self, kind: _Kind, layout: StepLayout, wanted: Wanted) -> _Ready | None:
        """Capture a step; that one cannot be captured is remembered.

        Raises:
            DeviceLostError: nothing can be computed any more.
        """
        cache = self.cache
        if kind.width not in self._inputs:
            self._inputs[kind.width] = StepInputs(kind.width, self.device)
        inputs = self._inputs[kind.width]
        # It runs more than once, so nothing may be left that moves something the first time.
        cache.settle()
        inputs.fill(layout, cache.length, None, wanted.uniforms)
        inputs.send()
        why = None
        try:
            captured = self._capture.capture(partial(self._work, kind, inputs))
        except DeviceLostError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                self._no_memory.add(kind)
                return None
            why = (str(error).splitlines() or [type(error).__name__])[0]
        if why is not None:
            self._retreat(why)
            # Of another kind, perhaps.
            return self._step(layout, wanted, kind.width)
        self._ladder.stand()
        self.captured += 1
        (words,) = captured.outputs
        pinned = words.device.type == "cuda"
        home = torch.empty(words.shape, dtype=words.dtype, pin_memory=pinned)
        logits = self._logits[fitting(kind.width, LOGIT_ROWS)] if kind.logits else None
        step = self._steps[kind] = _Ready(inputs, captured, home, logits)
        while len(self._steps) > KEPT:
            self._steps.popitem(last=False)
        return step

    def _retreat(self, why: str) -> None:
        """Do without something of ours from now on, or else without graphs.

        What was captured before works, and stays.
        """
        if self._feed is not self._model:
            # It may be the compiler's fault, or want of one.
            self._feed, self.uncompiled = self._model, why
        elif not self._ladder.step_down(why):
            self.trouble = why
        self._take_way()

    def _take_way(self) -> None:
        self.attention = self._ladder.way.attention
        self._backend = choose_backend(self.attention)
        self._steady = self.attention in READS_LENGTH

    def _work(self, kind: _Kind, inputs: StepInputs) -> tuple[Tensor, ...]:
        """All that a captured step computes."""
        # Nothing else of the forward, such as its masks, is alive beside what is read out of it.
        with fused.switched(self._ladder.way.kernels), without_plans(self.device):
            logits = self._forward(kind, inputs)
            if kind.logits:
                logits = self._left(logits)
            scores: Scores = logits
            if kind.penalty != 1.0:
                flags = self._seen.make(logits).index_fill_(0, inputs.joined.long(), True)
                scores = Penalized(logits, present(flags, inputs.paths()), kind.penalty)
            return (pack(scores, kind.successors, kind.sampling, inputs.uniforms),)

    def _forward(self, kind: _Kind, inputs: StepInputs) -> Tensor:
        """Logits of all rows, [width, vocabulary]."""
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
        return logits

    def _left(self, logits: Tensor) -> Tensor:
        """Logits where somebody can look at them, so that their own memory is free."""
        width, vocabulary = logits.shape
        rows = fitting(width, LOGIT_ROWS)
        # The first run, which is not captured yet, finds out how large they are.
        if rows not in self._logits:
            self._logits[rows] = logits.new_empty((rows, vocabulary))
        return self._logits[rows][:width].copy_(logits)


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
