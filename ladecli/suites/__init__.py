"""Prompts that come with this program: chat, code, maths, summary, translation, retrieval."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

BUILTIN = "builtin"


def rows(name: str = BUILTIN) -> list[dict[str, Any]]:
    """The rows of a suite: `id`, `category`, and `prompt` or `turns`."""
    text = resources.files(__name__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
