"""What the benchmarks share: a model, prompts, and one generation as counts and ids."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ladecli import models
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.events import Step
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Strategy
from ladecli.models import LoadedModel
from ladecli.session.chat_template import ChatTemplate

DEMO_PROMPTS = (
    "def ",
    "class Queue:\n",
    "import os\n\ndef walk(path):\n",
    "<|user|>\nWhat does `textwrap.fill` do?<|end|>\n<|assistant|>\n",
    "<|user|>\nHow do I read a file in Python?<|end|>\n<|assistant|>\n",
    "<|user|>\nWrite a function that sums a list.<|end|>\n<|assistant|>\n",
    "# Return the largest item of the list.\ndef largest(items):\n",
    "<|user|>\nWhat is lookahead decoding?<|end|>\n<|assistant|>\n",
)


@dataclass(frozen=True)
class Run:
    """One generation."""

    ids: list[int]
    steps: int
    fed: int


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="demo")
    parser.add_argument(
        "--prompts", type=Path, help="JSONL with `prompt`; the demo's own if absent"
    )
    parser.add_argument("--limit", type=int, default=16, help="at most N prompts")
    parser.add_argument("-n", "--new-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser


def prompts_of(path: Path | None, tokenizer: Any, limit: int) -> list[list[int]]:
    """Token ids of the prompts; through the chat template, where the tokenizer has one."""
    if path is None:
        return [list(tokenizer(text)["input_ids"]) for text in DEMO_PROMPTS[:limit]]
    texts = [row["prompt"] if "prompt" in row else row["turns"][0] for row in rows_of(path, limit)]
    if not tokenizer.chat_template:
        return [list(tokenizer(text)["input_ids"]) for text in texts]
    chats = ([{"role": "user", "content": text}] for text in texts)
    return [ChatTemplate(tokenizer).encode(chat) for chat in chats]


def rows_of(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """The first rows of a JSONL file, or all."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line][:limit]


def opened(args: argparse.Namespace) -> tuple[LoadedModel, Decoder, list[list[int]]]:
    """The model, a decoder of it, and prompts that leave room for the answers."""
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    decoder = load_decoder(loaded.model)
    room = decoder.max_context - args.new_tokens
    prompts = [p[-room:] for p in prompts_of(args.prompts, loaded.tokenizer, args.limit)]
    print(f"{Path(args.model).name}, {len(prompts)} prompts, {args.new_tokens} tokens;")
    print(f"{conditions(args.threads)}\n")
    return loaded, decoder, prompts


def print_row(*cells: object) -> None:
    """A row of a Markdown table; a float has two decimals."""
    shown = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"| {' | '.join(shown)} |", flush=True)


def print_head(*names: str) -> None:
    """The head of a Markdown table."""
    print_row(*names)
    print("|---" * len(names) + "|")


def save(args: argparse.Namespace, figures: object) -> None:
    """Write the figures to --json, where it was given."""
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def decode(
    decoder: Decoder,
    prompt: list[int],
    strategy: str | Strategy,
    config: LookaheadConfig,
    new: int,
    sampling: SamplingConfig | None = None,
    ends: frozenset[int] = frozenset(),
) -> Run:
    """One generation, greedy unless asked for something else; `ends` end it."""
    ids: list[int] = []
    steps = fed = 0
    limits = Limits(new, ends)
    chosen = make_strategy(strategy, config) if isinstance(strategy, str) else strategy
    for event in decoder.generate(prompt, chosen, sampling, limits):
        if isinstance(event, Step):
            ids += [token.id for token in event.tokens]
            steps += 1
            fed += event.width
    return Run(ids, steps, fed)


def ratio(runs: list[Run]) -> tuple[float, float]:
    """Tokens per step and mean width over all runs."""
    steps = sum(run.steps for run in runs)
    return sum(len(run.ids) for run in runs) / steps, sum(run.fed for run in runs) / steps


def spread(values: Sequence[float]) -> str:
    """Median with the quartiles around it."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def conditions(threads: int) -> str:
    """What the figures depend on."""
    return (
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python"
        f" {platform.python_version()}, {threads} thread{'s' if threads > 1 else ''}, float32, CPU"
    )
