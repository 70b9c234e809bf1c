"""Devices: what torch and the system say about them, on machines that are not this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladecli import device
from ladecli.device import Device, details, detect, free_memory, gpu_build, present
from ladecli.errors import UsageError

GIB = 1 << 30


@pytest.fixture(autouse=True)
def patch(tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No GPU, 16 GiB of which 8 are available, no cgroups; torch for CPUs.

    Tests change that, or undo it all, by what this yields; what keeps every test from the user's
    own files is patched elsewhere, and stays.
    """
    memory = SimpleNamespace(total=16 * GIB, available=8 * GIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.psutil, "virtual_memory", lambda: memory)
        patch.setattr(device.psutil, "cpu_count", lambda logical: 16 if logical else 8)
        for name in ("_CPUINFO", "_CGROUPS", "_MEMBERSHIP", "_NVIDIA_DRIVER", "_AMD_DRIVER"):
            patch.setattr(device, name, tmp_path / name)
        on_system(patch, "linux")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.backends.mps, "is_available", lambda: False)
        patch.setattr(torch.version, "cuda", None)
        patch.setattr(torch.version, "hip", None)
        yield patch


def on_system(patch: pytest.MonkeyPatch, platform: str) -> None:
    """Let this be another operating system, for the module that is tested and no other."""
    patch.setattr(device, "sys", SimpleNamespace(platform=platform))


def with_gpus(patch: pytest.MonkeyPatch, *names: str, hip: str | None = None) -> None:
    """Let torch find GPUs."""
    arch = {"gcnArchName": "gfx942:sramecc+:xnack-"} if hip else {}
    shape = SimpleNamespace(total_memory=80 * GIB, major=9, minor=0, **arch)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: len(names))
    patch.setattr(torch.cuda, "get_device_name", lambda number: names[number])
    patch.setattr(torch.cuda, "get_device_properties", lambda _: shape)
    patch.setattr(torch.cuda, "mem_get_info", lambda _: (10 * GIB, 80 * GIB))
    patch.setattr(torch.cuda, "memory_reserved", lambda _: 5 * GIB)
    patch.setattr(torch.cuda, "memory_allocated", lambda _: 3 * GIB)
    patch.setattr(torch.version, "hip", hip)
    patch.setattr(torch.version, "cuda", None if hip else "13.0")


def with_apple(patch: pytest.MonkeyPatch, used: int = 0) -> None:
    """Let this be a Mac whose GPU may have 12 GiB."""
    on_system(patch, "darwin")
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    patch.setattr(torch.mps, "recommended_max_memory", lambda: 12 * GIB)
    patch.setattr(torch.mps, "driver_allocated_memory", lambda: used)
    patch.setattr(device, "_output", lambda *command: "Apple M2 Max")


def processor(patch: pytest.MonkeyPatch, told: str, machine: str = "x86_64") -> None:
    patch.setattr(device.platform, "processor", lambda: told)
    patch.setattr(device.platform, "machine", lambda: machine)


def test_this_very_machine(patch: pytest.MonkeyPatch) -> None:
    patch.undo()
    found = detect("cpu")
    assert found.kind == found.torch_name == "cpu"
    assert found.label
    assert found.threads == torch.get_num_threads()
    assert 0 < free_memory(found) <= found.memory
    assert details(found).driver is None


@pytest.mark.parametrize(
    ("cpuinfo", "told", "label"),
    [
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\n"
            "model name\t: Intel(R) Xeon(R) CPU           @ 2.00GHz\n",
            "x86_64",
            "Intel(R) Xeon(R) CPU @ 2.00GHz",
        ),
        ("model name\t: AMD EPYC 7B13\nmodel name\t: AMD EPYC 7B13\n", "", "AMD EPYC 7B13"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n", "", "aarch64"),
        ("model name\t: unknown\n", "Neoverse-N1", "Neoverse-N1"),
        ("model name\t: \n", "unknown", "aarch64"),
        (None, "", "aarch64"),
    ],
)
def test_processors_by_name(
    patch: pytest.MonkeyPatch, tmp_path: Path, cpuinfo: str | None, told: str, label: str
) -> None:
    processor(patch, told, "aarch64")
    if cpuinfo is not None:
        (tmp_path / "_CPUINFO").write_text(cpuinfo)
    assert detect() == Device("cpu", "cpu", label, 16 * GIB, torch.get_num_threads())


