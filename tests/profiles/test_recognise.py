"""GPUs are recognised by their drivers' names, and misleading names are not taken for them."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.profiles import Profile
from ladecli.profiles.recognise import recognise

from .makers import Fake

SHIPPED = [profiles.shipped(name) for name in profiles.shipped_names()]

# Name as the driver reports it, memory in GiB (0: unknown), profile.
DEVICES = [
    ("NVIDIA A100-SXM4-40GB", 39.4, "a100"),
    ("NVIDIA A100-SXM4-40GB", 0, "a100"),
    ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", 79.2, "a100-80gb"),
    ("NVIDIA A100-SXM4-80GB", 0, "a100-80gb"),
    ("NVIDIA A100", 79.2, "a100-80gb"),
    ("NVIDIA A100", 0, "a100"),
    ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
    ("NVIDIA H100 PCIe", 79.1, "h100-pcie"),
    ("NVIDIA H100 80GB HBM2e", 79.1, "h100-pcie"),
    ("NVIDIA H200", 139.8, "h200"),
    ("NVIDIA B200", 178.4, "b200"),
    ("NVIDIA L4", 22.0, "l4"),
    ("NVIDIA L40S", 44.4, "l40s"),
    ("NVIDIA A10G", 22.0, "a10g"),
    ("Tesla T4", 14.6, "t4"),
    ("Tesla V100-SXM2-16GB", 15.8, "v100"),
    ("Tesla V100-SXM2-32GB", 31.7, "v100"),
    ("NVIDIA GeForce RTX 3090", 23.7, "rtx3090"),
    ("NVIDIA GeForce RTX 3090 Ti", 23.7, "rtx3090"),
    ("nvidia geforce rtx 4090", 23.6, "rtx4090"),
    ("NVIDIA GeForce RTX 5090", 31.4, "rtx5090"),
    ("AMD Instinct MI300X", 191.7, "mi300x"),
]

UNKNOWN = [
    # Names that have a known one inside.
    ("NVIDIA GH200 480GB", 94.5),
    ("NVIDIA L40", 44.4),
    ("NVIDIA A10", 22.0),
    ("NVIDIA T400 4GB", 3.8),
    ("NVIDIA T4G", 14.6),
    ("Tesla V100S-PCIE-32GB", 31.7),
    ("NVIDIA H20", 95.0),
    ("NVIDIA H800", 79.1),
    ("AMD Instinct MI300A", 128.0),
    ("NVIDIA GeForce RTX 40900", 23.6),
    # Other versions of known chips.
    ("NVIDIA GeForce RTX 4090 D", 23.6),
    ("NVIDIA GeForce RTX 5090 D v2", 23.4),
    ("NVIDIA H100 NVL", 93.1),
    ("NVIDIA H100 64GB HBM2", 63.4),
    ("NVIDIA H200 NVL", 139.8),
    ("NVIDIA A100-SXM-64GB", 63.4),
    # Slices and smaller parts.
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.5),
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 39.3),
    ("GRID A100D-20C", 20.0),
    ("NVIDIA A100-40C", 40.0),
    ("NVIDIA A100-1-5CME", 5.0),
    ("GRID T4-16Q", 16.0),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7),
    ("NVIDIA GeForce RTX 3090 with Max-Q Design", 23.7),
    # The name of the whole, with the memory of a part or of a rebuilt card.
    ("NVIDIA A100-SXM4-80GB", 39.4),
    ("NVIDIA A100-SXM4-40GB", 9.5),
    ("NVIDIA GeForce RTX 4090", 47.4),
    ("NVIDIA H100 80GB HBM3", 39.1),
    # No name to speak of.
    ("", 0),
    ("gfx942:sramecc+:xnack-", 191.7),
    ("NVIDIA Graphics Device", 79.1),
    ("NVIDIA A\u200b100", 39.4),
    ("\uff34\uff14", 14.6),
]


def profile(name: str, *devices: str, memory: float | None = None) -> Profile:
    """A profile for devices of these names."""
    values = {"devices": devices, "memory": (memory,) if memory else ()}
    return profiles.shipped("l4").model_copy(update={"name": name, "not_devices": (), **values})


@pytest.mark.parametrize(("label", "memory", "expected"), DEVICES)
def test_known_devices(label: str, memory: float, expected: str) -> None:
    found = recognise(Fake("cuda", label, int(memory * 2**30)), SHIPPED)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(("label", "memory"), UNKNOWN)
def test_devices_that_no_profile_knows(label: str, memory: float) -> None:
    found = recognise(Fake("cuda", label, int(memory * 2**30)), SHIPPED)
    assert found is None, f"taken for {found and found.name}"


@pytest.mark.parametrize("label", ["AMD EPYC T4 L4 A100", "Apple A100"])
@pytest.mark.parametrize(("kind", "expected"), [("cpu", "cpu"), ("mps", "apple")])
def test_names_of_gpus_are_not_for_other_devices(kind: str, label: str, expected: str) -> None:
    found = profiles.usual(Fake(kind, label), [])
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Fake("cpu", "AMD EPYC 7B13 64-Core Processor"), "server"),
        (Fake("cpu", "QEMU Virtual CPU version 2.5+"), "server"),
        (Fake("cpu", "Intel(R) Xeon(R) Platinum 8480+"), "cpu"),
        (Fake("mps", "Apple M2 Max", int(70e9)), "mac"),
        (Fake("mps", "Apple M3"), "apple"),
        (Fake("cpu", "Apple M2 Max"), "cpu"),  # its GPU has the same name
        (Fake("cuda", "NVIDIA A100-SXM4-80GB", int(85e9)), "short"),
        (Fake("cuda", "NVIDIA A100-SXM4-40GB", int(42e9)), "short"),
        (Fake("cuda", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", int(5e9)), None),
        (Fake("cuda", "NVIDIA H100 80GB HBM3", int(85e9)), "h100"),
        (Fake("cuda", "NVIDIA L4", int(24e9)), None),
    ],
)
def test_the_users_own_come_before_the_shipped(device: Fake, expected: str | None) -> None:
    own = [
        profile("server", "AMD EPYC", "QEMU"),
        profile("mac", "Apple M2"),
        profile("short", "A100"),
        profile("far", "H100", memory=40e9),
        profile("l4", "L40"),  # replaces the shipped one
    ]
    found = profiles.usual(device, own)
    assert (found and found.name) == expected


def test_the_longest_name_wins_then_the_closest_memory_then_the_first() -> None:
    short = profile("short", "X1", memory=40e9)
    long = profile("long", "X1 Super", memory=40e9)
    large = profile("large", "X1", memory=48e9)
    twin = profile("twin", "X1", memory=40e9)
    everything = [short, long, large, twin]

    def found(label: str, memory: float) -> str:
        match = recognise(Fake("cuda", label, int(memory)), everything)
        return match.name if match else "none"

    assert found("ACME X1 Super", 40e9) == "long"
    assert found("ACME X1 Very Super", 40e9) == "long"
    assert found("ACME Super X1", 40e9) == "short"
    assert found("ACME X1", 46e9) == "large"
    assert found("ACME X1", 0) == "short"
    assert found("ACME X1", 90e9) == "none"
