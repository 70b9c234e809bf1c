"""The forward pass of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .attention import STEP_KEYWORD, StepAttention, choose_backend
from .kv_cache import KVCache
from .layout import StepLayout
from .places import device_of, devices_of, layer_devices
from .readout import Readout, Rows, Shown, Wanted, pack
from .readout.penalty import SeenIds, penalize_rows


class Running:
    """A step that the device may still be at work on.

    Args:
        words: what `pack` made of its logits: on the device, or where it arrives on the host.
        logits: by output.
        count: rows that were packed.
        wanted: what was asked for.
        wait: returns when `words` has arrived; None where reading them waits by itself.
    """

    def __init__(
        self,
        words: Tensor,
        logits: Rows,
        count: int,
        wanted: Wanted,
        wait: Callable[[], None] | None = None,
    ) -> None:
        self._words = words
        self._logits = logits
        self._count = count
        self._wanted = wanted
        self._wait = wait
        # The device is at work.
        self._readout = None if wait is None else self._read_from(words)

    def result(self) -> Shown:
        """Wait for it."""
        if self._wait is not None:
            self._wait()
        return (self._readout or self._read_from(self._words)).read()

    def _read_from(self, words: Tensor) -> Readout:
        return Readout(words.numpy(force=True), self._logits, self._count, self._wanted)


class Runner:
    """Feeds steps to a model whose attention is bound to the step attention.

    Args:
        model: a causal language model of transformers.
        cache: where its layers write.
        attention: name of the attention backend.
        trouble: why steps are not captured though they were to be.

    Attributes:
        cache, trouble: as above.
        uncompiled: why captured steps are not compiled though they were to be.
        attention: name of the attention backend.
        device: where the model takes its input, and gives its logits.
        captured: how many steps were captured so far.
        chooses: whether tokens are best drawn for all rows of a step at once: to ask a GPU for
            one row after the other takes longer.
        sliding_windows: those that layers asked for in the last step.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: KVCache,
        attention: str = "auto",
        trouble: str | None = None,
    ) -> None:
        self._model = model
        self.cache = cache
        self.trouble = trouble
        self.uncompiled: str | None = None
        self.captured = 0
        self.attention = attention
        self._backend = choose_backend(attention)
        self.device = device_of(model)
        self._several = len({*devices_of(model)}) > 1
        layers = layer_devices(model) if self._several else []
        if len(layers) == cache.layers:
            cache.spread(layers)
        self.chooses = self.device.type == "cuda"
        self.sliding_windows: set[int] = set()
        self._ids = SeenIds(self.device)

    @property
    def captures(self) -> bool:
        """Whether steps are captured as CUDA graphs."""
        return False

    @property
    def compiles(self) -> bool:
        """Whether captured steps are compiled first."""
        return False

    @property
    def given_up(self) -> str | None:
        """What steps do without though it was there, and why, in one line; None for nothing."""
        return None

    def widths(self, limit: int) -> tuple[int, ...]:
        """The widths that a strategy should give its steps, up to a limit, which is one of them;
        () where any width does as well.

        Args:
            limit: the most tokens of a step.
        """
        return ()

    def is_ready(self, layout: StepLayout, wanted: Wanted) -> bool:
        """Whether `start` takes no time for such a step, and leaves all to the device."""
        return False

    def forget(self) -> None:
        """Let go of what is kept for further steps: here, of nothing."""

    # Cheaper than no_grad by a seventh where a step is bound by dispatch.
    @torch.inference_mode()
    def forward(self, layout: StepLayout) -> Tensor:
        """Run one step; its keys and values lie behind the committed ones afterwards.

        Returns:
            Logits of `layout.outputs`, [len(outputs), vocabulary]; of the last token alone
            where no outputs are wanted.
        """
        device, width = self.device, len(layout.tokens)
        self.cache.settle()
        self.cache.reserve(self.cache.length + width)
        positions = torch.tensor(layout.positions, device=device)
        visible = None if layout.visible is None else torch.from_numpy(layout.visible).to(device)
        step = StepAttention(
            self._backend,
            visible,
            positions,
            self.cache.length,
            max(layout.positions),
        )
        outputs = layout.outputs or [width - 1]
        # All rows in order need no selection, which spares a plain step an index.
        rows: Any = outputs
        if outputs == [*range(width)]:
            rows = 0
        elif not self._several:
            # Plain numbers select on any device, and the last layer may be on another one.
            rows = torch.tensor(outputs, device=device)
        self.sliding_windows = step.sliding_windows
        with without_plans(device):
            result = self._model(
                input_ids=torch.tensor([layout.tokens], device=device),
                attention_mask=None,
                position_ids=positions[None],
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=rows,
                **{STEP_KEYWORD: step},
            )
        logits: Tensor = result.logits[0]
        return logits

    @torch.inference_mode()
    def start(self, layout: StepLayout, wanted: Wanted) -> Running:
        """Start one step, and read out what is wanted of its outputs.

        Its keys and values lie behind the committed ones afterwards.
        """
        logits = self.forward(layout)
        uniforms = None
        if wanted.sampling is not None:
            known = len(wanted.uniforms)
            given = [wanted.uniforms[row] if row < known else 0.0 for row in layout.outputs]
            uniforms = torch.tensor(given, dtype=torch.float64, device=logits.device)
        scores = logits
        if wanted.penalty != 1.0:
            paths = torch.from_numpy(layout.paths()).to(logits.device)
            seen = self._ids.of(wanted.text)
            scores = penalize_rows(logits, seen, paths, wanted.penalty)
        words = pack(scores, wanted.successors, wanted.sampling, uniforms)
        count = len(logits)
        return Running(words, Rows(logits, [*range(count)]), count, wanted)


@contextmanager
def without_plans(device: torch.device) -> Iterator[None]:
    """Keep torch from cuDNN's attention, which some versions prefer on some GPUs: it makes a plan
    for every length of the text, and for every kind of captured step, and that takes longer than
    the step itself."""
    if device.type != "cuda":
        yield
        return
    before: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
