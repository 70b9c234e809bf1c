"""Our decoding on a CPU beside llama.cpp's at the same precision, in one run.

    python benchmarks/peers.py --model MODEL --prompts FILE.jsonl --gguf FILE.gguf \\
        --llama-python PYTHON --threads 1,2 --json FILE

Every precision of ours and every format of llama.cpp is a process of its own (`peer_workers.py`),
whose threads are set at its start.  They take turns prompt by prompt, first another one each time,
on the same token ids: those of our chat template.  Answers are greedy, and end tokens end none of
them.  Of `--repeats` rounds a prompt's speed is the median, as another program can slow any answer
down.  A ratio is the median over prompts of the ratio on each; one that misses its target is bold.
Of the model in GGUF, whatever its format, llama.cpp makes BF16, and of that all the others: where
ours is in bfloat16, its F32 has the same weights.  Without llama.cpp our own rows are measured.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any

from common import ROOT, argument_parser, print_head, print_row, save

from ladecli import suites
from ladecli.models.device import predict_device

PROCESSOR = predict_device("cpu").label
WORKERS = Path(__file__).with_name("peer_workers.py")
STRATEGIES = {"plain": "autoregressive", "lookahead": "lookahead"}
PEERS = {"float32": ("F32",), "bfloat16": ("BF16",), "8bit": ("Q8_0", "Q4_0")}
"""llama.cpp's formats that are compared with a precision of ours; the first is the same one."""
CLOCKS = ("CPU", "wall")
# Targets: speed, in tokens per second of llama.cpp in a format …
SPEED = {
    "plain": {"F32": 0.95, "BF16": 0.7, "Q8_0": 0.8},
    "lookahead": {"F32": 1.25, "BF16": 1.1, "Q8_0": 1.2, "Q4_0": 0.8},
}
PROMPTS = dict.fromkeys(("F32", "BF16", "Q8_0"), 1.0)  # the same of prompts
LOWEST = 0.95  # … and of lookahead on every prompt, in plain decoding's,
MEMORY = {"Q8_0": 1.3}  # the most memory, in llama.cpp's,
PERPLEXITY = {"8bit": 1.01}  # and the most perplexity, in float32's.
WARM_UP = 8  # tokens of an answer before the first one that counts
TEXTS = ("README.md", "docs/how-it-works.md", "docs/models.md", "benchmarks/README.md")
CODE = ("decoder/engine.py", "decoder/layout.py", "api.py", "models/load.py")
WINDOW = 512  # tokens of a text that are read at once, from an empty cache


class Worker:
    """A process that holds a model and answers requests.

    Attributes:
        version: of the libraries that decode.
    """

    def __init__(self, threads: int, command: Sequence[object]) -> None:
        self._command = [*map(str, command)]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        # Loads time products to choose among them, so that none may disturb another.
        self.version = self.ask("hello")

    def ask(self, call: str, **arguments: Any) -> Any:
        """The result of one of the worker's methods."""
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


Commands = dict[str, list[object]]


@dataclass(slots=True)
class Method:
    """A way to decode, and its answers to all prompts; see `peer_workers.timed`."""

    name: str
    worker: Worker
    precision: str
    way: str  # plain, lookahead, or a format of llama.cpp
    answers: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, prompt: list[int], new: int) -> dict[str, Any]:
        """Answer one prompt."""
        ours = {"strategy": STRATEGIES[self.way]} if self.way in STRATEGIES else {}
        return self.worker.ask("answer", ids=prompt, new=new, **ours)

    def median(self, part: str, clock: int) -> float:
        """Tokens per second of prompts or answers."""
        return statistics.median(each[part][clock] for each in self.answers)

    def over(self, other: Method, part: str, clock: int) -> list[float]:
        """By prompt, how many times as fast as another method."""
        pairs = zip(self.answers, other.answers, strict=True)
        return [ours[part][clock] / theirs[part][clock] for ours, theirs in pairs]


def llama_side(args: argparse.Namespace) -> Commands:
    """The command of llama.cpp's process by format, whose files are made where they are missing."""
    python, source = args.llama_python, args.gguf
    if subprocess.run([python, "-c", "import llama_cpp"], stderr=subprocess.DEVNULL).returncode:
        print(f"Without llama.cpp: `{python} -m pip install llama-cpp-python` installs it.\n")
        return {}
    if source is None:
        print("Without llama.cpp: it needs the model in GGUF, by --gguf FILE.\n")
        return {}
    wanted = dict.fromkeys(kind for each in args.precisions for kind in PEERS[each])
    folder = args.cache or source.parent
    files = {kind: folder / f"{source.stem}-by-BF16-{kind}.gguf" for kind in ("BF16", *wanted)}
    for kind, file in files.items():
        if not file.exists():
            made_of = source if kind == "BF16" else files["BF16"]
            command = [python, WORKERS, "quantize", made_of, file, kind]
            subprocess.run([*map(str, command)], check=True, stderr=subprocess.DEVNULL)
    return {kind: [python, WORKERS, "llama", files[kind], args.context] for kind in wanted}


