"""What to type in place of a command or an option that lade has not: one line of help each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ..options import COMMANDS, request_of
from ..options.declare import options_of

_COMMANDS = {
    "run": "lade chat MODEL is a conversation, lade generate MODEL one answer",
    "prompt": "lade generate --prompt TEXT answers one",
    "complete": "lade generate completes a prompt",
    **dict.fromkeys(("list", "ls"), "lade models lists those on this machine"),
    **dict.fromkeys(("show", "info"), "lade doctor MODEL says how a model would be decoded"),
    **dict.fromkeys(("pull", "download"), "a model is downloaded where it is first used"),
    "version": "lade --version shows it",
}
"""Commands of ollama, llm and others, and what is like them here."""
_OPTIONS = {
    **dict.fromkeys(("-m", "--model"), "the model has no flag: lade {command} MODEL"),
    **dict.fromkeys(
        ("-p", "--prompt"), "lade generate has it; in lade chat the first message follows MODEL"
    ),
    **dict.fromkeys(("--num-ctx", "--max-kv-size"), "--max-context limits the context"),
    "-c": "--max-context limits the context, and lade chat --continue goes on with the last chat",
    **dict.fromkeys(
        ("-ngl", "--n-gpu-layers", "--gpu-layers"), "--device says where the model is, all of it"
    ),
    "--threads": "the variable OMP_NUM_THREADS sets the number of threads",
    "--format": "--json prints one JSON object per answer",
    "--verbose": "statistics are on by default, and --debug shows tracebacks",
    "--no-stream": "into a file or a pipe, an answer has no codes of a terminal in it",
}
"""Options of ollama, llm, mlx_lm and llama-cli that are none here, and what does the same;
{command} is the one that was called, or chat."""


def command(word: str) -> str:
    """The message about a command that there is not."""
    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.7)
    hint = "lade --help lists all"
    if word in _COMMANDS:
        hint = _COMMANDS[word]
    elif near:
        hint = f"did you mean lade {near[0]}?"
    elif "/" in word or " " in word:  # a model or a prompt
        hint = "a command stands first, as in lade chat MODEL or lade generate --prompt TEXT"
    return f"there is no command {word!r}; {hint}"


def option(flag: str, name: str, arguments: Sequence[str]) -> str:
    """How to do without an option that a command has not; `name` is the command's, or "lade"."""
    if flag in _OPTIONS and any(each.partition("=")[0] == flag for each in arguments):
        return _OPTIONS[flag].format(command=name if name in COMMANDS else "chat")
    known = _flags("generate" if name not in COMMANDS else name)
    if name in COMMANDS:
        hint = f"lade {name} --help lists all"
    elif flag in known:
        return f"options follow a command, as in lade generate {flag}"
    else:
        known, hint = ["--version", "--debug", "--help"], "lade --help lists all"
    near = difflib.get_close_matches(flag.replace("_", "-"), known, n=1, cutoff=0.8)
    return f"did you mean {near[0]}?" if near else hint


def _flags(name: str) -> list[str]:
    """The flags of a command."""
    options = [each for each in options_of(request_of(name)).values() if not each.argument]
    return [flag for each in options for joined in each.flags for flag in joined.split("/")]
