"""Who sees whom in a step: rows of bits in, the masks that attention backends take out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..backends.in_blocks import KeyBlock
from ..layout import WORD, dense, packed, words_for

T = TypeVar("T")


class Rules(NamedTuple):
    """How a layer weighs the keys that a token sees."""

    scaling: float
    """Multiplies the scores."""
    window: int | None = None
    """Positions that a query sees back, its own included (a sliding window); None for all."""
    softcap: float | None = None
    """Scores become softcap * tanh(scores / softcap) (Gemma 2); None for no cap."""
    sinks: Tensor | None = None
    """[H], the score of a key that every query of a head sees and whose value is zero (gpt-oss);
    None for none."""


class StepPart(NamedTuple):
    """A part of a step, as a step of its own."""

    places: Tensor  # the tokens that take part: those that it is for, and those that they see
    slots: Tensor  # of the keys that these see
    results: Tensor  # which of them it is for
    mask: StepMask


class DeviceMask(NamedTuple):
    """A mask as kernels read it, int32 on one device."""

    length: Tensor  # [1], cached tokens
    positions: Tensor  # [T]
    words: Tensor  # [T, ceil(T / 32)]; bit j % 32 of word j // 32 in row i: token i sees token j


class StepMask:
    """The attention mask of a step of T tokens after `prefix` cached ones; S = prefix + T.

    A token sees the cached ones, as far back as a sliding window lets it, and of the step what
    its row says.  The slot of a cached token is its position; the step follows in its own order.
    Whatever a backend asks for is made once and serves all layers.

    Args:
        rows: of bits, as in `StepLayout.rows`.
        positions: of the step's tokens.
        prefix: cached tokens.

    Attributes:
        prefix: None where only the device knows it.
        is_single: the step is one token, which sees every slot from `first_slot` on.
    """

    def __init__(self, rows: Sequence[int], positions: Sequence[int], prefix: int) -> None:
        self.prefix: int | None = prefix
        self.is_single = len(rows) == 1
        self._rows, self._positions = rows, positions
        self._last_position = max(positions)
        self._made: dict[Any, Any] = {}

    def active_window(self, sliding_window: int | None) -> int | None:
        """`sliding_window`; None where the text is too short for it to hide anything."""
        if sliding_window is None or sliding_window > self._last_position:
            return None
        return sliding_window

    def first_slot(self, sliding_window: int | None) -> int:
        """The first slot that any token of the step sees; those before need not be read."""
        if sliding_window is None or self.prefix is None:
            return 0
        return min(max(min(self._positions) - sliding_window + 1, 0), self.prefix)

    def on_device(self, device: torch.device) -> DeviceMask:
        """The mask as kernels read it, brought to a device in one copy."""
        return self._once(("on device", device), partial(self._make_on_device, device))

    def visible(self, device: torch.device) -> Tensor:
        """Bool [T, T]: which token (row) sees which token of the step (column)."""
        return self._once(("visible", device), partial(self._make_visible, device))

    def additive_mask(
        self, sliding_window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor | None:
        """A term of the scores, [groups * T, S - first_slot]: 0, or -inf where a slot is hidden.

        The rows are there once for each of the `groups` query heads that share a key head.  A
        window hides by position: a key is seen if key position > query position - window.
        Returns None where nothing is hidden.
        """
        if self.is_single:
            return None
        what = self.active_window(sliding_window), groups, dtype, device
        return self._once(what, partial(self._make_additive, *what))

    def parts(self, most: int) -> list[StepPart]:
        """The step as several of at most `most` tokens each, as long as no token sees more."""
        return self._once("parts", lambda: [*self._make_parts(most)])

    def blocks(self, sliding_window: int | None, size: int) -> list[KeyBlock]:
        """All keys by blocks of `size` positions, the first of which begins with the text."""
        first = self.first_slot(sliding_window)
        return self._once(("blocks", first), lambda: [*self._make_blocks(first, size)])

    def own(self, keys: Tensor) -> Tensor:
        """The step's own keys, [1, K, T, D], of those in the cache, [1, K, S, D]; or values."""
        return keys[:, :, self.prefix :]

    def _once(self, what: Hashable, make: Callable[[], T]) -> T:
        """What is made at the first call."""
        if what not in self._made:
            self._made[what] = make()
        found: T = self._made[what]
        return found

    def _make_on_device(self, device: torch.device) -> DeviceMask:
        count = len(self._rows)
        words = words_for(count)
        head = np.array([self.prefix, *self._positions], dtype=np.int32).tobytes()
        buffer = bytearray(head + packed(self._rows, words))
        whole = torch.frombuffer(buffer, dtype=torch.int32).to(device)
        length, positions, bits = torch.split(whole, [1, count, count * words])
        return DeviceMask(length, positions, bits.view(count, words))

    def _make_parts(self, most: int) -> Iterator[StepPart]:
        assert self.prefix is not None
        rows = self._rows
        # The first tokens follow one another, and all later ones see them.
        text = len(rows)
        for place, row in enumerate(rows):
            followed = (~row & (row + 1)).bit_length() - 1
            if followed <= place and row & (row - 1):  # padding sees itself alone
                text = min(text, followed)
        first = start = 0
        while first < len(rows):
            # Drafts see few of the others: as many of them at once as see no more than fit.
            seen, end = rows[first] >> start, first + 1
            while end < len(rows) and (more := seen | rows[end] >> start).bit_count() <= most:
                seen, end = more, end + 1
            places = [start + each for each in range(seen.bit_length()) if seen >> each & 1]
            yield self._part(range(first, end), places, start)
            first, start = end, min(end, text)

    def _part(self, results: range, places: Sequence[int], start: int) -> StepPart:
        """Of the tokens at some places, where those before `start` are of the text."""
        assert self.prefix is not None
        shown = dense(self._rows)[np.ix_(places, places)]
        words = np.packbits(shown, axis=1, bitorder="little")
        rows = [int.from_bytes(row.tobytes(), "little") for row in words]
        positions = [self._positions[place] for place in places]
        cached, own = self.prefix + start, torch.tensor(places)
        return StepPart(
            places=own,
            slots=torch.cat((torch.arange(cached), self.prefix + own)),
            results=torch.searchsorted(own, torch.tensor([*results])),
            mask=StepMask(rows, positions, cached),
        )

    def _make_blocks(self, first: int, size: int) -> Iterator[KeyBlock]:
        assert self.prefix is not None
        prefix, slots = self.prefix, self.prefix + len(self._positions)
        edge = first // size * size
        while edge + size <= prefix:
            yield KeyBlock(max(edge - first, 0), edge + size - first)
            edge += size
        if self._last_position < edge + size:
            yield KeyBlock(max(edge - first, 0), slots - first)
            return
        # The step's own keys are of several blocks, and stand in any order.
        positions = np.array([*range(edge, prefix), *self._positions])
        for start in range(edge, self._last_position + 1, size):
            inside = (positions >= start) & (positions < start + size)
            if len(places := np.flatnonzero(inside)):
                part = inside[places[0] : places[-1] + 1]
                kept = None if part.all() else torch.from_numpy(part.astype(np.float32))
                begin, end = (edge - first + int(place) for place in (places[0], places[-1] + 1))
                # A window may begin within the block.
                cut = max(-begin, 0)
                yield KeyBlock(begin + cut, end, kept if kept is None else kept[cut:])

    def _make_visible(self, device: torch.device) -> Tensor:
        return torch.from_numpy(dense(self._rows)).to(device)

    def _make_additive(
        self, window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        assert self.prefix is not None
        first = self.first_slot(window)
        cached, count = self.prefix - first, len(self._rows)
        added = torch.zeros((groups, count, cached + count), dtype=dtype, device=device)
        hidden = ~dense(self._rows)
        if window is not None:
            positions = np.array(self._positions)
            last_hidden = (positions - window)[:, None]
            hidden |= positions <= last_hidden
            before = torch.from_numpy(np.arange(first, self.prefix) <= last_hidden)
            added[..., :cached].masked_fill_(before.to(device), float("-inf"))
        added[..., cached:].masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
        return added.flatten(0, 1)


class CapturedMask(StepMask):
    """The mask of a step of fixed shape, whose numbers lie at fixed addresses on a device.

    S is the padded KV length; slots after the step's are hidden.

    Args:
        on_device: what each replay reads anew.
        slots: S.
    """

    def __init__(self, on_device: DeviceMask, slots: int) -> None:
        # No position is after the last slot: a window that wide hides nothing.
        super().__init__((), (slots - 1,), 0)
        self.prefix = None
        # Also a single token must not see slots after its own.
        self.is_single = False
        self._slots = slots
        self._captured = on_device

    def on_device(self, device: torch.device) -> DeviceMask:
        """The tensors of fixed address; `device` is theirs."""
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
