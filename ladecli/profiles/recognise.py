"""Match a device to a profile, by the device's name and memory size.

Names mislead: "H200" is part of "GH200", "L4" of "L40S", and a MIG slice of an A100 or a laptop's
chip carries the name of the whole, whose settings would be too wide for it.  A device that is not
surely known is unknown, and gets measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from .schema import Profile

TOLERANCE = 0.25
"""How far a device's memory may be from a profile's: drivers keep some, and count in GiB."""
_SLICES = ("mig", "laptop", "notebook", "mobile", "max q", "grid", "vgpu", "virtual")
"""Words for a slice of a GPU, or for a smaller version of it."""
_VIRTUAL = re.compile(r"\d+(a|b|c|q|cme)")
"""The end of a virtual GPU's name: memory in GB and the kind of licence, "A100-4C", "T4-8Q"."""


def recognise(kind: str, label: str, memory: float, profiles: Iterable[Profile]) -> Profile | None:
    """The profile that names a device, or None.

    Of several, the one with the longest matching name, then with the closest memory; where the
    memory is unknown (0 bytes), the one with the least, which is cautious.  The first wins a tie.
    """
    words = _words(label)
    if kind == "cuda" and (
        any(_VIRTUAL.fullmatch(word) for word in words)
        or any(_contains(words, part) for part in _SLICES)
    ):
        return None
    if kind == "cpu" and "apple" in words:  # the name of an Apple chip stands for its GPU
        return None
    best: tuple[float, ...] = (math.inf,)
    found = None
    for profile in profiles:
        names = [name for name in profile.devices if _contains(words, name)]
        distance = min((abs(memory / size - 1.0) for size in profile.memory if memory), default=0.0)
        if not names or distance > TOLERANCE:
            continue
        if any(_contains(words, name) for name in profile.not_devices):
            continue
        letters = max(sum(map(len, _words(name))) for name in names)
        rank = (-letters, distance, min(profile.memory, default=math.inf))
        if rank < best:
            best, found = rank, profile
    return found


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", name.casefold()))


def _contains(words: tuple[str, ...], name: str) -> bool:
    """Whether all words of a name are there, in their order; others may stand between."""
    rest = iter(words)
    return all(word in rest for word in _words(name))
