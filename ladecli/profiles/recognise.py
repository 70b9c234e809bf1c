"""Which profile is for a device, by its own name and how much memory it has.

Names mislead.  "H200" is part of "GH200", "L4" of "L40S", and a tenth of an A100 that a data
centre rents out, or the chip of a laptop, carries the name of the whole: settings for the whole
would ask too much of the part.  Whatever is not surely known is unknown, and gets measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Protocol

from .schema import Profile

TOLERANCE = 0.25
"""How far a device's memory may be from that of a profile: drivers keep some, and count in GiB."""
_PARTS = ("mig", "laptop", "notebook", "mobile", "max q", "grid", "vgpu", "virtual")
"""Words for a slice, or for less than what the rest of the name says."""
_VIRTUAL = re.compile(r"\d+(a|b|c|q|cme)")
"""What NVIDIA's virtual GPUs end in: memory in GB and the kind of licence, "A100-4C", "T4-8Q"."""


class NamedDevice(Protocol):
    """The part of a device that selection looks at."""

    @property
    def kind(self) -> str:
        """cpu, cuda or mps."""

    @property
    def label(self) -> str:
        """The device's own name: as the driver says it, or of the processor."""

    @property
    def memory(self) -> int:
        """Bytes in all; 0 if unknown."""

    @property
    def threads(self) -> int:
        """That torch computes with on a CPU; 0 elsewhere."""


def recognise(device: NamedDevice, profiles: Iterable[Profile]) -> Profile | None:
    """The profile that names a device, or None.

    Of several, the one with the longest matching name, then with the closest memory; where the
    memory is unknown, the one for less of it, which asks for less.

    Args:
        device: a GPU, or a processor.  An Apple chip's name stands for its GPU.
        profiles: the ones to choose from; the earlier one wins a tie.  Shipped ones name GPUs
            only, so they are not for devices of kind "cpu" and "mps".
    """
    if device.kind == "cuda" and is_part(device.label):
        return None
    if device.kind == "cpu" and "apple" in words(device.label):
        return None
    best: tuple[float, ...] = (math.inf,)
    found = None
    for profile in profiles:
        length, distance = _matched(profile, device.label), _distance(profile, device.memory)
        rank = (-float(length), distance, min(profile.memory, default=math.inf))
        if length and distance <= TOLERANCE and rank < best:
            best, found = rank, profile
    return found


def is_part(label: str) -> bool:
    """Whether a GPU's name says that it is a slice, or a smaller version of a known one."""
    spoken = words(label)
    if any(_VIRTUAL.fullmatch(word) for word in spoken):
        return True
    return any(_contains(spoken, words(part)) for part in _PARTS)


def words(name: str) -> tuple[str, ...]:
    """Runs of letters and digits, in lower case."""
    return tuple(re.findall(r"[^\W_]+", name.casefold()))


def _matched(profile: Profile, label: str) -> int:
    """Letters of the longest of a profile's names that a device's name has; 0 for none."""
    spoken = words(label)
    if any(_contains(spoken, words(name)) for name in profile.not_devices):
        return 0
    names = map(words, profile.devices)
    return max((sum(map(len, name)) for name in names if _contains(spoken, name)), default=0)


def _contains(spoken: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """Whether all words of a name are spoken, in their order; others may stand between."""
    rest = iter(spoken)
    return all(word in rest for word in name)


def _distance(profile: Profile, memory: int) -> float:
    """How far a device's memory is from the nearest that a profile knows, as a share of that."""
    if not memory or not profile.memory:
        return 0.0
    return min(abs(memory - known) / known for known in profile.memory)
