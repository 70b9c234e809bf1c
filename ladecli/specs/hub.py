"""Find a model: the bundled one, a folder, or one in the Hugging Face cache or on the hub.

Nothing here imports torch, so that a wrong name is refused at once.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Mapping
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

from ..errors import LoadError
from ..files import expanded
from .gguf_header import first_part
from .model_files import (
    GGUF,
    check_config,
    check_gguf,
    missing,
    missing_packages,
    naming,
    stored_tensors,
    version,
)

DEMO = "demo"
"""Name of the bundled model; a folder of that name is ./demo."""
ADAPTER = "adapter_config.json"
"""The configuration of an adapter, which stands in place of config.json."""
_PAGE = re.compile(
    r"(?:https://)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#:]+)(?:/tree/main/?|[?#:].*)?"
)
"""The address of a model on the hub, or what Ollama calls it: with a tag after a colon."""
_OFFLINE = "{name} is not on this machine, and {why}{near}"
_PROMPT = "; a prompt stands behind it in lade chat, behind --prompt in lade generate"
"""For a name with blanks in it."""
_BY_TYPE: dict[type[BaseException], str] = {
    hub_errors.OfflineModeIsEnabled: _OFFLINE,
    hub_errors.LocalEntryNotFoundError: _OFFLINE,
    ConnectionError: _OFFLINE,
    hub_errors.GatedRepoError: "{name} is gated: accept its terms on its page, then log in with"
    " `hf auth login`",
    hub_errors.RevisionNotFoundError: "{name} has no such revision; check --revision",
    hub_errors.RepositoryNotFoundError: "there is no model {name} on the hub, or it is private:"
    " check the name, or log in with `hf auth login`{near}",
    hub_errors.HFValidationError: "{name} is no name of a model; use OWNER/NAME, such as"
    " Qwen/Qwen2.5-1.5B-Instruct, or a folder{prompt}",
    hub_errors.EntryNotFoundError: "{name} holds no model that transformers can load; if it has"
    " GGUF files, name one with --gguf-file",
}
"""What the errors of libraries mean; the first that applies counts."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the Hugging Face cache."""

    name: str  # OWNER/NAME, or NAME alone
    folder: Path | None  # the snapshot that loading takes; None without a complete file
    bytes: int  # on disk, over all revisions


def resolve(name: str) -> str:
    """The folder, the GGUF file, or the name on the hub, that a MODEL argument stands for.

    Raises:
        LoadError: the path does not exist, or is no model.
    """
    if name == DEMO:
        return str(Path(__file__).parents[1] / "demo")
    path = _snapshot_within(expanded(name))
    if not path.exists():
        if found := _PAGE.fullmatch(name):
            return found[1]
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise LoadError(f"there is no model folder {name}{_suggest(name)}")
        return name
    if path.is_file() and path.suffix != GGUF:
        raise LoadError(f"{name} is a file; give the folder that holds config.json, or a GGUF file")
    if path.is_dir() and not _holds_model(path):
        raise LoadError(f"{name} {missing(path)}")
    return str(path)


def _holds_model(path: Path) -> bool:
    return any(any(path.glob(pattern)) for pattern in ("config.json", ADAPTER, f"*{GGUF}"))


def _snapshot_within(path: Path) -> Path:
    """Return the snapshot that a model's folder in the Hugging Face cache stands for: the one that
    main names, or the newest; any other path as it is."""
    root = path.parent if path.name == "snapshots" else path
    snapshots = [each for each in (root / "snapshots").glob("*") if _holds_model(each)]
    if not snapshots or _holds_model(path):
        return path
    with contextlib.suppress(OSError, ValueError):
        main = root / "snapshots" / (root / "refs" / "main").read_text().strip()
        if main in snapshots:
            return main
    return max(snapshots, key=lambda each: each.stat().st_mtime)


def absolute(name: str) -> str:
    """A MODEL argument as it is understood from any folder."""
    path = expanded(name)
    return str(path.absolute()) if name != DEMO and path.exists() else name


