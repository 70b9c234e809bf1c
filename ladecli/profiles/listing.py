"""What a list of profiles shows: the machine, and a row for each profile."""

from __future__ import annotations

from dataclasses import dataclass

from . import Profile, user
from .recognise import NamedDevice


@dataclass(frozen=True, slots=True)
class Machine:
    """What the profiles say about this machine.

    Attributes:
        device: that models run on, unless the user says otherwise.
        usual: the profile for it; None for a GPU that none knows.
        mine: the user's profiles.
        notices: about files that are broken.
    """

    device: NamedDevice
    usual: Profile | None
    mine: list[Profile]
    notices: list[str]

    @property
    def told(self) -> str:
        """What it uses, in words."""
        if self.usual is not None:
            return f"{self.usual.name} is for this machine: {user.key_of(self.device)}"
        return (
            f"no profile knows {self.device.label}: settings come from a quick measurement;"
            " lade tune finds better ones"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile in the list.

    Attributes:
        profile: what its file holds.
        shadows: whether it is the user's and a shipped one has the same name.
        here: whether this machine uses it: for any model, or a tuned one for its own.
    """

    profile: Profile
    shadows: bool
    here: bool


def entries(machine: Machine, shipped: list[Profile]) -> list[Entry]:
    """All profiles that can be read, by name.

    Args:
        machine: with the user's profiles, which come before shipped ones of their names.
        shipped: the profiles that come with this program.
    """
    names = {profile.name for profile in shipped}
    own = {profile.name for profile in machine.mine}
    versions = user.versions_here()

    def here(profile: Profile) -> bool:
        if profile.tuned is None:
            return machine.usual is not None and profile.name == machine.usual.name
        same = profile.tuned.device == user.key_of(machine.device)
        return same and not user.changed(profile, versions)

    found = [*machine.mine, *(profile for profile in shipped if profile.name not in own)]
    return [
        Entry(profile, profile.place != "shipped" and profile.name in names, here(profile))
        for profile in sorted(found, key=lambda profile: profile.name)
    ]
