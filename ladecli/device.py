"""What hardware is here, and how much of its memory is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil
import torch

from .errors import UsageError

_CPUINFO = Path("/proc/cpuinfo")
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What sets the peak of a process back to what it uses now (proc(5))."""
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")
_DRIVER_VERSION = re.compile(r"Module.*?\s(\d+\.[\d.]+)")
# How the two versions of cgroups name a limit, what is used of it, and cached files among that.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a model can run on.

    Attributes:
        kind: "cpu", "cuda" or "mps".
        torch_name: as torch wants it, "cuda:1" for example.
        label: the device's own name: of the GPU, as its driver says it, or of the processor.
        memory: bytes that programs can have of it in all; 0 if unknown.
        threads: that torch computes with on a CPU; 0 elsewhere.
    """

    kind: str
    torch_name: str
    label: str
    memory: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Details:
    """What else is known about a device.

    Attributes:
        driver: version of the GPU's driver, or None.
        capability: "9.0" on an NVIDIA GPU, "gfx942" on one of AMD's, else None.
        cores: physical ones of the processor; 0 if unknown.
    """

    driver: str | None
    capability: str | None
    cores: int


def in_torch(device: Device, type_name: str) -> tuple[torch.device, torch.dtype]:
    """A device, and a type of numbers such as "bfloat16", as torch has them."""
    return torch.device(device.torch_name), getattr(torch, type_name)


def detect(wanted: str = "auto") -> Device:
    """The device called `wanted`, or the best one that is here.

    Args:
        wanted: auto, cpu, cuda, cuda:N or mps; `LoadOptions` has checked its form.

    Raises:
        UsageError: there is no such device here.
    """
    kind, _, index = wanted.partition(":")
    if kind in ("auto", "cuda") and torch.cuda.is_available():
        number = int(index or 0)
        if number >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"there is no device {wanted}; the last one is cuda:{last}")
        return _gpu(number)
    if kind == "cuda":
        why = "no GPU answers" if gpu_build() else "this torch is built without CUDA"
        raise UsageError(f"no CUDA device: {why}; use --device cpu, or install a CUDA build")
    if kind in ("auto", "mps") and torch.backends.mps.is_available():
        return Device("mps", "mps", _processor(), torch.mps.recommended_max_memory())
    if kind == "mps":
        raise UsageError("no Apple GPU (mps) here; use --device cpu")
    return _cpu()


def present() -> list[Device]:
    """Every device that torch can compute with, the one that `detect` prefers first."""
    found = [detect()]
    if found[0].kind == "cuda":
        found += [_gpu(number) for number in range(1, torch.cuda.device_count())]
    if found[0].kind != "cpu":
        found.append(_cpu())
    return found


def free_memory(device: Device) -> int:
    """Bytes that this process could still allocate on a device, about now."""
    if device.kind == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_name)
        # What torch holds without using it, it gives to the next tensor.
        idle = torch.cuda.memory_reserved(device.torch_name)
        idle -= torch.cuda.memory_allocated(device.torch_name)
        return int(free + max(idle, 0))
    available = int(psutil.virtual_memory().available)
    if device.kind == "mps":
        # The GPU shares the processor's memory and may have a part of it.
        allowed = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(min(allowed, available), 0)
    return min([available, *(max(limit - used, 0) for limit, used in _groups())])


def watch_peak(device: Device) -> None:
    """Let `peak_memory` count from here on."""
    if device.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch_name)
    elif device.kind == "cpu":
        # What was freed, the C library may keep: it would count for whoever comes next.
        with contextlib.suppress(OSError, TypeError, AttributeError):  # glibc alone has this
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text(_RESET_PEAK)


def peak_memory(device: Device) -> int | None:
    """The most bytes in use since `watch_peak`; None where nobody counts them.

    On a GPU, those of tensors; on a processor, those of the whole process that were in memory.
    """
    if device.kind == "cuda":
        return int(torch.cuda.max_memory_allocated(device.torch_name))
    if device.kind == "cpu" and os.access(_CLEAR_REFS, os.W_OK):
        found = re.search(r"^VmHWM:\s*(\d+) kB", _read(_STATUS) or "", re.MULTILINE)
        return int(found.group(1)) << 10 if found else None
    return None


def details(device: Device) -> Details:
    """What else is known about a device; what cannot be found out is None or 0."""
    cores = psutil.cpu_count(logical=False) or 0
    if device.kind != "cuda":
        return Details(None, None, cores)
    properties = torch.cuda.get_device_properties(device.torch_name)
    if torch.version.hip is not None:
        return Details(_read(_AMD_DRIVER), properties.gcnArchName.partition(":")[0], cores)
    return Details(_nvidia_driver(), f"{properties.major}.{properties.minor}", cores)


def gpu_build() -> str | None:
    """What torch was built for: "CUDA 13.0", "ROCm 7.0", or None where it is for CPUs only.

    A Mac's GPU needs no build of its own.
    """
    if torch.version.hip is not None:
        return f"ROCm {torch.version.hip}"
    return None if torch.version.cuda is None else f"CUDA {torch.version.cuda}"


def _gpu(number: int) -> Device:
    properties = torch.cuda.get_device_properties(number)
    name = torch.cuda.get_device_name(number)
    # ROCm leaves the names of some chips empty.
    label = name or getattr(properties, "gcnArchName", "") or "unknown GPU"
    return Device("cuda", f"cuda:{number}", label, int(properties.total_memory))


def _cpu() -> Device:
    total = min([int(psutil.virtual_memory().total), *(limit for limit, _ in _groups())])
    return Device("cpu", "cpu", _processor(), total, torch.get_num_threads())


def _processor() -> str:
    """The processor's own name, "Apple M2 Max" for example."""
    told = (" ".join(name.split()) for name in _processor_names())
    return next(name for name in told if name not in ("", "unknown"))