def locate(name: str, gguf: str | None, revision: str | None) -> tuple[str, str | None]:
    """Where a model is, a folder or a name on the hub, and the GGUF file in it that holds it.

    Args:
        name: the MODEL argument.
        gguf: the name of the file, where the user gave one.
        revision: of a model on the hub.

    Raises:
        LoadError: as `resolve`, and where it is not clear which file is meant.
    """
    source = resolve(name)
    path = Path(source)
    if path.is_file():
        return str(path.parent), path.name
    if not path.is_dir():
        if gguf is not None or (cached := _snapshot(source, revision)) is None:
            return source, gguf
        path = cached
    if gguf is None and (path / "config.json").is_file():
        return source, None
    known = sorted(each.name for each in path.glob(f"*{GGUF}"))
    models = first_part(known)
    if gguf is None and len(models) > 1:
        raise LoadError(
            f"{name} holds {len(models)} GGUF files: name one with --gguf-file, of"
            f" {', '.join(models)}"
        )
    if gguf is not None and gguf not in known:
        raise LoadError(f"{name} holds no {gguf}; it has {', '.join(known) or 'no GGUF files'}")
    return source, gguf or next(iter(models), None)


def _snapshot(source: str, revision: str | None) -> Path | None:
    """The folder in the cache of a model on the hub; None where it has none."""
    with contextlib.suppress(OSError, ValueError, hub_errors.HFValidationError):
        return Path(snapshot_download(source, revision=revision, local_files_only=True))
    return None


def check(name: str, gguf: str | None, revision: str | None, *, offline: bool) -> Path | None:
    """Refuse with a LoadError what cannot be loaded, as far as that shows before torch is there.

    Returns the folder of the model's configuration, or its GGUF file, if that is on this machine.
    """
    source, gguf = locate(name, gguf, revision)
    if gguf is not None:
        path = Path(source) / gguf
        if not Path(source).is_dir():
            path = Path(try_to_load_from_cache(source, gguf, revision=revision) or path)
        if path.exists() or missing_packages("gguf"):
            check_gguf(name, path)
        return path if path.exists() else None
    folder = folder_of(source, revision)
    if folder is None:
        if _snapshot(source, revision) is None:
            _check_name(name, source, revision, offline)
        return None
    check_config(name, folder)
    absent = missing(folder)
    if absent and Path(source).is_dir():  # what lacks in the cache is downloaded
        raise LoadError(f"{name} {absent}")
    if not absent:
        with naming(name):
            stored_tensors(folder)
    return folder


def _check_name(name: str, source: str, revision: str | None, offline: bool) -> None:
    """Refuse a model that is not on this machine, unless the hub has it."""
    try:
        if offline or constants.HF_HUB_OFFLINE or not hub_answers():
            hf_hub_download(source, "config.json", revision=revision, local_files_only=True)
        else:
            model_info(source, revision=revision, timeout=10)
    except Exception as error:
        if isinstance(error, tuple(_BY_TYPE)):  # of all others, loading finds out
            raise LoadError(explain(name, error, offline=offline)) from error


def not_fetched(offline: bool) -> str:
    """Why nothing comes from the hub that is not on this machine; `offline` is the option."""
    if offline or constants.HF_HUB_OFFLINE:
        return f"{'--offline' if offline else 'HF_HUB_OFFLINE'} forbids to fetch it"
    return "the hub cannot be reached"


def folder_of(source: str, revision: str | None = None) -> Path | None:
    """The folder of what `resolve` returned, where at least its config.json is on this machine."""
    if Path(source).is_dir():
        return Path(source)
    with contextlib.suppress(hub_errors.HFValidationError):  # loading reports it
        found = try_to_load_from_cache(source, "config.json", revision=revision)
        return Path(found).parent if isinstance(found, str) else None
    return None


def adapter_folder(source: str, revision: str | None, ask: bool) -> Path | None:
    """The folder with all files of an adapter on the hub; None where that has a model, or where
    nothing is on this machine and the hub is not to be asked, or does not answer."""
    # Errors are reported by loading a model of this name.
    with contextlib.suppress(Exception):
        known = try_to_load_from_cache(source, ADAPTER, revision=revision)
        if known is None and ask and not folder_of(source, revision) and hub_answers():
            known = hf_hub_download(source, ADAPTER, revision=revision)
        if isinstance(known, str):
            parts = ["adapter_*", "*token*", "*.jinja", "vocab.*", "merges.txt"]
            asked = {"revision": revision, "local_files_only": not (ask and hub_answers())}
            return Path(snapshot_download(source, allow_patterns=parts, **asked))
    return None


def asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of transformers' calls that fetching a file takes."""
    return {name: options[name] for name in ("revision", "local_files_only")}


def processor_template(source: str, options: Mapping[str, Any]) -> Any:
    """The chat template of a model that sees pictures, older ones of which have it in a file of
    their processor's; None where there is none.

    Args:
        source: a folder, or a name on the hub.
        options: of transformers' calls; `revision` and `local_files_only` count.
    """
    path = fetch(source, "chat_template.json", options, required=False)
    return json.loads(Path(path).read_text("utf-8"))["chat_template"] if path else None


