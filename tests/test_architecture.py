"""The rules of the architecture, read from the code: imports, and tasks of only one module."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ladecli
from tests.support import new_python

ROOT = Path(ladecli.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
DECODER = [path for path in FILES if path.is_relative_to(ROOT / "decoder")]
HEAVY = ("torch", "transformers")
INTERFACE = ("rich", "typer", "click", "prompt_toolkit", "platformdirs")
MAY_USE_TORCH = (*("decoder", "models"), *("custom_generate.py", "generation_config.py"))
"""The modules that may import torch; the others deal in numbers and text."""
TRANSFORMERS_BASELINE = Path("bench/stock.py")
LIGHT = (
    *("visualize", "events", "metrics", "options", "profiles", "chat", "files", "suites"),
    *("commands.doctor", "commands.generate", "commands.model_list", "commands.profile_list"),
    *("trace.replay", "trace.record", "trace.format", "trace.inspector"),
    *("view.live", "view.markdown", "view.terminal", "repl.commands"),
    *("models.memory", "models.model_files", "models.hub", "models.device", "models.adapters"),
    *("models.placement", "models.find"),
    *("session.opening", "session.setup", "session.parallel", "session.rank_info"),
    *("bench.command", "bench.report", "bench.verify"),
    *("serve.command", "serve.app"),
)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


@functools.cache
def imports_of(path: Path) -> list[str]:
    """Return the absolute names of all modules that a file imports, wherever in the file."""
    package, names = ["ladecli", *path.relative_to(ROOT).parts[:-1]], list[str]()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            names += [name, *(f"{name}.{alias.name}" for alias in node.names)]
    return names


def calls_of(path: Path) -> set[str]:
    """Return the names of all functions that a file calls by a bare name."""
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def test_the_decoder_knows_only_itself_and_tensors() -> None:
    """Its core needs no module for speed, other forwards or several processes."""
    beside = ("ladecli.decoder.backends", "ladecli.decoder.ranks")
    for path in DECODER:
        names = imports_of(path)
        own = [name for name in names if name.startswith("ladecli")]
        assert all(name.startswith("ladecli.decoder") for name in own), path
        assert not {name.split(".")[0] for name in names} & {*INTERFACE}, path
        assert not calls_of(path) & {"print", "input", "open"}, path
        if path.relative_to(ROOT).parts[1] not in ("backends", "ranks"):
            assert not [name for name in names if name.startswith(beside)], path


def test_only_the_decoder_and_models_import_torch() -> None:
    for path in FILES:
        own = path.relative_to(ROOT)
        if own.parts[0] not in MAY_USE_TORCH and own != TRANSFORMERS_BASELINE:
            assert not [m for m in imports_of(path) if m.split(".")[0] in HEAVY], path


def module_of(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = ["ladecli", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files_behind(path: Path) -> set[str]:
    """Return the modules of ours that a file imports: inside functions and for types alone, too."""
    names, modules = {*imports_of(path)}, {*map(module_of, FILES)}
    behind = names & modules
    # `from . import x` depends on the file x, and not on the rest of the package.
    for package in {name.rpartition(".")[0] for name in behind}:
        if all(name in modules for name in names if name.rpartition(".")[0] == package):
            behind.discard(package)
    return behind - {module_of(path)}


def test_no_imports_go_in_circles() -> None:
    graph = {module_of(path): files_behind(path) for path in FILES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imports go in a circle: {' <- '.join(error.args[1])}")


def test_importing_the_interface_loads_no_torch() -> None:
    modules = ", ".join(f"ladecli.{module}" for module in LIGHT)
    code = f"import sys, {modules}; sys.exit(any(m in sys.modules for m in {HEAVY}))"
    subprocess.run([sys.executable, "-c", code], check=True)


def users_of(attribute: str, but_of: str = "") -> set[str]:
    """Return the files that use an attribute of this name, but of one class."""
    return {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and node.attr == attribute
        and not (but_of and ast.unparse(node.value).endswith(but_of))
    }


def test_tasks_of_a_single_file() -> None:
    """Models are loaded, steps decoded and laid out in one file each."""
    assert users_of("from_pretrained", but_of="AutoConfig") == {"models/load.py"}
    assert users_of("propose") == users_of("observe") == {"decoder/engine.py"}
    assert [path for path in FILES if "StepLayout" in calls_of(path)] == [
        ROOT / "decoder/layout.py"
    ]


def test_the_decoders_glossary_imports_nothing() -> None:
    assert imports_of(ROOT / "decoder" / "__init__.py") == []


@pytest.mark.slow
def test_imports_and_threads_of_decoding_on_a_cpu(capfd: pytest.CaptureFixture[str]) -> None:
    """No compiler, since importing triton takes a second (transformers may import it, so this looks
    for our kernels).  No warnings during imports.  No threads that spin for a long time while they
    wait for another on a busy core."""
    kernels = {
        module_of(path)
        for path in FILES
        for node in tree_of(path).body
        if isinstance(node, ast.Import) and "triton" in [alias.name for alias in node.names]
    }
    assert kernels
    (called,) = new_python.calls(
        ("generate", "-p", "def ", "-n", "8", "-q"), OMP_DISPLAY_ENV="VERBOSE"
    )
    assert called.out
    settings = r"\s*OPENMP DISPLAY ENVIRONMENT BEGIN[\s\S]*?OPENMP DISPLAY ENVIRONMENT END\n"
    written = capfd.readouterr().err
    assert called.err + re.sub(settings, "", written) == ""
    assert not called.imported & (kernels | {"numba"})
    if sys.platform == "linux":  # elsewhere torch has another OpenMP
        turns = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", written)
        # libgomp's default is 300,000 rounds, which take milliseconds.
        assert turns
        assert int(turns[0]) <= 10_000


def test_the_decoder_replaces_nothing_in_a_models_modules() -> None:
    """The decoder has its own forward; it changes nothing in transformers' modules."""
    tricks = [".forward = ", "FunctionType(", "MethodType", "weakref.", "data_ptr"]
    tricks += ["__globals__", "threading.local"]
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert not [trick for trick in tricks if trick in text], path


def test_every_module_has_a_docstring() -> None:
    assert all(ast.get_docstring(tree_of(path)) for path in FILES)


def test_public_names() -> None:
    assert ladecli.__all__ == sorted(ladecli.__all__)
    for name in ladecli.__all__:
        assert getattr(ladecli, name) is not None
    assert dir(ladecli) == sorted(ladecli.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ladecli.nonsense


def test_names_come_from_where_the_type_checker_thinks() -> None:
    declared = {
        alias.name: node.module
        for block in tree_of(ROOT / "__init__.py").body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == ladecli._HOME
