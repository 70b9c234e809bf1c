"""`lade doctor`: what is wrong is told with its fix, and nothing that is wrong ends it."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from ladecli import device, doctor, models
from ladecli.checks import findings, hub, machine, parts
from ladecli.checks.findings import NOTE, OK, PROBLEM, WARNING, Finding, Section, look
from ladecli.cli import app
from ladecli.device import Device
from ladecli.doctor import examine
from ladecli.library import hub as hub_names
from ladecli.library import hub_cache
from ladecli.option_table import table_of
from ladecli.places import config_path
from ladecli.profiles import user
from ladecli.program import entry
from ladecli.settings import LoadOptions, ReportRequest

from .hub_files import LLAMA_7B, SMALL, add_model, weights


@pytest.fixture(autouse=True)
def _a_plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A processor and 16 GB of memory; an empty cache, no token, no hub."""
    plain = Device("cpu", "cpu", "Some Processor", int(32e9), 2)
    use(monkeypatch, plain)
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path / "nvidia0")
    monkeypatch.setattr(machine, "_AMD", tmp_path / "kfd")
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    monkeypatch.setattr(device, "gpu_build", lambda: None)
    monkeypatch.setattr(hub_cache, "location", lambda: tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def use(monkeypatch: pytest.MonkeyPatch, *devices: Device, free: float = 16e9) -> None:
    """Let these be the devices of the machine."""
    details = device.Details("550.54.15" if devices[0].kind == "cuda" else None, None, 8)
    monkeypatch.setattr(device, "present", lambda: list(devices))
    monkeypatch.setattr(device, "details", lambda _: details)
    # `models` has names of its own for these two.
    for place in (device, models):
        monkeypatch.setattr(
            place, "detect", lambda wanted="auto": devices[-1 if wanted == "cpu" else 0]
        )
        monkeypatch.setattr(place, "free_memory", lambda _: int(free))


def examined(**given: Any) -> list[Section]:
    """What the doctor says to a request."""
    return examine(ReportRequest(**given), table_of(app))


def found(name: str, **given: Any) -> list[Finding]:
    """What the doctor says about one thing."""
    return [f for section in examined(**given) for f in section.findings if f.name == name]


def run(color: str, *, json: bool = False, model: str | None = None) -> int:
    given = ["doctor", "--color", color, *(["--json"] if json else [])]
    return entry([*given, *([model] if model else [])])


def test_this_very_machine(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "ladecli", "doctor", "demo"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("Machine\n", "Versions\n", "Optional parts\n", "Settings\n", "Hub\n", "Model\n"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout


def test_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("never") == 0
    out, err = capsys.readouterr()
    assert out.endswith("Nothing is wrong.\n")
    assert err == ""


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_SEED", "3")
    assert run("auto", json=True, model="demo") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["ok"]) == (1, True)
    checks = {(check["section"], check["name"]): check for check in told["checks"]}
    memory = checks["machine", "main memory"]
    assert memory["data"] == {"free_bytes": 16_000_000_000, "total_bytes": 32_000_000_000}
    assert (memory["level"], memory["fix"]) == ("ok", None)
    assert checks["settings", "variables"]["data"] == {"LADE_SEED": "3"}
    assert checks["model", "settings"]["data"]["profile"] == "cpu"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--color blue", "unknown color 'blue'; use one of auto, always, never"),
        ("--device tpu", "unknown device 'tpu'; use auto, cpu, cuda, cuda:N or mps"),
        ("--window 9 --ngram 9 --budget 3", "budget 3 is smaller than "),
    ],
)
def test_a_wrong_flag(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["doctor", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"lade: {message}")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DEVICE", "tpu", "unknown device 'tpu'; use auto, cpu, cuda, cuda:N or mps (LADE_DEVICE)"),
        ("PROFILE", "moon", "unknown profile 'moon'; known profiles: "),
        ("BUDGET", "0", "budget must be at least 1, not 0 (LADE_BUDGET)"),
    ],
)
def test_a_wrong_variable_is_a_finding(
    variable: str,
    value: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"LADE_{variable}", value)
    assert entry(["doctor", "demo", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    problems = [check for check in checks if check["level"] == PROBLEM]
    assert [check["name"] for check in problems] == ["options"]
    assert problems[0]["value"].startswith(message)
    assert f"LADE_{variable}" in problems[0]["value"]


def test_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = Device("cuda", "cuda:0", "NVIDIA H100 80GB HBM3", int(85e9))
    l4 = Device("cuda", "cuda:1", "NVIDIA L4", int(24e9))
    use(monkeypatch, h100, l4, Device("cpu", "cpu", "Some Processor", int(32e9), 2), free=2e9)
    assert found("device")[0].value == "NVIDIA H100 80GB HBM3 (cuda:0)"
    assert found("driver")[0].value == "550.54.15"
    scarce = found("memory cuda:0")[0]
    assert (scarce.value, scarce.level) == ("2 GB free of 85 GB", WARNING)
    assert scarce.fix == "end other programs that use it"
    assert found("memory cuda:1")[0].level == found("main memory")[0].level == OK
    assert found("profile")[0].value == "h100: knows NVIDIA H100 80GB HBM3"


def test_a_gpu_that_no_profile_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Device("cuda", "cuda:0", "Some Accelerator 9000", int(24e9)))
    finding = found("profile")[0]
    assert finding.level == WARNING
    assert finding.value.startswith("none knows Some Accelerator 9000")
    assert finding.fix == "lade tune MODEL measures them well"


def test_what_torch_warns_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    def old_driver() -> list[Device]:
        warnings.warn("The NVIDIA driver on your system is too old\n(found 11040)", stacklevel=1)
        return [Device("cpu", "cpu", "Some Processor", 10, 2)]

    monkeypatch.setattr(device, "present", old_driver)
    finding = found("torch says")[0]
    assert finding.value == "The NVIDIA driver on your system is too old"
    assert finding.level == WARNING


@pytest.mark.parametrize(
    ("files", "build", "platform", "value", "fix"),
    [
        (
            ["nvidia0"],
            None,
            "linux",
            "an NVIDIA GPU is here, and this torch is for CPUs",
            "pip install --force-reinstall torch, from the usual index",
        ),
        (
            ["kfd"],
            None,
            "linux",
            "an AMD GPU is here, and this torch is for CPUs",
            "pytorch.org/get-started has the command for this system",
        ),
        (
            ["nvidia0"],
            "CUDA 13.0",
            "linux",
            "an NVIDIA GPU is here, and torch (CUDA 13.0) cannot use it",
            "update its driver, or install a torch for it; this one is for CUDA 13.0",
        ),
        ([], None, "linux", None, None),
    ],
)
def test_a_gpu_that_torch_does_not_use(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: list[str],
    build: str | None,
    platform: str,
    value: str | None,
    fix: str | None,
) -> None:
    for name in files:
        (tmp_path / name).touch()
    # That it hides them would be the reason.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(device, "gpu_build", lambda: build)
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform=platform))
    told = list(machine.unused_gpu())
    assert [(f.value, f.fix, f.level) for f in told] == ([(value, fix, WARNING)] if value else [])


