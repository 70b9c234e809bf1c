"""The processes that `peers.py` compares: each holds one model, and answers requests.

    python benchmarks/peer_workers.py ours MODEL PRECISION
    python benchmarks/peer_workers.py llama FILE.gguf CONTEXT
    python benchmarks/peer_workers.py quantize FILE.gguf TARGET.gguf FORMAT

A request is a line of JSON on stdin, `{"call": NAME, …}` with the arguments of a worker's method;
the method's result is a line of JSON on stdout.  Memory is compared, so a process imports its own
side alone: llama.cpp's needs `llama-cpp-python` and nothing else of ours.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

FORMATS = {"F32": 0, "BF16": 32, "Q8_0": 7, "Q4_0": 2}
"""llama.cpp's formats, as its `llama_ftype`."""


def clocks() -> tuple[float, float]:
    """Seconds of CPU time of all threads, and of wall time."""
    return time.process_time(), time.perf_counter()


def timed(prompt: Sequence[int], steps: Iterator[Sequence[int]]) -> dict[str, Any]:
    """An answer, of the tokens that each step yields, and tokens per second of CPU and wall time:
    of the prompt, which the first step reads, and of the answer in the steps after it."""
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


def predicted(logits: Any, ids: Sequence[int]) -> dict[str, Any]:
    """What logits [tokens, vocabulary] say of the tokens after the first: how improbable each one
    is, in nats, and which token is the best in its place."""
    import numpy as np

    rows = np.asarray(logits[:-1], dtype=np.float64)
    best = rows.argmax(axis=1)
    rows -= rows.max(axis=1, keepdims=True)
    own = rows[np.arange(len(rows)), ids[1:]]
    return {"nats": (np.log(np.exp(rows).sum(axis=1)) - own).tolist(), "best": best.tolist()}


def peak_memory() -> int:
    """The most resident bytes of this process so far, as Linux counts them; mapped files too."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


class Worker:
    """Holds a model; subclasses import their side before this takes note of the memory."""

    version: str  # of the libraries that decode

    def __init__(self) -> None:
        self._imports = peak_memory()

    def hello(self) -> str:
        """The version, once the model is loaded."""
        return self.version

    def memory(self) -> int:
        """The most bytes so far, beyond those of Python with the libraries imported."""
        return peak_memory() - self._imports


class Ours(Worker):
    """Our decoder, as `ladecli.load` opens it."""

    def __init__(self, model: str, precision: str) -> None:
        import torch
        import transformers.modeling_utils  # with all that loading any model imports

        super().__init__()
        import ladecli

        self.version = f"torch {torch.__version__}, transformers {transformers.__version__}"
        option = "quantize" if precision == "8bit" else "dtype"
        self._model = ladecli.load(model, device="cpu", **{option: precision})

    def encode(self, text: str, chat: bool) -> list[int]:
        """Token ids of a text, as it is or as a message in the chat template."""
        session = self._model.session
        if chat and session.has_template:
            return session.encode_chat([{"role": "user", "content": text}])
        return session.encode(text)

    def answer(self, ids: list[int], new: int, strategy: str) -> dict[str, Any]:
        """A greedy answer of `new` tokens, which no end token ends, by a session that knows no
        other text."""
        from ladecli.events import TextStep
        from ladecli.session.session import Settings

        session = self._model.session
        session.start_over()
        gc.collect()
        settings = Settings(strategy, self._model.lookahead, max_new_tokens=new, ignore_eos=True)
        events = session.stream(ids, settings)
        return timed(ids, (each.token_ids for each in events if isinstance(each, TextStep)))

    def score(self, ids: list[int]) -> dict[str, Any]:
        """A text by one forward, in which all tokens but the first are drafts."""
        from ladecli.decoder import layout
        from ladecli.decoder.strategy import Draft
        from ladecli.decoder.tree import TokenTree

        decoder, tree = self._model.session.decoder, TokenTree()
        tree.add(ids[1:], "text", len(ids))
        decoder.forget(keep_memory=True)
        logits = decoder.executor.run(layout.build(ids[:1], 0, Draft(tree)))
        return predicted(logits.float().numpy(), ids)


class Llama(Worker):
    """llama.cpp by `llama-cpp-python`, with its defaults but for the context and the threads,
    which are those of OMP_NUM_THREADS."""

    def __init__(self, file: str, context: str) -> None:
        import llama_cpp

        super().__init__()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        threads = int(os.environ["OMP_NUM_THREADS"])
        self._open = partial(
            llama_cpp.Llama,
            file,
            n_ctx=int(context),
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._model = self._open()
        self._logits = llama_cpp.llama_get_logits_ith

    def answer(self, ids: list[int], new: int) -> dict[str, Any]:
        """A greedy answer of `new` tokens, which no end token ends, from an empty cache."""
        gc.collect()
        self._model.reset()
        return timed(ids, self._steps(ids, new))

    def _steps(self, ids: list[int], new: int) -> Iterator[list[int]]:
        import numpy as np

        model, fed = self._model, ids
        for _ in range(new):
            model.eval(fed)
            last = np.ctypeslib.as_array(self._logits(model.ctx, -1), (model.n_vocab(),))
            fed = [int(last.argmax())]
            yield fed

    def score(self, ids: list[int]) -> dict[str, Any]:
        """A text by one batch, in a context that keeps all logits."""
        model = self._open(logits_all=True)
        model.eval(ids)
        return predicted(model.scores[: len(ids)], ids)


def quantize(source: str, target: str, kind: str) -> None:
    """Write a GGUF in another format, by llama.cpp itself."""
    import ctypes

    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = FORMATS[kind], True
    unfinished = f"{target}.part"
    if llama_cpp.llama_model_quantize(source.encode(), unfinished.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp cannot make {target} of {source}")
    Path(unfinished).replace(target)


def main() -> None:
    side, *arguments = sys.argv[1:]
    if side == "quantize":
        quantize(*arguments)
        return
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    worker = {"ours": Ours, "llama": Llama}[side](*arguments)
    for line in sys.stdin:
        request = json.loads(line)
        result = getattr(worker, request.pop("call"))(**request)
        print(json.dumps(result), file=replies, flush=True)


if __name__ == "__main__":
    main()
