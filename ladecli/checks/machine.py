"""What `lade doctor` looks at in the machine: devices, versions and optional parts."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..memory import told
from ..visualize import counted
from . import parts
from .findings import NOTE, PROBLEM, WARNING, Finding
from .parts import Part

if TYPE_CHECKING:
    from ..device import Device

_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NVIDIA = Path("/dev/nvidia0")
_AMD = Path("/dev/kfd")
_SCARCE = 0.05
"""A smaller share of memory that is free is worth a warning."""


def devices() -> Iterator[Finding]:
    """The devices that torch can use; the one that models run on first."""
    from ..device import details, present

    # A driver that is too old, or a GPU that this torch has no code for, is told by a warning.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = present()
        known = details(found[0])
    first = found[0]
    capability = f", compute capability {known.capability}" if known.capability else ""
    yield Finding(
        "device",
        f"{first.label} ({first.torch_name}){capability}",
        data={"name": first.torch_name, "label": first.label, "capability": known.capability},
    )
    if first.kind == "cuda":
        yield Finding("driver", known.driver or "version unknown", data={"version": known.driver})
        if known.capability and known.capability[0] in "67" and "." in known.capability:
            yield Finding(
                "bfloat16", "this GPU has no units for it", NOTE, "--dtype float16 is faster"
            )
    for device in found:
        yield memory_of(device)
    for warning in dict.fromkeys(str(w.message).strip().splitlines()[0] for w in caught):
        yield Finding("torch says", warning, WARNING, "update the driver, or torch")


def memory_of(device: Device) -> Finding:
    """How much memory of a device is free."""
    from ..device import free_memory

    free = free_memory(device)
    name = "memory" if device.kind != "cuda" else f"memory {device.torch_name}"
    name = "main memory" if device.kind == "cpu" else name
    value = f"{told(free)} free of {told(device.memory)}"
    data = {"free_bytes": free, "total_bytes": device.memory}
    if free < _SCARCE * device.memory:
        return Finding(name, value, WARNING, "end other programs that use it", data)
    return Finding(name, value, data=data)


def processor() -> Iterator[Finding]:
    """The cores of the processor, and how many torch computes with."""
    from ..device import details, detect

    device = detect("cpu")
    cores = details(device).cores
    limit = os.environ.get("OMP_NUM_THREADS")
    why = f" (OMP_NUM_THREADS={limit})" if limit else ""
    known = f"{counted(cores, 'core')}, " if cores else ""
    yield Finding(
        "processor",
        f"{device.label}: {known}torch uses {counted(device.threads, 'thread')}{why}",
        data={"label": device.label, "cores": cores, "threads": device.threads},
    )


def unused_gpu() -> Iterator[Finding]:
    """A GPU that is there, and that torch cannot use."""
    from ..device import detect, gpu_build

    if detect().kind != "cpu":
        return
    maker = _gpu_here()
    if maker is None:
        return
    hiding = [name for name in _HIDING if os.environ.get(name) in ("", "-1")]
    build = gpu_build()
    if hiding:
        yield Finding("GPU", f"{hiding[0]} hides it", NOTE, f"unset {hiding[0]} to use it")
    elif build is None:
        # The usual package has CUDA on Linux only; for all else there is an index of its own.
        usual = maker == "NVIDIA" and sys.platform.startswith("linux")
        fix = (
            "pip install --force-reinstall torch, from the usual index"
            if usual
            else "pytorch.org/get-started has the command for this system"
        )
        yield Finding("GPU", f"an {maker} GPU is here, and this torch is for CPUs", WARNING, fix)
    else:
        yield Finding(
            "GPU",
            f"an {maker} GPU is here, and torch ({build}) cannot use it",
            WARNING,
            f"update its driver, or install a torch for it; this one is for {build}",
        )


def _gpu_here() -> str | None:
    """The maker of a GPU that the system knows, whatever torch says."""
    if _NVIDIA.exists() or _lists_gpus():
        return "NVIDIA"
    return "AMD" if _AMD.exists() else None


def _lists_gpus() -> bool:
    """Whether NVIDIA's tool finds one; the tool alone is in many an image for machines without."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5)
    return done.returncode == 0 and "GPU" in done.stdout


def versions() -> Iterator[Finding]:
    """Versions of this program and of what it stands on; `requirements` judges them."""
    yield Finding("lade", __version__)
    yield Finding(
        "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    if version := parts.version("transformers"):
        yield Finding("transformers", version)


def torch_version() -> Iterator[Finding]:
    """The version of torch, and what it was built for."""
    from ..device import gpu_build

    usual = "Apple GPUs and CPUs" if sys.platform == "darwin" else "CPUs only"
    build = gpu_build()
    value = f"{parts.version('torch')}, for {build or usual}"
    yield Finding("torch", value, data={"version": parts.version("torch"), "build": build})


def requirements() -> Iterator[Finding]:
    """Packages that this program needs in another version, or at all."""
    from packaging.requirements import Requirement

    for text in metadata.requires("ladecli") or ():
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        version = parts.version(need.name)
        if version is None or not need.specifier.contains(version, prereleases=True):
            wanted = f"{need.name}{need.specifier}"
            there = "is missing" if version is None else f"{version} is installed"
            value = f"{there}, and {need.specifier or 'any version'} is needed"
            yield Finding(need.name, value, PROBLEM, f"pip install '{wanted}'")


def optional_parts(kind: str) -> Iterator[Finding]:
    """Optional packages: their versions, or what they would bring.

    Args:
        kind: of the device that models run on.
    """
    for part in parts.PARTS:
        yield _part(part, kind)


def _part(part: Part, kind: str) -> Finding:
    version = part.version
    data = {"version": version}
    if version is not None:
        return Finding(part.name, version, data=data)
    if part.cuda and kind != "cuda":
        return Finding(part.name, "missing; needs a CUDA GPU", NOTE, data=data)
    return Finding(part.name, f"missing; would bring {part.brings}", NOTE, part.install, data)
