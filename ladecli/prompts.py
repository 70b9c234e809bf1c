"""Prompts from the command line, files and pipes, checked before anything is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from .errors import UsageError
from .suites import STDIN, name_of, read_rows, read_text, spoken


class Prompt(NamedTuple):
    """A prompt, and what its answer is called in JSON."""

    id: str
    text: str


def gather(texts: Sequence[str], files: Sequence[str]) -> list[Prompt]:
    """All prompts that were given, in order; those of a .jsonl have the ids of their rows, others
    their number.

    Args:
        texts: of the flag.
        files: paths; "-" is standard input, a path that ends in .jsonl holds a row a line, of
            which the first turn counts.

    Raises:
        UsageError: none was given, or one cannot be read; the message names it and the fix.
    """
    prompts = [Prompt("1", _checked(text, "--prompt")) for text in texts]
    for name in files:
        if name.endswith(".jsonl"):
            for line, row in read_rows(name).items():
                unnamed = row.id == name_of(line)
                number = str(len(prompts) + 1)
                prompts.append(Prompt(number if unnamed else row.id, row.turns[0]))
        else:
            prompts.append(Prompt(str(len(prompts) + 1), _whole_file(name)))
    if not prompts and not files:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no prompt: give --prompt TEXT or --prompt-file FILE, or pipe one in")
        prompts.append(Prompt("1", _whole_file(STDIN)))
    return prompts


def _whole_file(name: str) -> str:
    """A file as one prompt: its last line break ends the line, it is no part of the prompt."""
    return _checked(read_text(name).removesuffix("\n").removesuffix("\r"), spoken(name))


def _checked(prompt: str, where: str) -> str:
    if not prompt.strip():
        raise UsageError(f"{where} is empty; give some text to continue")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{where} is not UTF-8; check the terminal's encoding") from None
    return prompt
