"""`lade doctor`: check the machine, the installation, the settings and a model; name the fixes.

A check is a function that yields findings; `CHECKS` lists all of them in the order of the report.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module, metadata
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .. import __version__, profiles
from ..decoder.errors import Error
from ..errors import UsageError, counted, describe_error
from ..options.commands import DoctorRequest
from ..options.declare import config_path
from ..profiles import measured, summarise, user
from ..session import setup as decode_setup
from ..specs import adapters, device, hub, model_files
from ..specs.memory import format_bytes
from ..view import screen
from ..view.screen import NOTE, OK, PROBLEM, WARNING, Finding
from ..view.terminal import Terminal
from . import cli

if TYPE_CHECKING:
    from ..models import PlannedModel
    from ..session.setup import Setup
    from ..specs.memory import Need

SCHEMA = 2
"""Version of what --json prints."""
_PROGRAM = 0.5e9
"""Bytes that Python takes with torch and transformers, before any model."""
_SCARCE = 0.05
"""A smaller share of free memory is worth a warning."""
PARTS = (
    ("flash-attn", "the kernels for --attention flash", "'ladecli[flash]'"),
    ("triton", "fused kernels for the steps of a GPU (--attention triton)", "triton"),
    ("bitsandbytes", "--quantize 4bit, and 8bit on a GPU", "'ladecli[quant]'"),
    (
        "accelerate",
        "--quantize, --device-map, GGUF files, loading straight to a GPU",
        "'ladecli[quant]'",
    ),
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
_SETTLED = ("strategy", "window", "ngram", "guesses", "budget", "sources")
"""Options whose origin is named beside the profile's."""

Check = Callable[[DoctorRequest], Iterator[Finding]]


def run(request: DoctorRequest) -> int:
    """Check everything, and the model if there is one; the exit code is 1 with any problem.

    Raises:
        LoadError: there is no such model.
    """
    if request.model is not None:
        hub.resolve(request.model)
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
        found, name = list[Finding](), check.__name__.replace("_", " ")
        try:
            found += check(request)
        except Error as error:
            found.append(Finding(name, str(error), PROBLEM))
        except Exception as error:  # whatever is wrong with a machine must not end the report
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
    yield Finding("torch", f"{model_files.version('torch')}, for {device.gpu_build() or usual}")
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
    if costs := measured.read_all():
        value = f"measured for {counted(len(costs), 'model')}: {measured.path()}"
        yield Finding("step costs", value)


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
    if found := model_files.version("transformers"):
        yield Finding("transformers", found)
    for need in map(Requirement, metadata.requires("ladecli") or ()):
        found = model_files.version(need.name)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        wrong = [s for s in need.specifier if found and not s.contains(found, prereleases=True)]
        if not wanted or (found and not wrong):
            continue
        level, value = PROBLEM, f"{found or 'none'} is installed, and {need.specifier} is needed"
        if found and all(each.operator == "<" for each in wrong):
            level, value = WARNING, f"{found} is newer than what was tried ({need.specifier})"
        yield Finding(need.name, value, level, f"pip install '{need.name}{need.specifier}'")


def optional_parts(_request: DoctorRequest) -> Iterator[Finding]:
    """Optional packages: their versions, or what they would bring."""
    kind = device.detect().kind
    for name, brings, packages in PARTS:
        # Only metadata is read: importing a broken package can crash.
        if found := model_files.version(name):
            yield Finding(name, found)
        elif name in _NEED_CUDA and kind != "cuda":
            yield Finding(name, "missing; needs a CUDA GPU", NOTE)
        else:
            yield Finding(name, f"missing; would bring {brings}", NOTE, f"pip install {packages}")


def config_file(_request: DoctorRequest) -> Iterator[Finding]:
    """The config file.

    Raises:
        Error: a command refuses what holds without flags; a file that cannot be read ends doctor.
    """
    path = config_path()
    for standing in cli.standing().values():
        standing.check()
    if path.exists():
        yield Finding("config file", str(path))
    else:
        yield Finding("config file", f"none at {path}", NOTE, "lade config init writes one")


def cuda_graphs(request: DoctorRequest) -> Iterator[Finding]:
    """Whether steps are captured as CUDA graphs."""
    why = decode_setup.why_no_graphs(request, device.detect(request.device))
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
        yield Finding("profile", profiles.unknown(here), WARNING, "--budget 64, for example")
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


# The model.


def model(request: DoctorRequest) -> Iterator[Finding]:
    """Whether the model can be loaded and decoded, and with which settings.

    Raises:
        Error: it cannot; the message says why.
    """
    if request.model is None:
        return
    named = request.model, request.adapters, request.gguf_file, request.revision
    folder = adapters.check(*named, offline=request.offline)
    if folder is not None:
        model_files.chat_templates(folder)
    from .. import models

    planned = models.plan(request.model, request, request, progress=False)
    for notice in models.check_weights(planned):
        yield Finding("weights", notice, WARNING)
    yield from _facts(request, planned)
    yield from _ends(request, planned)
    decode_setup.check_device(request, planned.device, planned.part, split=False)
    setup = decode_setup.decide(request, request, planned)
    yield from _setup(request, setup)
    if setup.need is not None and planned.device.kind == "cpu":
        yield Finding("memory use", _memory_use(planned, setup.need))


