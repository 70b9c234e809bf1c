"""The hardware of this machine, its free memory and its speed.

Torch is imported on first use, since a machine without a GPU can often be described without it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import UsageError

if TYPE_CHECKING:
    import torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            if "torch" not in sys.modules:
                set_variables()
            return getattr(import_module("torch"), name)

    torch = _Torch()

_PROCESS = Path("/proc/self")
_CGROUPS = Path("/sys/fs/cgroup")
_GPU_FILES = (
    *("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"),
    *("/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap"),  # of NVIDIA's small boards
)
"""Without any of them, Linux has no GPU that torch could use."""
_NO_MPS = "no Apple GPU (mps) here; use --device cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a model can run on."""

    kind: str  # "cpu", "cuda" or "mps"
    torch_name: str  # such as "cuda:1"
    label: str  # the name of the GPU, or of the processor
    memory: int = 0  # bytes available to programs in total; 0 if unknown
    threads: int = 0  # torch's threads on a CPU; 0 elsewhere, or if unknown


@dataclass(frozen=True, slots=True)
class Details:
    """Further properties of a device; unknown ones are None or 0."""

    driver: str | None
    capability: str | None  # "9.0" on an NVIDIA GPU, "gfx942" on one of AMD's
    cores: int  # physical ones of the processor


@dataclass(frozen=True, slots=True)
class Rates:
    """The two rates of a device from which settings are derived, per second."""

    bandwidth: float  # bytes of memory
    arithmetic: float  # dense operations in the type of the products; additions count, too


def in_torch(device: Device, type_name: str) -> tuple[torch.device, torch.dtype]:
    """Return torch's own device, and its type for a name such as "bfloat16"."""
    return torch.device(device.torch_name), getattr(torch, type_name)


def set_variables() -> None:
    """Set environment variables for torch, except those that the user has set."""
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Joining weights after loading would otherwise leave unusable holes in memory.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that wait for each other spin for this many rounds, about 0.1 ms, before sleeping.
        # By default they spin for milliseconds, which blocks the thread they wait for if another
        # program keeps a core busy: a chat had a tenth of its speed.
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if cpu_quota():  # torch counts the cores that it sees
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def detect(name: str = "auto") -> Device:
    """Return the device of a name (cpu, cuda, cuda:N, mps), or the best one; UsageError if there is
    none."""
    kind, _, index = name.partition(":")
    if kind in ("auto", "cuda") and torch.cuda.is_available():
        number = int(index or 0)
        if number >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"there is no device {name}; the last one is cuda:{last}")
        return _gpu(number)
    if kind == "cuda":
        why = "no GPU answers" if gpu_build() else "this torch is built without CUDA"
        raise UsageError(f"no CUDA device: {why}; use --device cpu, or install a CUDA build")
    if kind in ("auto", "mps") and torch.backends.mps.is_available():
        return Device("mps", "mps", _processor_name(), torch.mps.recommended_max_memory())
    if kind == "mps":
        raise UsageError(_NO_MPS)
    return replace(_processor(), threads=torch.get_num_threads())


def predict_device(name: str = "auto") -> Device | None:
    """Return the device that `detect` will return, without its number of threads, or raise the same
    error; None if only torch can tell."""
    kind = name.partition(":")[0]
    linux = platform.system() == "Linux"
    if kind == "mps" and platform.system() != "Darwin":
        raise UsageError(_NO_MPS)
    if linux and kind in ("auto", "cuda") and not any(map(os.path.exists, _GPU_FILES)):
        if kind == "cuda":
            raise UsageError("no CUDA device: no driver of a GPU is loaded; use --device cpu")
        return _processor()
    return _processor() if kind == "cpu" else None


def present() -> list[Device]:
    """Return every device that torch can use, the one that `detect` prefers first."""
    first = detect()
    others = range(1, torch.cuda.device_count()) if first.kind == "cuda" else ()
    processor = [] if first.kind == "cpu" else [detect("cpu")]
    return [first, *map(_gpu, others), *processor]


def free_memory(device: Device) -> int:
    """Return the number of bytes that this process can currently allocate on a device."""
    if device.kind == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_name)
        # Memory that torch has reserved but not used is free for the next tensor.
        idle = torch.cuda.memory_reserved(device.torch_name)
        idle -= torch.cuda.memory_allocated(device.torch_name)
        return int(free + max(idle, 0))
    available = int(psutil.virtual_memory().available)
    if device.kind == "mps":
        # The GPU shares the processor's memory, and may use only a part of it.
        allowed = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(min(allowed, available), 0)
    return min([available, *(max(limit - used, 0) for limit, used in _memory_limits())])