def test_a_processor_without_any_name(patch: pytest.MonkeyPatch) -> None:
    processor(patch, "", "")
    assert detect().label == "CPU"


def test_windows_asks_python(patch: pytest.MonkeyPatch) -> None:
    processor(patch, "Intel64 Family 6 Model 154 Stepping 3, GenuineIntel", "AMD64")
    on_system(patch, "win32")
    assert detect().label == "Intel64 Family 6 Model 154 Stepping 3, GenuineIntel"


def test_a_mac_asks_its_system(patch: pytest.MonkeyPatch) -> None:
    with_apple(patch, used=4 * GIB)
    found = detect()
    assert found == Device("mps", "mps", "Apple M2 Max", 12 * GIB)
    assert free_memory(found) == 8 * GIB
    assert [d.kind for d in present()] == ["mps", "cpu"]
    assert details(found).capability is None


@pytest.mark.parametrize(("used", "free"), [(0, 8), (11, 1), (13, 0)])
def test_a_macs_gpu_has_no_more_than_the_machine(
    patch: pytest.MonkeyPatch, used: int, free: int
) -> None:
    with_apple(patch, used=used * GIB)
    assert free_memory(detect()) == free * GIB


def test_gpus(patch: pytest.MonkeyPatch) -> None:
    with_gpus(patch, "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    assert detect("cuda:1") == Device("cuda", "cuda:1", "NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert detect() == detect("cuda") == detect("cuda:0")
    assert [d.torch_name for d in present()] == ["cuda:0", "cuda:1", "cpu"]
    # 10 are free, and torch holds 2 more that it does not use.
    assert free_memory(detect()) == 12 * GIB
    assert gpu_build() == "CUDA 13.0"
    with pytest.raises(UsageError, match="there is no device cuda:2; the last one is cuda:1"):
        detect("cuda:2")


def test_an_amd_gpu(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_gpus(patch, "", hip="7.0.51831")
    (tmp_path / "_AMD_DRIVER").write_text("6.14.14\n")
    found = detect()
    assert (found.kind, found.label) == ("cuda", "gfx942:sramecc+:xnack-")
    assert gpu_build() == "ROCm 7.0.51831"
    assert details(found) == device.Details("6.14.14", "gfx942", 8)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC"
            " 2024\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build"
            "  (dvs-builder@U16-I3-B02-01-1)  Thu Oct 10 12:29:05 UTC 2024\n",
            "565.57.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build",
            "580.65.06",
        ),
        (None, "566.36"),
    ],
)
def test_nvidia_drivers(
    patch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, version: str
) -> None:
    with_gpus(patch, "NVIDIA H100 80GB HBM3")
    if text is not None:
        (tmp_path / "_NVIDIA_DRIVER").write_text(text)
    patch.setattr(device, "_output", lambda *command: "566.36\n566.36")
    assert details(detect()) == device.Details(version, "9.0", 8)


@pytest.mark.parametrize(
    "fault",
    [
        FileNotFoundError(2, "no such program"),
        PermissionError(13, "not yours"),
        subprocess.TimeoutExpired("nvidia-smi", 5),
        9,
    ],
)
def test_a_driver_that_cannot_be_asked(patch: pytest.MonkeyPatch, fault: Any) -> None:
    def fail(command: Any, **_: Any) -> Any:
        if isinstance(fault, int):
            return subprocess.CompletedProcess(command, fault, stdout="NVIDIA-SMI has failed")
        raise fault

    with_gpus(patch, "NVIDIA H100 80GB HBM3")
    patch.setattr(device.subprocess, "run", fail)
    assert details(detect()).driver is None


