"""Seconds and memory until the first token of `lade generate`, compared with a bare transformers
script that loads the same weights in float32.

    python benchmarks/opening.py MODEL... [--rounds 3] [--options "--quantize 8bit"]

Both sides alternate after one run that warms the disk; each figure is the median.  CPU time is that
of the whole process; `peak` is the peak of resident memory.  A GGUF file has no bare run without
`--bare`, since transformers takes minutes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

BARE = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
path = Path(sys.argv[1])
name, options = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
tokenizer = AutoTokenizer.from_pretrained(name, **options)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options)
ids = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0]))
"""
ENV = os.environ | {"HF_HUB_OFFLINE": "1"}


def measure(command: list[str]) -> tuple[float, float, float]:
    """Return CPU seconds, wall seconds, and the peak of resident memory in GB of a program."""
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=ENV)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"failed: {shlex.join(command)}")
    return usage.ru_utime + usage.ru_stime, seconds, usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="", help="more options of lade generate")
    parser.add_argument(
        "--bare", action="store_true", help="run the bare script of GGUF files, too"
    )
    options = parser.parse_args()
    print("| model | CPU s | wall s | peak GB | bare: CPU s | wall s | peak GB | ratio of CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for model in options.models:
        lade = [sys.executable, "-m", "ladecli", "generate", str(model), "-p", "def ", "-n", "1"]
        sides = [[*lade, *shlex.split(options.options)]]
        if model.is_dir() or options.bare:
            sides.append([sys.executable, "-c", BARE, str(model)])
        measure(sides[0])
        rounds = [[measure(side) for side in sides] for _ in range(options.rounds)]
        medians = [
            [statistics.median(values) for values in zip(*runs, strict=True)]
            for runs in zip(*rounds, strict=True)
        ]
        cells = [f"{value:.2f}" for side in medians for value in side]
        cells += [f"{medians[0][0] / medians[1][0]:.2f}"] if medians[1:] else ["-"] * 4
        print(f"| {model.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