def measure(
    args: argparse.Namespace, ours: Commands, llamas: Commands, threads: int
) -> dict[str, Any]:
    """Let all methods take turns on all prompts; the figures of each."""
    with ExitStack() as stack:
        found: list[Method] = []
        for precision, command in ours.items():
            worker = stack.enter_context(Worker(threads, command))
            found += [Method(f"{precision}, {way}", worker, precision, way) for way in STRATEGIES]
        rows = suites.some(suites.load(args.prompts), args.count)
        prompts = [found[0].worker.ask("encode", text=row.turns[0], chat=True) for row in rows]
        for kind, command in llamas.items():
            worker = stack.enter_context(Worker(threads, command))
            precision = next(each for each, kinds in PEERS.items() if kind in kinds)
            found.append(Method(f"llama.cpp {kind}", worker, precision, kind))
        versions = dict.fromkeys(method.worker.version for method in found)
        wanted = f"{len(prompts)} prompts, {args.new_tokens} tokens, {args.repeats} times"
        print(f"{Path(args.model).name}, {wanted};")
        print(f"{', '.join(versions)}; {PROCESSOR}, {threads} thread{'s' * (threads > 1)}\n")
        for method in found:
            method.answer(prompts[0], min(WARM_UP, args.new_tokens))
        for number, prompt in enumerate(prompts):
            rounds: dict[str, list[dict[str, Any]]] = {method.name: [] for method in found}
            for turn in range(number, number + args.repeats):
                turn %= len(found)
                for method in [*found[turn:], *found[:turn]]:
                    rounds[method.name].append(method.answer(prompt, args.new_tokens))
            for method in found:
                method.answers.append(usual(rounds[method.name]))
        return {method.name: figures_of(method, found) for method in found}


