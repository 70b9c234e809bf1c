"""Devices as reported by torch and the system, on simulated machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladecli.errors import UsageError
from ladecli.models import device
from ladecli.models.device import Details, Device, details, detect, free_memory, gpu_build, present

GIB = 1 << 30


@pytest.fixture
def patch(tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Simulate 16 GiB, of which 8 are available, 8 cores, no cgroups, and torch for CPUs."""
    memory, read = SimpleNamespace(total=16 * GIB, available=8 * GIB), Path.read_text

    def there(path: Path, *arguments: Any, **options: Any) -> str:
        return read(tmp_path / path.relative_to("/"), *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.psutil, "virtual_memory", lambda: memory)
        patch.setattr(device.psutil, "cpu_count", lambda logical: 16 if logical else 8)
        patch.setattr(Path, "read_text", there)
        patch.setattr(torch.version, "cuda", None)
        patch.setattr(torch.version, "hip", None)
        yield patch


def with_gpus(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let torch report GPUs."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: len(names),
        "get_device_name": names.__getitem__,
        "get_device_properties": lambda _: SimpleNamespace(total_memory=80 * GIB, major=9, minor=0),
        "mem_get_info": lambda _: (10 * GIB, 80 * GIB),
        "memory_reserved": lambda _: 5 * GIB,
        "memory_allocated": lambda _: 3 * GIB,
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, answer)
    patch.setattr(torch.version, "cuda", "13.0")


def put_groups(folder: Path, own: str, files: dict[str, str]) -> None:
    """Put this process into cgroups."""
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": f"0::{own}", **groups}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


@pytest.mark.parametrize(("used", "free"), [(4, 8), (11, 1)])
def test_an_apple_machine(patch: pytest.MonkeyPatch, tmp_path: Path, used: int, free: int) -> None:
    """Its GPU may use 12 GiB, but no more than the machine has free."""
    (tool := tmp_path / "sysctl").write_text("#!/bin/sh\necho Apple M2 Max")
    tool.chmod(0o755)
    patch.setenv("PATH", str(tmp_path), prepend=":")
    patch.setattr(device.platform, "system", lambda: "Darwin")
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    patch.setattr(torch.mps, "recommended_max_memory", lambda: 12 * GIB)
    patch.setattr(torch.mps, "driver_allocated_memory", lambda: used * GIB)
    mps = detect()
    assert mps == Device("mps", "mps", "Apple M2 Max", 12 * GIB)
    assert free_memory(mps) == free * GIB
    assert [here.kind for here in present()] == ["mps", "cpu"]
    assert details(mps).capability is None
    device.watch_peak(mps)
    assert device.peak_memory(mps) is None


@pytest.mark.parametrize(
    ("answer", "driver"), [("echo 566.36; echo 566.36", "566.36"), ("exit 9", None)]
)
def test_gpus(patch: pytest.MonkeyPatch, tmp_path: Path, answer: str, driver: str | None) -> None:
    with_gpus(patch, "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    assert detect("cuda:1") == Device("cuda", "cuda:1", "NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert detect() == detect("cuda") == detect("cuda:0")
    assert [here.torch_name for here in present()] == ["cuda:0", "cuda:1", "cpu"]
    # 10 are free, and torch holds 2 more that it does not use.
    assert free_memory(detect()) == 12 * GIB
    assert gpu_build() == "CUDA 13.0"
    with pytest.raises(UsageError, match="there is no device cuda:2; the last one is cuda:1"):
        detect("cuda:2")
    (tool := tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}")
    tool.chmod(0o755)
    patch.setenv("PATH", str(tmp_path), prepend=":")
    assert details(detect()) == Details(driver, "9.0", 8)


@pytest.mark.parametrize(
    ("name", "build", "why"),
    [
        ("cuda", None, "no CUDA device: this torch is built without CUDA"),
        ("cuda:1", "13.0", "no CUDA device: no GPU answers"),
        ("mps", None, r"no Apple GPU \(mps\) here"),
    ],
)
def test_devices_not_here(patch: pytest.MonkeyPatch, name: str, build: Any, why: str) -> None:
    patch.setattr(torch.version, "cuda", build)
    with pytest.raises(UsageError, match=f"{why}; use --device cpu"):
        detect(name)


@pytest.mark.parametrize(
    ("own", "files", "total", "free"),
    [
        ("/", {"memory.max": f"{4 * GIB}", "memory.current": f"{GIB}"}, 4, 3),
        ("/", {"memory.max": f"{4 * GIB}", "memory.current": f"{3 * GIB}",
               "memory.stat": f"anon 7\ninactive_file {2 * GIB}\n"}, 4, 3),
        ("/a/b", {"a/memory.max": f"{2 * GIB}", "a/memory.current": f"{GIB}",
                  "a/b/memory.max": f"{6 * GIB}", "a/b/memory.current": f"{GIB}"}, 2, 1),
        ("/docker/of/the/host", {"memory.max": f"{GIB}", "memory.current": f"{2 * GIB}"}, 1, 0),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("patch")
def test_limits_of_cgroups(tmp_path: Path, own: str, files: Any, total: int, free: int) -> None:
    put_groups(tmp_path, own, files)
    assert (detect().memory, free_memory(detect())) == (total * GIB, free * GIB)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("/", {"cpu.max": "max 100000"}, None),
        ("/", {"cpu.max": "250000 100000"}, 2),
        ("/job", {"cpu.max": "400000 100000", "job/cpu.max": "50000 100000"}, 1),
    ],
)  # fmt: skip
def test_threads_of_a_group(patch: Any, tmp_path: Path, own: str, files: Any, cores: Any) -> None:
    """Torch reads the number of threads when it is imported."""
    patch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    patch.delenv("OMP_NUM_THREADS")
    put_groups(tmp_path, own, files)
    device.set_variables()
    assert os.environ.get("OMP_NUM_THREADS") == (cores and str(cores))
