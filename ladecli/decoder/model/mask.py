"""The attention mask of a step, in the forms that attention backends read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..layout import WORD, dense, packed, words_for

T = TypeVar("T")


class Rules(NamedTuple):
    """The rules by which a layer attends to the keys that a token sees."""

    scaling: float
    """The factor of the scores."""
    window: int | None = None
    """A sliding window: the positions that a query sees, its own and those before; None for all."""
    softcap: float | None = None
    """Scores become softcap * tanh(scores / softcap) (Gemma 2); None for no cap."""
    sinks: Tensor | None = None
    """[H], for each head the score of one more key, whose value is zero (gpt-oss); or None."""


class DeviceMask(NamedTuple):
    """A mask as kernels read it, int32 on one device."""

    length: Tensor  # [1], cached tokens
    positions: Tensor  # [T]
    words: Tensor  # [T, ceil(T / 32)]; bit j % 32 of word j // 32 in row i: token i sees token j


class StepMask:
    """The attention mask of a step of T tokens after `prefix` cached ones; S = prefix + T.

    A token sees the cached tokens, as far back as a sliding window allows, and the tokens of the
    step that its row names.  The slot of a cached token is its position; the step follows in its
    own order.  Each form of the mask is made once and serves all layers.

    Args:
        rows: rows of bits, as in `StepLayout.rows`.
        positions: the positions of the step's tokens.
        prefix: the number of cached tokens.

    Attributes:
        prefix: None if only the device knows it.
        is_single: True if the step is one token, which sees every slot from `first_slot` on.
    """

    def __init__(self, rows: Sequence[int], positions: Sequence[int], prefix: int) -> None:
        self.prefix: int | None = prefix
        self.is_single = len(rows) == 1
        self.rows, self.positions = rows, positions
        self.last_position = max(positions)
        self._made: dict[Any, Any] = {}

    def active_window(self, sliding_window: int | None) -> int | None:
        """Return `sliding_window`, or None if the text is too short for it to hide anything."""
        if sliding_window is None or sliding_window > self.last_position:
            return None
        return sliding_window

    def first_slot(self, sliding_window: int | None) -> int:
        """Return the first slot that any token of the step sees."""
        if sliding_window is None or self.prefix is None:
            return 0
        return min(max(min(self.positions) - sliding_window + 1, 0), self.prefix)

    def on_device(self, device: torch.device) -> DeviceMask:
        """Return the mask as kernels read it, copied to a device at once."""
        return self.once(("on device", device), partial(self._make_on_device, device))

    def visible(self, device: torch.device) -> Tensor:
        """Return as bool [T, T] which token (row) sees which token of the step (column)."""
        return self.once(("visible", device), partial(self._make_visible, device))

    def additive_mask(
        self, sliding_window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """Return a term of the scores, [groups * T, S - first_slot]: 0, or -inf for a hidden slot;
        None if nothing is hidden.

        The rows are repeated for each of the `groups` query heads that share a key head.  A sliding
        window goes by position: a key is seen if key position > query position - window.
        """
        if self.is_single:
            return None
        form = self.active_window(sliding_window), groups, dtype, device
        return self.once(form, partial(self._make_additive, *form))

    def own(self, keys: Tensor) -> Tensor:
        """Return the step's own part, [1, K, T, D], of all keys or values, [1, K, S, D]."""
        return keys[:, :, self.prefix :]

    def once(self, form: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned when this form was first asked for."""
        if form not in self._made:
            self._made[form] = make()
        made: T = self._made[form]
        return made

    def _make_on_device(self, device: torch.device) -> DeviceMask:
        count = len(self.rows)
        words = words_for(count)
        head = np.array([self.prefix, *self.positions], dtype=np.int32).tobytes()
        buffer = bytearray(head + packed(self.rows, words))
        whole = torch.frombuffer(buffer, dtype=torch.int32).to(device)
        length, positions, bits = torch.split(whole, [1, count, count * words])
        return DeviceMask(length, positions, bits.view(count, words))

    def _make_visible(self, device: torch.device) -> Tensor:
        return torch.from_numpy(dense(self.rows)).to(device)

    def _make_additive(
        self, window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        assert self.prefix is not None
        first = self.first_slot(window)
        cached, count = self.prefix - first, len(self.rows)
        added = torch.zeros((groups, count, cached + count), dtype=dtype, device=device)
        hidden = ~dense(self.rows)
        if window is not None:
            positions = np.array(self.positions)
            last_hidden = (positions - window)[:, None]
            hidden |= positions <= last_hidden
            before = torch.from_numpy(np.arange(first, self.prefix) <= last_hidden)
            added[..., :cached].masked_fill_(before.to(device), float("-inf"))
        added[..., cached:].masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
        return added.flatten(0, 1)


class CapturedMask(StepMask):
    """The mask of a captured step, whose shape and addresses are fixed.

    S is the padded KV length; slots after the step's are hidden.

    Args:
        on_device: the mask at fixed addresses, which each replay reads anew.
        slots: S.
    """

    def __init__(self, on_device: DeviceMask, slots: int) -> None:
        # The largest position there can be, so that a window that might hide anything is active.
        super().__init__((), (slots - 1,), 0)
        self.prefix = None
        # Even a single token must not see the slots after its own.
        self.is_single = False
        self._slots = slots
        self._captured = on_device

    def on_device(self, device: torch.device) -> DeviceMask:
        """Return the mask at fixed addresses; it is on `device`."""
        return self._captured

    def own(self, keys: Tensor) -> Tensor:
        """See `StepMask.own`."""
        length, positions, _ = self._captured
        return keys.index_select(2, length + torch.arange(len(positions), device=length.device))

    def _make_visible(self, device: torch.device) -> Tensor:
        words = self._captured.words
        places = torch.arange(len(words), device=words.device)
        return ((words.index_select(1, places // WORD) >> (places % WORD)) & 1).bool()

    def _make_additive(
        self, window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        length, positions, _ = self._captured
        slots = torch.arange(self._slots, device=length.device)
        own = slots - length
        cached, count = own < 0, len(positions)
        place = own.clamp(0, count - 1)
        seen: Tensor = self.visible(device).index_select(1, place) & (own < count) | cached
        if window is not None:
            keys = torch.where(cached, slots, positions.index_select(0, place))
            seen &= keys > (positions - window)[:, None]
        added = torch.zeros(seen.shape, dtype=dtype, device=length.device)
        return added.masked_fill_(seen.logical_not(), float("-inf")).repeat(groups, 1)
