"""Start-up: the help, the demo's first token and the first prompt of a chat, each beside a bare
script that does the same.

    python benchmarks/startup.py

Both sides run in turn; a ratio is the median over rounds.  `pexpect`, of the extra `test`, is
needed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect

import ladecli

LADE = [sys.executable, "-m", "ladecli"]
DEMO = Path(ladecli.__file__).with_name("demo")
ROUNDS = 7
IMPORTS = "import typer, rich"
TYPER = """
import sys, typer
app = typer.Typer()
@app.command()
def one(x: int = 1): "One."
@app.command()
def two(x: int = 1): "Two."
sys.argv = ["app", "--help"]
app()
"""
LOAD = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(DEMO)!r})
model = AutoModelForCausalLM.from_pretrained({str(DEMO)!r}, dtype=torch.float32)
"""
ONE_TOKEN = """
ids = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0]))
"""
ENV = os.environ | {"HF_HUB_OFFLINE": "1"}


def seconds(*command: str) -> float:
    """Wall time of a program."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ENV)
    return time.perf_counter() - began


def first_prompt() -> float:
    """Seconds until a chat waits for the first message."""
    began = time.perf_counter()
    chat = pexpect.spawn(LADE[0], [*LADE[1:], "chat"], env=ENV, timeout=120)
    chat.expect("/help.*> ")  # the line about the model, then the prompt
    taken = time.perf_counter() - began
    chat.sendeof()
    chat.expect(pexpect.EOF)
    return taken


def compare(name: str, ours: Callable[[], float], bare: Callable[[], float], limit: float) -> None:
    """Time both in turn, and print the ratio."""
    ours(), bare()  # files of both are in memory from here on
    pairs = [(ours(), bare()) for _ in range(ROUNDS)]
    ratios = [a / b for a, b in pairs]
    mine, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"{name}: {mine:.2f} s, bare {other:.2f} s, ratio {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f}, limit {limit})",
        flush=True,
    )


def main() -> None:
    def bare(script: str) -> Callable[[], float]:
        return lambda: seconds(sys.executable, "-c", script)

    def lade(*arguments: str) -> Callable[[], float]:
        return lambda: seconds(*LADE, *arguments)

    compare("help, over the imports", lade("--help"), bare(IMPORTS), 1.5)
    compare("help, over a Typer app", lade("--help"), bare(TYPER), 1.5)
    token = lade("generate", "-p", "def ", "-n", "1")
    compare("first token", token, bare(LOAD + ONE_TOKEN), 1.0)
    compare("chat, first prompt", first_prompt, bare(LOAD), 1.2)


if __name__ == "__main__":
    main()
