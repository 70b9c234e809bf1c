"""What steps cost on a GPU: `python3 benchmarks/gpu --json FILE`, less than 8 minutes.

Parts run one after the other in processes of their own, so that a fault, or a call that never
returns, ends one of them only; no torch here.  FILE is written after every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 450.0
"""For everything."""
LEAST = 20.0
"""A part is not started with less time than this: torch has to be imported."""
PROMPT = " ".join(f"w{7 * i % 200}" for i in range(64))
METHODS = "autoregressive,lookahead,hf,hf-prompt-lookup,hf-compiled"
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": str(ROOT),
    # As `lade` does: joined weights leave no holes.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


class Part(NamedTuple):
    """A part of the check.

    Attributes:
        name: in the file.
        command: to run; lines of JSON on its output are figures.
        seconds: it may take at most.
        triton: folder of Triton's cache, in the check's own.
    """

    name: str
    command: list[str]
    seconds: float
    triton: str = "triton"


class Check:
    """Runs parts, and keeps the file up to date.

    Args:
        file: of the figures; None for none.
        seconds: for all parts.
        folder: for what parts leave for later ones.
    """

    def __init__(self, file: Path | None, seconds: float, folder: Path) -> None:
        self._file = file
        self._end = time.monotonic() + seconds
        self._folder = folder
        self.data: dict[str, dict[str, Any]] = {}

    def run(self, part: Part) -> None:
        """Run a part as far as there is time, and show what it prints."""
        left = self._end - time.monotonic()
        found = self.data.setdefault(part.name, {})
        if left < LEAST:
            found["failed"] = "skipped: no time left"
        else:
            print(f"== {part.name}", flush=True)
            found["failed"] = "it was under way"
            found["failed"] = self._figures(part, found, min(part.seconds, left))
        print(f"   {part.name}: {found['failed'] or 'done'}", flush=True)
        self._save()

    def _figures(self, part: Part, found: dict[str, Any], seconds: float) -> str:
        """Take in what a part prints; how it failed, or ""."""
        began = time.monotonic()
        more = {"TRITON_CACHE_DIR": str(self._folder / part.triton)}
        process = subprocess.Popen(
            part.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, **more},
            cwd=ROOT,
        )
        late = threading.Timer(seconds, process.kill)
        late.start()
        assert process.stdout is not None
        text = b""
        for piece in iter(lambda: process.stdout.read1(65536), b""):  # type: ignore[union-attr]
            found.setdefault("first_output_seconds", round(time.monotonic() - began, 2))
            text += piece
            *lines, text = text.split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"), found)
        self._take(text.decode(errors="replace"), found)
        code = process.wait()
        on_time = late.is_alive()
        late.cancel()
        found["seconds"] = round(time.monotonic() - began, 2)
        return "" if not code else f"code {code}" if on_time else "it took too long"

    def _take(self, line: str, found: dict[str, Any]) -> None:
        try:
            figures = json.loads(line)
        except ValueError:
            figures = None
        if isinstance(figures, dict):
            found |= figures
            self._save()
        print(f"   {line.rstrip()[:2000]}", flush=True)

    def _save(self) -> None:
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self.data, indent=1) + "\n")
            new.replace(self._file)


def plan(args: argparse.Namespace, folder: Path) -> list[Part]:
    """All parts; the most important ones first."""
    python, rehearse = sys.executable, args.rehearse
    shapes = ["tiny", "tiny-gqa"] if rehearse else ["8b", "7b", "1.5b"]
    made = "tiny" if rehearse else "7b"
    model = args.model or str(folder / "model")
    part = [python, str(Path(__file__).with_name("parts.py")), *(["--rehearse"] * rehearse)]
    lade = [python, "-m", "ladecli", "generate", model, "--max-new-tokens", "32"]
    lade += ["--prompt", PROMPT, "--quiet", *(["--device", "cpu"] if rehearse else [])]
    bench = [python, "-m", "ladecli", "bench", model, "--limit", "1", "--repeat", "2", "--quiet"]
    bench += ["--max-new-tokens", "8" if rehearse else "128", "--ignore-eos", "--json"]
    bench += ["--strategies", METHODS, *(["--device", "cpu"] if rehearse else [])]
    tests = [python, "-m", "pytest", "-q", "--maxfail=8", "--timeout=60", "tests/gpu"]
    if not rehearse:
        tests = ["env", "LADE_TEST_GPU=1", *tests]
    return [
        Part("machine", [*part, "machine"], 40),
        Part("products", [*part, "products", shapes[0]], 30),
        *(Part(f"steps {shape}", [*part, "steps", shape], 90) for shape in shapes),
        Part("tests", tests, 90),
        *([] if args.model else [Part("make", [*part, "make", made, model], 90)]),
        Part("beside transformers", bench, 120),
        Part("load", [*part, "load", model], 90, "cold"),
        Part("lade generate, cold", lade, 90),
        Part("lade generate, warm", lade, 60),
    ]


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write figures to this file")
    parser.add_argument("--model", help="folder of a model, in place of random weights")
    parser.add_argument("--only", help="run the parts whose names hold this")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rehearse", action="store_true", help="tiny models on a CPU")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lade-gpu-"))
    check = Check(args.json, args.seconds, folder)
    try:
        for part in plan(args, folder):
            if not args.only or args.only in part.name:
                check.run(part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(check.data))
    return int(any(part["failed"] for part in check.data.values()))


if __name__ == "__main__":
    sys.exit(main())
