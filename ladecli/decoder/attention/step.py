"""Who sees whom in one step, as the masks that backends ask for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class StepAttention:
    """Visibility of one step of T tokens behind `prefix` cached ones; S = prefix + T.

    The cached tokens stand in the slots 0 to prefix - 1, slot i at position i.

    Args:
        backend: computes the attention.
        visible: bool [T, T], who sees whom within the step; None when T is 1.
        positions: int64 [T].
        prefix: cached tokens, which everyone sees as far as a sliding window lets them.
        last_position: the largest of `positions`, known without asking the device.

    Attributes:
        sliding_windows: those that some layer asked for.
    """

    def __init__(
        self,
        backend: Callable[..., Tensor],
        visible: Tensor | None,
        positions: Tensor,
        prefix: int,
        last_position: int,
    ) -> None:
        self.backend = backend
        self._visible = visible
        self._positions = positions
        self._prefix = prefix
        self._last_position = last_position
        # Layers of one kind share a mask, so each is made once a step.
        self.sliding_windows: set[int] = set()
        self._bool: dict[int | None, Tensor | None] = {}
        self._added: dict[tuple[int | None, int, torch.dtype, torch.device], Tensor] = {}

    def bool_mask(self, sliding_window: int | None) -> Tensor | None:
        """Bool [T, S], true where a query sees a slot; None where every query sees all.

        A sliding window hides keys by token position, not by slot: a query sees the keys at
        `position > query position - sliding_window`.  The mask is on the device of `positions`.
        """
        if sliding_window is not None:
            self.sliding_windows.add(sliding_window)
        reach = self._reach(sliding_window)
        if reach not in self._bool:
            self._bool[reach] = self._make(reach)
        return self._bool[reach]

    def added_mask(
        self,
        sliding_window: int | None,
        groups: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Tensor | None:
        """The mask as a term to add to scores, [groups * T, S]: 0 or minus infinity.

        The T rows are repeated for each of `groups` query heads that share a key head.  Layers
        may be on several devices: the mask is on `device`, that of `positions` if None.
        """
        device = device or self._positions.device
        wanted = (self._reach(sliding_window), groups, dtype, device)
        if wanted not in self._added:
            mask = self.bool_mask(sliding_window)
            if mask is None:
                return None
            mask = mask.to(device)
            added = torch.zeros(mask.shape, dtype=dtype, device=device)
            self._added[wanted] = added.masked_fill_(~mask, float("-inf")).repeat(groups, 1)
        return self._added[wanted]

    def _reach(self, sliding_window: int | None) -> int | None:
        """The window, or None where it reaches back to the first token and hides nothing."""
        if sliding_window is None or sliding_window > self._last_position:
            return None
        return sliding_window

    def _make(self, sliding_window: int | None) -> Tensor | None:
        if self._visible is None and sliding_window is None:
            return None
        count = len(self._positions)
        mask = torch.ones((count, self._prefix + count), dtype=torch.bool)
        mask = mask.to(self._positions.device)
        if self._visible is not None:
            mask[:, self._prefix :] = self._visible
        if sliding_window is not None:
            slots = torch.arange(self._prefix, device=self._positions.device)
            keys = torch.cat([slots, self._positions])
            mask &= keys[None, :] > self._positions[:, None] - sliding_window
        return mask
