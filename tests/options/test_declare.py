"""The whole interface as a table: commands, their options and keys of JSON, which have fixed names.

Other tests check their effects; this one checks that none is missing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

Lade = Any

DECODING = "strategy profile window ngram guesses budget sources"
SAMPLING = "temperature top-k top-p min-p repetition-penalty seed"
LENGTH = "max-new-tokens stop ignore-eos max-context"
MODEL = (
    "dtype device quantize adapter attention cuda-graphs no-cuda-graphs batch-invariant"
    " no-kernels device-map revision offline trust-remote-code"
)
PROMPT = "system raw chat-template template-arg"
SHARED = f"{DECODING} {SAMPLING} {LENGTH} {MODEL} {PROMPT} color quiet help"
MEMORY = "memory no-memory"
RANKS, FILES = "parallel parallel-mode", "trace stats no-stats draft-text"

OPTIONS = {
    "chat": f"{SHARED} {RANKS} {FILES} {MEMORY} markdown no-markdown token-colors no-token-colors"
    " editing-mode continue reasoning no-reasoning",
    "generate": f"{SHARED} {RANKS} {FILES} prompt prompt-file suffix-file json reasoning",
    "serve": f"{SHARED} {RANKS} {MEMORY} draft-text host port name keep-memory api-key cors queue",
    "replay": "step color",
    "bench": f"{SHARED.removeprefix('strategy ')} {RANKS} prompts strategies repeat limit sweep"
    " json report",
    "verify": f"{SHARED} prompts limit json",
    "tune": "seconds dry-run json dtype device quantize",
    "profiles": "json",
    "models": "json",
    "doctor": "json",
    "config init": "force",
    "config": "color",
}
LETTERS = {
    "generate": "-p -f -t -W -N -G -n -s -q -h",
    "chat": "-t -W -N -G -n -s -q -h",
    "bench": "-t -W -N -G -n -q -h",
}
SLASH = (
    "system regenerate undo edit paste draft reset save load set show stats compare help"
    " exit model copy"
)
GENERATE = {
    "": "id model text reasoning token_ids finish_reason usage decode sampling seconds"
    " tokens_per_second speedup speedup_from seed",
    "usage": "prompt_tokens completion_tokens",
    "decode": "strategy window ngram guesses budget sources profile attention cuda_graphs"
    " ranks parallel_mode steps tokens_per_step step_width accepted",
    "sampling": "temperature top_k top_p min_p repetition_penalty",
    "seconds": "load prefill decode",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_there(lade: Lade, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = lade(*command.split(), "--help")
    assert done.code == 0
    shown = {*re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", done.out)}
    names = {f"--{name}" for name in OPTIONS[command].split()}
    assert names | {*LETTERS.get(command, "").split()} <= shown


def test_every_command_is_there(lade: Lade) -> None:
    out = lade("--help").out
    assert {command.split()[0] for command in OPTIONS} <= {*re.findall(r"\w+", out)}
    assert re.fullmatch(r"lade \d+\.\d+\S*\n", lade("--version").out)


def test_every_slash_command_is_there(lade: Lade) -> None:
    done = lade("chat", typed="/help\n")
    assert done.code == 0
    assert {f"/{name}" for name in SLASH.split()} <= {*re.findall(r"/\w+", done.out + done.err)}


def test_generate_prints_every_key(lade: Lade) -> None:
    answer = lade("generate", "-p", "def ", "-n", "8", "--json").json()
    assert answer["id"] == "1"
    for part, keys in GENERATE.items():
        assert {*keys.split()} <= (answer[part] if part else answer).keys()
