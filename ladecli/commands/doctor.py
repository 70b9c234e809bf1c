"""`lade doctor`: check the machine, the installation, the settings and a model; name the fixes.

A check is a function that yields findings.  `CHECKS` lists all of them in the order of the report;
those of a model have a file of their own, `model_check.py`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module, metadata
from itertools import groupby
from operator import itemgetter
from typing import Any

from .. import __version__, profiles
from ..decoder.errors import Error
from ..errors import UsageError, counted, describe_error
from ..options.commands import DoctorRequest
from ..options.declare import config_path
from ..profiles import races, user
from ..session import setup as decode_setup
from ..specs import device, hub
from ..specs.memory import format_bytes
from ..specs.model_files import version
from ..view import screen
from ..view.screen import NOTE, OK, PROBLEM, WARNING, Finding
from ..view.terminal import Terminal
from . import cli, config, model_check

SCHEMA = 2
"""Version of what --json prints."""
_SCARCE = 0.05
"""A smaller share of free memory is worth a warning."""
PARTS = (
    ("flash-attn", "the kernels for --attention flash", "'ladecli[flash]'"),
    ("triton", "fused kernels for the steps of a GPU (--attention triton)", "triton"),
    ("bitsandbytes", "--quantize 4bit, and 8bit on a GPU", "'ladecli[quant]'"),
    ("accelerate", "--quantize, --device-map, loading straight to a GPU", "'ladecli[quant]'"),
    ("gguf", "models in GGUF files", "'ladecli[gguf]'"),
    ("peft", "LoRA adapters (--adapter)", "'ladecli[lora]'"),
    ("fastapi", "lade serve, for programs that speak OpenAI's protocol", "'ladecli[serve]'"),
    ("sentencepiece", "models without tokenizer.json", "sentencepiece protobuf"),
    ("gptqmodel", "checkpoints in GPTQ and AWQ", "gptqmodel optimum accelerate"),
    ("torchao", "checkpoints in torchao", "torchao"),
    ("compressed-tensors", "checkpoints in compressed-tensors", "compressed-tensors accelerate"),
)
"""Optional packages: the name, what it brings, and what to install."""
_NEED_CUDA = ("flash-attn", "triton")
_TRITON = ("triton", "triton-windows", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")
"""Names of Triton's package on different systems."""


Check = Callable[[DoctorRequest], Iterator[Finding]]


def run(request: DoctorRequest) -> int:
    """Check everything, and the model if there is one; the exit code is 1 with any problem.

    Raises:
        UsageError, LoadError: an argument of this call is wrong.  A wrong variable or config file
            is a finding.
    """
    typed = {
        key: getattr(request, key)
        for key, origin in request.origins.items()
        if origin == "argument" or origin.startswith("flag ")
    }
    DoctorRequest(**typed).check()
    if "model" in typed:
        hub.resolve(typed["model"])
    terminal = Terminal(request.color)
    with terminal.progress("looking around"):
        report = examine(request)
    levels = [finding.level for _, finding in report]
    if request.json:
        found = {
            "schema": SCHEMA,
            "lade": __version__,
            "ok": PROBLEM not in levels,
            "checks": [{"section": title.lower(), **asdict(each)} for title, each in report],
        }
        print(json.dumps(found, ensure_ascii=False))
    else:
        console = terminal.console(sys.stdout)
        for title, findings in groupby(report, key=itemgetter(0)):
            screen.line(console, title, "bold")
            for _, finding in findings:
                screen.print_finding(finding, console)
        bad = [level for level in (PROBLEM, WARNING) if level in levels]
        summary = " and ".join(counted(levels.count(level), level) for level in bad)
        style = screen.level_style(bad[0] if bad else OK)
        screen.line(console, f"{summary or 'Nothing is wrong'}.", f"bold {style}")
    return int(PROBLEM in levels)


def examine(request: DoctorRequest) -> list[tuple[str, Finding]]:
    """Every finding with the title of its section; nothing raises."""
    report: list[tuple[str, Finding]] = []
    failed: set[Check] = set()
    for title, check, *needs in CHECKS:
        if not failed.isdisjoint(needs):
            continue
        found: list[Finding] = []
        try:
            found += check(request)
        except Exception as error:  # whatever is wrong with a machine must not end the report
            name = getattr(check, "__name__", "check").replace("_", " ")
            found.append(Finding(name, f"could not be looked at: {describe_error(error)}", WARNING))
        if any(each.level == PROBLEM for each in found):
            failed.add(check)
        report += [(title, each) for each in found]
    return report