def _facts(request: DoctorRequest, planned: PlannedModel) -> Iterator[Finding]:
    """What a model is, what can be claimed of its texts, and whether what it needs is installed."""
    facts, spec = planned.facts, planned.spec
    tested = "tested" if facts.tested else "not tested here: tried before the first answer"
    if facts.no_trees:
        tested = f"chains of drafts or none, but no trees: {facts.no_trees}"
    yield Finding("family", f"{facts.family}, {tested}")
    parameters = f"{user.short(spec.parameters)} parameters"
    yield Finding("weights", f"{parameters}, {format_bytes(spec.weight_bytes)} as {spec.weights}")
    invariant = request.batch_invariant and decode_setup.why_not_invariant(planned) is None
    yield Finding("exactness", spec.exactness(invariant=invariant))
    for notice in planned.notices:
        yield Finding("notice", notice, NOTE)
    if lacking := model_files.missing_packages(spec.weights):
        value = f"{spec.weights} needs {' and '.join(lacking)}"
        yield Finding("weights", value, PROBLEM, f"pip install {' '.join(lacking)}")
    made_for = "" if facts.max_positions else ", for its configuration does not say how many"
    yield Finding("context", f"{counted(facts.context, 'token')}{made_for}")


def _ends(request: DoctorRequest, planned: PlannedModel) -> Iterator[Finding]:
    """The tokens that end an answer: those of the configs, and the chat template's."""
    from .. import models
    from ..session.chat_template import GREETING, ChatTemplate

    if hub.folder_of(planned.source, planned.options.revision) is None:
        return  # it is still to be downloaded
    tokenizer, stated, ignored = models.tokenizer_and_ends(planned)
    if ignored:
        value = f"not applied: {', '.join(ignored)}"
        yield Finding("generation config", value, WARNING)
    choice, closing = request.template(bool(tokenizer.chat_template)), None
    try:
        if choice is not None:
            template = ChatTemplate(tokenizer, choice)
            closing = template.end_token
            for notice in template.notices:
                yield Finding("chat template", notice, NOTE)
            template.encode(GREETING)
    except UsageError as error:
        yield Finding("chat template", str(error), WARNING)
    ends = [(token, "by its configs") for token in sorted(stated)]
    if closing is not None and closing not in stated:
        ends.append((closing, "by its chat template"))
    spelt = [f"{tokenizer.convert_ids_to_tokens(token)} ({why})" for token, why in ends]
    yield Finding("end tokens", ", ".join(spelt) or "none: answers end at --max-new-tokens")


def _setup(request: DoctorRequest, setup: Setup) -> Iterator[Finding]:
    """How the model would be decoded, where each setting comes from, and whether it fits."""
    attention, choice = setup.attention, setup.choice
    assert choice is not None  # `decide` has asked a profile
    yield Finding("attention", f"{attention.name}: {attention.why}")
    used = request.lookahead(choice.base(request.wants_paper))
    given = {key: request.origins[key] for key in _SETTLED if key in request.origins}
    origin = choice.paper_origin if request.wants_paper else choice.origin
    others = (f"; {key} from {origin}" for key, origin in given.items())
    settings = f", {summarise(used)}" if request.strategy == "lookahead" else ""
    yield Finding("settings", f"{request.strategy}{settings}")
    yield Finding("origin", f"profile {choice.profile}, {origin}{''.join(others)}")
    for notice in (*choice.notices, *setup.effects):
        yield Finding("notice", notice, NOTE)
    level, value = OK, "the model and its whole context fit"
    if setup.memory_notice:
        level, value = WARNING, setup.memory_notice
    elif request.max_context is not None:
        value = f"the model and {setup.context} tokens of context fit"
    yield Finding("memory", value, level)


def _memory_use(planned: PlannedModel, need: Need) -> str:
    """Say what a model on a CPU takes of memory: while it opens, and in a chat."""
    folder = hub.folder_of(planned.source, planned.options.revision)
    files = model_files.weight_files(folder) if folder is not None else []
    size = sum(path.stat().st_size for path in files if path.is_file())
    copy = 0.0  # what is in memory beside the weights while they are made
    if "gguf_file" in planned.hub_options:
        copy = need.weights
    elif size < 0.9 * need.weights:  # they are converted
        copy = size
    sizes = need.weights + copy, need.weights, need.total
    opening, chat, full = (format_bytes(each + _PROGRAM) for each in sizes)
    return f"about {opening} while it opens, {chat} in a chat, and {full} with a full context"


CHECKS: tuple[tuple[Any, ...], ...] = (
    ("Machine", torch_works),
    ("Machine", devices, torch_works),
    ("Machine", unused_gpu, torch_works),
    ("Versions", versions),
    ("Optional parts", optional_parts, torch_works),
    ("Settings", config_file),
    ("Settings", cuda_graphs, torch_works),
    ("Settings", profile, torch_works, cuda_graphs),
    ("Hub", downloads),
    ("Model", model, torch_works, cuda_graphs),
)
"""Each check with the title of its section, and those without whose success it is left out."""