def usual(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One of the same answers, with the median of their speeds."""
    clocks = range(len(CLOCKS))
    speeds = {
        part: [statistics.median(each[part][clock] for each in answers) for clock in clocks]
        for part in ("prompts", "answers")
    }
    return answers[0] | speeds


def figures_of(method: Method, found: Sequence[Method]) -> dict[str, Any]:
    """A method's speed by each clock, also over others', its tokens per step and its memory."""
    alike = [each for each in found if each.precision == method.precision]
    plain = next(each for each in alike if each.way == "plain")
    peers = [each for each in alike if each.way not in STRATEGIES and method.way in STRATEGIES]
    pairs = zip(method.answers, plain.answers, strict=True)
    memory = method.worker.ask("memory")
    figures: dict[str, Any] = {
        "precision": method.precision,
        "way": method.way,
        "tokens_per_step": sum(len(each["ids"]) for each in method.answers)
        / sum(each["steps"] for each in method.answers),
        "texts_as_plain": sum(ours["ids"] == theirs["ids"] for ours, theirs in pairs),
        "memory": memory,
        "memory_over": {peer.way: memory / peer.worker.ask("memory") for peer in peers},
    }
    for clock, name in enumerate(CLOCKS):
        figures[name] = {"over_plain": method.over(plain, "answers", clock)}
        for part in ("answers", "prompts"):
            over = {peer.way: method.over(peer, part, clock) for peer in peers}
            figures[name][part] = method.median(part, clock)
            figures[name][f"{part}_over"] = {
                kind: statistics.median(ratios) for kind, ratios in over.items()
            }
    return figures


def judged(value: float, target: float | None, most: bool = False, digits: int = 2) -> str:
    """A figure beside its target, the least or the most, and bold where it misses that."""
    if target is None:
        return f"{value:.{digits}f}"
    missed = value > target if most else value < target
    sign = ("≤>" if most else "≥<")[missed]
    text = f"{value:.{digits}f} {sign} {target:.{digits}f}"
    return f"**{text}**" if missed else text


def beside(ratios: dict[str, float], targets: dict[str, float], most: bool = False) -> str:
    """Ratios to llama.cpp's formats in a cell."""
    shown = (f"{kind} {judged(each, targets.get(kind), most)}" for kind, each in ratios.items())
    return ", ".join(shown)


def show(rows: dict[str, Any]) -> None:
    """Print what was measured: of answers by method, of prompts and memory by process."""
    over = "over llama.cpp"
    print_head(
        *("answers", "tokens per CPU s", over, "per wall s", over, "tokens per step"),
        *("over plain", "lowest prompt", "texts as plain"),
    )
    for name, row in rows.items():
        cells = []
        for clock in CLOCKS:
            ratios = row[clock]["answers_over"]
            cells += [row[clock]["answers"], beside(ratios, SPEED.get(row["way"], {}))]
        plain = row["CPU"]["over_plain"]
        lowest = judged(min(plain), LOWEST if row["way"] == "lookahead" else None)
        cells += [row["tokens_per_step"], statistics.median(plain), lowest]
        print_row(name, *cells, f"{row['texts_as_plain']} of {len(plain)}")
    print()
    print_head("prompts", "tokens per CPU s", over, "per wall s", over, "MB", over)
    for name, row in rows.items():
        if row["way"] == "lookahead":  # which is in plain decoding's process
            continue
        cells = []
        for clock in CLOCKS:
            cells += [round(row[clock]["prompts"]), beside(row[clock]["prompts_over"], PROMPTS)]
        cells += [round(row["memory"] / 1e6), beside(row["memory_over"], MEMORY, most=True)]
        print_row(name.partition(",")[0], *cells)
    print()


def windows(worker: Worker, paths: Sequence[Path], tokens: int) -> list[list[int]]:
    """Token ids of whole windows of texts, as many of each, `tokens` in all."""
    each, found = max(1, tokens // WINDOW // len(paths)), []
    for path in paths:
        ids = worker.ask("encode", text=path.read_text(encoding="utf-8"), chat=False)
        starts = range(0, min(each, len(ids) // WINDOW) * WINDOW, WINDOW)
        found += [ids[start : start + WINDOW] for start in starts]
    return found


def score(args: argparse.Namespace, sides: Commands) -> dict[str, Any]:
    """Print perplexity, and how often the best token is that of the first side, on texts."""
    texts: list[list[int]] = []
    nats: dict[str, list[float]] = {}
    best: dict[str, list[int]] = {}
    for name, command in sides.items():
        with Worker(args.threads[0], command) as worker:
            texts = texts or windows(worker, args.text, args.text_tokens)
            scores = [worker.ask("score", ids=ids) for ids in texts]
            nats[name] = [each for score in scores for each in score["nats"]]
            best[name] = [each for score in scores for each in score["best"]]
    first = next(iter(sides))
    print(f"{sum(map(len, texts)):,} tokens of texts and code, {WINDOW} at a time\n")
    print_head("precision", "perplexity", f"over {first}'s", f"best token is {first}'s")
    figures: dict[str, Any] = {}
    for name in sides:
        perplexity = exp(statistics.fmean(nats[name]))
        same = statistics.fmean(map(operator.eq, best[name], best[first]))
        figures[name] = {"perplexity": perplexity, "same_best": same}
        ratio = perplexity / figures[first]["perplexity"]
        over = judged(ratio, PERPLEXITY.get(name), most=True, digits=3)
        print_row(name, f"{perplexity:.3f}", over, f"{same:.1%}")
    return figures


def parsed() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--model", required=True)
    add("--prompts", required=True, help="as those of `lade bench`")
    add("-n", "--count", type=int, help="prompts, of all categories; all if absent")
    add("--new-tokens", type=int, default=96, help="of an answer")
    add("--repeats", type=int, default=3, help="answers of each prompt by each method")
    add("--threads", default="1", help="1,2 for a run with one and a run with two")
    add("--precisions", default=",".join(PEERS), help="of ours")
    add("--gguf", type=Path, help="the same model for llama.cpp, in any format")
    add("--cache", type=Path, help="folder for the formats that are made; that of --gguf if absent")
    add("--llama-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    add("--text", type=Path, action="append", help="for perplexity, repeatable; our own if absent")
    add("--text-tokens", type=int, default=8192, help="of all texts; 0 for none")
    add("--context", type=int, default=1024, help="of llama.cpp, which allocates all of it")
    args = parser.parse_args()
    args.threads = [int(number) for number in args.threads.split(",")]
    args.precisions = args.precisions.split(",")
    if unknown := set(args.precisions) - PEERS.keys():
        parser.error(f"--precisions are of {', '.join(PEERS)}; not {', '.join(unknown)}")
    args.text = args.text or [ROOT / name for name in (*TEXTS, *(f"ladecli/{c}" for c in CODE))]
    return args


def main() -> None:
    args = parsed()
    ours: Commands = {
        precision: [sys.executable, WORKERS, "ours", args.model, precision]
        for precision in args.precisions
    }
    llamas = llama_side(args)
    figures: dict[str, Any] = {"model": Path(args.model).name, "processor": PROCESSOR}
    for threads in args.threads:
        figures[f"threads {threads}"] = measure(args, ours, llamas, threads)
        show(figures[f"threads {threads}"])
        save(args, figures)
    if args.text_tokens:
        named = {f"llama.cpp {kind}": command for kind, command in llamas.items()}
        figures["perplexity"] = score(args, ours | named)
    save(args, figures)


if __name__ == "__main__":
    main()