@pytest.mark.parametrize(
    ("code", "out", "here"),
    [
        (0, "GPU 0: NVIDIA H100 (UUID: GPU-1)\n", True),
        (9, "NVIDIA-SMI has failed", False),
        (0, "", False),
    ],
)
def test_the_tool_alone_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, here: bool
) -> None:
    done = SimpleNamespace(returncode=code, stdout=out)
    monkeypatch.setattr(machine.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)
    assert bool(list(machine.unused_gpu())) == here


def test_a_gpu_that_is_hidden_on_purpose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    told = list(machine.unused_gpu())
    assert [(f.value, f.level) for f in told] == [("CUDA_VISIBLE_DEVICES hides it", NOTE)]


@pytest.mark.parametrize(
    ("installed", "name", "value", "level", "fix"),
    [
        (
            {"torch": "2.4.0"},
            "torch",
            "2.4.0 is installed, and >=2.11 is needed",
            PROBLEM,
            "pip install 'torch>=2.11'",
        ),
        (
            {"typer": None},
            "typer",
            "is missing, and >=0.29 is needed",
            PROBLEM,
            "pip install 'typer>=0.29'",
        ),
        ({"torch": "2.13.0+cu130"}, "torch", None, OK, None),
        ({"transformers": "5.30.0.dev0"}, "transformers", None, OK, None),
    ],
)
def test_versions_that_do_not_do(
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, str | None],
    name: str,
    value: str | None,
    level: str,
    fix: str | None,
) -> None:
    real = parts.version
    needs = ["torch>=2.11", "typer>=0.29", "transformers>=5.17", "pytest; extra == 'test'"]
    monkeypatch.setattr(machine.metadata, "requires", lambda _: needs)
    monkeypatch.setattr(parts, "version", lambda n: installed[n] if n in installed else real(n))
    told = [(f.name, f.value, f.level, f.fix) for f in machine.requirements()]
    assert told == ([(name, value, level, fix)] if value else [])


