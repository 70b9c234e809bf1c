"""`lade doctor` names every fault with its fix, and no fault ends the report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ladecli.models import device, hub
from ladecli.models.device import Device
from ladecli.options.declare import config_path
from tests.support.hub import CPU, use_cache, use_devices
from tests.support.profiles import put

pytestmark = pytest.mark.slow

H100 = Device("cuda", "cuda:0", "NVIDIA H100 80GB HBM3", int(85e9))


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plain machine: a processor, 16 GB of memory, an empty cache, no token, no hub, no tools."""
    use_devices(monkeypatch, CPU)
    use_cache(monkeypatch, tmp_path / "hub")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def checked(lade: Any) -> Callable[..., dict[str, list[dict[str, Any]]]]:
    """Return the findings of `lade doctor --json ...` by name."""

    def call(*arguments: str) -> dict[str, list[dict[str, Any]]]:
        done = lade("doctor", "--json", *arguments)
        report = done.json(done.code)
        assert (report.keys(), report["schema"]) == ({"schema", "lade", "ok", "checks"}, 2)
        assert report["checks"][0].keys() == {"section", "name", "value", "level", "fix"}
        levels = [check["level"] for check in report["checks"]]
        assert done.err == ""
        assert done.code == int("problem" in levels) == int(not report["ok"])
        by_name: dict[str, list[dict[str, Any]]] = {}
        for check in report["checks"]:
            by_name.setdefault(check["name"], []).append(check)
        return by_name

    return call