def torch_works(_request: DoctorRequest) -> Iterator[Finding]:
    """Whether torch, without which nothing is decoded, can be imported."""
    try:
        import_module("torch")
    except Exception as error:
        name = getattr(error, "name", None) or "torch"
        fix = f"pip install --force-reinstall {name.partition('.')[0]}"
        yield Finding(name, f"cannot be imported: {describe_error(error)}", PROBLEM, fix)


def devices(_request: DoctorRequest) -> Iterator[Finding]:
    """The devices that torch can use and their memory; the one that models run on first."""
    limit = os.environ.get("OMP_NUM_THREADS")  # the user's: what imports torch may set it
    found = device.present()
    first, known = found[0], device.details(found[0])
    capability = f", compute capability {known.capability}" if known.capability else ""
    yield Finding("device", f"{first.label} ({first.torch_name}){capability}")
    usual = "Apple GPUs and CPUs" if sys.platform == "darwin" else "CPUs only"
    yield Finding("torch", f"{version('torch')}, for {device.gpu_build() or usual}")
    if first.kind == "cuda":
        yield Finding("driver", known.driver or "version unknown")
    for each in found:
        name = {"cpu": "main memory", "mps": "memory"}.get(each.kind, f"memory {each.torch_name}")
        free = device.free_memory(each)
        value = f"{format_bytes(free)} free of {format_bytes(each.memory)}"
        if free < _SCARCE * each.memory:
            yield Finding(name, value, WARNING, "end other programs that use it")
        else:
            yield Finding(name, value)
    cpu, quota = device.detect("cpu"), device.cpu_quota()
    why = f" (OMP_NUM_THREADS={limit})" if limit else " (a cgroup's share)" if quota else ""
    count = f"{counted(known.cores, 'core')}, torch uses {counted(cpu.threads, 'thread')}{why}"
    yield Finding("processor", f"{cpu.label}: {count}")
    raced = [times for name, times in races.read(cpu).items() if not name.startswith("int8 ")]
    if raced:  # weights of integers have one form
        won = Counter(min(times, key=times.__getitem__) for times in raced if times)
        shown = ", ".join(f"{form} ({number})" for form, number in won.most_common())
        yield Finding("products", f"fastest forms of weights, as raced here: {shown}")


def unused_gpu(_request: DoctorRequest) -> Iterator[Finding]:
    """A GPU of the machine that torch cannot use."""
    # The tool is in images without a GPU, too.
    if device.detect().kind != "cpu" or "GPU" not in device.output("nvidia-smi", "-L"):
        return
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        value = "CUDA_VISIBLE_DEVICES hides it"
        yield Finding("GPU", value, NOTE, "unset CUDA_VISIBLE_DEVICES to use it")
    else:
        value = f"torch (for {device.gpu_build() or 'CPUs'}) cannot use the NVIDIA GPU here"
        fix = "install a torch for it, as pytorch.org/get-started says, or update its driver"
        yield Finding("GPU", value, WARNING, fix)


def versions(_request: DoctorRequest) -> Iterator[Finding]:
    """Versions of lade, Python and transformers; required packages that are missing or too old,
    or newer than those that were tried."""
    from packaging.requirements import Requirement

    yield Finding("lade", __version__)
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("Python", f"{platform.python_version()} on {system}")
    if found := version("transformers"):
        yield Finding("transformers", found)
    try:
        needs = metadata.requires("ladecli") or []
    except metadata.PackageNotFoundError:
        value = "not compared with what lade needs: it is not installed, and runs from its folder"
        yield Finding("packages", value, NOTE, "pip install -e . in that folder")
        return
    for need in map(Requirement, needs):
        found = version(need.name)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        wrong = [s for s in need.specifier if found and not s.contains(found, prereleases=True)]
        if not wanted or (found and not wrong):
            continue
        level, value = PROBLEM, f"is missing, and {need.specifier or 'any version'} is needed"
        if found and all(each.operator == "<" for each in wrong):
            level, value = WARNING, f"{found} is newer than what was tried ({need.specifier})"
        elif found:
            value = f"{found} is installed, and {need.specifier} is needed"
        yield Finding(need.name, value, level, f"pip install '{need.name}{need.specifier}'")


