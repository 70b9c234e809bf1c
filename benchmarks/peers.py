"""Our decoding on a CPU beside llama.cpp's at the same precision, in one run.

    npm install --prefix PEER --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
    python benchmarks/peers.py --model FOLDER --gguf FILE.gguf --peer PEER --threads 1,2 --json FILE

Every precision of ours and every format of llama.cpp is a process of its own (`peer_workers.py`,
`peer_llama.mjs`), whose threads are set at its start.  They take turns prompt by prompt, first
another one each time, on the same token ids: those of our chat template.  Answers are greedy, and
end tokens end none of them.  A prompt's speed is the median of `--repeats` rounds, as another
program can slow any answer down; a ratio is the median over prompts of the ratio on each, and one
that misses its target is bold.  llama.cpp's F32, BF16 and Q8_0 are made of the weights in --gguf,
which lie beside it afterwards; the precision `gguf` is --gguf itself on both sides.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import ROOT, argument_parser, print_head, print_row, save

from ladecli import suites
from ladecli.models.device import predict_device

PROCESSOR = predict_device("cpu").label
HERE = Path(__file__).parent
STRATEGIES = {"plain": "autoregressive", "lookahead": "lookahead"}
OPTIONS = {
    "float32": ("dtype", "float32"),
    "bfloat16": ("dtype", "bfloat16"),
    "8bit": ("quantize", "8bit"),
    "gguf": (),
}
"""Our options by precision."""
PEERS = {"float32": "F32", "bfloat16": "BF16", "8bit": "Q8_0", "gguf": "as it is"}
"""llama.cpp's format that is compared with a precision of ours."""
CLOCKS = ("CPU", "wall")
# Targets: speed, in tokens per second of llama.cpp by precision, …
SPEED = {
    "plain": {"float32": 0.95, "bfloat16": 0.7, "8bit": 0.8},
    "lookahead": {"float32": 1.25, "bfloat16": 1.25, "8bit": 1.2, "gguf": 1.0},
}
PROMPTS = dict.fromkeys(("float32", "bfloat16", "8bit"), 1.0)  # the same of prompts
LOWEST = 0.95  # … and of lookahead on every prompt, in plain decoding's,
MEMORY = {"8bit": 1.3}  # the most memory, in llama.cpp's,
PERPLEXITY = 1.01  # and the most perplexity of 8 bits, in that of float32.
WARM_UP = 8  # tokens of an answer before the first one that counts
TEXTS = ("README.md", "docs/how-it-works.md", "docs/models.md", "CHANGELOG.md")
CODE = ("decoder/engine.py", "decoder/layout.py", "api.py", "models/load.py")
WINDOW = 512  # tokens of a text that are read at once, from an empty cache

Command = list[object]


class Worker:
    """A process that holds a model and answers requests."""

    def __init__(self, threads: int, command: Command, folder: Path | None = None) -> None:
        self._command = [*map(str, command)]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self.version = self.ask("hello")  # loads are not timed, but must not disturb each other

    def ask(self, call: str, **arguments: Any) -> Any:
        """Return the result of one of the worker's calls."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps({"call": call, **arguments}), file=stdin, flush=True)
        if not (line := stdout.readline()):
            raise SystemExit(f"{' '.join(self._command)} has ended; what it said stands above")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@dataclass(slots=True)
class Method:
    """A strategy of ours or llama.cpp at one precision, with its answers to all prompts."""

    worker: Worker
    precision: str
    kind: str  # plain, lookahead or llama.cpp
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its row."""
        peer = f"llama.cpp {PEERS[self.precision]}"
        return peer if self.kind == "llama.cpp" else f"{self.precision}, {self.kind}"

    def answer(self, prompt: list[int], new: int) -> dict[str, Any]:
        """Answer one prompt."""
        ours = {"strategy": STRATEGIES[self.kind]} if self.kind in STRATEGIES else {}
        return self.worker.ask("answer", ids=prompt, new=new, **ours)

    def median(self, part: str, clock: int) -> float:
        """Return tokens per second of prompts or answers."""
        return statistics.median(answer[part][clock] for answer in self.answers)

    def over(self, other: Method, part: str, clock: int) -> list[float]:
        """Return by prompt how many times as fast as another method this one is."""
        pairs = zip(self.answers, other.answers, strict=True)
        return [ours[part][clock] / theirs[part][clock] for ours, theirs in pairs]


