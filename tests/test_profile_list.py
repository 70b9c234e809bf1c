"""`lade profiles` and `lade profiles show`: tables that fit, and objects for programs."""

from __future__ import annotations

import json
import sys

import pytest
from rich.text import Text

from ladecli import device as devices
from ladecli import profiles, rates
from ladecli.device import Device
from ladecli.places import config_path
from ladecli.profiles import Rates, user
from ladecli.profiles.schema import VALUES
from ladecli.program import entry

from .profiles.makers import tuned

EPYC = Device("cpu", "cpu", "AMD EPYC", 8 << 30, 1)
A100 = Device("cuda", "cuda:0", "NVIDIA A100-SXM4-80GB", int(85e9))
ACME = Device("cuda", "cuda:0", "ACME Accelerator 9000", int(16e9))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This machine has what a test says, an EPYC to begin with."""
    monkeypatch.setattr(devices, "detect", lambda wanted="auto": EPYC)
    monkeypatch.setattr(rates, "measure_rates", lambda device, dtype: Rates(5e11, 5e13, "here"))
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


Capture = pytest.CaptureFixture[str]


def put(name: str, text: str) -> None:
    user.path_of(name).parent.mkdir(parents=True, exist_ok=True)
    user.path_of(name).write_text(text, encoding="utf-8")


def run_list(color: str, *, json: bool = False) -> int:
    return entry(["profiles", "--color", color, *(["--json"] if json else [])])


def run_show(name: str | None, model: str | None, color: str, *, json: bool = False) -> int:
    given = ["profiles", "show", "--color", color, *([name] if name else [])]
    return entry([*given, *(["--model", model] if model else []), *(["--json"] if json else [])])


OWN = 'description = "mine"\n[[setting]]\nwindow=3\nngram=3\nguesses=3\norigin="measured: x"\n'


@pytest.mark.usefixtures("here")
def test_the_list_marks_this_machine(capsys: Capture) -> None:
    assert run_list("auto") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert "\x1b" not in out
    assert lines[0].split() == ["profile", "for", "GB/s", "TFLOP/s", "from"]
    assert [line.split()[0] for line in lines if line.startswith("   ")][1:4] == [
        *("a100", "a100-80gb", "a10g")
    ]
    assert [line for line in lines if line.startswith("*")] == [
        next(line for line in lines if " cpu " in line),
        "* cpu is for this machine: AMD EPYC, 1 thread",
    ]
    assert not [line for line in lines if line != line.rstrip()]
    assert max(map(len, lines)) <= 80


def test_a_gpu_is_marked_by_its_name_and_memory(here: pytest.MonkeyPatch, capsys: Capture) -> None:
    here.setattr(devices, "detect", lambda wanted="auto": A100)
    run_list("auto")
    marked = [line for line in capsys.readouterr().out.splitlines() if line.startswith("*")]
    assert [line.split()[1] for line in marked] == ["a100-80gb", "a100-80gb"]


def test_an_unknown_gpu_is_told(here: pytest.MonkeyPatch, capsys: Capture) -> None:
    here.setattr(devices, "detect", lambda wanted="auto": ACME)
    run_list("auto")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "* no profile knows ACME Accelerator 9000: settings come from a quick measurement;"
        " lade tune finds better ones"
    )


@pytest.mark.usefixtures("here")
def test_the_users_profiles_are_listed(capsys: Capture) -> None:
    user.write(tuned(versions=user.versions_here()))
    put("a100", OWN)
    put("broken", "[")
    put("esc", OWN.replace("mine", "\\u001b[31mred"))
    run_list("auto")
    out, err = capsys.readouterr()
    row = {line.removeprefix("*").split()[0]: line for line in out.splitlines() if line.strip()}
    assert row["a100"].endswith("yours, before the shipped one")
    assert row[tuned().name].startswith("*")
    assert row[tuned().name].endswith("tuned")
    assert "\x1b" not in out
    assert err.startswith("lade: profile broken is no valid TOML")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_a_stale_profile_is_not_marked(capsys: Capture) -> None:
    user.write(tuned(versions={"torch": "1.0"}))
    run_list("auto")
    out = capsys.readouterr().out
    assert next(line for line in out.splitlines() if tuned().name in line).startswith(" ")


@pytest.mark.usefixtures("here")
def test_the_list_for_programs(capsys: Capture) -> None:
    put("a100", OWN)
    put("broken", "[")
    run_list("never", json=True)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["schema"], found["profile"]) == (1, "cpu")
    assert found["device"] == {"kind": "cpu", "label": "AMD EPYC", "memory_bytes": 8 << 30}
    rows = {row["name"]: row for row in found["profiles"]}
    assert list(rows) == sorted(rows)
    assert rows["a100"]["shadows_shipped"]
    assert rows["a100"]["path"] == str(user.path_of("a100"))
    assert rows["h100"]["hardware"]["bandwidth"] == 3350e9
    assert [name for name, row in rows.items() if row["this_machine"]] == ["cpu"]
    assert len(found["notices"]) == 1


@pytest.mark.parametrize("name", profiles.shipped_names())
@pytest.mark.usefixtures("here")
def test_every_profile_can_be_shown(name: str, capsys: Capture) -> None:
    assert run_show(name, None, "always") == 0
    coloured = capsys.readouterr().out
    assert "\x1b[1m" in coloured
    assert run_show(name, None, "auto") == 0
    out, err = capsys.readouterr()
    profile = profiles.read(name)
    assert err == ""
    assert out.startswith(f"{name}: {profile.description}\n")
    if profile.hardware:
        assert profile.hardware.source in out
        assert out.count("bfloat16  ") + out.count("float16  ") >= 7
        assert "\na  derived: from " in out
    for setting in profile.settings:
        assert setting.origin in out
    for paper in profile.papers:
        assert paper.source in out


def test_a_coloured_page_fits_80_columns(here: pytest.MonkeyPatch, capsys: Capture) -> None:
    here.setattr(sys.stdout, "isatty", lambda: True)
    run_show("a100-80gb", None, "always")
    lines = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
    assert max(map(len, lines)) <= 80
    sizes = [line.split()[:2] for line in lines if line.startswith("7B ")]
    assert sizes == [["7B", "bfloat16"], ["7B", "int8"], ["7B", "nf4"]]


@pytest.mark.usefixtures("here")
def test_without_a_name_it_is_this_machines(capsys: Capture) -> None:
    run_show(None, None, "auto")
    assert capsys.readouterr().out.startswith("cpu: ")


def test_an_unknown_gpu_is_measured(here: pytest.MonkeyPatch, capsys: Capture) -> None:
    here.setattr(devices, "detect", lambda wanted="auto": ACME)
    run_show(None, None, "auto")
    out, err = capsys.readouterr()
    assert out.startswith("measured here: ")
    assert "derived: from 500 GB/s and 50 TFLOP/s (here)" in out
    assert err == f"lade: {err_line(ACME)}\n"


@pytest.mark.usefixtures("here")
def test_it_is_told_when_the_figures_for_any_gpu_hold(capsys: Capture) -> None:
    run_show("gpu", None, "auto")
    told = "recognised  any other GPU, if it cannot be measured; or --profile gpu\n"
    assert told in capsys.readouterr().out


def err_line(device: Device) -> str:
    return (
        f"no profile knows {device.label}: settings come from a quick measurement;"
        " lade tune finds better ones"
    )


def test_what_is_chosen_for_a_model(capsys: Capture) -> None:
    assert run_show("t4", "demo", "auto") == 0
    out = capsys.readouterr().out
    assert "\nfor demo\n" in out
    for name in VALUES:
        assert f"\n{name} " in out
    assert "a  derived: from 320 GB/s and 8.1 TFLOP/s (NVIDIA T4 datasheet, 2019)" in out
    assert "b  published: arXiv 2402.02057, RTX 3090, 7B" in out


@pytest.mark.usefixtures("here")
def test_a_profile_for_programs(capsys: Capture) -> None:
    run_show("a100", None, "auto", json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["name"], found["from"]) == (1, "a100", "shipped")
    assert found["devices"] == ["A100"]
    assert [paper["window"] for paper in found["paper"]] == [15, 10, 7]
    assert found["paper"][2]["up_to_parameters"] is None
    assert len(found["settings"]) == 7 * 3
    for row in found["settings"]:
        assert list(row["origins"]) == list(VALUES)
        assert {*VALUES, "model", "weights", "parameters", "paper"} <= row.keys()


@pytest.mark.usefixtures("here")
def test_a_tuned_profile_for_programs(capsys: Capture) -> None:
    user.write(tuned())
    run_show(tuned().name, "demo", "auto", json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["from"] == "tuned"
    assert found["tuned"]["versions"]["lade"] == "0.1.0"
    assert [row["model"] for row in found["settings"]] == ["demo"]
    assert found["settings"][0]["budget"] == 16
    assert found["explicit"][0]["origins"]["budget"] == "measured: AMD EPYC, 2026-11-21"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show moon", "unknown profile 'moon'; known profiles: a100, "),
        ("show moon --model no/such/model", "unknown profile 'moon'"),
        ("show --quantize 3bit", "unknown quantize '3bit'; use one of none, 4bit, 8bit\n"),
        ("show --device cuda", "no CUDA device: "),
        ("--device mps", "no Apple GPU (mps) here; use --device cpu\n"),
        ("show --model no/such/model/anywhere", "there is no model folder no/such/model/anywhere"),
        ("--json show", "--json stands before show, and belongs behind it\n"),
    ],
)
def test_slips_are_one_line(arguments: str, message: str, capsys: Capture) -> None:
    assert entry(["profiles", *arguments.split()]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"lade: {message}")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_variables_and_the_config_file_have_their_say(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("LADE_PROFILE", "t4")
    assert entry(["profiles", "show"]) == 0
    assert capsys.readouterr().out.startswith("t4: ")
    assert entry(["profiles", "show", "l4"]) == 0
    assert capsys.readouterr().out.startswith("l4: ")
    config_path().parent.mkdir(parents=True, exist_ok=True)
    text = '[profiles]\ndtype = "float16"\nprofile = "t4"\n'
    config_path().write_text(text, encoding="utf-8")
    monkeypatch.delenv("LADE_PROFILE")
    assert entry(["profiles", "show", "--model", "demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "t4"
    derived = found["settings"][0]["origins"]["step_cost"]
    assert entry(["profiles", "show", "--model", "demo", "--json", "--dtype", "float32"]) == 0
    plain = json.loads(capsys.readouterr().out)["settings"][0]["origins"]["step_cost"]
    assert derived != plain, "the weights have another type, and so other settings"


@pytest.mark.usefixtures("here")
def test_an_attention_backend_has_its_own_tuned_profile(capsys: Capture) -> None:
    entry(["profiles", "show", "--model", "demo", "--json"])
    before = json.loads(capsys.readouterr().out)["settings"][0]
    for attention in ("sdpa", "reference"):
        user.write(tuned(attention=attention, versions=user.versions_here()))
    assert before["budget"] != 16
    for attention in ("sdpa", "reference"):
        entry(["profiles", "show", "--model", "demo", "--attention", attention, "--json"])
        assert json.loads(capsys.readouterr().out)["name"].endswith(f"-{attention}")


@pytest.mark.parametrize("color", ["auto", "always"])
@pytest.mark.usefixtures("here")
def test_rows_on_a_pipe_are_whole(color: str, capsys: Capture) -> None:
    put("long", OWN.replace("mine", "words " * 99 + "end"))
    for show in (run_list, lambda color: run_show("long", None, color)):
        show(color)
        plain = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
        assert len([line for line in plain if "words words" in line and "words end" in line]) == 1
        assert [line for line in plain if line != line.rstrip()] == []
