"""Do the fast tests pass with the oldest and with the newest libraries?

    python scripts/check_versions.py oldest
    python scripts/check_versions.py newest
    python3.10 scripts/check_versions.py oldest -- pytest -n 2

Makes an environment for the Python that runs this, with the lower bound of every library that
pyproject.toml names, or with the newest version of each, whatever its upper bound; `--` is followed
by other tests.  Where tests fail with the newest, each library that is newer than in
constraints.txt is put back alone, and those that fail no longer are told with its version.  The
exit code is 1 if any fail.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TESTS = ["pytest", "-n", "2", "-m", "not slow"]
EXTRAS = ("gguf", "quant", "test")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?", re.MULTILINE)


def requirements() -> list[Requirement]:
    """What lade and its tests need, here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    found = map(Requirement, lines)
    here = [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [each for each in here if each.name != project["name"]]


def oldest(need: Requirement) -> str:
    """A requirement at its lower bound; as it is where it has none."""
    lowest = [each.version for each in need.specifier if each.operator == ">="]
    return f"{need.name}=={lowest[0]}" if lowest else need.name


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.python = f"{folder}/bin/python"

    def install(self, *what: str) -> None:
        subprocess.run([self.python, "-m", "pip", "install", "-q", *what], check=True)

    def versions(self) -> dict[str, str]:
        """What is installed, by name."""
        listing = [self.python, "-m", "pip", "list", "--format", "freeze"]
        lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        pairs = (line.partition("==") for line in lines)
        return {name.lower().replace("_", "-"): version for name, _, version in pairs}

    def failures(self, tests: list[str]) -> dict[str, str]:
        """Why tests fail, by name; all of them stand under "" where none could be run."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # From the sources, so that the package's own tests find their data.
        done = subprocess.run(
            [self.python, "-m", *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        print((done.stdout.strip().splitlines() or [done.stderr])[-1], flush=True)
        found = dict(FAILED.findall(done.stdout))
        return found or ({"": done.stdout[-2000:] + done.stderr} if done.returncode else {})


def pinned() -> dict[str, str]:
    """The versions of constraints.txt for this Python, by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = (each for each in found if each.marker is None or each.marker.evaluate())
    return {each.name: str(each.specifier).removeprefix("==") for each in here}


def blame(environment: Environment, failures: dict[str, str]) -> None:
    """Put newer libraries back one after the other, and tell what that mends."""
    now, tried = environment.versions(), pinned()
    named = {each.name.lower() for each in requirements()}
    left = set(failures)
    for name in sorted(name for name in named & now.keys() & tried.keys()):
        newest, known = now[name].partition("+")[0], tried[name]
        if newest == known or not left:
            continue
        environment.install("--no-deps", f"{name}=={known}")
        still = environment.failures(["pytest", "-n", "2", *sorted(left - {""})])
        for test in sorted(left - still.keys()):
            print(f"{name} {newest} breaks {test}, which passes with {known}: {failures[test]}")
        left &= still.keys()
        environment.install("--no-deps", f"{name}=={newest}")
    for test in sorted(left):
        print(f"by no single library: {test} {failures[test]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", choices=("oldest", "newest"))
    parser.add_argument("tests", nargs="*", default=TESTS, help="after --: other tests to run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(folder)
        needs = requirements()
        environment.install(*(oldest(n) if args.which == "oldest" else n.name for n in needs))
        environment.install("--no-deps", "-e", str(ROOT))
        versions = environment.versions()
        told = (f"{need.name} {versions[need.name.lower()]}" for need in needs)
        print(f"Python {sys.version.split()[0]}, {', '.join(told)}", flush=True)
        failures = environment.failures(args.tests)
        if failures and args.which == "newest":
            blame(environment, failures)
        else:
            for test, why in failures.items():
                print(f"{test}: {why}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