@pytest.mark.parametrize(
    ("name", "kind", "installed", "value", "fix"),
    [
        ("flash-attn", "cpu", None, "missing; needs a CUDA GPU", None),
        (
            "flash-attn",
            "cuda",
            None,
            "missing; would bring the newest kernels for --attention flash; without it, those in"
            " torch are used",
            "pip install 'ladecli[flash]'",
        ),
        ("flash-attn", "cuda", "2.8.3", "2.8.3", None),
        ("triton", "cuda", "3.7.0", "3.7.0", None),
        (
            "bitsandbytes",
            "cpu",
            None,
            "missing; would bring --quantize 4bit and 8bit",
            "pip install 'ladecli[quant]'",
        ),
        ("accelerate", "cuda", "1.15.0", "1.15.0", None),
    ],
)
def test_optional_parts(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    installed: str | None,
    value: str,
    fix: str | None,
) -> None:
    monkeypatch.setattr(parts, "version", lambda n: installed if n == name else None)
    told = next(f for f in machine.optional_parts(kind) if f.name == name)
    assert (told.value, told.fix, told.level) == (value, fix, OK if installed else NOTE)


def test_parts_are_not_imported() -> None:
    code = (
        "import sys; from ladecli.checks import parts; [p.version for p in parts.PARTS];"
        "sys.exit(any(m in sys.modules for m in ('torch', 'triton', 'bitsandbytes', 'accelerate')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_config_file() -> None:
    path = config_path()
    assert found("config file")[0].value == f"none at {path}"
    path.parent.mkdir(parents=True)
    path.write_text("temperature = 0.5\n")
    assert found("config file")[0].level == OK
    path.write_text("temprature = 0.5\n")
    broken = found("config file")[0]
    assert (broken.level, broken.fix) == (PROBLEM, f"correct {path}")
    assert "temprature" in broken.value
    assert run("never") == 1


def test_cuda_graphs() -> None:
    (off,) = found("CUDA graphs")
    assert off.level == NOTE
    assert off.value.startswith("off: they need a CUDA GPU, and the model runs on ")
    (wrong,) = found("CUDA graphs", cuda_graphs=True)
    assert (wrong.level, wrong.fix) == (PROBLEM, "leave --cuda-graphs out")
    (chosen,) = found("attention", model="demo")
    assert chosen.value.startswith("sdpa: ")
    assert found("attention", model="demo", attention="sdpa")[0].value == "sdpa: as asked for"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f.value for f in found("variables")] == ["none is set"]
    monkeypatch.setenv("LADE_SEED", "3")
    monkeypatch.setenv("LADE_TEMPRATURE", "0.5")
    given, stray = found("variables")
    assert given.value == "LADE_SEED=3"
    assert stray.level == WARNING
    assert "did you mean LADE_TEMPERATURE?" in stray.value


def test_a_broken_profile_of_the_users() -> None:
    user.folder().mkdir(parents=True)
    (user.folder() / "mine.toml").write_text("nonsense = 1\n")
    _, fault = found("your profiles")
    assert fault.level == WARNING
    assert "mine.toml" in fault.value


def test_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ladecli.library import hub as library

    assert found("hub")[0].fix == "unset it to download"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for answers, level in ((True, OK), (False, WARNING)):
        monkeypatch.setattr(library, "hub_answers", lambda answers=answers: answers)
        assert found("hub")[0].level == level
    assert found("token")[0].fix == "hf auth login"
    assert found("cache")[0].value.startswith(f"no models in {tmp_path / 'hub'}; ")
    add_model(tmp_path / "hub", "a/b", LLAMA_7B, {"model.safetensors": weights(("F16", (1000,)))})
    assert found("cache")[0].value.startswith("1 model, ")


def test_a_token_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_VerySecret")
    assert found("token")[0].value == "there is one"
    for json_wanted in (False, True):
        run("never", json=json_wanted)
        assert "hf_VerySecret" not in capsys.readouterr().out


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub.os, "access", lambda *_: False)
    finding = found("cache")[0]
    assert (finding.level, finding.fix) == (WARNING, "set HF_HOME to a folder of yours")
    assert finding.value == f"{tmp_path / 'hub'} cannot be written to, so nothing can be downloaded"