def watch_peak(device: Device) -> None:
    """Restart the count of `peak_memory`."""
    if device.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch_name)
    elif device.kind == "cpu":
        with contextlib.suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")  # resets the peak, see proc(5)


def peak_memory(device: Device) -> int | None:
    """Return the most bytes in use since `watch_peak`; None if they are not counted.

    On a GPU these are bytes of tensors, on a CPU under Linux the resident set of the whole process.
    """
    if device.kind == "cuda":
        return int(torch.cuda.max_memory_allocated(device.torch_name))
    peak = re.search(r"^VmHWM:\s*(\d+) kB", _read(_PROCESS / "status"), re.MULTILINE)
    return int(peak[1]) << 10 if peak and device.kind == "cpu" else None


def details(device: Device) -> Details:
    """Return further properties of a device."""
    cores = psutil.cpu_count(logical=False) or 0
    if device.kind != "cuda":
        return Details(None, None, cores)
    properties = torch.cuda.get_device_properties(device.torch_name)
    if torch.version.hip is not None:
        driver = _read(Path("/sys/module/amdgpu/version"))
        return Details(driver or None, properties.gcnArchName.partition(":")[0], cores)
    # The output has the same line for each GPU.
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    capability = f"{properties.major}.{properties.minor}"
    return Details(driver.partition("\n")[0] or None, capability, cores)


def gpu_build() -> str | None:
    """Return torch's GPU support, "CUDA 13.0" or "ROCm 7.0"; None for a build for CPUs, or for a
    Mac, whose GPU needs no special build."""
    if torch.version.hip is not None:
        return f"ROCm {torch.version.hip}"
    return None if torch.version.cuda is None else f"CUDA {torch.version.cuda}"


def _gpu(number: int) -> Device:
    properties = torch.cuda.get_device_properties(number)
    name = torch.cuda.get_device_name(number)
    # ROCm leaves the names of some chips empty.
    label = name or getattr(properties, "gcnArchName", "") or "unknown GPU"
    return Device("cuda", f"cuda:{number}", label, int(properties.total_memory))


def _processor() -> Device:
    """Return the processor, without torch's number of threads."""
    total = min([int(psutil.virtual_memory().total), *(limit for limit, _ in _memory_limits())])
    return Device("cpu", "cpu", _processor_name(), total)


def _processor_name() -> str:
    """Return the name of the processor, such as "Apple M2 Max"."""
    if platform.system() == "Darwin":
        name = output("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        # An ARM kernel gives no name.
        line = re.search(r"^model name\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
        name = line[1] if line else ""
    names = (" ".join(text.split()) for text in (name, platform.processor(), platform.machine()))
    return next((text for text in names if text not in ("", "unknown")), "CPU")


def cores() -> int:
    """Return the number of cores that this process may use."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return min(physical, allowed, cpu_quota() or physical)


def cpu_quota() -> int | None:
    """Return the CPU quota of this process in cores, at least 1; None if no cgroup limits it.

    With more threads than that, the system would pause all of them while they wait for each other.
    """
    quotas = (re.fullmatch(r"(\d+) (\d+)", _read(group / "cpu.max")) for group in _groups())
    return min((max(int(quota[1]) // int(quota[2]), 1) for quota in quotas if quota), default=None)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use in bytes of every memory-limited cgroup of this process.

    A container sees the whole machine's memory, but is killed if it exceeds the limit of its group.
    """
    for group in _groups():
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            # Cached files count as used, although the system frees them on demand.
            cached = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            yield int(limit), max(int(used) - (int(cached[1]) if cached else 0), 0)


def _groups() -> list[Path]:
    """Return the folders of this process's cgroup (version 2) and of its parents."""
    path = re.search(r"^0::/(.*)$", _read(_PROCESS / "cgroup"), re.MULTILINE)
    # Inside a container, folders of the host are missing.
    own = _CGROUPS / path[1] if path else _CGROUPS
    return [own, *own.parents]


def _read(path: Path) -> str:
    """Return the text of a system file; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def output(*command: str) -> str:
    """Return the output of a system program; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
