"""`lade doctor`: check the machine, the installation, the settings and a model, and suggest fixes.

Each section of the report is a function that yields findings; `SECTIONS` has their order.
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
from typing import TYPE_CHECKING

from .. import __version__, profiles
from ..decoder.errors import Error
from ..errors import UsageError, counted, describe_error
from ..models import device, hub, model_files
from ..models.find import find, resolve
from ..models.memory import format_bytes
from ..options.commands import DoctorRequest
from ..options.declare import config_path
from ..profiles import summarise, user
from ..session import setup as decode_setup
from ..view import screen
from ..view.screen import NOTE, OK, PROBLEM, WARNING, Finding
from ..view.terminal import Terminal
from . import cli

if TYPE_CHECKING:
    from ..models.fit import PlannedModel

SCHEMA = 2
"""The version of the JSON output."""
_SCARCE = 0.05
"""A smaller share of free memory causes a warning."""
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
    ("llguidance", "answers by a JSON schema or a grammar", "'ladecli[schema]'"),
    ("sentencepiece", "models without tokenizer.json", "sentencepiece protobuf"),
    ("gptqmodel", "checkpoints in GPTQ and AWQ", "gptqmodel optimum accelerate"),
    ("torchao", "checkpoints in torchao", "torchao"),
    ("compressed-tensors", "checkpoints in compressed-tensors", "compressed-tensors accelerate"),
)
"""Optional packages: the name, its use, and the packages to install."""
_SUPPLIED = ("_token", "raise_exception", "strftime_now")
"""Suffixes of the template variables that transformers supplies."""
_NEED_CUDA = ("flash-attn", "triton")


def run(request: DoctorRequest) -> int:
    """Check everything, and the model if one is named; return 1 with any problem, else 0.

    Raises:
        LoadError: there is no such model.
    """
    if request.model is not None:
        resolve(request.model)
    terminal = Terminal(request.color)
    with terminal.progress("looking around"):
        report = examine(request)
    levels = [finding.level for _, finding in report]
    if request.json:
        data = {
            "schema": SCHEMA,
            "lade": __version__,
            "ok": PROBLEM not in levels,
            "checks": [{"section": title.lower(), **asdict(finding)} for title, finding in report],
        }
        print(json.dumps(data, ensure_ascii=False))
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
    """Return every finding with the title of its section; errors become findings."""
    report: list[tuple[str, Finding]] = []
    sections = SECTIONS
    try:
        import_module("torch")
    except Exception as error:  # a broken installation raises anything
        name = getattr(error, "name", None) or "torch"
        value = f"cannot be imported: {describe_error(error)}"
        fix = f"pip install --force-reinstall {name.partition('.')[0]}"
        report.append(("Machine", Finding(name, value, PROBLEM, fix)))
        sections = {"Versions": versions, "Hub": downloads}
    for title, section in sections.items():
        findings: list[Finding] = []
        try:
            findings += section(request)
        except Error as error:
            findings.append(Finding(title.lower(), str(error), PROBLEM))
        except Exception as error:  # no fault of a machine must end the report
            value = f"could not be checked: {describe_error(error)}"
            findings.append(Finding(title.lower(), value, WARNING))
        report += [(title, finding) for finding in findings]
    return report


def machine(_request: DoctorRequest) -> Iterator[Finding]:
    """Report the devices that torch can use, the default one first, and their memory."""
    devices = device.present()
    first, known = devices[0], device.details(devices[0])
    capability = f", compute capability {known.capability}" if known.capability else ""
    yield Finding("device", f"{first.label} ({first.torch_name}){capability}")
    usual = "Apple GPUs and CPUs" if sys.platform == "darwin" else "CPUs only"
    yield Finding("torch", f"{model_files.version('torch')}, for {device.gpu_build() or usual}")
    if first.kind == "cuda":
        yield Finding("driver", known.driver or "version unknown")
    for one in devices:
        name = {"cpu": "main memory", "mps": "memory"}.get(one.kind, f"memory {one.torch_name}")
        free = device.free_memory(one)
        value = f"{format_bytes(free)} free of {format_bytes(one.memory)}"
        if free < _SCARCE * one.memory:
            yield Finding(name, value, WARNING, "close other programs that use it")
        else:
            yield Finding(name, value)
    cpu = device.detect("cpu")
    count = f"{counted(known.cores, 'core')}, torch uses {counted(cpu.threads, 'thread')}"
    yield Finding("processor", f"{cpu.label}: {count}")
    # nvidia-smi also exists in images without a GPU, so its output counts.
    if first.kind == "cpu" and "GPU" in device.output("nvidia-smi", "-L"):
        if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            value = "CUDA_VISIBLE_DEVICES hides it"
            yield Finding("GPU", value, NOTE, "unset CUDA_VISIBLE_DEVICES to use it")
        else:
            value = f"torch (for {device.gpu_build() or 'CPUs'}) cannot use the NVIDIA GPU here"
            fix = "install a torch for it, as pytorch.org/get-started says, or update its driver"
            yield Finding("GPU", value, WARNING, fix)


def versions(_request: DoctorRequest) -> Iterator[Finding]:
    """Report versions, and required packages that are missing, too old or untried."""
    from packaging.requirements import Requirement

    yield Finding("lade", __version__)
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("Python", f"{platform.python_version()} on {system}")
    if version := model_files.version("transformers"):
        yield Finding("transformers", version)
    for need in map(Requirement, metadata.requires("ladecli") or ()):
        version = model_files.version(need.name)
        needed = need.marker is None or need.marker.evaluate({"extra": ""})
        wrong = [s for s in need.specifier if version and not s.contains(version, prereleases=True)]
        if not needed or (version and not wrong):
            continue
        level, value = PROBLEM, f"{version or 'none'} is installed, and {need.specifier} is needed"
        if version and all(limit.operator == "<" for limit in wrong):
            level, value = WARNING, f"{version} is newer than the tested version ({need.specifier})"
        yield Finding(need.name, value, level, f"pip install '{need.name}{need.specifier}'")


def optional_parts(_request: DoctorRequest) -> Iterator[Finding]:
    """Report the versions of optional packages, or the use of missing ones."""
    kind = device.detect().kind
    for name, use, packages in PARTS:
        # Only metadata is read, since importing a broken package can crash.
        if version := model_files.version(name):
            yield Finding(name, version)
        elif name in _NEED_CUDA and kind != "cuda":
            yield Finding(name, "missing; needs a CUDA GPU", NOTE)
        else:
            yield Finding(name, f"missing; would bring {use}", NOTE, f"pip install {packages}")


def settings(request: DoctorRequest) -> Iterator[Finding]:
    """Report the config file, CUDA graphs, and the profile in use.

    Raises:
        Error: a command refuses the settings without flags.
    """
    path = config_path()
    for standing in cli.standing().values():
        standing.check()
    if path.exists():
        yield Finding("config file", str(path))
    else:
        yield Finding("config file", f"none at {path}", NOTE, "lade config init writes one")
    here = device.detect(request.device)
    why = decode_setup.why_no_graphs(request, here)
    if why is None:
        yield Finding("CUDA graphs", "on, for every model whose steps can be captured")
    elif request.cuda_graphs:
        yield Finding("CUDA graphs", f"off: {why}", PROBLEM, "leave --cuda-graphs out")
    else:
        yield Finding("CUDA graphs", f"off: {why}", NOTE)
    own, faults = user.read_all()
    usual = profiles.usual(here, own)
    if request.profile is not None:
        profiles.read(request.profile)
        yield Finding("profile", f"{request.profile}, by {request.origins['profile']}")
    elif usual is not None:
        yield Finding("profile", f"{usual.name}, for {here.label}")
    else:
        yield Finding("profile", profiles.unknown(here), WARNING)
    for fault in faults:
        yield Finding("your profiles", fault, WARNING, "correct the file, or remove it")


def downloads(request: DoctorRequest) -> Iterator[Finding]:
    """Report access to the hub, and the token."""
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


def model(request: DoctorRequest) -> Iterator[Finding]:
    """Report the model's facts, and the settings with which it is decoded.

    Raises:
        Error: it cannot be loaded or decoded; the message says why.
    """
    if request.model is None:
        return
    files = find(request)
    files.chat_templates()  # raises if they are damaged
    from ..models import describe, fit, load

    planned = fit.fit(describe.describe(files, progress=False), request)
    for notice in load.check_weights(planned):
        yield Finding("weights", notice, WARNING)
    facts, spec = planned.facts, planned.spec
    tested = "tested" if facts.tested else "not tested here: tried before the first answer"
    if facts.no_trees:
        tested = f"no trees of drafts, only chains or none: {facts.no_trees}"
    yield Finding("family", f"{facts.family}, {tested}")
    millions = spec.parameters / 1e6
    count = f"{millions:.3g}M" if millions < 999.5 else f"{millions / 1e3:.3g}B"
    size = format_bytes(spec.weight_bytes)
    yield Finding("weights", f"{count} parameters, {size} as {spec.weights}")
    if lacking := model_files.missing_packages(spec.weights):
        value = f"{spec.weights} needs {' and '.join(lacking)}"
        yield Finding("weights", value, PROBLEM, f"pip install {' '.join(lacking)}")
    yield Finding("context", counted(facts.context, "token"))
    yield from _ends(request, planned)
    decode_setup.check_device(request, planned.device, planned.part, split=False)
    setup = decode_setup.decide(request, request, planned)
    invariant = setup.attention.name == "invariant"
    yield Finding("exactness", spec.exactness(invariant=invariant))
    yield Finding("attention", f"{setup.attention.name}: {setup.attention.why}")
    assert setup.choice is not None  # `decide` sets it
    used = request.lookahead(setup.choice.base(request.wants_paper))
    shown = f", {summarise(used)}" if request.strategy == "lookahead" else ""
    yield Finding("settings", f"{request.strategy}{shown}, of the profile {setup.choice.profile}")
    for notice in (*planned.notices, *setup.choice.notices, *setup.effects):
        yield Finding("notice", notice, NOTE)
    if setup.memory_notice:
        yield Finding("memory", setup.memory_notice, WARNING)
    else:
        yield Finding("memory", f"the model and {setup.context} tokens of context fit")


def _ends(request: DoctorRequest, planned: PlannedModel) -> Iterator[Finding]:
    """Report the tokens that end an answer, and faults of the generation config or template."""
    from ..models import load
    from ..session.chat_template import GREETING, ChatTemplate

    if planned.files.folder is None:
        return  # not downloaded yet
    tokenizer, ends, ignored = load.tokenizer_and_ends(planned)
    if ignored:
        value = f"not applied: {', '.join(ignored)}"
        yield Finding("generation config", value, WARNING)
    try:
        if (choice := request.template(bool(tokenizer.chat_template))) is not None:
            template = ChatTemplate(tokenizer, choice)
            if template.end_token is not None:
                ends |= {template.end_token}
            for notice in template.notices:
                yield Finding("chat template", notice, NOTE)
            own = sorted(name for name in template.variables if not name.endswith(_SUPPLIED))
            yield Finding("template variables", ", ".join(own) or "none of its own")
            template.encode(GREETING)
    except UsageError as error:
        yield Finding("chat template", str(error), WARNING)
    names = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends)))
    yield Finding("end tokens", names or "none: answers end at --max-new-tokens")


SECTIONS: dict[str, Callable[[DoctorRequest], Iterator[Finding]]] = {
    "Machine": machine,
    "Versions": versions,
    "Optional parts": optional_parts,
    "Settings": settings,
    "Hub": downloads,
    "Model": model,
}
