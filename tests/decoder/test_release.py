"""What a load has read of a model's file leaves memory, and nothing is lost with it."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ladecli.decoder.model.int8 import HalfEmbedding
from ladecli.decoder.model.release import drop, mapped_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reads files anew")

HOLES = """
import psutil, torch
from ladecli.decoder.model.release import apart

resident = lambda: psutil.Process().memory_info().rss
torch.ones(1 << 22).sum()
with apart():
    with apart():  # as a load within a load
        pass
    blocks = [torch.ones(1 << 18) for _ in range(128)]
    full = resident()
    del blocks[::2]
    print(full - resident())
"""


def in_memory(path: Path) -> int:
    maps = psutil.Process().memory_maps(grouped=False)
    return sum(each.rss for each in maps if each.path == str(path))


def model_in(path: Path, numbers: torch.Tensor) -> nn.Module:
    """One whose weight and norm are parts of a file."""
    save_file({"weight": numbers, "norm": numbers[0].clone()}, path)
    model = nn.Module()
    for name, part in load_file(path).items():
        model.register_parameter(name, nn.Parameter(part, requires_grad=False))
    return model


def test_what_was_read_leaves_and_is_read_again(tmp_path: Path) -> None:
    path, numbers = tmp_path / "model.safetensors", torch.randn(1024, 256)
    model = model_in(path, numbers)
    assert torch.equal(model.get_parameter("weight"), numbers)
    files = mapped_files(model)
    assert in_memory(path) >= numbers.nbytes
    drop(files)
    assert in_memory(path) == 0
    assert torch.equal(model.get_parameter("weight"), numbers)


def test_what_was_written_to_stays(tmp_path: Path) -> None:
    """As by an adapter that was merged."""
    path, numbers = tmp_path / "model.safetensors", torch.randn(1024, 256)
    model = model_in(path, numbers)
    model.get_parameter("weight").add_(1)
    drop(mapped_files(model))
    assert torch.equal(model.get_parameter("weight"), numbers + 1)


def test_its_addresses_are_nobody_elses(tmp_path: Path) -> None:
    """Even when the model is gone, as after each of its weights was taken."""
    path, numbers = tmp_path / "model.safetensors", torch.randn(1024, 256)
    files = mapped_files(model_in(path, numbers))
    others = [torch.ones(1024, 264) for _ in range(64)]
    drop(files)
    assert all(bool(other.eq(1).all()) for other in others)


def test_where_the_system_does_not_tell(tmp_path: Path) -> None:
    """As where a process may open no file more."""
    model = model_in(tmp_path / "model.safetensors", torch.randn(8, 8))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert not mapped_files(model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert mapped_files(model)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give back by themselves")
def test_what_is_freed_leaves_no_holes() -> None:
    """As between weights that are kept, where one of their size was freed before; in a process
    without any holes yet."""
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 48 * (1 << 20)


def embedding_in(path: Path, numbers: torch.Tensor) -> HalfEmbedding:
    """One whose rows are read of a file."""
    model = model_in(path, numbers)
    plain = nn.Embedding.from_pretrained(model.get_parameter("weight"))
    return HalfEmbedding(plain, mapped_files(model))


def test_rows_of_an_embedding_stay_no_longer_than_to_the_next_prompt(tmp_path: Path) -> None:
    path, numbers = tmp_path / "model.safetensors", torch.randn(4096, 256).bfloat16()
    embedding = embedding_in(path, numbers)
    for ids in (torch.arange(4096), torch.arange(64)):
        assert torch.equal(embedding(ids), numbers[ids].float())
    assert in_memory(path) <= numbers.nbytes / 4


def test_rows_are_those_of_the_file_whatever_takes_its_name(tmp_path: Path) -> None:
    path, numbers = tmp_path / "model.safetensors", torch.randn(4096, 256).bfloat16()
    embedding, ids = embedding_in(path, numbers), torch.randint(0, 4096, (3, 50))
    assert torch.equal(embedding(ids), numbers[ids].float())
    path.unlink()
    save_file({"weight": numbers + 1}, path)
    assert torch.equal(embedding(ids), numbers[ids].float())
    # A file that was cut short under a name that stays ends a text, and not the process.
    other = tmp_path / "other.safetensors"
    embedding = embedding_in(other, numbers)
    os.truncate(other, 4096)
    with pytest.raises(OSError, match="cut short"):
        embedding(ids)
