"""Prompts for a text that goes between two others, in the tokens that the model learned for it
(Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022)."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from .text import token_ids

FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
    tuple(f"<\uff5cfim\u2581{name}\uff5c>" for name in ("begin", "hole", "end")),  # DeepSeek
)
"""The tokens before the first text, before the last one, and before the middle."""
CODESTRAL = ("[SUFFIX]", "[PREFIX]")
"""Codestral's tokens: the last text comes first, and the middle goes on from the first one."""
ENDS = ("<|file_sep|>", "<file_sep>", "<|repo_name|>", "<|fim_pad|>", "\u2581<EOT>")
"""Other tokens that end a middle."""


def encode(tokenizer: Any, before: str, after: str) -> list[int]:
    """Return the ids of a prompt for the text between two others.

    Raises:
        UsageError: the tokenizer has no tokens for that.
    """
    known = tokenizer.get_vocab()
    texts = [token_ids(tokenizer, text, special=False) for text in (before, after)]
    start = token_ids(tokenizer, "")
    for form in FORMS:
        if known.keys() >= {*form}:
            first, second, third = (known[token] for token in form)
            return [*start, first, *texts[0], second, *texts[1], third]
    if known.keys() >= {*CODESTRAL}:
        first, second = (known[token] for token in CODESTRAL)
        return [*start, first, *texts[1], second, *texts[0]]
    names = ", ".join(form[0] for form in (*FORMS, CODESTRAL))
    raise UsageError(
        f"this model does not fill in the middle: its tokenizer has none of {names}; leave the"
        " suffix out"
    )


def stops(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts of the tokens that end a middle."""
    known = tokenizer.get_vocab()
    tokens = [token for form in (*FORMS, CODESTRAL, ENDS) for token in form if token in known]
    return tuple(token.lstrip("\u2581") for token in tokens)
