"""Match a device to a profile, by the device's name and memory size.

Names mislead: "H200" is part of "GH200", "L4" of "L40S", and a MIG slice of an A100 or a laptop's
chip carries the name of the whole, whose settings would ask too much of it.  A device that is not
surely known is unknown, and gets measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Protocol

from .schema import Profile

TOLERANCE = 0.25
"""How far a device's memory may be from a profile's: drivers keep some, and count in GiB."""
_SLICES = ("mig", "laptop", "notebook", "mobile", "max q", "grid", "vgpu", "virtual")
"""Words for a slice of a GPU, or for a smaller version of it."""
_VIRTUAL = re.compile(r"\d+(a|b|c|q|cme)")
"""The end of a virtual GPU's name: memory in GB and the kind of licence, "A100-4C", "T4-8Q"."""


class NamedDevice(Protocol):
    """What selection needs to know of a device."""

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""

    @property
    def label(self) -> str:
        """Its name: as the driver reports it, or of the processor."""

    @property
    def memory(self) -> int:
        """Bytes in all; 0 if unknown."""

    @property
    def threads(self) -> int:
        """Of torch, on a CPU; 0 elsewhere."""


def recognise(device: NamedDevice, profiles: Iterable[Profile]) -> Profile | None:
    """The profile that names a device, or None.

    Of several, the one with the longest matching name, then with the closest memory; where the
    memory is unknown, the one for less of it, which asks for less.

    Args:
        device: a GPU, or a processor.  An Apple chip's name stands for its GPU.
        profiles: to choose from; the first wins a tie.
    """
    spoken = _words(device.label)
    if device.kind == "cuda" and _is_slice(spoken):
        return None
    if device.kind == "cpu" and "apple" in spoken:
        return None
    best: tuple[float, ...] = (math.inf,)
    found = None
    for profile in profiles:
        length, distance = _match_length(profile, spoken), _distance(profile, device.memory)
        rank = (-length, distance, min(profile.memory, default=math.inf))
        if length and distance <= TOLERANCE and rank < best:
            best, found = rank, profile
    return found


def _is_slice(spoken: tuple[str, ...]) -> bool:
    virtual = any(_VIRTUAL.fullmatch(word) for word in spoken)
    return virtual or any(_contains(spoken, _words(part)) for part in _SLICES)


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", name.casefold()))


def _match_length(profile: Profile, spoken: tuple[str, ...]) -> float:
    """Letters of the longest of a profile's names in a device's name; 0 for none."""
    if any(_contains(spoken, _words(name)) for name in profile.not_devices):
        return 0
    names = map(_words, profile.devices)
    return max((sum(map(len, name)) for name in names if _contains(spoken, name)), default=0)


def _contains(spoken: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """Whether all words of a name are there, in their order; others may stand between."""
    rest = iter(spoken)
    return all(word in rest for word in name)


def _distance(profile: Profile, memory: int) -> float:
    """How far a device's memory is from the nearest size of a profile, as a share of that."""
    if not memory or not profile.memory:
        return 0.0
    return min(abs(memory - known) / known for known in profile.memory)