def test_a_model_that_works() -> None:
    model = {f.name: f for f in examined(model="demo")[-1].findings}
    assert model["family"].value == "llama, tested"
    assert model["weights"].value == "3.1M parameters, 12.6 MB as float32"
    assert model["memory"].value == "the model and its whole context fit"
    assert model["origin"].value.startswith("profile cpu, measured: ")


def test_options_have_their_say_about_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text('dtype = "bfloat16"\nprofile = "t4"\n', encoding="utf-8")
    monkeypatch.setenv("LADE_BUDGET", "24")
    given = ["--max-context", "300", "--sources", "context", "--offline", "--json"]
    assert entry(["doctor", "demo", *given]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    told = {check["name"]: check for check in checks}
    assert told["profile"]["value"] == "t4, by config file"
    assert told["weights"]["value"] == "3.1M parameters, 6.3 MB as bfloat16"
    assert told["settings"]["value"] == "steps of up to 24 tokens, drafts from context"
    assert told["settings"]["data"]["origins"]["budget"] == "LADE_BUDGET"
    assert told["origin"]["value"].startswith("profile t4, derived: from 320 GB/s ")
    assert told["origin"]["value"].endswith(
        "; budget from LADE_BUDGET; sources from flag --sources"
    )
    assert told["memory"]["value"] == "the model and 300 tokens of context fit"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    offline = found("hub", offline=True, origins={"offline": "flag --offline"})
    assert offline[0].value.startswith("offline, by flag --offline: ")


def test_the_device_that_was_asked_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = Device("cuda", "cuda:0", "NVIDIA H100 80GB HBM3", int(85e9))
    use(monkeypatch, h100, Device("cpu", "cpu", "Some Processor", int(32e9), 2))
    assert found("profile")[0].value == "h100: knows NVIDIA H100 80GB HBM3"
    assert found("profile", device="cpu")[0].value == "cpu: for processors"
    assert found("flash-attn", device="cpu")[0].value == "missing; needs a CUDA GPU"


def test_a_model_on_a_map_of_the_users_own_is_not_estimated() -> None:
    told = found("memory", model="demo", device_map='{"": "cpu"}')
    assert [(f.value, f.level) for f in told] == [
        ("placed by a map of your own, so it is not estimated", NOTE)
    ]


def test_a_model_that_transformers_spreads_is_estimated() -> None:
    told = found("memory", model="demo", device_map="auto")
    assert [(f.value, f.level) for f in told] == [("the model and its whole context fit", OK)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "there is no model folder ./no-model"),
        ({"model_type": "mamba"}, "models of the family 'mamba' are not supported"),
        (
            {**LLAMA_7B, "num_hidden_layers": 8, "hidden_size": 65536},
            " on Some Processor; take a smaller model, or free some memory",
        ),
        ({**SMALL, "model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_models_that_do_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: dict[str, Any] | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "version", lambda _: None)
    monkeypatch.setattr(models, "damage", lambda _: None)
    if config is not None:
        (tmp_path / "no-model").mkdir()
        (tmp_path / "no-model" / "config.json").write_text(json.dumps(config))
    section = examined(model="./no-model")[-1]
    problems = [f for f in section.findings if f.level == PROBLEM]
    assert len(problems) == 1
    assert message in problems[0].value
    assert run("never", json=True, model="./no-model") == 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda data: data[:-9], "model.safetensors is cut off; download"),
        ("model.safetensors", None, "the weights are missing"),
        ("tokenizer.json", None, " holds no tokenizer; copy tokenizer.json"),
        ("tokenizer.json", lambda data: data[:99], "tokenizer.json is damaged (Expecting"),
        ("tokenizer.json", lambda _: b"{}", "its tokenizer cannot be loaded: KeyError: 'added"),
        ("tokenizer_config.json", lambda _: b"\xff", "tokenizer_config.json is damaged ('utf-8'"),
    ],
)
def test_files_of_a_model_that_are_missing_or_damaged(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes] | None, message: str
) -> None:
    whole = Path(hub_names.resolve("demo"))
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert [f for f in examined(model=str(tmp_path))[-1].findings if f.level == PROBLEM] == []
    if change is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    (problem,) = examined(model=str(tmp_path))[-1].findings
    assert (problem.name, problem.level) == ("files", PROBLEM)
    assert message in problem.value


