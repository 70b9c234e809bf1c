"""The Hugging Face hub and its cache: cached models, downloads, and messages for errors.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    hf_hub_download,
    model_info,
    scan_cache_dir,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import disable_progress_bars

from ..errors import LoadError
from ..files import expanded
from .model_files import ADAPTER, version

_OFFLINE = "{name} is not on this machine, and {why}{near}"
_PROMPT = "; a prompt stands behind it in lade chat, behind --prompt in lade generate"
"""A hint for a model name with blanks, which is probably a prompt."""
_BY_TYPE: dict[type[BaseException], str] = {
    hub_errors.OfflineModeIsEnabled: _OFFLINE,
    hub_errors.LocalEntryNotFoundError: _OFFLINE,
    ConnectionError: _OFFLINE,
    hub_errors.GatedRepoError: "{name} is gated: accept its terms on its page, then log in with"
    " `hf auth login`",
    hub_errors.RevisionNotFoundError: "{name} has no such revision; check --revision",
    hub_errors.RepositoryNotFoundError: "there is no model {name} on the hub, or it is private:"
    " check the name, or log in with `hf auth login`{near}",
    hub_errors.HFValidationError: "{name} is not a model name; use OWNER/NAME, such as"
    " Qwen/Qwen2.5-1.5B-Instruct, or a folder{prompt}",
    hub_errors.EntryNotFoundError: "{name} holds no model that transformers can load; if it has"
    " GGUF files, name one with --gguf-file",
}
"""Messages for errors of libraries; the first matching one is used."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the Hugging Face cache."""

    name: str  # OWNER/NAME, or NAME alone
    folder: Path | None  # the snapshot that would be loaded; None without a complete file
    bytes: int  # on disk, of all revisions


def snapshot_of(source: str, revision: str | None) -> Path | None:
    """Return the snapshot of a model in the cache; None if there is none."""
    with contextlib.suppress(OSError, ValueError, hub_errors.HFValidationError):
        return Path(snapshot_download(source, revision=revision, local_files_only=True))
    return None


def check_name(name: str, source: str, revision: str | None, offline: bool, online: bool) -> None:
    """Raise a LoadError if a model is neither on this machine nor on the hub.

    `offline` is the option; `online` is True if the hub can be reached.
    """
    try:
        if online:
            model_info(source, revision=revision, timeout=10)
        else:
            hf_hub_download(source, "config.json", revision=revision, local_files_only=True)
    except Exception as error:
        if isinstance(error, tuple(_BY_TYPE)):  # loading reports all others
            raise LoadError(explain(name, error, offline=offline)) from error


def adapter_folder(source: str, revision: str | None, online: Callable[[], bool]) -> Path | None:
    """Return the folder with all files of an adapter on the hub; None if the name is a model's, or
    if nothing is on this machine and the hub cannot be reached."""
    # Loading a model of this name reports errors.
    with contextlib.suppress(Exception):
        path = try_to_load_from_cache(source, ADAPTER, revision=revision)
        if path is None:
            if try_to_load_from_cache(source, "config.json", revision=revision) or not online():
                return None
            path = hf_hub_download(source, ADAPTER, revision=revision)
        if isinstance(path, str):
            disable_progress_bars()  # they would overwrite the spinner
            patterns = ["adapter_*", "*token*", "*.jinja", "vocab.*", "merges.txt"]
            options = {"revision": revision, "local_files_only": not online()}
            return snapshot(source, options, patterns)
    return None


def fetch(source: str, file: str, options: Mapping[str, Any], *, required: bool = True) -> Any:
    """Return the path of a model's file, downloading it if necessary; None if it does not exist and
    is not `required`.

    Of the `options` for transformers' calls, `revision` and `local_files_only` are used.
    """
    from transformers.utils import cached_file

    return cached_file(
        source,
        file,
        _raise_exceptions_for_missing_entries=required,
        revision=options["revision"],
        local_files_only=options["local_files_only"],
    )


def snapshot(source: str, options: Mapping[str, Any], patterns: list[str]) -> Path:
    """Return the folder of a model, downloading the files of some patterns if necessary."""
    if Path(source).is_dir():
        return Path(source)
    return Path(
        snapshot_download(
            source,
            allow_patterns=patterns,
            revision=options["revision"],
            local_files_only=options["local_files_only"],
        )
    )


