"""What went wrong while loading a model, as one line that says what helps."""

from __future__ import annotations

import errno
from pathlib import Path

from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError

from .hub import suggest
from .json_files import damage


def explain(name: str, error: Exception, folder: Path | None, part: str) -> str:
    """One line for what went wrong, from the errors that led to it.

    Args:
        name: of the model.
        error: that a library raised.
        folder: of the model's files, as far as they are on this machine.
        part: of the model that was being loaded, "its tokenizer" for example; "" for all of it.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for kind, text in (
        (
            hub_errors.GatedRepoError,
            f"{name} is gated: accept its terms on its page, then log in with `hf auth login`",
        ),
        (
            hub_errors.RevisionNotFoundError,
            f"{name} has no such revision; check --revision",
        ),
        (
            hub_errors.RepositoryNotFoundError,
            f"there is no model {name} on the hub, or it is private: check the name, or log in"
            " with `hf auth login`",
        ),
        (
            hub_errors.HFValidationError,
            f"{name} is no name of a model; use OWNER/NAME or a folder",
        ),
        (
            hub_errors.EntryNotFoundError,
            f"{name} holds no model that transformers can load",
        ),
        (SafetensorError, f"{name}: the weights are damaged; download or copy them again"),
    ):
        if any(isinstance(e, kind) for e in chain) and not _offline(chain):
            return text + (suggest(name) if kind is hub_errors.RepositoryNotFoundError else "")
    if _offline(chain):
        return f"{name} is not on this machine, and the hub cannot be reached{suggest(name)}"
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return f"no space left on disk while downloading {name}; free some and run this again"
    # Libraries tell of a damaged file by whatever error it leads them to.
    if folder is not None and (damaged := damage(folder)) is not None:
        return f"{name}: {damaged}; download or copy it again"
    words = str(error).strip() or type(error).__name__
    if "backend tokenizer" in words:
        return f"{name} holds no tokenizer; copy tokenizer.json beside the weights"
    if "pip install tiktoken" in words:
        # What comes last is not what most such files need.
        needed = "pip install sentencepiece tiktoken reads what else is there"
        return f"{name} holds no tokenizer.json; copy it beside the weights, or {needed}"
    if "ignore_mismatched_sizes" in words:
        return f"{name}: the weights do not fit its config.json; copy both again"
    if "trust_remote_code" in words:
        return f"{name} needs code of its own; read it, then allow it with --trust-remote-code"
    subject = f"{name}: {part}" if part else name
    return f"{subject} cannot be loaded: {_reason(error)}"


def _reason(error: Exception) -> str:
    """What an error says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].endswith(":") and len(lines) > 1:
        return f"{lines[0]} {lines[1].strip()}"
    # A key alone, or that a list has no keys, says nothing without the kind of error.
    if isinstance(error, LookupError | TypeError | AttributeError) or not lines[0]:
        return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return lines[0]


def _offline(chain: list[BaseException]) -> bool:
    """Whether the hub could not be asked, rather than said no."""
    kinds = (hub_errors.OfflineModeIsEnabled, hub_errors.LocalEntryNotFoundError, ConnectionError)
    return any(isinstance(e, kinds) for e in chain)