def peer_files(source: Path, precisions: Sequence[str]) -> dict[str, Path]:
    """Return llama.cpp's file by precision; files that are missing are made of the source."""
    files = {"gguf": source}
    for precision in precisions:
        file = files.setdefault(precision, source.with_suffix(f".{PEERS[precision]}.gguf"))
        if not file.exists():
            write_gguf(source, file, gguf.GGMLQuantizationType[PEERS[precision]])
    return files


def write_gguf(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write the model of a GGUF file with its matrices in another format."""
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, entry.contents(), entry.types[0], entry.types[-1])
    kinds = [kind if len(tensor.shape) > 1 else kind.F32 for tensor in reader.tensors]
    for tensor, own in zip(reader.tensors, kinds, strict=True):
        shape = [*map(int, reversed(tensor.shape))]
        block, size = gguf.GGML_QUANT_SIZES[own]
        stored = int(tensor.n_elements) // block * size
        writer.add_tensor_info(tensor.name, shape, np.dtype("float32"), stored, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, own in zip(reader.tensors, kinds, strict=True):
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.write_tensor_data(gguf.quantize(values, own))
    writer.close()
    part.replace(target)


def measure(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Let all methods take turns on all prompts, and return the figures of each."""
    with ExitStack() as stack:
        methods: list[Method] = []
        for precision in args.precisions:
            worker = stack.enter_context(Worker(threads, ours(args, precision)))
            methods += [Method(worker, precision, kind) for kind in STRATEGIES]
        rows = suites.some(suites.load(args.prompts), args.count)
        prompts = [methods[0].worker.ask("encode", text=row.turns[0], chat=True) for row in rows]
        files = peer_files(args.gguf, args.precisions) if args.peer else {}
        for precision in args.precisions if args.peer else ():
            command: Command = ["node", HERE / "peer_llama.mjs", files[precision], args.context]
            worker = stack.enter_context(Worker(threads, command, args.peer))
            methods.append(Method(worker, precision, "llama.cpp"))
        versions = dict.fromkeys(method.worker.version for method in methods)
        conditions = f"{len(prompts)} prompts, {args.new_tokens} tokens, {args.repeats} times"
        print(f"{Path(args.model).name}, {conditions};")
        print(f"{', '.join(versions)}; {PROCESSOR}, {threads} thread{'s' * (threads > 1)}\n")
        for method in methods:
            method.answer(prompts[0], min(WARM_UP, args.new_tokens))
        for number, prompt in enumerate(prompts):
            rounds: list[list[dict[str, Any]]] = [[] for _ in methods]
            for turn in range(number, number + args.repeats):
                for place in range(turn, turn + len(methods)):
                    index = place % len(methods)
                    rounds[index].append(methods[index].answer(prompt, args.new_tokens))
            for method, answers in zip(methods, rounds, strict=True):
                method.answers.append(usual(answers))
        categories = [row.category for row in rows]
        return {method.name: figures_of(method, methods, categories) for method in methods}


def ours(args: argparse.Namespace, precision: str) -> Command:
    """Return the command of our process at a precision."""
    model = args.gguf if precision == "gguf" else args.model
    return [sys.executable, HERE / "peer_workers.py", model, *OPTIONS[precision]]


def usual(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one of the same answers, with the median of their speeds."""
    speeds = {
        part: [
            statistics.median(column)
            for column in zip(*(one[part] for one in answers), strict=True)
        ]
        for part in ("prompts", "answers")
    }
    return answers[0] | speeds


def figures_of(
    method: Method, methods: Sequence[Method], categories: Sequence[str]
) -> dict[str, Any]:
    """Return a method's speed by each clock, also over others', its tokens per step by category,
    and its memory."""
    alike = {one.kind: one for one in methods if one.precision == method.precision}
    plain, peer = alike["plain"], alike.get("llama.cpp", method)
    pairs = zip(method.answers, plain.answers, strict=True)
    memory = method.worker.ask("memory")
    figures: dict[str, Any] = {
        "precision": method.precision,
        "kind": method.kind,
        "tokens_per_step": {
            name: tokens_per_step(
                answer
                for answer, category in zip(method.answers, categories, strict=True)
                if name in ("all", category)
            )
            for name in ("all", *dict.fromkeys(categories))
        },
        "texts_as_plain": sum(ours["ids"] == theirs["ids"] for ours, theirs in pairs),
        "memory": memory,
        "memory_over": memory / peer.worker.ask("memory"),
    }
    for clock, name in enumerate(CLOCKS):
        figures[name] = {"over_plain": method.over(plain, "answers", clock)}
        for part in ("answers", "prompts"):
            figures[name][part] = method.median(part, clock)
            figures[name][f"{part}_over"] = statistics.median(method.over(peer, part, clock))
    return figures


def tokens_per_step(answers: Iterable[dict[str, Any]]) -> float:
    """Return the tokens per step of answers."""
    pairs = [(len(answer["ids"]), answer["steps"]) for answer in answers]
    return sum(tokens for tokens, _ in pairs) / sum(steps for _, steps in pairs)


def judged(value: float, target: float | None, most: bool = False, digits: int = 2) -> str:
    """Return a figure beside its target, the least or the most; bold if it misses that."""
    if target is None:
        return f"{value:.{digits}f}"
    missed = value > target if most else value < target
    sign = ("≤>" if most else "≥<")[missed]
    text = f"{value:.{digits}f} {sign} {target:.{digits}f}"
    return f"**{text}**" if missed else text


def show(rows: dict[str, Any]) -> None:
    """Print the figures: of answers by method, of prompts and memory by process."""
    over = "over llama.cpp"
    categories = [*next(iter(rows.values()))["tokens_per_step"]]
    print_head(
        *("answers", "tokens per CPU s", over, "per wall s", over, "over plain", "lowest prompt"),
        *(f"tokens per step: {name}" for name in categories),
        "texts as plain",
    )
    for name, row in rows.items():
        target = SPEED.get(row["kind"], {}).get(row["precision"])
        cells = []
        for clock in CLOCKS:
            cells += [row[clock]["answers"], judged(row[clock]["answers_over"], target)]
        plain = row["CPU"]["over_plain"]
        lowest = judged(min(plain), LOWEST if row["kind"] == "lookahead" else None)
        cells += [statistics.median(plain), lowest, *row["tokens_per_step"].values()]
        print_row(name, *cells, f"{row['texts_as_plain']} of {len(plain)}")
    print()
    print_head("prompts", "tokens per CPU s", over, "per wall s", over, "MB", over)
    for name, row in rows.items():
        if row["kind"] == "lookahead":  # which is in plain decoding's process
            continue
        judged_as = row["precision"] if row["kind"] == "plain" else None
        cells = []
        for clock in CLOCKS:
            over_peer = judged(row[clock]["prompts_over"], PROMPTS.get(judged_as))
            cells += [round(row[clock]["prompts"]), over_peer]
        memory = judged(row["memory_over"], MEMORY.get(judged_as), most=True)
        print_row(name.partition(",")[0], *cells, round(row["memory"] / 1e6), memory)
    print()


def windows(worker: Worker, paths: Sequence[Path], tokens: int) -> list[list[int]]:
    """Return token ids of whole windows of texts, as many of each, `tokens` in all."""
    count, cut = max(1, tokens // WINDOW // len(paths)), []
    for path in paths:
        ids = worker.ask("encode", text=path.read_text(encoding="utf-8"), chat=False)
        starts = range(0, min(count, len(ids) // WINDOW) * WINDOW, WINDOW)
        cut += [ids[start : start + WINDOW] for start in starts]
    return cut


def score(args: argparse.Namespace) -> dict[str, Any]:
    """Print our perplexity on texts, and how often the best token is that of float32."""
    exact: Command = [sys.executable, HERE / "peer_workers.py", args.gguf, *OPTIONS["float32"]]
    sides = {name: ours(args, name) for name in OPTIONS} | {"gguf in float32": exact}
    texts: list[list[int]] = []
    scores: dict[str, list[dict[str, Any]]] = {}
    for name, command in sides.items():
        with Worker(args.threads[0], command) as worker:
            texts = texts or windows(worker, args.text, args.text_tokens)
            scores[name] = [worker.ask("score", ids=ids) for ids in texts]
    print(f"{sum(map(len, texts)):,} tokens of texts and code, {WINDOW} at a time\n")
    print_head("precision", "perplexity", "over float32's", "best token is float32's")
    figures: dict[str, Any] = {}
    for name, own in scores.items():
        first = scores["gguf in float32" if "gguf" in name else "float32"]
        nats, exact_nats = ([n for one in side for n in one["nats"]] for side in (own, first))
        best, exact_best = ([n for one in side for n in one["best"]] for side in (own, first))
        perplexity = exp(statistics.fmean(nats))
        ratio = perplexity / exp(statistics.fmean(exact_nats))
        same = statistics.fmean(map(operator.eq, best, exact_best))
        figures[name] = {"perplexity": perplexity, "over_float32": ratio, "same_best": same}
        target = PERPLEXITY if name in ("8bit", "gguf") else None
        cells = judged(ratio, target, most=True, digits=3), f"{same:.1%}"
        print_row(name, f"{perplexity:.3f}", *cells)
    return figures


def parsed() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--model", required=True, help="a folder")
    add("--gguf", type=Path, required=True, help="the same model in GGUF, in any format")
    add("--peer", type=Path, help="folder of node-llama-cpp; without it our own rows are measured")
    add("--prompts", default=str(HERE / "evidence.jsonl"), help="as those of `lade bench`")
    add("-n", "--count", type=int, help="prompts, of all categories; all if absent")
    add("--new-tokens", type=int, default=96, help="of an answer")
    add("--repeats", type=int, default=1, help="answers of each prompt by each method")
    add("--threads", default="1", help="1,2 for a run with one and a run with two")
    add("--precisions", default=",".join(PEERS), help="of ours")
    add("--text", type=Path, action="append", help="for perplexity, repeatable; our own if absent")
    add("--text-tokens", type=int, default=8192, help="of all texts; 0 for none")
    add("--context", type=int, default=2048, help="of llama.cpp, which allocates all of it")
    args = parser.parse_args()
    args.threads = [int(number) for number in args.threads.split(",")]
    args.precisions = args.precisions.split(",") if args.precisions else []
    if unknown := set(args.precisions) - PEERS.keys():
        parser.error(f"--precisions are of {', '.join(PEERS)}; not {', '.join(unknown)}")
    args.gguf = args.gguf.resolve()
    args.text = args.text or [ROOT / name for name in (*TEXTS, *(f"ladecli/{c}" for c in CODE))]
    return args


def main() -> None:
    args = parsed()
    figures: dict[str, Any] = {"model": Path(args.model).name, "processor": PROCESSOR}
    for threads in args.threads if args.precisions else ():
        figures[f"threads {threads}"] = measure(args, threads)
        show(figures[f"threads {threads}"])
        save(args, figures)
    if args.text_tokens:
        figures["perplexity"] = score(args)
    save(args, figures)


if __name__ == "__main__":
    main()
