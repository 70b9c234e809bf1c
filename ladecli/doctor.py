"""`lade doctor`: check the machine, the installation, the settings and a model; name the fixes.

A check is a function that yields findings: what there is, whether that is fine, and the fix.
`CHECKS` lists all of them in the order of the report.
"""

from __future__ import annotations

import json as jsons
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, config, decode_setup, device, model_files, profiles
from .decoder.errors import DecoderError
from .errors import LadeError, UsageError, told
from .memory import told as size_of
from .model_files import version
from .option_fields import PREFIX, config_path
from .options import DoctorRequest
from .profiles import user
from .view import screen
from .view.terminal import Terminal
from .visualize import counted, printable

if TYPE_CHECKING:
    from rich.console import Console

    from .decode_setup import Setup
    from .models import Plan

SCHEMA = 1
"""Version of what --json prints."""
OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
"""Levels: as it should be; worth knowing; worse than it could be; something cannot work."""
_MARKS = {OK: ("✓", "+"), NOTE: ("·", "-"), WARNING: ("!", "!"), PROBLEM: ("✗", "x")}
_STYLES = {OK: "green", NOTE: "dim", WARNING: "yellow", PROBLEM: "bold red"}
_SCARCE = 0.05
"""A smaller share of free memory is worth a warning."""
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_SETTLED = ("strategy", "window", "ngram", "guesses", "budget", "sources")
"""Options that override what a profile says."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: what there is in words, its level, and for programs as data.

    A fix says what to do: a command where there is one.
    """

    name: str
    value: str
    level: str = OK
    fix: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


