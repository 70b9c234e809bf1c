"""Fixtures of all tests: one thread, no GPU, no hub, no user settings."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# Triton reads this when it is imported (torch does that): kernels run on the CPU, except in
# tests/gpu, which runs alone.
os.environ["TRITON_INTERPRET"] = "0" if os.environ.get("LADE_TEST_GPU") == "1" else "1"

import hypothesis
import pytest
import torch

import ladecli
from ladecli.commands.cli import entry
from ladecli.decoder.backends import weights
from ladecli.decoder.backends.quiet import LOG
from ladecli.models.load import load
from ladecli.profiles import measured
from ladecli.session.conversation import from_json
from ladecli.session.session import Session
from tests.support.compiler import Compiler
from tests.support.hub import copied, plan
from tests.support.models import model_of
from tests.support.processes import Result
from tests.support.tokenizers import byte_level

torch.set_num_threads(1)
# On a busy machine an example may take any time.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
# A shell starts background programs with Ctrl-C ignored, but some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
WITH_GPU = os.environ["TRITON_INTERPRET"] == "0"
"""True if tests may use the GPU."""


@pytest.fixture(autouse=True, scope="session")
def _frozen_stays_frozen() -> Iterator[None]:
    """Keep objects frozen even if benchmarks unfreeze them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def _no_search_for_old_garbage(_frozen_stays_frozen: None) -> None:
    """Freeze all present objects before a module's tests, since they stay alive.

    Torch, transformers and the tests have so many objects that one scan for garbage takes most of a
    second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_gpu() -> Iterator[None]:
    """Hide the machine's GPUs from tests and from the programs that they start."""
    if WITH_GPU:
        yield
        return
    # Once for all tests, since module fixtures load models before any function fixture.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.backends.mps, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_measured() -> Iterator[None]:
    """Turn measurements off, since they vary, and with them the steps that tests count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "SHARE", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _away_from_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the user's settings from module fixtures, too; see `_isolated`."""
    with pytest.MonkeyPatch.context() as patch:
        _move(patch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's settings and cache from tests, and the hub."""
    _move(monkeypatch, tmp_path_factory.mktemp("home"))
    strays = [name for name in os.environ if name.startswith("LADE_")]
    # A test runner may set the size of its own screen; terminals of tests have their own.
    for name in (*strays, "NO_COLOR", "FORCE_COLOR", "HF_TOKEN", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Programs that tests start must not compete for the cores.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _move(patch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HOME"):
        patch.setenv(name, str(home))


@pytest.fixture(autouse=True)
def _warned_by_us() -> Iterator[None]:
    """A hidden warning fails the test if our own code causes it."""
    recorder = _WarningRecorder()
    LOG.addHandler(recorder)
    LOG.setLevel(logging.INFO)
    yield
    LOG.removeHandler(recorder)
    assert recorder.by_us == []


class _WarningRecorder(logging.Handler):
    """Records the warnings of libraries about our code."""

    def __init__(self) -> None:
        super().__init__()
        self.by_us: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if f"{Path(ladecli.__file__).parent}{os.sep}" in (message := record.getMessage()):
            self.by_us.append(message)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random Llama with a byte-level tokenizer, as a Hugging Face folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = byte_level()
    shape = model_of("llama").config.to_dict() | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape | {"eos_token_id": 0, "bos_token_id": None}))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def model_with(model_folder: str, tmp_path: Path) -> Callable[..., str]:
    """Return a function that copies that folder with some changes, and returns its name."""
    return partial(copied, model_folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def session(model_folder: str) -> Session:
    """Return a session with that model."""
    return Session(load(plan(model_folder)))


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn measurements on, as for users."""
    monkeypatch.setattr(measured, "SHARE", 0.1)


@pytest.fixture
def small_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use special forms for small matrices, too."""
    monkeypatch.setattr(weights, "SMALL", 1)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Replace torch's compiler, which takes most of a minute for the steps of transformers."""
    from ladecli.bench import stock

    made = Compiler()
    monkeypatch.setattr(torch, "compile", made)
    monkeypatch.setattr(stock, "compilations", lambda: made.count)
    yield made
    made.forget()


@pytest.fixture
def lade(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the program in this process; `typed` is its standard input."""

    def call(*arguments: str, typed: str | None = None) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            if typed is not None:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"))
            try:
                code = entry(list(arguments))
            except SystemExit as end:  # a signal's
                code = int(end.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def rows_file(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes rows of prompts to a file, and returns its path."""

    def write(*rows: object) -> str:
        path = tmp_path / "rows.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
        return str(path)

    return write


class TypedInput(io.StringIO):
    """The input of a user at a terminal without editing: lines, or functions to call, such as
    Ctrl-C."""

    def __init__(self, *lines: str | Callable[[], object]) -> None:
        super().__init__()
        self._lines = iter(lines)

    def isatty(self) -> bool:
        return True

    def readline(self, *_: Any) -> str:
        for line in self._lines:
            if isinstance(line, str):
                return f"{line}\n"
            line()
        return ""


class Talk(Result):
    """A chat that has ended; `file` has its conversation, if there was one."""

    def __init__(self, done: Result, file: Path | None) -> None:
        super().__init__(done.code, done.out, done.err)
        self.file = file
        text = '{"messages": []}' if file is None else file.read_text(encoding="utf-8")
        self.conversation = from_json(text).conversation
        self.said = [message.content for message in self.conversation.messages]
        self.notices = re.findall(r"^(?:> )*lade: (.*)", self.err, re.M)


@pytest.fixture
def talk(lade: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Talk]:
    """Return a function that runs `lade chat` with some input, options as one text, and a home."""

    def call(
        *typed: str | Callable[[], object],
        model: str = "demo",
        options: str = "-n 3",
        home: Path | None = None,
    ) -> Talk:
        home = home or tmp_path / f"home-{len([*tmp_path.glob('home-*')])}"
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "stdin", TypedInput(*typed))
        done = lade("chat", *filter(None, [model]), *options.split())
        return Talk(done, next(home.glob("lade/chats/*.json"), None))

    return call
