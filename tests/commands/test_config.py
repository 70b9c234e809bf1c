"""The config file and the LADE_* variables: every setting arrives, every mistake is one line."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.commands.cli import entry
from ladecli.commands.config import lasting, read, template
from ladecli.options.declare import Options, config_path

OTHER: dict[str, Any] = {
    **{"model": "some/model", "system": "Be brief.", "raw": True, "chat_template": "rag"},
    **{"template_arg": ["enable_thinking=false"], "reasoning_effort": "low"},
    **{"max_new_tokens": 7, "stop": ["a b", "\n"], "ignore_eos": True, "max_context": 99},
    **{"strategy": "jacobi", "profile": "cpu", "window": 4, "ngram": 3, "guesses": 2},
    **{"budget": 50, "sources": "context", "memory": False, "temperature": 0.5},
    **{"top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5, "seed": 3},
    **{"dtype": "float16", "device": "cuda:1", "quantize": "4bit", "attention": "sdpa"},
    **{"device_map": "auto", "revision": "main", "gguf_file": "a.gguf", "offline": True},
    **{"trust_remote_code": True, "parallel": 2, "parallel_mode": "tensor", "cuda_graphs": False},
    **{"kernels": False, "batch_invariant": True, "reasoning": False, "markdown": False},
    **{"token_colors": False, "editing_mode": "vi", "color": "never"},
    **{"stats": False, "json": True, "quiet": True, "seconds": 5.0},
    **{"host": "::1", "port": 80, "api_key": "a", "cors": ["http://a"], "queue": 3},
    **{"client_timeout": 5.0, "keep_memory": "1GiB"},
}
"""A legal value that is not the default, for every setting."""


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the request of a command line, without loading a model."""
    requests: list[Any] = []
    for name in ("chat", "commands.generate", "commands.doctor", "commands.tune", "serve.command"):
        module = SimpleNamespace(run=lambda request, *_: requests.append(request) or 0)
        monkeypatch.setitem(sys.modules, f"ladecli.{name}", module)

    def call(*arguments: str) -> Any:
        assert entry(list(arguments)) == 0
        return requests.pop()

    return call


@pytest.fixture
def refused(lade: Any) -> Any:
    """Return the error line of a command line."""
    return lambda *arguments: lade(*arguments).refused()


def write(text: str) -> Path:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_bytes(text.encode("utf-8", "surrogateescape"))
    return config_path()


def toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else re.sub("'", '"', repr(value))


@pytest.mark.parametrize("command", ["generate", "chat", "tune", "serve", "doctor"])
def test_every_setting_arrives(command: str, requested: Any, monkeypatch: Any) -> None:
    assert OTHER.keys() == lasting().keys()
    options = [option for option, commands in lasting().values() if command in commands]
    values = {option.key: OTHER[option.key] for option in options}
    request = requested(command)
    for key, value in values.items():
        replace(request, **{key: value}).check()
    monkeypatch.setattr(Options, "check", lambda _: None)  # some options exclude each other
    write("".join(f"{option.name} = {toml(values[option.key])}\n" for option in options))
    request = requested(command)
    assert {key: getattr(request, key) for key in values} == values
    assert request.origins == dict.fromkeys(values, "config file")
    write("".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
    assert requested(command) == request
    write("".join(f"{o.name} = {toml(values[o.key])}\n" for o in options if o.kind is list))
    for option in options:
        if option.variable is not None:
            monkeypatch.setenv(option.variable, str(values[option.key]))
    from_variables = requested(command)
    assert from_variables.origins == {o.key: o.variable or "config file" for o in options}
    assert replace(from_variables, origins={}) == replace(request, origins={})


def test_precedence_of_settings(requested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("window = 2\nngram = 3\nseed = 4\nquiet = false\n")
    monkeypatch.setenv("LADE_SEED", "7")
    chat = requested("chat", "-W", "8", "--no-markdown", "some/model")
    assert (chat.window, chat.ngram, chat.seed) == (8, 3, 7)
    assert chat.origins == {
        **{"model": "argument", "window": "flag --window", "ngram": "config file"},
        **{"seed": "LADE_SEED", "markdown": "flag --no-markdown"},
        "quiet": "config file",  # it says what the default says, but it says it
    }
    generate = requested("generate", "--raw", "--seed", "9")
    assert (generate.window, generate.ngram, generate.seed) == (2, 3, 9)
    assert generate.origins["raw"] == "flag --raw"


def test_empty_values_and_files_of_editors(requested: Any, monkeypatch: Any) -> None:
    write('\ufeffstop = "END"\ntemperature = 1\nmodel = ""\nwindow = ""\ntemplate_arg = []\n')
    monkeypatch.setenv("LADE_SEED", "")
    request = requested("chat")
    assert (request.stop, request.temperature) == (["END"], 1.0)
    assert request.origins.keys() == {"stop", "temperature"}, "empty is as if it were not there"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature = 'hot'", ": temperature must be a number, not 'hot'"),
        ("stats = 3", ": stats must be true or false, not 3"),
        ("window = 1.5", ": window must be a whole number, not 1.5"),
        ("[model]\nname = 'x'", ": model must be a text, not {'name': 'x'}"),
        ("stop = ['a', 3]", ": stop must be a list of texts, not ['a', 3]"),
        ("windw = 2", " has an unknown key 'windw'; did you mean window?"),
        ("Max_New_Token = 2", " has an unknown key 'Max_New_Token'; did you mean max-new-tokens?"),
        ("repeat = 1", " has an unknown key 'repeat'; "),
        ("zzzzzz = 1", " has an unknown key 'zzzzzz'; known are "),
        ("seed = ", " is not valid TOML: "),
        ("model = 'caf\udce9'", " is not valid TOML: it is not UTF-8 text; "),
        (None, " cannot be read: Is a directory\n"),
    ],
)
def test_mistakes_in_the_file(text: str | None, message: str, refused: Any) -> None:
    path = config_path()
    path.mkdir(parents=True) if text is None else write(text)
    assert refused("generate").startswith(f"the config file {path}{message}")


