"""Whether the fast tests pass with the oldest and the newest libraries that are supported.

    python scripts/check_versions.py
    python scripts/check_versions.py --python python3.11 --set torch==2.13.0,transformers==5.17.0

Each pair of a Python and a set of libraries gets an environment of its own, which is deleted again.
What cannot be had on this machine (a Python that is not installed, a build of torch that its index
lacks) is told, and is no failure.  The exit code is 1 if any tests fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")
SETS = ("torch==2.11.0,transformers==5.17.0", "torch,transformers")
"""The oldest that pyproject.toml allows, and the newest."""
TESTS = ("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider")


def outcome(python: str, libraries: str) -> str:
    """The last line of the tests, or why they could not run."""
    if shutil.which(python) is None:
        return "not here: no such Python"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = f"{folder}/bin/python"
        install = [inside, "-m", "pip", "install", "-q", *libraries.split(","), f"{ROOT}[test]"]
        installed = subprocess.run(install, capture_output=True, text=True, check=False)
        if installed.returncode:
            return f"not here: {installed.stderr.strip().splitlines()[-1]}"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # From the sources, so that the package's own tests find their data.
        done = subprocess.run(
            [inside, *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
        return ("passed: " if done.returncode == 0 else "FAILED: ") + lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="a Python (repeatable)")
    parser.add_argument("--set", action="append", help="libraries, with commas (repeatable)")
    args = parser.parse_args()
    failed = False
    for python in args.python or PYTHONS:
        for libraries in args.set or SETS:
            found = outcome(python, libraries)
            failed |= found.startswith("FAILED")
            print(f"{python}, {libraries}: {found}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
