"""Start-up: help without torch, and the demo model's first token against a bare script.

    python benchmarks/startup.py

The bare script imports torch and transformers, loads the same model and generates one token.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import ladecli

LADE = [sys.executable, "-m", "ladecli"]
DEMO = Path(ladecli.__file__).with_name("demo")
BARE = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(DEMO)!r})
model = AutoModelForCausalLM.from_pretrained({str(DEMO)!r}, dtype=torch.float32)
ids = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0]))
"""


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, env=env)
    return time.perf_counter() - began


def main() -> None:
    rounds = 7
    for arguments, limit in ((["--help"], 0.5), (["generate", "--help"], 0.8)):
        times = [seconds([*LADE, *arguments]) for _ in range(rounds)]
        print(f"lade {' '.join(arguments)}: {statistics.median(times):.2f} s (limit {limit})")
    ours, bare = [], []
    one_token = ["generate", "-p", "def ", "-n", "1"]
    for _ in range(rounds):
        ours.append(seconds([*LADE, *one_token]))
        bare.append(seconds([sys.executable, "-c", BARE]))
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    print(
        f"first token: {statistics.median(ours):.2f} s, bare {statistics.median(bare):.2f} s, ratio"
        f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, limit 1.25)"
    )


if __name__ == "__main__":
    main()
