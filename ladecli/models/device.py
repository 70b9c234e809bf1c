"""What hardware is here, how much of its memory is free, and how fast it is.

Torch is imported where it is first asked: the memory of a machine without a GPU needs none.
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
    torch_name: str  # as torch wants it, "cuda:1" for example
    label: str  # the name of the GPU, or of the processor
    memory: int = 0  # bytes that programs can have in all; 0 if unknown
    threads: int = 0  # that torch computes with on a CPU; 0 elsewhere, or if unknown


@dataclass(frozen=True, slots=True)
class Details:
    """What else is known about a device; what cannot be found out is None or 0."""

    driver: str | None
    capability: str | None  # "9.0" on an NVIDIA GPU, "gfx942" on one of AMD's
    cores: int  # physical ones of the processor


@dataclass(frozen=True, slots=True)
class Rates:
    """The two rates of a device that settings are derived from, per second."""

    bandwidth: float  # bytes of memory
    arithmetic: float  # dense operations in the type of the products; a sum is one as well


def in_torch(device: Device, type_name: str) -> tuple[torch.device, torch.dtype]:
    """Return torch's own device, and its type for a name such as "bfloat16"."""
    return torch.device(device.torch_name), getattr(torch, type_name)


def set_variables() -> None:
    """Set what torch reads when it is imported, or uses a GPU, as far as the user has not."""
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Weights are joined after loading; without this the parts would leave holes in memory
        # that nothing fits into.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads of a step wait for one another in loops of this many turns, some 0.1 ms, and then
        # sleep.  By default they turn for milliseconds, while the one that is waited for cannot
        # run where another program keeps its core busy: a chat had a tenth of its speed.
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
    """Return the device that `detect` will find, or refuse as it will; None if only torch knows.

    The number of threads that torch computes with is left out.
    """
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
    """Return every device that torch can compute with, the one that `detect` prefers first."""
    first = detect()
    others = range(1, torch.cuda.device_count()) if first.kind == "cuda" else ()
    processor = [] if first.kind == "cpu" else [detect("cpu")]
    return [first, *map(_gpu, others), *processor]


def free_memory(device: Device) -> int:
    """Return the bytes that this process could still allocate on a device, about now."""
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
    return min([available, *(max(limit - used, 0) for limit, used in _memory_limits())])


def watch_peak(device: Device) -> None:
    """Let `peak_memory` count from here on."""
    if device.kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch_name)
    elif device.kind == "cpu":
        with contextlib.suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")  # resets the peak, see proc(5)


def peak_memory(device: Device) -> int | None:
    """Return the most bytes in use since `watch_peak`; None if they are not counted.

    A GPU counts those of tensors, and a CPU under Linux the resident ones of the whole process.
    """
    if device.kind == "cuda":
        return int(torch.cuda.max_memory_allocated(device.torch_name))
    peak = re.search(r"^VmHWM:\s*(\d+) kB", _read(_PROCESS / "status"), re.MULTILINE)
    return int(peak[1]) << 10 if peak and device.kind == "cpu" else None


def details(device: Device) -> Details:
    """Return what else is known about a device."""
    cores = psutil.cpu_count(logical=False) or 0
    if device.kind != "cuda":
        return Details(None, None, cores)
    properties = torch.cuda.get_device_properties(device.torch_name)
    if torch.version.hip is not None:
        driver = _read(Path("/sys/module/amdgpu/version"))
        return Details(driver or None, properties.gcnArchName.partition(":")[0], cores)
    # One line for each GPU, all the same.
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    capability = f"{properties.major}.{properties.minor}"
    return Details(driver.partition("\n")[0] or None, capability, cores)


def gpu_build() -> str | None:
    """Return what torch was built for, "CUDA 13.0" or "ROCm 7.0"; None if it is for CPUs only, or
    for a Mac, whose GPU needs no build of its own."""
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
    """Return the processor, without the number of threads that torch computes with."""
    total = min([int(psutil.virtual_memory().total), *(limit for limit, _ in _memory_limits())])
    return Device("cpu", "cpu", _processor_name(), total)


def _processor_name() -> str:
    """Return the processor's own name, "Apple M2 Max" for example."""
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
    """Return how many cores' time this process may use, at least 1; None if no group limits it.

    More threads would wait for one another while the system lets none of them run.
    """
    quotas = (re.fullmatch(r"(\d+) (\d+)", _read(group / "cpu.max")) for group in _groups())
    return min((max(int(quota[1]) // int(quota[2]), 1) for quota in quotas if quota), default=None)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use in bytes of every memory-limited cgroup of this process.

    A container sees the whole machine's memory and is killed beyond that of its group.
    """
    for group in _groups():
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            # Cached files count as used, and give way when memory is wanted.
            cached = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            yield int(limit), max(int(used) - (int(cached[1]) if cached else 0), 0)


def _groups() -> list[Path]:
    """Return the folders of this process's cgroup (of version 2), and of all above it."""
    path = re.search(r"^0::/(.*)$", _read(_PROCESS / "cgroup"), re.MULTILINE)
    # Inside a container, folders of the host are missing.
    own = _CGROUPS / path[1] if path else _CGROUPS
    return [own, *own.parents]


def _read(path: Path) -> str:
    """Return the text of a file of the system; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def output(*command: str) -> str:
    """Return what a program of the system prints; "" if it does not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