def test_of_a_model_on_the_hub_what_is_missing_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_model(tmp_path, "a/begun", {**SMALL, "model_type": "llama"}, {})
    (folder,) = tmp_path.glob("*/snapshots/*")
    monkeypatch.setattr(models, "folder_of", lambda *_: folder)
    asked = models.Plan("a/begun", LoadOptions(offline=True), *[None] * 6)
    assert models.damage(asked) is None
    (folder / "tokenizer.json").write_text("[" * 200_000)
    assert str(models.damage(asked)).startswith("tokenizer.json is damaged (")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\x09" + bytes(7) + b"{}")
    assert str(models.damage(asked)).startswith("model.safetensors is cut off")


def test_what_nobody_reads_is_no_damage(tmp_path: Path) -> None:
    for file in Path(hub_names.resolve("demo")).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text("{")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaModel"]}))
    assert [f for f in examined(model=str(tmp_path))[-1].findings if f.level == PROBLEM] == []


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the driver is on holiday\nand so on")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (device, "present"),
        (device, "detect"),
        (device, "details"),
        (device, "free_memory"),
        (device, "gpu_build"),
        (machine.platform, "python_version"),
        (machine.metadata, "requires"),
        (parts, "version"),
        (doctor, "config_path"),
        (doctor, "stray_variables"),
        (user, "read_all"),
        (huggingface_hub, "get_token"),
        (hub_cache, "entries"),
        (hub.shutil, "disk_usage"),
        (doctor.profiles, "select"),
    ],
)
def test_no_failing_probe_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Any, name: str
) -> None:
    monkeypatch.setattr(place, name, failing)
    assert run("never", model="demo") in (0, 1)
    out = capsys.readouterr().out
    assert "could not be looked at: RuntimeError: the driver is on holiday\n" in out
    for title in ("Machine", "Versions", "Optional parts", "Settings", "Hub", "Model"):
        assert f"{title}\n" in out


def test_a_torch_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without_torch(name: str, *rest: Any) -> Any:
        # Libraries have models of their own, and import them when they are first asked for.
        ours = bool(rest) and (rest[0] or {}).get("__package__") == "ladecli"
        if ours and (name == "session" or "session" in (rest[2] or ())):
            raise ImportError("libcudart.so.13: cannot open shared object file", name="torch")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    assert run("never", model="demo") == 1
    out = capsys.readouterr().out
    assert "cannot be imported: ImportError: libcudart.so.13: cannot open shared object" in out
    assert "→ pip install --force-reinstall torch\n" in out
    assert out.endswith("1 problem.\n")


def yielding() -> Iterator[Finding]:
    yield Finding("first", "is kept")
    raise ValueError("no more")


SECTIONS = [
    look("Machine", {"device": yielding}),
    Section(
        "Other",
        (
            Finding("a very long name of a thing", "value", NOTE, "do something about it"),
            Finding(
                "b", "words that are too many for one line of a screen\x1b[31m", PROBLEM, "fix"
            ),
        ),
    ),
]


@pytest.mark.parametrize("unicode", [True, False])
def test_the_report_of_a_narrow_terminal(unicode: bool) -> None:
    told = [line.plain for line in findings.lines(SECTIONS, 52, unicode)]
    expected = [
        "Machine",
        "  ✓ first   is kept",
        "  ! device  warning: could not be looked at:",
        "            ValueError: no more",
        "Other",
        "  · a very long name of…  value",
        "                          → do something about it",
        "  ✗ b                     problem: words that are",
        "                          too many for one line of a",
        "                          screen[31m",
        "                          → fix",
    ]
    if not unicode:
        for sign, plain in (("✓", "+"), ("·", "-"), ("✗", "x"), ("→", "->")):
            expected = [line.replace(sign, plain) for line in expected]
    assert told == expected
    assert max(len(line) for line in told) <= 52


def test_a_pipe_gets_whole_lines() -> None:
    told = [line.plain for line in findings.lines(SECTIONS, None)]
    assert "  ! device  warning: could not be looked at: ValueError: no more" in told


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((), "Nothing is wrong."),
        ((NOTE, OK), "Nothing is wrong."),
        ((WARNING,), "1 warning."),
        ((PROBLEM, WARNING, WARNING), "1 problem and 2 warnings."),
        ((PROBLEM, PROBLEM), "2 problems."),
    ],
)
def test_the_summary(levels: tuple[str, ...], words: str) -> None:
    section = Section("x", tuple(Finding("y", "z", level) for level in levels))
    assert findings.summary([section]).plain == words
