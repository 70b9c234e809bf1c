"""Token ids of texts and of fill-in-the-middle prompts, and the text of a single token."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..errors import UsageError, one_line

_UNSEEN = [*range(33), *range(127, 161), 173]
_LETTERS = [chr(256 + _UNSEEN.index(n) if n in _UNSEEN else n) for n in range(256)]
"""The character by which byte-level tokenizers write each byte; invisible ones have substitutes
(Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)."""
FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
    tuple(f"<\uff5cfim\u2581{name}\uff5c>" for name in ("begin", "hole", "end")),  # DeepSeek
)
"""For each kind of model, the tokens before the prefix, before the suffix and before the middle."""
CODESTRAL = ("[SUFFIX]", "[PREFIX]")
"""Codestral's tokens, before the suffix and before the prefix, which the middle continues."""
ENDS = ("<|file_sep|>", "<file_sep>", "<|repo_name|>", "<|fim_pad|>", "\u2581<EOT>")
"""Other tokens that end the middle."""


def speller(tokenizer: Any) -> Callable[[int], str]:
    """Return a function from a token id to its text, including a space at its start.

    Some tokenizers drop the space at the start of a text, so a token is decoded twice in a row, and
    the second copy is returned.
    """

    def spell(token: int) -> str:
        once: str = tokenizer.decode([token], skip_special_tokens=False)
        twice: str = tokenizer.decode([token, token], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    return spell


def bytes_of(tokenizer: Any, token: int) -> bytes | None:
    """Return the bytes that a token adds to a text, perhaps a part of a character; None if its name
    does not contain them."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = b"" if decoder is None else bytes(decoder.__getstate__())
    if b"ByteFallback" in state:
        match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", name)
        return bytes.fromhex(match[1]) if match else None
    if b"ByteLevel" in state and {*name} <= {*_LETTERS}:
        return bytes(map(_LETTERS.index, name))
    return None


def token_ids(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    """Return the ids of a text; with `special`, also the special tokens that the tokenizer adds.

    Raises:
        UsageError: the tokenizer is damaged, or cannot encode this text.
    """
    # Without a warning about long texts: the context length is checked elsewhere.
    call = partial(tokenizer, text, add_special_tokens=special, verbose=False)
    ids: list[int] = []
    errors: list[BaseException] = []

    def encode() -> None:
        try:
            ids.extend(map(int, call()["input_ids"]))
        except BaseException as error:  # a panic in Rust is not an Exception
            errors.append(error)

    if threading.current_thread() is threading.main_thread():
        with _without_rust_messages():
            # In a thread, since Ctrl-C cannot interrupt a call into the library tokenizers.
            thread = threading.Thread(target=encode, daemon=True)
            thread.start()
            thread.join()
    else:
        encode()
    if errors:
        reason = one_line(str(errors[0]) or type(errors[0]).__name__)
        raise UsageError(f"the model's tokenizer cannot encode this text ({reason})") from errors[0]
    return ids


@contextlib.contextmanager
def _without_rust_messages() -> Iterator[None]:
    """Keep Rust's message about a panic off stderr, since the error repeats it."""
    try:
        stderr = os.dup(2)
    except OSError:  # stderr is closed
        yield
        return
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def shortened(tokenizer: Any, text: str, most: int) -> str:
    """Return the text if it has at most 2 * `most` tokens, else a beginning of it that has more.

    Encoding four megabytes takes many seconds, only to find that they do not fit.
    """
    size = 16 * most
    while size < len(text):
        if len(token_ids(tokenizer, text[:size], special=False)) > 2 * most:
            return text[:size]
        size *= 4
    return text


def fill_in(tokenizer: Any, before: str, after: str) -> list[int]:
    """Return the ids of a prompt for the text between two others, with the special tokens that
    the model learned for it (Bavarian et al., "Efficient Training of Language Models to Fill in the
    Middle", 2022).

    Raises:
        UsageError: the tokenizer has no such tokens.
    """
    vocabulary = tokenizer.get_vocab()
    texts = [token_ids(tokenizer, text, special=False) for text in (before, after)]
    start = token_ids(tokenizer, "")
    for form in FORMS:
        if vocabulary.keys() >= {*form}:
            first, second, third = (vocabulary[token] for token in form)
            return [*start, first, *texts[0], second, *texts[1], third]
    if vocabulary.keys() >= {*CODESTRAL}:
        first, second = (vocabulary[token] for token in CODESTRAL)
        return [*start, first, *texts[1], second, *texts[0]]
    names = ", ".join(form[0] for form in (*FORMS, CODESTRAL))
    raise UsageError(
        f"this model does not fill in the middle: its tokenizer has none of {names}; leave the"
        " suffix out"
    )


def fill_in_stops(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts of the tokens that end the middle."""
    vocabulary = tokenizer.get_vocab()
    tokens = [token for form in (*FORMS, CODESTRAL, ENDS) for token in form if token in vocabulary]
    return tuple(token.lstrip("\u2581") for token in tokens)