def optional_parts(_request: DoctorRequest) -> Iterator[Finding]:
    """Optional packages: their versions, or what they would bring."""
    kind = device.detect().kind
    for name, brings, packages in PARTS:
        # Only metadata is read: importing a broken package can crash.
        packages_of = _TRITON if name == "triton" else (name,)
        found = next(filter(None, map(version, packages_of)), None)
        if found is not None:
            yield Finding(name, found)
        elif name in _NEED_CUDA and kind != "cuda":
            yield Finding(name, "missing; needs a CUDA GPU", NOTE)
        else:
            yield Finding(name, f"missing; would bring {brings}", NOTE, f"pip install {packages}")


def config_file(request: DoctorRequest) -> Iterator[Finding]:
    """The config file, whether it can be read, and whether commands can work with it."""
    path, name = config_path(), "config file"
    try:
        config.read()
    except UsageError as error:
        yield Finding(name, str(error), PROBLEM, f"correct {path}")
        return
    try:
        refused = config.refused(cli.standing())
    except UsageError as error:
        refused = [str(error)]
    here = config.refused({"doctor": request})  # which `options` finds
    for line in refused:
        if line not in here:
            yield Finding("other commands", line, PROBLEM)
    if path.exists():
        yield Finding(name, str(path))
    else:
        yield Finding(name, f"none at {path}", NOTE, "lade config init writes one")


def options(request: DoctorRequest) -> Iterator[Finding]:
    """Values that no command can work with; whether steps are captured as CUDA graphs."""
    try:
        request.check()
        why = decode_setup.why_no_graphs(request, device.detect(request.device))
    except Error as error:
        yield Finding("options", str(error), PROBLEM)
        return
    if why is None:
        yield Finding("CUDA graphs", "on, for every model whose steps can be captured")
    elif request.cuda_graphs:
        yield Finding("CUDA graphs", f"off: {why}", PROBLEM, "leave --cuda-graphs out")
    else:
        yield Finding("CUDA graphs", f"off: {why}", NOTE)


def profile(request: DoctorRequest) -> Iterator[Finding]:
    """The profile that is used here, and what is wrong with the user's own ones."""
    own, faults = user.read_all()
    here = device.detect(request.device)
    usual = profiles.usual(here, own)
    name = request.profile or (usual and usual.name)
    if name is None:
        value = f"none knows {here.label}: settings come from a quick measurement"
        yield Finding("profile", value, WARNING, "lade tune MODEL measures them well")
    else:
        origin = f"by {request.origins['profile']}" if request.profile else f"for {here.label}"
        yield Finding("profile", f"{name}, {origin}")
    for fault in faults:
        yield Finding("your profiles", fault, WARNING, "correct the file, or remove it")


def downloads(request: DoctorRequest) -> Iterator[Finding]:
    """Whether models can be downloaded, and whether there is a token, which is never shown."""
    from huggingface_hub import constants, get_token

    local = "only models on this machine can be used"
    if constants.HF_HUB_OFFLINE or request.offline:
        why = request.origins.get("offline", "HF_HUB_OFFLINE")
        yield Finding("hub", f"offline, by {why}: {local}", NOTE, "unset it to download")
    elif hub.hub_answers():
        yield Finding("hub", "can be reached")
    else:
        yield Finding("hub", f"cannot be reached: {local}", WARNING, "check the network")
    if get_token():
        yield Finding("token", "there is one")
    else:
        yield Finding("token", "none; gated models need one", NOTE, "hf auth login")


CHECKS: tuple[tuple[Any, ...], ...] = (
    ("Machine", torch_works),
    ("Machine", devices, torch_works),
    ("Machine", unused_gpu, torch_works),
    ("Versions", versions),
    ("Optional parts", optional_parts, torch_works),
    ("Settings", config_file),
    ("Settings", options, torch_works),
    ("Settings", profile, torch_works, options),
    ("Hub", downloads),
    ("Model", model_check.model, torch_works, options),
)
"""Each check with the title of its section, and those without whose success it is left out."""
