"""Run the tests with the oldest and with the newest libraries.

    python scripts/check_versions.py newest
    python scripts/check_versions.py --python python3.10 oldest -- pytest -n 2

This creates an environment with the newest version of every library in pyproject.toml, ignoring
upper bounds, or with the lower bound of each, and runs the fast tests there, or those after `--`.
If some fail with the newest, each library alone is set back to its version in constraints.txt, to
find out which one broke which test.  The exit code is 1 if any test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib  # run it with Python 3.11 or newer; --python is the one that is checked
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = ("gguf", "lora", "quant", "serve", "test")
TESTS = ("pytest", "-n", "2", "-m", "not slow")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)


def requirements() -> list[Requirement]:
    """Return the requirements of lade and its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    return [need for need in map(Requirement, lines) if need.name != project["name"]]


def bounded(need: Requirement, which: str) -> str:
    """Return a requirement for pip: with its lower bound as the version, or without bounds."""
    lowest = [limit.version for limit in need.specifier if limit.operator == ">="]
    version = f"=={lowest[0]}" if lowest and which == "oldest" else ""
    return f"{need.name}{version}" + (f"; {need.marker}" if need.marker else "")


class Environment:
    """A fresh virtual environment in a folder."""

    def __init__(self, python: str, folder: str) -> None:
        subprocess.run([python, "-m", "venv", folder], check=True)
        self._python = f"{folder}/bin/python"

    def install(self, *what: str) -> None:
        subprocess.run([self._python, "-m", "pip", "install", "-q", *what], check=True)

    def versions(self) -> dict[str, str]:
        """Return the installed versions by name."""
        listing = [self._python, "-m", "pip", "list", "--format", "freeze"]
        lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        pairs = [line.partition("==") for line in lines]
        return {name.lower().replace("_", "-"): version for name, _, version in pairs}

    def failures(self, *tests: str) -> dict[str, str]:
        """Return the reasons of failed tests by name; the key "" if no test could be run."""
        done = subprocess.run(
            [self._python, "-m", *tests],
            cwd=ROOT,  # from the sources, so that the package's own tests find their data
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        print(*lines[-1:], flush=True)
        failed = dict(FAILED.findall(done.stdout))
        return failed or ({"": "\n".join(lines[-20:])} if done.returncode else {})


def blame(environment: Environment, failures: dict[str, str]) -> None:
    """Print which library's newest version breaks which test."""
    left = set(failures)
    for name in sorted(need.name for need in requirements()):
        newest = environment.versions()[name]
        environment.install("--no-deps", "-c", str(ROOT / "constraints.txt"), name)
        tried = environment.versions()[name]
        if tried == newest:
            continue
        still = environment.failures("pytest", "-n", "2", *sorted(left - {""}))
        for test in sorted(left - still.keys()):
            print(f"{name} {newest} breaks {test} ({failures[test]}); {tried} does not")
        left &= still.keys()
        if not left:
            return
        environment.install("--no-deps", f"{name}=={newest}")
    for test in sorted(left):
        print(f"no library alone breaks {test} ({failures[test]})")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", choices=("oldest", "newest"))
    parser.add_argument("tests", nargs="*", default=TESTS, help="after --: other tests to run")
    parser.add_argument("--python", default=sys.executable, help="the Python to check with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(args.python, folder)
        needs = requirements()
        environment.install(*(bounded(need, args.which) for need in needs))
        environment.install("--no-deps", "-e", str(ROOT))
        versions = environment.versions()
        print(*(f"{need.name} {versions.get(need.name, '-')}" for need in needs), sep=", ")
        failures = environment.failures(*args.tests)
        if failures and args.which == "newest":
            blame(environment, failures)
        elif failures:
            print("\n".join(f"{test}: {why}" for test, why in failures.items()))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
