"""Each extra is complete by itself: a new Python has nothing else on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ladecli
from ladecli.files import toml
from tests.support.adapters import make
from tests.support.gguf import write
from tests.support.hub import DEMO

pytestmark = pytest.mark.slow

ROOT = Path(ladecli.__file__).parents[1]


def install(extra: str, folder: Path) -> None:
    """Link the packages that pip would install for an extra into a folder."""
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    left, seen = [(Requirement(text), "") for text in own], set()
    while left:
        needed, of = left.pop()
        if needed.marker is not None and not needed.marker.evaluate({"extra": of}):
            continue
        for chosen in {"", *needed.extras} - {part for name, part in seen if name == needed.name}:
            seen.add((needed.name, chosen))
            required = metadata.requires(needed.name) or ()
            left += [(Requirement(text), chosen) for text in required]
        for path in metadata.files(needed.name) or ():
            link = folder / path.parts[0]
            if path.parts[0] != ".." and not link.exists():
                link.symlink_to(Path(str(path.locate())).parents[len(path.parts) - 1] / link.name)


CODE = "import sys; from ladecli.commands.cli import entry; sys.exit(entry(sys.argv[1:]))"
GENERATE: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "gguf": lambda folder: (str(write(folder / "small.gguf")),),
    "lora": lambda folder: ("demo", "--adapter", str(make(str(DEMO), folder / "adapter"))),
    "quant": lambda _: ("demo", "--quantize", "4bit"),
    "schema": lambda _: ("demo", "--json-schema", '{"enum": ["a"]}'),
}


def alone(extra: str, folder: Path, code: str, *arguments: str) -> str:
    """Return the output of a program with only one extra installed."""
    install(extra, folder)
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-S", "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("extra", GENERATE)
def test_an_extra_needs_nothing_else(extra: str, tmp_path: Path) -> None:
    asked = (*GENERATE[extra](tmp_path), "-p", "the", "--raw", "-n", "2", "--json")
    assert '"token_ids"' in alone(extra, tmp_path, CODE, "generate", *asked)


def test_the_server_needs_its_extra_alone(tmp_path: Path) -> None:
    code = "import ladecli.serve.app, uvicorn, sys; print('peft' in sys.modules)"
    assert alone("serve", tmp_path, code) == "False\n"
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(AssertionError, match=r"uvicorn|fastapi"):
        alone("", other, code)


def test_packages_for_gguf_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    line = r"needs accelerate and gguf: pip install 'ladecli\[gg"
    with pytest.raises(AssertionError, match=line):
        alone("", tmp_path, CODE, "generate", str(tmp_path / "m.gguf"), "-p", "the")