def problems(report: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [check for checks in report.values() for check in checks if check["level"] == "problem"]


def test_the_report_ends_with_a_summary(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = lade("doctor", "demo")
    assert (done.code, done.err) == (0, "")
    *lines, last = done.out.splitlines()
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles == ["Machine", "Versions", "Optional parts", "Settings", "Hub", "Model"]
    assert last == "Nothing is wrong."
    assert "\x1b" not in done.out
    use_devices(monkeypatch, CPU, free=1e6)
    monkeypatch.setenv("LADE_TEMPRATURE", "0.5")
    done = lade("doctor", "--cuda-graphs")
    assert "LADE_TEMPERATURE" in done.err
    assert (done.code, done.out.splitlines()[-1]) == (1, "1 problem and 1 warning.")
    assert "leave --cuda-graphs out" in done.out


def test_gpus(monkeypatch: pytest.MonkeyPatch, checked: Any) -> None:
    l4 = Device("cuda", "cuda:1", "NVIDIA L4", int(24e9))
    use_devices(monkeypatch, H100, l4, CPU, free=2e9, capability="9.0")
    report = checked()
    value = "NVIDIA H100 80GB HBM3 (cuda:0), compute capability 9.0"
    assert report["device"][0]["value"] == value
    assert report["driver"][0]["value"] == "550.54.15"
    assert report["memory cuda:0"][0]["level"] == "warning"
    assert report["memory cuda:1"][0]["level"] == report["main memory"][0]["level"] == "ok"
    assert report["profile"][0]["value"].startswith("h100, ")
    assert report["CUDA graphs"][0]["value"].startswith("on, ")
    assert checked("--device", "cpu")["profile"][0]["value"].startswith("cpu, ")
    unknown = Device("cuda", "cuda:0", "Some Accelerator 9000", int(24e9))
    use_devices(monkeypatch, unknown, CPU, capability="7.5")
    assert "Some Accelerator 9000" in checked()["profile"][0]["value"]


def test_settings_that_a_command_refuses_are_reported(checked: Any, monkeypatch: Any) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text("top-p = 7", encoding="utf-8")
    (report,) = problems(checked())
    assert report["value"].startswith("top-p must be in (0, 1], not 7.0 (top-p in the config file")
    config_path().unlink()
    monkeypatch.setenv("LADE_TEMPERATURE", "hot")
    (report,) = problems(checked())
    assert report["value"] == "LADE_TEMPERATURE must be a number, not 'hot'"


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_a_gpu_that_torch_does_not_use(monkeypatch: Any, tmp_path: Path, checked: Any) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho GPU 0: NVIDIA H100\n")
    tool.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (unused,) = checked()["GPU"]
    assert (unused["level"], "torch (for CPUs) cannot" in unused["value"]) == ("warning", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (hidden,) = checked()["GPU"]
    assert (hidden["level"], "CUDA_VISIBLE_DEVICES hides" in hidden["value"]) == ("note", True)
    assert all([unused["fix"], hidden["fix"]])
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert "GPU" not in checked()


def test_packages(monkeypatch: pytest.MonkeyPatch, checked: Any) -> None:
    installed = {"torch": "2.4.0", "transformers": "5.30.0.dev0", "numpy": "2.4.6"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    needs = ["torch<2.16,>=2.11", "typer>=0.29", "transformers<5.30,>=5.17", "numpy>=1.26"]
    monkeypatch.setattr(metadata, "requires", lambda _: [*needs, "pytest; extra == 'test'"])
    monkeypatch.setattr(metadata, "version", version)
    use_devices(monkeypatch, H100, CPU)
    report = checked()
    fixes = {problem["name"]: problem["fix"] for problem in problems(report)}
    assert fixes == {name: f"pip install '{needs[n]}'" for n, name in enumerate(("torch", "typer"))}
    newer = report["transformers"][-1]
    assert (newer["level"], newer["fix"]) == ("warning", "pip install 'transformers<5.30,>=5.17'")
    assert "5.30.0.dev0 is newer than the tested version" in newer["value"]
    assert "numpy" not in report
    assert "fused kernels" in report["triton"][0]["value"]
    assert "pip install" in report["flash-attn"][0]["fix"]
    use_devices(monkeypatch, CPU)
    assert "CUDA GPU" in checked()["flash-attn"][0]["value"]


@pytest.mark.parametrize(
    ("arguments", "name", "level", "words"),
    [
        ("", "config file", "note", "none at "),
        ("", "hub", "note", "offline, by HF_HUB_OFFLINE"),
        ("", "token", "note", "none; "),
        ("demo", "family", "ok", "llama, tested"),
        ("demo", "weights", "ok", "3.15M parameters, 12.6 MB as float32"),
        ("demo", "exactness", "ok", "token for token"),
        ("demo --dtype bfloat16", "exactness", "ok", "except at near-ties"),
        ("demo --batch-invariant", "exactness", "ok", "bit for bit"),
        ("demo --device-map auto --batch-invariant", "exactness", "ok", "token for token"),
        ("demo --device-map auto --batch-invariant", "notice", "note", "does nothing here"),
        ("demo", "attention", "ok", "sdpa: "),
        ("demo", "settings", "ok", "of the profile cpu"),
        ("demo", "memory", "ok", "tokens of context fit"),
        ("demo --device-map auto", "memory", "ok", "tokens of context fit"),
        ("--cuda-graphs", "CUDA graphs", "problem", "they need a CUDA GPU"),
    ],
)
def test_findings(arguments: str, name: str, level: str, words: str, checked: Any) -> None:
    report = checked(*arguments.split())
    assert (report[name][0]["level"], words in report[name][0]["value"]) == (level, True)
    assert {problem["name"] for problem in problems(report)} == (
        {name} if level == "problem" else set()
    )


def test_a_broken_profile_of_the_users(checked: Any) -> None:
    put("mine", "nonsense = 1\n")
    (fault,) = checked()["your profiles"]
    assert (fault["level"], "mine.toml" in fault["value"]) == ("warning", True)


def test_the_hub(monkeypatch: pytest.MonkeyPatch, checked: Any, tmp_path: Path) -> None:
    use_cache(monkeypatch, tmp_path / "hub", offline=False)
    assert "flag --offline" in checked("--offline")["hub"][0]["value"]
    for answers, level in ((True, "ok"), (False, "warning")):
        monkeypatch.setattr(hub, "hub_answers", lambda answers=answers: answers)
        assert checked()["hub"][0]["level"] == level
    monkeypatch.setenv("HF_TOKEN", "hf_VerySecret")
    assert checked()["token"][0]["value"] == "there is one"


def test_options_apply_to_a_model(monkeypatch: pytest.MonkeyPatch, checked: Any) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_text('dtype = "bfloat16"\nprofile = "t4"\n', encoding="utf-8")
    monkeypatch.setenv("LADE_BUDGET", "24")
    report = checked("demo", "--max-context", "300", "--sources", "context")
    assert report["config file"][0]["value"] == str(config_path())
    assert report["profile"][0]["value"] == "t4, by config file"
    assert report["weights"][0]["value"] == "3.15M parameters, 6.3 MB as bfloat16"
    value = "lookahead, budget 24, context, of the profile t4"
    assert report["settings"][0]["value"] == value
    assert "300 tokens of context fit" in report["memory"][0]["value"]


def test_a_template_that_fails_on_a_plain_message(checked: Any, tmp_path: Path) -> None:
    broken = tmp_path / "template"
    broken.write_text("{{ raise_exception('no ' + messages[0].content) }}")
    (check,) = checked("demo", "--chat-template", str(broken))["chat template"]
    assert (check["level"], "refuses this: no hi" in check["value"]) == ("warning", True)


def test_a_check_that_fails_does_not_end_the_report(monkeypatch: Any, lade: Any) -> None:
    error = RuntimeError("the driver is on holiday\nand so on")
    monkeypatch.setattr(device, "present", Mock(side_effect=error))
    done = lade("doctor", "demo")
    assert done.code == 0
    assert "could not be checked: RuntimeError: the driver is on holiday\n" in done.out
    for title in ("Machine", "Versions", "Settings", "Hub", "Model"):
        assert f"{title}\n" in done.out


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    broken = 'raise ImportError("libcudart.so.13: cannot open shared object file", name="torch")'
    (tmp_path / "torch.py").write_text(broken)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "ladecli", "doctor", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "")
    assert "cannot be imported: ImportError: libcudart.so.13: cannot open shared" in done.stdout
    assert "-> pip install --force-reinstall torch\n" in done.stdout
    assert "could not be checked" not in done.stdout
    assert done.stdout.endswith("\n1 problem.\n")