@pytest.mark.parametrize(
    ("wanted", "build", "message"),
    [
        ("cuda", None, "no CUDA device: this torch is built without CUDA; use --device cpu"),
        ("cuda:1", "13.0", "no CUDA device: no GPU answers; use --device cpu"),
        ("mps", None, r"no Apple GPU \(mps\) here; use --device cpu"),
    ],
)
def test_devices_that_are_not_here(
    patch: pytest.MonkeyPatch, wanted: str, build: str | None, message: str
) -> None:
    patch.setattr(torch.version, "cuda", build)
    with pytest.raises(UsageError, match=message):
        detect(wanted)


NONE = "9223372036854771712"
GROUPS: list[tuple[str, str, dict[str, str], int, int]] = [
    ("no limit", "0::/\n", {"memory.max": "max", "memory.current": "5"}, 16, 8),
    (
        "version 2, in a container",
        "0::/\n",
        {"memory.max": f"{4 * GIB}", "memory.current": f"{GIB}"},
        4,
        3,
    ),
    (
        "cached files give way",
        "0::/\n",
        {
            "memory.max": f"{4 * GIB}",
            "memory.current": f"{3 * GIB}",
            "memory.stat": f"anon 7\ninactive_file {2 * GIB}\nactive_file 9\n",
        },
        4,
        3,
    ),
    (
        "the limit of the group above",
        "0::/user.slice/job\n",
        {
            "user.slice/memory.max": f"{2 * GIB}",
            "user.slice/memory.current": f"{GIB}",
            "user.slice/job/memory.max": f"{6 * GIB}",
            "user.slice/job/memory.current": f"{GIB}",
        },
        2,
        1,
    ),
    (
        "version 1, the host's folders missing",
        "4:memory:/docker/0123\n2:cpu,cpuacct:/docker/0123\n0::/\n",
        {
            "memory/memory.limit_in_bytes": f"{5 * GIB}",
            "memory/memory.usage_in_bytes": f"{4 * GIB}",
            "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
        },
        5,
        2,
    ),
    (
        "version 1 without a limit",
        "4:memory:/x\n",
        {"memory/x/memory.limit_in_bytes": NONE, "memory/x/memory.usage_in_bytes": "1"},
        16,
        8,
    ),
    (
        "more used than allowed",
        "0::/\n",
        {"memory.max": f"{GIB}", "memory.current": f"{2 * GIB}"},
        1,
        0,
    ),
    (
        "a limit above the machine's",
        "0::/\n",
        {"memory.max": "1" * 15, "memory.current": "1"},
        16,
        8,
    ),
    ("nonsense", "what?\n0::\n::\n", {"memory.max": "-1", "memory.current": "many"}, 16, 8),
]


@pytest.mark.parametrize(
    ("membership", "files", "total", "free"),
    [case[1:] for case in GROUPS],
    ids=[case[0] for case in GROUPS],
)
def test_a_group_may_have_less_than_the_machine(
    tmp_path: Path, membership: str, files: dict[str, str], total: int, free: int
) -> None:
    (tmp_path / "_MEMBERSHIP").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "_CGROUPS" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = detect()
    assert found.memory == total * GIB
    assert free_memory(found) == free * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's peak anew")
def test_the_peak_of_memory_is_counted_from_where_one_asks() -> None:
    cpu = device.detect("cpu")
    device.watch_peak(cpu)
    before = device.peak_memory(cpu)
    assert before is not None
    block = bytearray(96 << 20)
    del block
    high = device.peak_memory(cpu)
    assert high is not None
    # Gone, and still the peak.
    assert 90 << 20 < high - before < 110 << 20
    device.watch_peak(cpu)
    assert abs(device.peak_memory(cpu) - before) < 20 << 20


def test_where_nobody_counts_there_is_no_peak() -> None:
    apple = Device("mps", "mps", "Apple M2")
    device.watch_peak(apple)
    assert device.peak_memory(apple) is None