def test_variables_without_effect_are_named(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hints = {"SOURCE": "did you mean LADE_SOURCES?", "ZZZZ": "it sets no option"}
    for name in hints:
        monkeypatch.setenv(f"LADE_{name}", "x")
    notices = lade("profiles").err
    for name, hint in hints.items():
        assert f"lade: LADE_{name} is set and does nothing: {hint}\n" in notices


def test_wrong_variables(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LADE_DEVICE", "tpu")
    monkeypatch.setenv("LADE_SEED", "3")
    assert refused("chat").startswith(
        "unknown device 'tpu'; use auto, cpu, cuda, cuda:N or mps (LADE_DEVICE)"
    )
    monkeypatch.setenv("LADE_TEMPERATURE", "hot")
    assert refused("chat").startswith("LADE_TEMPERATURE must be a number, not 'hot'")


def test_wrong_values_of_the_file_and_of_flags(refused: Any, monkeypatch: Any) -> None:
    path = write("budget = 3\nwindow = 9\nngram = 9\n")
    message = refused("chat")
    assert message.startswith("budget 3 is smaller than")
    assert f"(window in the config file {path}, ngram in the config file {path}, " in message
    monkeypatch.setenv("LADE_WINDOW", "9")
    assert "(LADE_WINDOW, ngram in the config file" in refused("chat")
    # The user has just typed the flag, so it is not named.
    assert refused("generate", "-p", "a", "-W", "0") == "window must be at least 1, not 0\n"


def test_init_writes_every_setting(lade: Any) -> None:
    assert lade("config", "init").out == f"{config_path()}\n"
    text = config_path().read_text(encoding="utf-8")
    assert all(len(line) <= 100 for line in text.splitlines())
    for setting, _ in lasting().values():
        assert f"\n#{setting.name} = " in text
        assert setting.variable is None or setting.variable in text
        assert setting.help.split()[0] in text
    for panel in ("Model", "Decoding", "Sampling", "Length", "Output"):
        assert text.count(f"# --- {panel} ---") == 1
    assert read() == {}


@pytest.mark.parametrize("command", ["chat", "generate", "tune"])
def test_a_file_with_all_lines_uncommented_changes_nothing(command: str, requested: Any) -> None:
    before = requested(command)
    write(re.sub(r"^#(?! )", "", template(), flags=re.M))
    assert replace(requested(command), origins={}) == before


def test_a_folder_whose_name_is_too_long_has_no_config_file(lade: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", f"/{'x' * 4000}")
    assert lade("config").code == 0
    assert "there is no trace nowhere" in lade("replay", "nowhere").refused()


def test_init_keeps_an_existing_file(lade: Any) -> None:
    path = write("windw = 1\n")
    assert "has an unknown key 'windw'" in lade("config").refused()
    assert f"there is a config file {path}; --force" in lade("config", "init").refused()
    for name, old in (("config.toml.bak", "windw = 1\n"), ("config.toml.bak1", template())):
        assert f"the old one is {name} now" in lade("config", "init", "--force").err
        assert path.with_name(name).read_text(encoding="utf-8") == old
    assert path.read_text(encoding="utf-8") == template()


def test_init_in_a_folder_that_cannot_be_written(lade: Any) -> None:
    config_path().parent.parent.mkdir(exist_ok=True)
    config_path().parent.write_text("a file")
    assert "config.toml cannot be written" in lade("config", "init").refused(1)


def test_show_prints_values_and_origins(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write('seed = 3\nstop = "a b"\n')
    monkeypatch.setenv("LADE_QUIET", "1")
    shown = lade("config")
    assert (shown.code, shown.out.splitlines()[0]) == (0, str(config_path()))
    rows = {name: " ".join(rest) for name, *rest in map(str.split, shown.out.splitlines()[4:])}
    names = {option.name for option, _ in lasting().values()}
    assert {row for row in rows if "." not in row} == names
    expected = {"seed": "3 config file", "stop": "'a b' config file", "temperature": "- default"}
    expected |= {"quiet": "true LADE_QUIET", "strategy": "lookahead default"}
    assert rows | expected == rows
    assert "\x1b" not in shown.out
    monkeypatch.setenv("LADE_SEED", "x")
    assert lade("config").refused() == "LADE_SEED must be a whole number, not 'x'\n"