def fetch(source: str, file: str, options: Mapping[str, Any], *, required: bool = True) -> Any:
    """Return the path of a model's file, downloaded if need be; None for one that is not required
    and not there.  The arguments are those of `processor_template`."""
    from transformers.utils import cached_file

    return cached_file(
        source, file, _raise_exceptions_for_missing_entries=required, **asked(options)
    )


def fetch_weights(source: str, options: Mapping[str, Any]) -> Path:
    """Return the folder with a model's safetensors files, downloaded if need be."""
    if Path(source).is_dir():
        return Path(source)
    return Path(
        snapshot_download(source, allow_patterns=["*.json", "*.safetensors"], **asked(options))
    )


def hub_answers() -> bool:
    """Whether the Hugging Face hub can be reached.

    Its own client retries for half a minute.  Asking first lets a cached model start at once
    without a network, and a missing one fail at once.
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
    """The models in the Hugging Face cache by name, interrupted downloads included."""
    cache = Path(constants.HF_HUB_CACHE)
    try:
        folders = [path for path in cache.glob("models--*") if path.is_dir()]
        repos = {repo.repo_path.name: repo.revisions for repo in scan_cache_dir(cache).repos}
    except (OSError, ValueError, hub_errors.CacheNotFound):
        return []
    found = []
    for folder in folders:
        # The scan leaves out repositories that are incomplete or damaged.
        revisions = [each for each in repos.get(folder.name, ()) if each.files]
        best = max(revisions, key=lambda r: ("main" in r.refs, r.last_modified), default=None)
        name = folder.name.removeprefix("models--").replace("--", "/")
        path = best.snapshot_path if best else None
        found.append(CachedModel(name, path, size_on_disk(folder)))
    return sorted(found, key=lambda model: model.name.lower())


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below a folder; a link counts as itself."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def explain(
    name: str,
    error: BaseException,
    part: str = "",
    gguf: str | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> str:
    """One line for an error that a library raised while a model was loaded.

    `part` is what was loaded, "its tokenizer" for example, or "" for all of it; `offline` is the
    option, and the rest is as for `locate`.
    """
    chain = _causes(error)
    for kind, line in _BY_TYPE.items():
        if any(isinstance(each, kind) for each in chain):
            near = _suggest(name) if "{near}" in line else ""
            prompt = _PROMPT if " " in name else ""
            return line.format(name=name, near=near, why=not_fetched(offline), prompt=prompt)
    if any(isinstance(each, OSError) and each.errno == errno.ENOSPC for each in chain):
        return f"no space left on disk while downloading {name}; free some and run this again"
    source, gguf = locate(name, gguf, revision)
    if gguf is not None:
        unfit = "ignore_mismatched_sizes" in str(error)
        why = "its tensors do not fit its settings" if unfit else first_line(error)
        return f"{name}: transformers cannot read this GGUF file ({why})"
    # A damaged file leads libraries to all kinds of errors.
    folder = folder_of(source, revision)
    if "tokenizer" in part and folder is not None and not (folder / "tokenizer.json").is_file():
        return no_tokenizer(name)
    return f"{name}{': ' if part else ''}{part} cannot be loaded: {first_line(error)}"


def no_tokenizer(name: str) -> str:
    """What is said of a model whose tokenizer transformers does not find."""
    absent = [each for each in ("sentencepiece", "protobuf", "tiktoken") if version(each) is None]
    more = f", or pip install {' '.join(absent)}" if absent else ""
    return (
        f"{name} holds no tokenizer that can be read here; copy tokenizer.json beside the"
        f" weights{more}"
    )


def _causes(error: BaseException) -> list[BaseException]:
    """An error, and those that it came from."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def _suggest(name: str) -> str:
    """The end of an error line: models on this machine with a similar name."""
    root = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    if (held := _snapshot_within(root)) != root:
        return f"; but its revision {held.name} is: use --revision {held.name}"
    known = [DEMO, *(model.name for model in cached_models() if model.folder)]
    with contextlib.suppress(OSError):
        siblings = expanded(name).parent.iterdir()
        known += [str(path) for path in siblings if (path / "config.json").is_file()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    listed = ", ".join(near or sorted(known)[:3])
    return f"; {'did you mean' if near else 'models on this machine'}: {listed}"


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].endswith(":") and len(lines) > 1:
        return f"{lines[0]} {lines[1].strip()}"
    # "'added_tokens'" alone says nothing without the kind of error.
    if isinstance(error, LookupError | TypeError | AttributeError) or not lines[0]:
        return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return lines[0]
