"""What libraries warn of is no fault of a model, and no door shows it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.load import load_decoder

from .decoding import ids_of, run, transformers_ids
from .families import new_model, prompt_for
from .hub_files import copied, stating

pytestmark = pytest.mark.slow

MODEL = """
import warnings
from transformers import LlamaForCausalLM
from transformers.utils import logging

class WarningForCausalLM(LlamaForCausalLM):
    calls = 0

    def forward(self, *args, **kwargs):
        WarningForCausalLM.calls += 1
        said = f"something is deprecated, said for the {self.calls}th time"
        warnings.warn(said, FutureWarning, stacklevel=2)
        warnings.warn(said, UserWarning, stacklevel=2)
        logging.get_logger("transformers.here").warning(said)
        return super().forward(*args, **kwargs)
"""
PYTHON = """
import sys, ladecli
model = ladecli.load(sys.argv[1], trust_remote_code=True)
print(model.generate("Hello", max_new_tokens=9))
"""
IN_TRANSFORMERS = """
import sys, torch, ladecli, transformers
transformers.utils.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.arange(40, 60)[None]
print(model.generate(ids, custom_generate=ladecli.lookahead, max_new_tokens=9, do_sample=False))
"""


@pytest.fixture(scope="module")
def warning_folder(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model whose forward warns, each time of something else."""
    own = {"AutoModelForCausalLM": "modeling_warns.WarningForCausalLM"}
    folder = tmp_path_factory.mktemp("models") / "warns"
    copied(model_folder, folder, stating("config.json", auto_map=own))
    (folder / "modeling_warns.py").write_text(MODEL)
    return folder


@pytest.mark.parametrize("family", ["llama", "olmo", "stablelm", "mamba"])
def test_a_model_that_warns_is_decoded_as_any_other(family: str) -> None:
    """By our own forward, transformers', a chain of drafts and one token at a time: here, where
    warnings are errors."""
    model, prompt = new_model(family), prompt_for(family)
    expected = transformers_ids(model, prompt, 20)
    silent = load_decoder(model, join=False).runner
    warned, forward = 0, model.forward

    @functools.wraps(forward)
    def warning(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        warned += 1
        warnings.warn(f"deprecated, {warned}", FutureWarning, stacklevel=1)
        return forward(*args, **kwargs)

    model.forward = warning
    decoder = load_decoder(model, join=False)
    assert warned
    assert type(decoder.runner.model) is type(silent.model)
    assert decoder.runner.notices == silent.notices
    assert ids_of(run(decoder, prompt))[:20] == expected


@pytest.mark.parametrize(
    "command",
    [
        [*("generate", "-p", "Hello", "-n", "9", "-q")],
        [*("generate", "-p", "Hello", "-n", "9", "-q", "--quantize", "8bit")],
        [*("chat", "--raw", "-n", "9", "-q")],
        [*("bench", "--limit", "1", "-n", "9", "-q", "--strategies", "autoregressive,hf")],
        [*("verify", "--limit", "1", "-n", "9", "-q")],
        [*("doctor",)],
    ],
    ids=" ".join,
)
def test_commands_show_no_warning(command: list[str], warning_folder: Path) -> None:
    name, *options = command
    trusted = [str(warning_folder), "--trust-remote-code"]
    done = program(["-m", "ladecli", name, *trusted, *options])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_python_shows_no_warning(warning_folder: Path) -> None:
    done = program(["-c", PYTHON, str(warning_folder)])
    assert (done.returncode, done.stderr) == (0, "")


def test_custom_generate_shows_no_warning(model_folder: str) -> None:
    done = program(["-c", IN_TRANSFORMERS, model_folder])
    assert (done.returncode, done.stderr) == (0, "")


def test_warnings_are_shown_for_those_who_look_for_faults(warning_folder: Path) -> None:
    command = ["generate", str(warning_folder), "--trust-remote-code", "-p", "Hello", "-n", "2"]
    done = program(["-m", "ladecli", *command, "--debug"])
    assert "something is deprecated, said for the 1th time" in done.stderr


def program(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python as a user does, whose filters are Python's own."""
    return subprocess.run(
        [sys.executable, *arguments],
        input="Hello\n",
        env={**os.environ, "LADE_PROFILE": "cpu"},
        capture_output=True,
        text=True,
    )
