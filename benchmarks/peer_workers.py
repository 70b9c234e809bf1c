"""The process that holds our side of `peers.py`: one model, which answers requests.

    python benchmarks/peer_workers.py MODEL [OPTION VALUE]

A request is a line of JSON on stdin, `{"call": NAME, …}` with the arguments of a worker's method;
the method's result is a line of JSON on stdout.  `peer_llama.mjs` is llama.cpp's side.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers.modeling_utils  # with all that loading any model imports


def peak_memory() -> int:
    """Return the most bytes of this process that were resident so far, as Linux counts them."""
    match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) << 10 if match else 0


IMPORTED = peak_memory()  # before anything of ours is imported


def clocks() -> tuple[float, float]:
    """Return seconds of CPU time of all threads, and of wall time."""
    return time.process_time(), time.perf_counter()


def timed(prompt: Sequence[int], steps: Iterator[Sequence[int]]) -> dict[str, Any]:
    """Return an answer whose steps yield tokens, with tokens per second of CPU and of wall time:
    those of the prompt, which the first step reads, and those of the later steps."""
    began = clocks()
    ids = [*next(steps)]
    read, first, count = clocks(), len(ids), 1
    for tokens in steps:
        ids += tokens
        count += 1
    done, rest = clocks(), len(ids) - first
    return {
        "ids": ids,
        "steps": count,
        "prompts": [len(prompt) / (b - a) for a, b in zip(began, read, strict=True)],
        "answers": [rest / (b - a) for a, b in zip(read, done, strict=True)],
    }


class Worker:
    """Our decoder, as `ladecli.load` opens a model."""

    def __init__(self, model: str, **options: str) -> None:
        import ladecli

        self._model = ladecli.load(model, device="cpu", **options)

    def hello(self) -> str:
        """Return the versions, once the model is loaded."""
        return f"torch {torch.__version__}, transformers {transformers.__version__}"

    def memory(self) -> int:
        """Return the most bytes so far, beyond those of Python with the libraries imported."""
        return peak_memory() - IMPORTED

    def encode(self, text: str, chat: bool) -> list[int]:
        """Return the token ids of a text, as it is or as a message in the chat template."""
        session = self._model.session
        if chat and session.has_template:
            return session.encode_chat([{"role": "user", "content": text}])
        return session.encode(text)

    def answer(self, ids: list[int], new: int, strategy: str) -> dict[str, Any]:
        """Return a greedy answer of `new` tokens, which no end token ends, by a session that knows
        no other text."""
        from ladecli.events import TextStep
        from ladecli.session.session import Settings

        session = self._model.session
        session.start_over()
        gc.collect()
        settings = Settings(strategy, self._model.lookahead, max_new_tokens=new, ignore_eos=True)
        events = session.stream(ids, settings)
        return timed(ids, (event.token_ids for event in events if isinstance(event, TextStep)))

    def score(self, ids: list[int]) -> dict[str, Any]:
        """Return how improbable each token after the first is, in nats, and which token is the
        best in its place, by one forward in which all tokens but the first are drafts."""
        from ladecli.decoder import layout
        from ladecli.decoder.strategy import Draft
        from ladecli.decoder.tree import TokenTree

        decoder, tree = self._model.session.decoder, TokenTree()
        tree.add(ids[1:], "text", len(ids))
        decoder.forget(keep_memory=True)
        logits = decoder.executor.run(layout.build(ids[:1], 0, Draft(tree)))
        rows = np.asarray(logits[:-1].float().numpy(), dtype=np.float64)
        best = rows.argmax(axis=1)
        rows -= rows.max(axis=1, keepdims=True)
        own = rows[np.arange(len(rows)), ids[1:]]
        return {"nats": (np.log(np.exp(rows).sum(axis=1)) - own).tolist(), "best": best.tolist()}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    model, *option = sys.argv[1:]
    worker = Worker(model, **dict([option] if option else []))
    for line in sys.stdin:
        request = json.loads(line)
        result = getattr(worker, request.pop("call"))(**request)
        print(json.dumps(result), file=replies, flush=True)


if __name__ == "__main__":
    main()
