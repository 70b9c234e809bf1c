"""Keys and values of the committed text, by slot, in one tensor over all layers of a device.

A step writes behind the committed tokens; `keep` moves the accepted ones to the front of
what was written with one gather, and forgets the rest.  Slots behind `length` hold nothing
that anybody reads, so a step that is broken off at any point leaves the cache valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .config import GROWTH, PARTLY
from .memory import attempt


@dataclass(slots=True)
class _Shelf:
    """The layers on one device.

    Attributes:
        layers: their numbers.
        keys, values: [layers, 1, K, slots, D], allocated at the first write.
    """

    layers: list[int]
    keys: Tensor | None = None
    values: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Moves:
    """Keys and values that have to move to the front.

    Attributes:
        slots: where they are, ascending.
        start: where the first of them belongs; the others come behind it.
    """

    slots: list[int]
    start: int


class KVCache:
    """A preallocated cache that answers to what transformers' models ask of theirs.

    Its tensors are made and changed in inference mode only.  Layers are taken to be on one device
    until `spread` says otherwise.

    Args:
        layers: how many layers write to it.
        most: slots that are enough for any text; None if nobody knows.

    Attributes:
        length: committed slots; slot i holds the token at position i.
        layers: as above.
        edition: another number whenever the tensors are others than before: what holds on to
            their addresses has to let go.
        first: slots that a new cache is to have at least, as far as a text can need them.
        defers: whether `keep` leaves it to the next step to move keys and values, which a captured
            step does on the way.
    """

    # Models ask a cache whether it can be compiled or is sliding; this one is neither.
    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self, layers: int, most: int | None = None) -> None:
        self.length = 0
        self.layers = layers
        self.edition = 0
        self.first = 0
        self.defers = False
        self._roomy = True
        self._most = most
        self._slots = 0
        self._moves: Moves | None = None
        self._shelves = [_Shelf([*range(layers)])]
        # Of each layer, [1, K, slots, D], once it has been written: a step asks for all of them.
        self._views: list[tuple[Tensor, Tensor] | None] = [None] * layers

    @property
    def keys(self) -> Tensor | None:
        """[layers, 1, K, slots, D]: of the layers on the first device, once they were written."""
        self.settle()
        return self._shelves[0].keys

    @property
    def values(self) -> Tensor | None:
        """As `keys`."""
        self.settle()
        return self._shelves[0].values

    @property
    def slots(self) -> int:
        """Slots that there are, or will be at the first write."""
        return self._slots

    @property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """`keys` and `values` as they lie there, moved or not; None if there are none, or if
        layers are on several devices."""
        shelf = self._shelves[0]
        if len(self._shelves) > 1 or shelf.keys is None or shelf.values is None:
            return None
        return shelf.keys, shelf.values

    def spread(self, devices: Sequence[torch.device]) -> None:
        """Say where the layers are: those on one device share a tensor there.

        Args:
            devices: that of each layer.
        """
        shelves: dict[torch.device, _Shelf] = {}
        self.release()
        for layer, device in enumerate(devices):
            shelves.setdefault(device, _Shelf([])).layers.append(layer)
        self._shelves = [*shelves.values()]

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots in all, keeping what is committed.

        Where memory runs out, nothing has changed.
        """
        # As nearly always: a step is not held up by more than this.
        if self.length and slots <= self._slots and self._shelves[0].keys is not None:
            return
        self._make_room(slots)

    @torch.inference_mode()
    def _make_room(self, slots: int) -> None:
        least = -(-slots // GROWTH) * GROWTH
        written = [shelf for shelf in self._shelves if shelf.keys is not None]
        # A first step that memory did not suffice for may have reached some devices only.
        if not written or (not self.length and len(written) < len(self._shelves)):
            # Not more than this: what was wanted before may have been too much for memory.
            self._drop()
            self._slots = max(least, min(self.first, self._most or 0) if self._roomy else 0)
            self._roomy = False
            return
        if slots <= self._slots:
            return
        self.settle()
        # At least double, so that growing step by step costs no more than a copy in all.
        wanted, grown = 2 * self._slots, None
        if self._most is not None:
            most = -(-self._most // GROWTH) * GROWTH
            wanted = max(wanted if max(wanted, least) <= PARTLY * most else most, least)
        if wanted > least:
            grown = attempt(self._grow, wanted)
        if grown is None:
            wanted, grown = least, self._grow(least)
        for shelf, (keys, values) in zip(written, grown, strict=True):
            self._fill(shelf, keys, values)
        self._slots = wanted

    def _grow(self, slots: int) -> list[tuple[Tensor, Tensor]]:
        # All or none: memory may run out in between.
        return [
            (self._grown(shelf.keys, slots), self._grown(shelf.values, slots))
            for shelf in self._shelves
            if shelf.keys is not None and shelf.values is not None
        ]

    def _grown(self, old: Tensor, slots: int) -> Tensor:
        shape = (*old.shape[:3], slots, old.shape[4])
        new = torch.zeros(shape, dtype=old.dtype, device=old.device)
        new[:, :, :, : self.length] = old[:, :, :, : self.length]
        return new

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's step behind the committed slots.

        Args:
            key, value: [1, K, T, D].

        Returns:
            The layer's committed and new keys and values, [1, K, length + T, D].
        """
        keys, values = self._views[layer_idx] or self._allocate(layer_idx, key, value)
        end = self.length + key.shape[2]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def _allocate(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for all layers on a layer's device; its own part of it is the answer."""
        shelf = next(each for each in self._shelves if layer in each.layers)
        self._slots = max(self._slots, -(-(self.length + key.shape[2]) // GROWTH) * GROWTH)
        # Zeros, not garbage: a masked NaN would still poison a sum.
        keys, values = (
            torch.zeros(
                (len(shelf.layers), 1, x.shape[1], self._slots, x.shape[3]),
                dtype=x.dtype,
                device=x.device,
            )
            for x in (key, value)
        )
        self._fill(shelf, keys, values)
        row = shelf.layers.index(layer)
        return keys[row], values[row]

    def _fill(self, shelf: _Shelf, keys: Tensor, values: Tensor) -> None:
        shelf.keys, shelf.values = keys, values
        self.edition += 1
        for row, layer in enumerate(shelf.layers):
            self._views[layer] = keys[row], values[row]

    def keep(self, kept: Sequence[int]) -> int:
        """Commit the tokens of the last step at the indices `kept`, in that order.

        Args:
            kept: ascending indices into the step's T tokens.

        Returns:
            The new length.
        """
        self.settle()
        start, in_place = self.length, 0
        while in_place < len(kept) and kept[in_place] == in_place:
            in_place += 1
        if in_place < len(kept):
            self._moves = Moves([start + index for index in kept[in_place:]], start + in_place)
            if not self.defers:
                self.settle()
        self.length = start + len(kept)
        return self.length

    @property
    def moves(self) -> Moves | None:
        """What `keep` left to be moved."""
        return self._moves

    def settle(self) -> None:
        """Move what `keep` left to be moved; where that fails, those tokens are forgotten."""
        if self._moves is None:
            return
        try:
            self._move(self._moves)
        except BaseException:
            self.lose_moves()
            raise
        self._moves = None

    @torch.inference_mode()
    def _move(self, moves: Moves) -> None:
        """One gather over all layers of a device."""
        first, last = moves.start, moves.start + len(moves.slots)
        for shelf in self._shelves:
            if shelf.keys is None or shelf.values is None:
                continue
            slots = torch.tensor(moves.slots, device=shelf.keys.device)
            shelf.keys[:, :, :, first:last] = shelf.keys.index_select(3, slots)
            shelf.values[:, :, :, first:last] = shelf.values.index_select(3, slots)

    def moved(self) -> None:
        """Somebody else has moved what was to be moved."""
        self._moves = None

    def lose_moves(self) -> None:
        """Nobody knows whether what was to be moved has been: forget those tokens."""
        if self._moves is not None:
            self.length = min(self.length, self._moves.start)
            self._moves = None

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)
        if self._moves is not None and self._moves.start >= self.length:
            self._moves = None

    def release(self) -> None:
        """Forget everything, and give the memory back."""
        self.length = self._slots = 0
        self._roomy = True
        self._drop()

    def _drop(self) -> None:
        self._moves = None
        self.edition += 1
        self._views = [None] * self.layers
        for shelf in self._shelves:
            shelf.keys = shelf.values = None

    # What transformers asks besides.  Masks and positions are ours, so only the length of
    # the committed text has a meaning here.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Length and offset of the keys that a step of `query_length` tokens sees."""
        return self.length + query_length, 0