def _processor_names() -> Iterator[str]:
    """What the system calls the processor, the best name first; asked for one by one."""
    if sys.platform == "darwin":
        yield _output("sysctl", "-n", "machdep.cpu.brand_string")
    elif sys.platform.startswith("linux"):
        # An ARM kernel tells no name.
        if found := re.search(r"^model name\s*:(.*)$", _read(_CPUINFO) or "", re.MULTILINE):
            yield found.group(1)
    yield from (platform.processor(), platform.machine(), "CPU")


def _nvidia_driver() -> str | None:
    if found := _DRIVER_VERSION.search(_read(_NVIDIA_DRIVER) or ""):
        return found.group(1)
    # Windows, and WSL, have no such file; one line for each GPU, all the same.
    query = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return query.splitlines()[0].strip() if query else None


def _groups() -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of every memory-limited cgroup that this process is in.

    A container sees the whole machine's memory and gets its group's; it is killed beyond that.
    """
    for line in (_read(_MEMBERSHIP) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        own = PurePosixPath(path.lstrip("/"))
        # A limit binds all groups below it.  Inside a container, folders of the host are missing.
        for group in (own, *own.parents):
            if not controllers:
                yield from _group(_CGROUPS / group, *_VERSION_2)
            elif "memory" in controllers.split(","):
                yield from _group(_CGROUPS / "memory" / group, *_VERSION_1)


def _group(folder: Path, maximum: str, current: str, reclaimable: str) -> Iterator[tuple[int, int]]:
    """Limit and use of one cgroup, if it has a limit."""
    limit, used = _read(folder / maximum), _read(folder / current)
    if limit is None or not limit.isdecimal() or used is None or not used.isdecimal():
        return
    # Cached files count as used, and give way when memory is wanted.
    statistics = _read(folder / "memory.stat") or ""
    found = re.search(rf"^{reclaimable} (\d+)$", statistics, re.MULTILINE)
    yield int(limit), max(int(used) - (int(found.group(1)) if found else 0), 0)


def _read(path: Path) -> str | None:
    """The text of a file of the system's, or None."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _output(*command: str) -> str:
    """What a program of the system's prints, or nothing where it does not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
