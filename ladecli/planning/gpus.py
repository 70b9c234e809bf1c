"""A kind of GPU by its name: what the hardware profiles know of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .. import profiles
from ..errors import UsageError
from ..profiles import Hardware, NamedDevice, Profile, user
from ..profiles.recognise import recognise

_NOT_JOINED = "apple"
"""The profile of GPUs that nothing here can join."""
_ANY = "gpu"
"""The profile of GPUs that no other one knows: it is no kind that one would rent."""
_SIZE = re.compile(r"(\d+)\s*gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        profile: what is known of it.
        hardware: of the profile: how fast it is.
        memory: bytes; None where nobody knows.
    """

    profile: Profile
    hardware: Hardware
    memory: float | None

    @property
    def name(self) -> str:
        """That of the profile."""
        return self.profile.name


@dataclass(frozen=True, slots=True)
class _Called:
    """A GPU of which only the name is known."""

    label: str
    kind: str = "cuda"
    memory: int = 0
    threads: int = 0


def named(name: str) -> Gpu:
    """The kind of GPU called `name`: the name of a profile, or what a driver would say.

    Raises:
        UsageError: no profile with rates knows it.
    """
    known = _known()
    profile = known.get(name.strip().lower()) or recognise(_Called(name), known.values())
    if profile is None:
        kinds = _kinds(known)
        near = difflib.get_close_matches(name.strip().lower(), kinds, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise UsageError(f"unknown GPU {name!r}{hint} known: {', '.join(kinds)}")
    assert profile.hardware is not None  # `_known` leaves others out
    return Gpu(profile, profile.hardware, _memory(profile, name))


def here(device: NamedDevice) -> Gpu:
    """The kind of GPU that a device is.

    Args:
        device: of this machine.

    Raises:
        UsageError: it is none, or one that no profile knows.
    """
    known = _known()
    names = ", ".join(_kinds(known))
    if device.kind != "cuda":
        raise UsageError(f"no GPU is here to plan for; name one by --gpu: {names}")
    profile = recognise(device, known.values())
    if profile is None:
        raise UsageError(
            f"no profile knows {device.label}; name a GPU that is like it by --gpu: {names}"
        )
    assert profile.hardware is not None  # `_known` leaves others out
    return Gpu(profile, profile.hardware, float(device.memory) or None)


def _known() -> dict[str, Profile]:
    """All profiles with rates, by name; the user's before shipped ones."""
    mine, _ = user.read_all()
    found = {name: profiles.shipped(name) for name in profiles.shipped_names()}
    found |= {profile.name: profile for profile in mine}
    return {
        name: profile
        for name, profile in sorted(found.items())
        if profile.hardware is not None and profile.tuned is None and name != _NOT_JOINED
    }


def _kinds(known: Iterable[str]) -> list[str]:
    """The names to choose from."""
    return [name for name in known if name != _ANY]


def _memory(profile: Profile, name: str) -> float | None:
    """Bytes of memory: the size in the name, or else the least that such GPUs have."""
    if not profile.memory:
        return None
    if told := _SIZE.search(name):
        return min(profile.memory, key=lambda size: abs(size - 1e9 * int(told[1])))
    return min(profile.memory)
