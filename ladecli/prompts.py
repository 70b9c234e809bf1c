"""Prompts from the command line, files and pipes, checked before anything is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import UsageError


def gather(text: str | None, files: Sequence[str]) -> list[str]:
    """All prompts that were given, in order.

    Args:
        text: of the flag, if there was one.
        files: paths; "-" is standard input, a path that ends in .jsonl holds a prompt a line.

    Raises:
        UsageError: none was given, or one cannot be read; the message names it and the fix.
    """
    prompts = [] if text is None else [_checked(text, "--prompt")]
    for name in files:
        if name.endswith(".jsonl"):
            prompts += _rows(name, _decoded(_read(name), name))
        else:
            prompts.append(_checked(_one(_decoded(_read(name), name)), _spoken(name)))
    if not prompts and not files:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no prompt: give --prompt TEXT or --prompt-file FILE, or pipe one in")
        prompts.append(_checked(_one(_decoded(_read("-"), "-")), "the prompt on standard input"))
    return prompts


def _spoken(name: str) -> str:
    return "the prompt on standard input" if name == "-" else f"the prompt file {name}"


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the prompt file {name} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the prompt file {name} cannot be read: {reason}") from error


def _decoded(data: bytes, name: str) -> str:
    if b"\0" in data:
        raise UsageError(f"{_spoken(name)} is binary (a zero byte); give a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{_spoken(name)} is not UTF-8 (byte {error.start}); convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def _one(text: str) -> str:
    """A file as one prompt: its last line break ends the line, it is no part of the prompt."""
    return text.removesuffix("\n").removesuffix("\r")


def _checked(prompt: str, where: str) -> str:
    if not prompt.strip():
        raise UsageError(f"{where} is empty; give some text to continue")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{where} is not UTF-8; check the terminal's encoding") from None
    return prompt


def _rows(name: str, text: str) -> Iterator[str]:
    """The prompts of a JSONL file: rows with `prompt`, or with `turns`, of which the first."""
    found = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt = row["prompt"] if "prompt" in row else row["turns"][0]
        except json.JSONDecodeError as error:
            raise UsageError(f"{name}, line {number}: no JSON ({error.msg})") from None
        except (KeyError, IndexError, TypeError):
            raise UsageError(f"{name}, line {number}: needs 'prompt' or 'turns'") from None
        if not isinstance(prompt, str):
            raise UsageError(f"{name}, line {number}: the prompt must be a string")
        found = True
        yield _checked(prompt, f"{name}, line {number}: the prompt")
    if not found:
        raise UsageError(f"the prompt file {name} holds no prompts")
