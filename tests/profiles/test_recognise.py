"""GPUs are recognised by their drivers' names, and misleading names are not mistaken for them."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.models.device import Device
from ladecli.profiles import Profile

SHIPPED = profiles.shipped().values()

DEVICES = [  # name as the driver reports it, memory in GiB (0: unknown), profile
    ("NVIDIA A100-SXM4-40GB", 39.4, "a100"), ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"),
    ("NVIDIA A100-SXM4-80GB", 0, "a100-80gb"), ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
    ("NVIDIA H100 PCIe", 79.1, "h100-pcie"), ("NVIDIA H200", 139.8, "h200"),
    ("NVIDIA B200", 178.4, "b200"), ("NVIDIA L4", 22.0, "l4"), ("NVIDIA L40S", 44.4, "l40s"),
    ("NVIDIA A10G", 22.0, "a10g"), ("Tesla T4", 14.6, "t4"), ("Tesla V100-SXM2-32GB", 31.7, "v100"),
    ("NVIDIA GeForce RTX 3090 Ti", 23.7, "rtx3090"), ("nvidia geforce rtx 4090", 23.6, "rtx4090"),
    ("NVIDIA GeForce RTX 5090", 31.4, "rtx5090"), ("AMD Instinct MI300X", 191.7, "mi300x"),
    # Names that have a known one inside, and other versions of known chips.
    ("NVIDIA GH200 480GB", 94.5, None), ("NVIDIA L40", 44.4, None), ("NVIDIA T400 4GB", 3.8, None),
    ("Tesla V100S-PCIE-32GB", 31.7, None), ("NVIDIA GeForce RTX 4090 D", 23.6, None),
    ("NVIDIA H100 NVL", 93.1, None),
    # Smaller parts, and the name of a full device with the memory of a part or of a modified card.
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.5, None), ("NVIDIA A100-SXM4-80GB", 39.4, None),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", 23.9, None), ("NVIDIA GeForce RTX 4090", 47.4, None),
    # No name to speak of.
    ("", 0, None), ("\uff34\uff14", 14.6, None),
]  # fmt: skip


@pytest.mark.parametrize(("label", "memory", "expected"), DEVICES)
def test_names_of_drivers(label: str, memory: float, expected: str | None) -> None:
    profile = profiles.recognise(label, memory * 2**30, SHIPPED)
    assert (profile and profile.name) == expected


def profile_for(name: str, *devices: str, memory: float | None = None) -> Profile:
    """Return a profile for devices of these names."""
    values = {"devices": devices, "memory": (memory,) if memory else ()}
    return profiles.shipped()["l4"].model_copy(update={"name": name, "not_devices": (), **values})


OWN = [
    *(profile_for("server", "AMD EPYC"), profile_for("mac", "Apple M2")),
    *(profile_for("short", "A100"), profile_for("far", "H100", memory=40e9)),
    profile_for("l4", "L40"),  # replaces the shipped one
]


@pytest.mark.parametrize(
    ("kind", "label", "memory", "expected"),
    [
        ("cpu", "AMD EPYC 7B13 64-Core Processor", 0, "server"),
        ("cpu", "Intel(R) Xeon(R) T4 L4", 0, "cpu-intel"),
        ("cpu", "Neoverse-V2 L4", 0, "cpu"),
        ("mps", "Apple M2 Max", 70e9, "mac"),
        ("mps", "Apple M3", 0, "apple"),
        ("cuda", "NVIDIA A100-SXM4-80GB", 85e9, "short"),
        ("cuda", "NVIDIA H100 80GB HBM3", 85e9, "h100"),
        ("cuda", "NVIDIA L4", 24e9, None),
    ],
)
def test_the_users_own_come_before_the_shipped(
    kind: str, label: str, memory: float, expected: str | None
) -> None:
    profile = profiles.usual(Device(kind, kind, label, int(memory)), OWN)
    assert (profile and profile.name) == expected
