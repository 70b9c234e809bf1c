"""The forward pass of one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .attention import STEP_KEYWORD, StepAttention, choose_backend
from .kv_cache import KVCache
from .layout import StepLayout
from .places import device_of, devices_of, layer_devices


class Runner:
    """Feeds steps to a model whose attention is bound to the step attention.

    Args:
        model: a causal language model of transformers.
        cache: where its layers write.
        attention: name of the attention backend.

    Attributes:
        device: where the model takes its input, and gives its logits.
        sliding_windows: those that layers asked for in the last step.
    """

    def __init__(self, model: nn.Module, cache: KVCache, attention: str = "auto") -> None:
        self._model = model
        self._cache = cache
        self._backend = choose_backend(attention)
        self.device = device_of(model)
        self._several = len({*devices_of(model)}) > 1
        layers = layer_devices(model) if self._several else []
        if len(layers) == cache.layers:
            cache.spread(layers)
        self.sliding_windows: set[int] = set()

    # Cheaper than no_grad by a seventh where a step is bound by dispatch.
    @torch.inference_mode()
    def forward(self, layout: StepLayout) -> Tensor:
        """Run one step; its keys and values lie behind the committed ones afterwards.

        Returns:
            Logits of `layout.outputs`, [len(outputs), vocabulary]; of the last token alone
            where no outputs are wanted.
        """
        device, width = self.device, len(layout.tokens)
        self._cache.reserve(self._cache.length + width)
        positions = torch.tensor(layout.positions, device=device)
        visible = None if layout.visible is None else torch.from_numpy(layout.visible).to(device)
        step = StepAttention(
            self._backend,
            visible,
            positions,
            self._cache.length,
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
        result = self._model(
            input_ids=torch.tensor([layout.tokens], device=device),
            attention_mask=None,
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=rows,
            **{STEP_KEYWORD: step},
        )
        logits: Tensor = result.logits[0]
        return logits