Check = Callable[[DoctorRequest], Iterator[Finding]]
PARTS = (
    ("flash-attn", "the kernels for --attention flash", "'ladecli[flash]'"),
    ("triton", "fused kernels for the steps of a GPU (--attention triton)", "triton"),
    ("bitsandbytes", "--quantize 4bit and 8bit", "'ladecli[quant]'"),
    ("accelerate", "--quantize, --device-map, loading straight to a GPU", "'ladecli[quant]'"),
    ("gptqmodel", "checkpoints in GPTQ and AWQ", "gptqmodel optimum accelerate"),
    ("torchao", "checkpoints in torchao", "torchao"),
    ("compressed-tensors", "checkpoints in compressed-tensors", "compressed-tensors accelerate"),
)
"""Optional packages: the name, what it brings, and what to install."""
_NEED_CUDA = ("flash-attn", "triton")
_SAME = {"triton": ("triton-windows", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")}
"""Packages that hold the same for other systems."""


def run(request: DoctorRequest) -> int:
    """Check everything and print the report.

    Args:
        request: the options to check; its model is checked too, if it has one.

    Returns:
        The exit code: 0, or 1 where something cannot work.

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
        model_files.resolve(typed["model"])
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
        print(jsons.dumps(found, ensure_ascii=False))
    else:
        console = terminal.console(sys.stdout)
        for title in dict.fromkeys(title for title, _ in report):
            _print_section(title, [each for name, each in report if name == title], console)
        counts = [(levels.count(level), level) for level in (PROBLEM, WARNING)]
        summary = " and ".join(counted(number, level) for number, level in counts if number)
        worst = next((level for number, level in counts if number), OK)
        text = f"{summary}." if summary else "Nothing is wrong."
        screen.line(console, text, f"bold {_STYLES[worst]}")
    return int(PROBLEM in levels)


def examine(request: DoctorRequest) -> list[tuple[str, Finding]]:
    """Run all checks; nothing raises.

    Returns:
        Every finding with the title of its section.
    """
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
            found.append(Finding(name, f"could not be looked at: {told(error)}", WARNING))
        if any(each.level == PROBLEM for each in found):
            failed.add(check)
        report += [(title, each) for each in found]
    return report


def _print_section(title: str, findings: list[Finding], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    unicode = (console.encoding or "").lower().startswith("utf")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.level]
        loud = finding.level in (WARNING, PROBLEM)
        mark = _MARKS[finding.level][0 if unicode else 1]
        # The level is a word, too: not every reader sees colours.
        value = f"{finding.level}: {finding.value}" if loud else finding.value
        head = Text.assemble("  ", (mark, style), f" {printable(finding.name)}")
        grid.add_row(head, Text(printable(value), style if loud else ""))
        if finding.fix:
            arrow = "→" if unicode else "->"
            grid.add_row("", Text(printable(f"{arrow} {finding.fix}"), "cyan"))
    screen.line(console, title, "bold")
    screen.show(grid, console)


def torch_works(_request: DoctorRequest) -> Iterator[Finding]:
    """Whether torch, without which nothing is decoded, can be imported."""
    try:
        import_module("torch")
    except Exception as error:
        name = getattr(error, "name", None) or "torch"
        fix = f"pip install --force-reinstall {name.partition('.')[0]}"
        yield Finding(name, f"cannot be imported: {told(error)}", PROBLEM, fix)


def devices(_request: DoctorRequest) -> Iterator[Finding]:
    """The devices that torch can use and their memory; the one that models run on first."""
    # Torch warns of a driver that is too old, and of a GPU that it has no code for.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = device.present()
        first, known = found[0], device.details(found[0])
    capability = f", compute capability {known.capability}" if known.capability else ""
    data: dict[str, object] = {"name": first.torch_name, "label": first.label}
    data["capability"] = known.capability
    yield Finding("device", f"{first.label} ({first.torch_name}){capability}", data=data)
    if first.kind == "cuda":
        yield Finding("driver", known.driver or "version unknown", data={"version": known.driver})
    if known.capability and known.capability.startswith(("6.", "7.")):
        value = "this GPU has no units for it"
        yield Finding("bfloat16", value, NOTE, "--dtype float16 is faster")
    for each in found:
        name = {"cpu": "main memory", "mps": "memory"}.get(each.kind)
        name = name or f"memory {each.torch_name}"
        free = device.free_memory(each)
        value = f"{size_of(free)} free of {size_of(each.memory)}"
        data = {"free_bytes": free, "total_bytes": each.memory}
        if free < _SCARCE * each.memory:
            yield Finding(name, value, WARNING, "end other programs that use it", data)
        else:
            yield Finding(name, value, data=data)
    cpu, limit = device.detect("cpu"), os.environ.get("OMP_NUM_THREADS")
    why = f" (OMP_NUM_THREADS={limit})" if limit else ""
    data = {"label": cpu.label, "cores": known.cores, "threads": cpu.threads}
    count = f"{counted(known.cores, 'core')}, torch uses {counted(cpu.threads, 'thread')}{why}"
    yield Finding("processor", f"{cpu.label}: {count}", data=data)
    for line in dict.fromkeys(str(each.message).strip().splitlines()[0] for each in caught):
        yield Finding("torch says", line, WARNING, "update the driver, or torch")


def unused_gpu(_request: DoctorRequest) -> Iterator[Finding]:
    """A GPU of the machine that torch cannot use."""
    if device.detect().kind != "cpu":
        return
    maker = "AMD" if Path("/dev/kfd").exists() else None
    if tool := shutil.which("nvidia-smi"):  # which is also in images for machines without a GPU
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5)
        maker = "NVIDIA" if listed.returncode == 0 and "GPU" in listed.stdout else maker
    hiding = next((name for name in _HIDING if os.environ.get(name) in ("", "-1")), None)
    if maker and hiding:
        yield Finding("GPU", f"{hiding} hides it", NOTE, f"unset {hiding} to use it")
    elif maker:
        build = device.gpu_build() or "CPUs"
        value = f"an {maker} GPU is here, and this torch (for {build}) cannot use it"
        fix = "install a torch for it, as pytorch.org/get-started says, or update its driver"
        yield Finding("GPU", value, WARNING, fix)


def versions(_request: DoctorRequest) -> Iterator[Finding]:
    """Versions of lade, Python and transformers; required packages that are missing or too old."""
    from packaging.requirements import Requirement

    yield Finding("lade", __version__)
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("Python", f"{platform.python_version()} on {system}")
    if found := version("transformers"):
        yield Finding("transformers", found)
    for need in map(Requirement, metadata.requires("ladecli") or ()):
        found = version(need.name)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        if wanted and not (found and need.specifier.contains(found, prereleases=True)):
            there = f"{found} is installed" if found else "is missing"
            value = f"{there}, and {need.specifier or 'any version'} is needed"
            yield Finding(need.name, value, PROBLEM, f"pip install '{need.name}{need.specifier}'")


def torch_build(_request: DoctorRequest) -> Iterator[Finding]:
    """The version of torch, and the devices that it was built for."""
    usual = "Apple GPUs and CPUs" if sys.platform == "darwin" else "CPUs only"
    data = {"version": version("torch"), "build": device.gpu_build()}
    yield Finding("torch", f"{data['version']}, for {data['build'] or usual}", data=data)


def optional_parts(_request: DoctorRequest) -> Iterator[Finding]:
    """Optional packages: their versions, or what they would bring."""
    kind = device.detect().kind
    for name, brings, packages in PARTS:
        # Only metadata is read: importing a broken package can crash.
        found = next(filter(None, map(version, (name, *_SAME.get(name, ())))), None)
        data = {"version": found}
        if found is not None:
            yield Finding(name, found, data=data)
        elif name in _NEED_CUDA and kind != "cuda":
            yield Finding(name, "missing; needs a CUDA GPU", NOTE, data=data)
        else:
            value = f"missing; would bring {brings}"
            yield Finding(name, value, NOTE, f"pip install {packages}", data)


def config_file(_request: DoctorRequest) -> Iterator[Finding]:
    """The config file, and whether it can be read."""
    path = config_path()
    data = {"path": str(path), "exists": path.exists()}
    if not path.exists():
        yield Finding("config file", f"none at {path}", NOTE, "lade config init writes one", data)
        return
    try:
        config.read()
        yield Finding("config file", str(path), data=data)
    except UsageError as error:
        yield Finding("config file", str(error), PROBLEM, f"correct {path}", data)


def options(request: DoctorRequest) -> Iterator[Finding]:
    """Values that no command can work with; whether steps are captured as CUDA graphs."""
    try:
        request.check()
        why = decode_setup.why_no_graphs(request, device.detect(request.device))
    except (LadeError, DecoderError) as error:
        yield Finding("options", str(error), PROBLEM)
        return
    level = OK if why is None else PROBLEM if request.cuda_graphs else NOTE
    value = f"off: {why}" if why else "on, for every model whose steps can be captured"
    fix = "leave --cuda-graphs out" if level == PROBLEM else None
    yield Finding("CUDA graphs", value, level, fix, {"on": why is None})


def profile(request: DoctorRequest) -> Iterator[Finding]:
    """The profile that is used here, and the user's own ones."""
    own, faults = user.read_all()
    here = device.detect(request.device)
    usual = profiles.usual(here, own)
    if request.profile is not None:
        value = f"{request.profile}, by {request.origins.get('profile', 'a program')}"
        yield Finding("profile", value, data={"name": request.profile})
    elif usual is None:
        value = f"none knows {here.label}: settings come from a quick measurement"
        yield Finding("profile", value, WARNING, "lade tune MODEL measures them well")
    else:
        value = f"{usual.name}, for {here.label}"
        yield Finding("profile", value, data={"name": usual.name})
    listed = {"folder": str(user.folder()), "names": [each.name for each in own]}
    held = f"{counted(len(own), 'profile')} in" if own else "none in"
    yield Finding("your profiles", f"{held} {user.folder()}", data=listed)
    for fault in faults:
        yield Finding("your profiles", fault, WARNING, "correct the file, or remove it")


def variables(_request: DoctorRequest) -> Iterator[Finding]:
    """The LADE_* variables, and those that are misspelt."""
    strays = config.stray_variables(os.environ)
    unknown = {line.split(" ")[0] for line in strays}
    names = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in unknown)
    data = {name: os.environ[name] for name in names}
    words = ", ".join(f"{name}={value}" for name, value in data.items())
    yield Finding("variables", words or "none is set", data=data)
    for line in strays:
        yield Finding("variables", line, WARNING)


def hub(request: DoctorRequest) -> Iterator[Finding]:
    """Whether models can be downloaded, and whether there is a token, which is never shown."""
    from huggingface_hub import constants, get_token

    local = "only models on this machine can be used"
    if constants.HF_HUB_OFFLINE or request.offline:
        by = f"offline, by {request.origins.get('offline', 'a program')}"
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else by
        yield Finding("hub", f"{why}: {local}", NOTE, "unset it to download", {"offline": True})
    elif model_files.hub_answers():
        yield Finding("hub", "can be reached", data={"offline": False})
    else:
        value = f"cannot be reached: {local}"
        yield Finding("hub", value, WARNING, "check the network", {"offline": True})
    if get_token() is not None:
        yield Finding("token", "there is one", data={"present": True})
    else:
        value = "none; gated models need one"
        yield Finding("token", value, NOTE, "hf auth login", {"present": False})


def cache(_request: DoctorRequest) -> Iterator[Finding]:
    """Where downloads go, and what is there."""
    folder = model_files.cache_folder()
    models = model_files.cached_models()
    size = sum(model.bytes for model in models)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    data = {"folder": str(folder), "models": len(models), "bytes": size, "free_bytes": free}
    if not os.access(there, os.W_OK):
        value = f"{folder} cannot be written to, so nothing can be downloaded"
        yield Finding("cache", value, WARNING, "set HF_HOME to a folder of yours", data)
        return
    held = f"{counted(len(models), 'model')}, {size_of(size)}, in" if models else "no models in"
    yield Finding("cache", f"{held} {folder}; {size_of(free)} free on its disk", data=data)


def model(request: DoctorRequest) -> Iterator[Finding]:
    """Whether the model can be loaded and decoded, and with which settings."""
    if request.model is None:
        return
    name = "model"
    try:
        source = model_files.resolve(request.model)
        folder = model_files.folder_of(source, request.revision)
        wrong = model_files.damage(folder) if folder else None
        if not wrong and Path(source).is_dir():  # what lacks in the cache is downloaded
            wrong = model_files.missing(Path(source))
        if wrong:
            yield Finding("files", wrong, PROBLEM, "download or copy the model again")
            return
        from . import models

        planned = models.plan(request.model, request, progress=False)
        if wrong := models.damage(planned):
            yield Finding("files", wrong, PROBLEM)
            return
        yield from _facts(planned)
        name = "settings"
        decode_setup.check_device(request, planned.device, planned.part)
        name = "memory"
        setup = decode_setup.decide(request, planned)
    except (LadeError, DecoderError) as error:
        yield Finding(name, str(error), PROBLEM)
        return
    yield from _setup(request, setup)


def _facts(planned: Plan) -> Iterator[Finding]:
    """What a model is, and whether what it needs is installed."""
    facts, spec = planned.facts, planned.spec
    tested = "tested" if facts.tested else "not tested here: tried before the first answer"
    yield Finding("family", f"{facts.family}, {tested}", data={"tested": facts.tested})
    parameters = f"{user.short(spec.parameters)} parameters"
    yield Finding("weights", f"{parameters}, {size_of(spec.weight_bytes)} as {spec.weights}")
    yield Finding("exactness", spec.exactness)
    for notice in planned.notices:
        yield Finding("notice", notice, NOTE)
    if lacking := model_files.missing_packages(spec.weights):
        value = f"{spec.weights} needs {' and '.join(lacking)}"
        yield Finding("weights", value, PROBLEM, f"pip install {' '.join(lacking)}")
    yield Finding("context", f"{facts.context} tokens", data={"context": facts.context})


def _setup(request: DoctorRequest, setup: Setup) -> Iterator[Finding]:
    """How the model would be decoded, where each setting comes from, and whether it fits."""
    data: dict[str, object] = asdict(setup.attention)
    yield Finding("attention", f"{setup.attention.name}: {setup.attention.why}", data=data)
    choice = setup.choice
    assert choice is not None  # `decide` has asked a profile
    used = request.lookahead(choice.base(request.wants_paper))
    window = f"W={used.window} N={used.ngram} G={used.guesses}, "
    steps = (
        f"{window if 'trajectory' in used.sources else ''}steps of up to {used.step_limit} tokens,"
        f" drafts from {', '.join(used.sources)}"
    )
    given = {key: request.origins[key] for key in _SETTLED if key in request.origins}
    yield Finding(
        "settings",
        steps if request.strategy == "lookahead" else f"strategy {request.strategy}",
        data={"profile": choice.profile, "origins": {**choice.origins, **given}},
    )
    origin = choice.paper_origin if request.wants_paper else choice.origin
    others = [f"{key} from {origin}" for key, origin in given.items()]
    yield Finding("origin", "; ".join([f"profile {choice.profile}, {origin}", *others]))
    for notice in choice.notices:
        yield Finding("notice", notice, NOTE)
    data = {"context": setup.context}
    if request.device_map not in (None, *device.DEVICE_MAPS):
        value = "placed by a map of your own, so it is not estimated"
        yield Finding("memory", value, NOTE, data=data)
    elif setup.short:
        yield Finding("memory", setup.short, WARNING, data=data)
    else:
        limited = request.max_context is not None
        context = f"{setup.context} tokens of context" if limited else "its whole context"
        yield Finding("memory", f"the model and {context} fit", data=data)


CHECKS: tuple[tuple[Any, ...], ...] = (
    ("Machine", torch_works),
    ("Machine", devices, torch_works),
    ("Machine", unused_gpu, torch_works),
    ("Versions", versions),
    ("Versions", torch_build, torch_works),
    ("Optional parts", optional_parts, torch_works),
    ("Settings", config_file),
    ("Settings", options, torch_works),
    ("Settings", profile, torch_works, options),
    ("Settings", variables),
    ("Hub", hub),
    ("Hub", cache),
    ("Model", model, torch_works, options),
)
"""Each check with the title of its section, and those without whose success it is left out."""
