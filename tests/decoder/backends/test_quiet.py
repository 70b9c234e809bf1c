"""Warnings of libraries: they are not a model's fault, and no entry point shows them."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.backends.load import load_decoder
from tests.support import processes
from tests.support.decoding import ids_of, run, transformers_ids
from tests.support.hub import copied, stating
from tests.support.models import new_model, prompt_for

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
import sys, torch, transformers, ladecli
_, warning, plain = sys.argv
model = ladecli.load(warning, trust_remote_code=True)
print(model.generate("Hello", max_new_tokens=9))
transformers.utils.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(plain)
ids = torch.arange(40, 60)[None]
print(model.generate(ids, custom_generate=ladecli.lookahead, max_new_tokens=9, do_sample=False))
"""


@pytest.fixture(scope="module")
def warning_folder(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model whose forward warns of something new each time."""
    own = {"AutoModelForCausalLM": "modeling_warns.WarningForCausalLM"}
    folder = tmp_path_factory.mktemp("models") / "warns"
    copied(model_folder, folder, stating("config.json", auto_map=own))
    (folder / "modeling_warns.py").write_text(MODEL)
    return folder


@pytest.mark.parametrize("family", ["llama", "olmo", "stablelm", "mamba"])
def test_a_model_that_warns_is_decoded_like_any_other(family: str) -> None:
    """Four backends (our own forward, transformers', chains of drafts, one token at a time), with
    warnings as errors."""
    model, prompt = new_model(family), prompt_for(family)
    expected = transformers_ids(model, prompt, 20)
    silent, forward, calls = load_decoder(model, join=False).executor, model.forward, count()

    @functools.wraps(forward)
    def warning(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"deprecated, {next(calls)}", FutureWarning, stacklevel=1)
        return forward(*args, **kwargs)

    model.forward = warning
    decoder = load_decoder(model, join=False)
    assert next(calls)
    assert type(decoder.executor.model) is type(silent.model)
    assert decoder.executor.notices == silent.notices
    assert ids_of(run(decoder, prompt))[:20] == expected


@pytest.mark.parametrize(
    "command",
    [
        "generate -p Hello -n 9 -q --quantize 8bit",
        "chat --raw -n 9 -q",
        "bench --limit 1 -n 9 -q --strategies autoregressive,hf",
        "verify --limit 1 -n 9 -q",
        "doctor",
        "generate -p Hello -n 2 --debug",
    ],
)
def test_commands_show_no_warning(command: str, warning_folder: Path) -> None:
    """Run separate processes, with Python's filters and not those of the tests; `--debug` shows
    warnings."""
    name, *options = command.split()
    arguments = (name, str(warning_folder), "--trust-remote-code", *options)
    done = processes.lade(*arguments, text="Hello\n", LADE_PROFILE="cpu")
    debugs = "--debug" in options
    assert (done.returncode, bool(done.stderr)) == (0, debugs), done.stderr
    assert ("something is deprecated, said for the 1th time" in done.stderr) == debugs
    assert done.stdout


def test_nothing_warns_while_it_is_imported(
    warning_folder: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Import `ladecli.load` and `custom_generate` in a new Python; for the program see
    `test_architecture`."""
    monkeypatch.setenv("LADE_PROFILE", "cpu")
    arguments = ["-c", PYTHON, str(warning_folder), model_folder]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
