"""What a GPU makes of lade: `python3 scripts/gpu_check`, from a checkout, in less than 8 minutes.

Nothing is fetched, and nothing but torch, transformers and what pytest needs has to be there.
Figures are written to a JSON file as they come; `--profile FILE` prints such a file as settings
for a profile.  The exit code is 1 where a part failed, or a test.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import answers, machine, targets, tests, trained
from .again import BEGUN, SECONDS
from .clock import Clock, clock_for
from .journal import FAILED, Journal
from .profile import settings, toml_of
from .shapes import SHAPES, Subject, check_room, config_of
from .steps import SMALL, Scale, backends, best_backend, compiled, plain, steps_of

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("demo", "stories260K", "llama-2-7b", "qwen2.5-1.5b", "llama-3-8b", "qwen2.5-32b")
"""Models in the order of what their figures are worth, should time run out."""
TRAINED = ("demo", "stories260K")
LARGE = 30e9
"""Bytes of weights from which on steps take so long that fewer of them are timed."""
LOST = 4
"""Exit code where the GPU was lost to this process, and parts are left."""


class Check:
    """A check on one device.

    Args:
        journal: where figures go.
        device: that is measured.
        scale: how much.
    """

    def __init__(self, journal: Journal, device: torch.device, scale: Scale) -> None:
        self._journal = journal
        self._device = device
        self._scale = scale
        self._clock: Clock = clock_for(device)
        self._data = journal.data
        self._data |= {"date": time.strftime("%Y-%m-%d"), "facts": machine.facts(device)}
        for what in ("tests", "ceilings", "models"):
            self._data.setdefault(what, {})

    def machine(self) -> None:
        """Measure what the machine can do at best."""

        def work() -> None:
            scale, found = self._scale, self._data["ceilings"]
            runs = 4 * scale.rounds
            copied = machine.copy_bandwidth(self._device, self._clock, scale.copy_bytes, runs)
            found["copy"] = copied
            found["product"] = machine.matmul_rate(self._device, self._clock, scale.product, runs)

        self._journal.part("ceilings", 40, work)

    def tests(self, where: str, limit: float) -> None:
        """Run the tests that need a GPU."""
        allowed = min(limit, self._journal.left)
        self._journal.part("tests", limit, partial(tests.run, allowed, where, self._data["tests"]))

    def model(self, name: str, *, first: bool) -> None:
        """Measure one model.

        Args:
            name: of `SHAPES`, or of `TRAINED`.
            first: whether it is the one that all wishes are about: then memory, and transformers'
                compiled steps, are measured too.
        """
        data = self._data["models"].setdefault(name, {})
        made = None if data.get("finished") else self._made(name, "model", data)
        if made is None:
            return
        subject, prompts = made
        self._steps(name, subject, data)
        best = data["best"]
        if best is None:
            self._journal.skip([f"{name}: texts"], "no backend could be measured")
            return
        run, scale, clock = partial(self._part, name, data), self._scale, self._clock
        run("plain", 30, lambda d: plain(subject, best, clock, scale, d))
        run("host", 40, lambda d: answers.host_share(subject, best, clock, scale, d))
        if prompts:
            self._texts(name, subject, prompts, data)
        else:
            beside = partial(answers.beside_generate, subject, best, clock, scale)
            run("generate", 40, partial(beside, compiled=False))
        if first:
            run("memory", 40, lambda d: answers.memory(subject, best, scale, d))
            run("compiled generate", 110, partial(self._compiled_generate, subject, best))
        data["finished"] = not self._journal.lost

    def compiled(self, name: str) -> None:
        """Measure steps of a model that torch has compiled: that takes longest, and comes last."""
        data, what = self._data["models"].get(name, {}), f"{name}: compiled"
        if data.get("best") is None or self._journal.had(what):
            return
        if self._device.type != "cuda":
            self._journal.skip([what], "a rehearsal compiles nothing")
            return
        made = self._made(name, "model again", data)
        if made is not None:
            work = partial(compiled, made[0], data["best"], self._clock, self._scale)
            self._part(name, data, "compiled", 150, work)

    def _compiled_generate(self, subject: Subject, best: str, data: dict[str, Any]) -> None:
        try:
            answers.beside_generate(subject, best, self._clock, self._scale, data, compiled=True)
        finally:
            answers.forget_compiled(subject)

    def _made(
        self, name: str, what: str, data: dict[str, Any]
    ) -> tuple[Subject, list[list[int]]] | None:
        """A model and its prompts; None where it cannot be had."""
        held: list[tuple[Subject, list[list[int]]]] = []
        make = partial(self._make, name, data, held)
        done = self._journal.part(f"{name}: {what}", 60, make, anew=True)
        return held.pop() if done else None

    def _part(
        self, name: str, data: dict[str, Any], what: str, limit: float, work: Callable[..., None]
    ) -> None:
        if not self._journal.had(f"{name}: {what}"):
            found = data[what] = {}
            self._journal.part(f"{name}: {what}", limit, partial(work, found))

    def _make(
        self, name: str, data: dict[str, Any], held: list[tuple[Subject, list[list[int]]]]
    ) -> None:
        # The model before this one is still in a circle of references.
        machine.empty(self._device)
        if name in TRAINED:
            subject, prompts = trained.load(name, self._device, self._scale)
        else:
            room = self._scale.room
            config, prompts = config_of(SHAPES[name], room), []
            check_room(config, room, torch.bfloat16, machine.free_bytes(self._device))
            subject = Subject(config, self._device, torch.bfloat16)
        began = time.perf_counter()
        subject.make_lean()
        data |= {
            "parameters": subject.parameters,
            "weight_bytes": subject.weight_bytes,
            "read_bytes": subject.read_bytes,
            "lean_forwards": 0 if subject.lean is None else len(subject.lean),
            "lean_seconds": time.perf_counter() - began,
            "why_not_lean": subject.why_not_lean,
        }
        held.append((subject, prompts))

    def _steps(self, name: str, subject: Subject, data: dict[str, Any]) -> None:
        """Measure steps with each backend that is there."""
        data.setdefault("steps", {})
        scale = self._scale_for(subject)
        for backend in backends():
            found: dict[str, Any] = data["steps"].setdefault(backend, {})

            def work(backend: str = backend, found: dict[str, Any] = found) -> None:
                with steps_of(subject, backend, self._clock, scale) as bench:
                    bench.captures(found)
                    bench.grid(found)

            self._journal.part(f"{name}: {backend}", 60, work)
        data["best"] = best_backend(data["steps"])

    def _scale_for(self, subject: Subject) -> Scale:
        """As far as a trained model's positions reach, and in less rounds where steps take long."""
        scale, most = self._scale, subject.facts.context
        if subject.read_bytes > LARGE:
            scale = replace(scale, rounds=3, repeats=2)
        fit = tuple(each for each in scale.contexts if each + scale.widths[-1] <= most)
        return replace(scale, contexts=fit, long=min(scale.long, most // 2))

    def _texts(
        self, name: str, subject: Subject, prompts: list[list[int]], data: dict[str, Any]
    ) -> None:
        """What a trained model's texts show."""
        best, scale = data["best"], self._scale
        config = settings(data["steps"][best])
        run = partial(self._part, name, data)

        def ends(found: dict[str, Any]) -> None:
            with answers.decoder_of(subject, best) as (decoder, _):
                fitting = answers.in_widths(config, decoder)
                trained.end_to_end(decoder, prompts, fitting, self._clock, scale, found)

        def differences(found: dict[str, Any]) -> None:
            with answers.decoder_of(subject, best) as (decoder, _):
                fitting = answers.in_widths(config, decoder)
                trained.divergence(decoder, subject, prompts, best, fitting, scale, found)

        run("end to end", 60, ends)
        run("divergence", 40, differences)


def main(arguments: list[str] | None = None) -> int:
    """Run the check, in this process.

    Returns:
        1 if a part failed, 2 if there is no such device, `LOST` if the GPU was lost.
    """
    args = _parse(arguments)
    if args.profile is not None:
        print(toml_of(json.loads(args.profile.read_text(encoding="utf-8"))), end="")
        return 0
    code = 1
    if args.note is not None:
        # Nothing that this process has started outlives it.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        code = _run(args)
    finally:
        # Whoever started this process knows by that whether it has ended as it should.
        if args.note is not None and code != LOST:
            args.note.write_text(str(code))
    return code


def _run(args: argparse.Namespace) -> int:
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU is to be seen here; --device cpu rehearses the check", file=sys.stderr)
        return 2
    on_gpu = device.type == "cuda"
    if on_gpu and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    names = args.shapes.split(",") if args.shapes else [*ORDER] if on_gpu else ["demo", "tiny"]
    path = args.json or ROOT / "benchmarks" / "gpu" / f"{machine.name_of(device)}.json"
    say = partial(print, flush=True)
    watched = args.note is not None
    journal = Journal(path, args.seconds, say, resume=args.resume, ends=watched)
    journal.save()
    if watched:
        args.note.with_name(BEGUN).touch()
    try:
        check = Check(journal, device, Scale() if on_gpu else SMALL)
        check.machine()
        if args.tests:
            check.tests("1" if on_gpu else "cpu", args.test_seconds)
        shapes = [name for name in names if name not in TRAINED]
        for name in names:
            check.model(name, first=name in shapes[:1])
        for name in shapes[:1]:
            check.compiled(name)
    finally:
        journal.data["targets"] = targets.judged(journal.data)
        journal.save()
    if journal.lost and watched:
        return LOST
    print("\n" + "\n".join(targets.lines(journal.data)) + f"\n\nall figures: {path}")
    return int(any(part["state"] == FAILED for part in journal.data["parts"].values()))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="the file (default benchmarks/gpu/GPU.json)")
    parser.add_argument("--device", default="cuda", help="cpu rehearses with small sizes")
    parser.add_argument("--shapes", help=f"of {', '.join(ORDER)} and tiny; comma-separated")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument("--test-seconds", type=float, default=130.0, help="of them for tests")
    parser.add_argument(
        "--no-tests", dest="tests", action="store_false", help="leave tests/gpu out"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="print FILE as settings")
    parser.add_argument(
        "--here", action="store_true", help="in this process, which a fault of the GPU ends"
    )
    # For `again`.
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    unknown = [n for n in (args.shapes or "").split(",") if n and n not in (*SHAPES, *TRAINED)]
    if unknown:
        parser.error(f"unknown shape {unknown[0]}; use {', '.join((*SHAPES, *TRAINED))}")
    return args