def is_online(offline: bool) -> bool:
    """Return True if files can be fetched from the hub; `offline` is the option."""
    return not (offline or constants.HF_HUB_OFFLINE) and hub_answers()


def not_fetched(offline: bool) -> str:
    """Return the reason why nothing is fetched from the hub; `offline` is the option."""
    if offline or constants.HF_HUB_OFFLINE:
        return f"{'--offline' if offline else 'HF_HUB_OFFLINE'} forbids downloading it"
    return "the hub cannot be reached"


def hub_answers() -> bool:
    """Return True if the Hugging Face hub can be reached.

    Its own client retries for half a minute.  With this check, a cached model starts at once
    without a network, and a missing one fails at once.
    """
    if urllib.request.getproxies():
        return True  # only the proxy can tell
    endpoint = urllib.parse.urlsplit(constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=5).close()
    except OSError:
        return False
    return True


def cached_models() -> list[CachedModel]:
    """Return the models in the Hugging Face cache by name, with interrupted downloads."""
    cache = Path(constants.HF_HUB_CACHE)
    try:
        folders = [path for path in cache.glob("models--*") if path.is_dir()]
        repos = {repo.repo_path.name: repo.revisions for repo in scan_cache_dir(cache).repos}
    except (OSError, ValueError, hub_errors.CacheNotFound):
        return []
    models = []
    for folder in folders:
        # The scan leaves out repositories that are incomplete or damaged.
        revisions = [revision for revision in repos.get(folder.name, ()) if revision.files]
        best = max(revisions, key=lambda r: ("main" in r.refs, r.last_modified), default=None)
        name = folder.name.removeprefix("models--").replace("--", "/")
        path = best.snapshot_path if best else None
        models.append(CachedModel(name, path, size_on_disk(folder)))
    return sorted(models, key=lambda model: model.name.lower())


def size_on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def explain(
    name: str,
    error: BaseException,
    part: str = "",
    *,
    gguf: str | None = None,
    folder: Path | None = None,
    offline: bool = False,
) -> str:
    """Return one line for an error that a library raised while a model was loaded.

    Args:
        name: of the model.
        error: of the library.
        part: the part that was loaded, such as "its tokenizer"; "" for the whole model.
        gguf: the name of the GGUF file, if the model is one.
        folder: of its files, if that is on this machine.
        offline: the option.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for kind, line in _BY_TYPE.items():
        if any(isinstance(cause, kind) for cause in chain):
            near = suggest(name) if "{near}" in line else ""
            prompt = _PROMPT if " " in name else ""
            return line.format(name=name, near=near, why=not_fetched(offline), prompt=prompt)
    if any(isinstance(cause, OSError) and cause.errno == errno.ENOSPC for cause in chain):
        return f"no space left on disk while downloading {name}; free some and run this again"
    if gguf is not None:
        return f"{name}: transformers cannot read this GGUF file ({first_line(error)})"
    if "tokenizer" in part and folder is not None and not (folder / "tokenizer.json").is_file():
        return no_tokenizer(name)
    return f"{name}{': ' if part else ''}{part} cannot be loaded: {first_line(error)}"


def no_tokenizer(name: str) -> str:
    """Return a message for a model without a readable tokenizer."""
    packages = ("sentencepiece", "protobuf", "tiktoken")
    absent = [package for package in packages if version(package) is None]
    more = f", or pip install {' '.join(absent)}" if absent else ""
    return (
        f"{name} holds no tokenizer that can be read here; copy tokenizer.json beside the"
        f" weights{more}"
    )


def suggest(name: str) -> str:
    """Return the end of an error line: models on this machine with a similar name."""
    names = ["demo", *(model.name for model in cached_models() if model.folder)]
    with contextlib.suppress(OSError):
        siblings = expanded(name).parent.iterdir()
        names += [str(path) for path in siblings if (path / "config.json").is_file()]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    listed = ", ".join(near or sorted(names)[:3])
    return f"; {'did you mean' if near else 'models on this machine'}: {listed}"


def first_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].endswith(":") and len(lines) > 1:
        return f"{lines[0]} {lines[1].strip()}"
    # A message such as "'added_tokens'" is useless without the type of the error.
    if isinstance(error, LookupError | TypeError | AttributeError) or not lines[0]:
        return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return lines[0]
