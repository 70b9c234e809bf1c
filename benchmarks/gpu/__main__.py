"""What steps cost on a GPU: `python3 benchmarks/gpu --json FILE`, less than 14 minutes.

Parts run one after the other in processes of their own, so that a fault, or a call that never
returns, ends one of them only; no torch here.  FILE is written after every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 800.0
"""For everything."""
LEAST = 20.0
"""A part is not started with less time than this: torch has to be imported."""
PROMPT = " ".join(f"w{7 * i % 200}" for i in range(64))
OWN = "autoregressive,lookahead"
STOCK = "autoregressive,lookahead,hf,hf-prompt-lookup"
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # Beside what its caller has put there, where no package can be installed.
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    # As `lade` does: joined weights leave no holes.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


class Part(NamedTuple):
    """A part of the check."""

    name: str
    command: list[str]
    seconds: float  # that it may take at most
    triton: str = "triton"  # folder of Triton's cache, in the check's own


class Check:
    """Runs parts within `seconds`, and keeps the file of their figures up to date."""

    def __init__(self, file: Path | None, seconds: float, folder: Path) -> None:
        self._file, self._folder = file, folder
        self._end = time.monotonic() + seconds
        self.data: dict[str, dict[str, Any]] = {}

    def run(self, part: Part) -> None:
        """Run a part as far as there is time, and show what it prints."""
        left = self._end - time.monotonic()
        found = self.data[part.name] = {"failed": "skipped: no time left"}
        if left >= LEAST:
            print(f"== {part.name}", flush=True)
            found["failed"] = "it was under way"
            found["failed"] = self._figures(part, found, min(part.seconds, left))
        print(f"   {part.name}: {found['failed'] or 'done'}", flush=True)
        self._save()

    def _figures(self, part: Part, found: dict[str, Any], seconds: float) -> str:
        """Take in what a part prints; how it failed, or ""."""
        began, cache = time.monotonic(), {"TRITON_CACHE_DIR": str(self._folder / part.triton)}
        process = subprocess.Popen(
            part.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT | cache,
            cwd=ROOT,
            text=True,
            errors="replace",
        )
        late = threading.Timer(seconds, process.kill)
        late.start()
        assert process.stdout is not None
        first = process.stdout.read(1)
        found["first_output_seconds"] = round(time.monotonic() - began, 2)
        for line in chain([first + process.stdout.readline()], process.stdout):
            with suppress(ValueError):
                if isinstance(figures := json.loads(line), dict):
                    found |= figures
                    self._save()
            print(f"   {line.rstrip()[:2000]}", flush=True)
        code, on_time = process.wait(), late.is_alive()
        late.cancel()
        found["seconds"] = round(time.monotonic() - began, 2)
        return "" if not code else f"code {code}" if on_time else "it took too long"

    def _save(self) -> None:
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self.data, indent=1) + "\n")
            new.replace(self._file)


def plan(args: argparse.Namespace, folder: Path) -> list[Part]:
    """All parts; the most important ones first."""
    python, rehearse = sys.executable, args.rehearse
    shapes = ["tiny-gqa", "tiny"] if rehearse else ["8b", "7b", "1.5b"]
    model, small = args.model or str(folder / "model"), args.text_of
    part = [python, str(Path(__file__).with_name("parts.py")), *(["--rehearse"] * rehearse)]
    lade, cpu = [python, "-m", "ladecli"], ["--device", "cpu"] * rehearse
    generate = [*lade, "generate", "-n", "32", "--prompt", PROMPT, "--quiet", *cpu]
    bench = [*lade, "bench", "--quiet", "--json", "--prompts", args.prompts, *cpu]
    if args.model or small:
        bench += ["--repeat", "1"]
        most, few = ["-n", "128", "--limit", "14"], ["-n", "64", "--limit", "4"]
    else:  # every text is a loop
        bench += ["--repeat", "2", "--limit", "1", "--ignore-eos"]
        most = few = ["-n", "8" if rehearse else "128"]
    own, stock = [*bench, *most, "--strategies", OWN], [*bench, *few, "--strategies", STOCK]
    compiled = [*bench, *few, "--strategies", "autoregressive,hf-compiled"]
    sampling = ["-t", "0.8", "--top-p", "0.95"]
    tests = [python, "-m", "pytest", "-q", "--maxfail=8", "--timeout=60", "tests/gpu"]
    make = [*part, "make", "tiny" if rehearse else "8b", model]
    answers_as = [small] if small else []
    return [
        Part("machine", [*lade, "doctor", "--json", *cpu], 40),
        Part("invariance", [*part, "invariance", shapes[0], *answers_as], 120),
        Part("products", [*part, "products", shapes[0]], 60),
        Part(f"steps {shapes[0]}", [*part, "steps", shapes[0]], 90),
        *([] if args.model else [Part("make", [*make, *answers_as], 90)]),
        Part("lookahead", [*own, model], 90),
        Part("beside transformers", [*stock, model], 120),
        Part("compiled", [*compiled, model], 120),
        Part("tests", tests if rehearse else ["env", "LADE_TEST_GPU=1", *tests], 90),
        *(Part(f"products {shape}", [*part, "products", shape], 60) for shape in shapes[1:]),
        *(Part(f"steps {shape}", [*part, "steps", shape], 90) for shape in shapes[1:]),
        Part("sampled", [*own, *sampling, model], 60),
        *([Part("small model", [*own, small], 60)] if small else []),
        Part("load", [*part, "load", model], 90, "cold"),
        Part("lade generate, cold", [*generate, model], 90),
        Part("lade generate, warm", [*generate, model], 60),
    ]


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write figures to this file")
    parser.add_argument("--model", help="folder of a model, in place of random weights")
    parser.add_argument("--text-of", help="folder of a small Llama, to answer as it does")
    parser.add_argument("--prompts", default="builtin", help="as for `lade bench`")
    parser.add_argument("--only", default="", help="run the parts whose names match this")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rehearse", action="store_true", help="tiny models on a CPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lade-gpu-", ignore_cleanup_errors=True) as place:
        check = Check(args.json, args.seconds, Path(place))
        for part in plan(args, Path(place)):
            if re.search(args.only, part.name):
                check.run(part)
    print(json.dumps(check.data))
    return int(any(part["failed"] for part in check.data.values()))


if __name__ == "__main__":
    sys.exit(main())
