"""Find a model's files, in a folder or the Hugging Face cache, and say what is wrong with them.

Nothing here imports torch, so that a wrong path is refused at once.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import math
import pickle
import re
import socket
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import constants, scan_cache_dir, try_to_load_from_cache
from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError, safe_open

from ..errors import LoadError

DEMO = "demo"
"""Name of the bundled model; a folder of that name is ./demo."""
GENERATION = "generation_config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_JSON_FILES = (
    *("config.json", GENERATION, "tokenizer_config.json", "special_tokens_map.json"),
    *("tokenizer.json", *(f"{name}.index.json" for name in _WEIGHTS)),
)
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("vocab.json", "vocab.txt", "spiece.model", "*.tiktoken"),
)
_OTHER_FORMATS = {
    "model_index.json": "is a diffusion pipeline, not a language model",
    "adapter_config.json": "is an adapter: merge it into its base model to use it here",
    "*.gguf": "holds GGUF files: give the checkpoint that they were made from",
}
_GENERATES = ("ForCausalLM", "LMHead", "ForConditionalGeneration")
"""Parts of the names of model classes that continue texts."""
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "dtype": ("torch_dtype",),
}
"""What families call the settings that transformers knows by one name."""
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""Settings that every decoder has, and that are at least 1."""
_MOST_LAYERS = 1000
"""A configuration with more layers is damaged; building its model would take forever."""
_PAGE = re.compile(
    r"(?:https://)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)(?:/tree/main/?|[?#].*)?"
)
"""The address of a model on the hub."""
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_PACKAGES = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "torchao": ("torchao",),
    "fp8": ("accelerate",),
    "nf4": ("bitsandbytes", "accelerate"),
    "fp4": ("bitsandbytes", "accelerate"),
    "int8": ("bitsandbytes", "accelerate"),
}
"""Packages that load quantized weights, by method."""
_OFFLINE = "{name} is not on this machine, and the hub cannot be reached{near}"
_BY_TYPE: dict[type[BaseException], str] = {
    hub_errors.OfflineModeIsEnabled: _OFFLINE,
    hub_errors.LocalEntryNotFoundError: _OFFLINE,
    ConnectionError: _OFFLINE,
    hub_errors.GatedRepoError: "{name} is gated: accept its terms on its page, then log in with"
    " `hf auth login`",
    hub_errors.RevisionNotFoundError: "{name} has no such revision; check --revision",
    hub_errors.RepositoryNotFoundError: "there is no model {name} on the hub, or it is private:"
    " check the name, or log in with `hf auth login`{near}",
    hub_errors.HFValidationError: "{name} is no name of a model; use OWNER/NAME or a folder",
    hub_errors.EntryNotFoundError: "{name} holds no model that transformers can load",
    SafetensorError: "{name}: the weights are damaged; download or copy them again",
    pickle.UnpicklingError: "{name}: its pickled weights are refused, for they contain code;"
    " get safetensors instead",
}
"""What the errors of libraries mean; the first that applies counts."""
_BY_WORDS = {
    "backend tokenizer": "{name} holds no tokenizer; copy tokenizer.json beside the weights",
    # The library asks for tiktoken alone, which is not what most such files need.
    "pip install tiktoken": "{name} holds no tokenizer.json; copy it beside the weights, or"
    " pip install sentencepiece tiktoken reads what else is there",
    "ignore_mismatched_sizes": "{name}: the weights do not fit its config.json; copy both again",
    "trust_remote_code": "{name} needs code of its own; read it, then allow it with"
    " --trust-remote-code",
}
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Plain types of safetensors files, and torch's names of them."""


class Tensor(NamedTuple):
    """A tensor of a safetensors file: its name, type ("BF16"), and how many numbers it has."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the Hugging Face cache.

    Attributes:
        name: OWNER/NAME, or NAME alone.
        folder: the snapshot that loading takes: revision main, else the newest; None where the
            cache holds no complete file.
        bytes: on disk, over all revisions.
    """

    name: str
    folder: Path | None
    bytes: int


class Config:
    """A config.json, with settings as attributes under the names that transformers gives them.

    Unlike transformers' own classes it needs no torch, and has only what the file states.
    """

    def __init__(self, stated: dict[str, Any]) -> None:
        self.stated = stated

    def __getattr__(self, name: str) -> Any:
        for key in (name, *_ALIASES.get(name, ())):
            if self.stated.get(key) is not None:
                return self.stated[key]
        raise AttributeError(name)

    def get_text_config(self, decoder: bool = True) -> Config:
        """The settings of the language model, where there are others for images or sound."""
        text = self.stated.get("text_config")
        return Config({**self.stated, **text}) if isinstance(text, dict) else self

    @property
    def other_purpose(self) -> str | None:
        """What the model is instead of one that continues texts; None if it is one.

        Embedding models are common, and would load with weights missing.
        """
        names = self.stated.get("architectures") or []
        if "AutoModelForCausalLM" in str(self.stated.get("auto_map")):  # code of its own
            return None
        if not names or any(part in str(names) for part in _GENERATES):
            return None
        return f"is not a causal language model but a {str(names).strip(chr(39) + '[]')}"

    @property
    def fault(self) -> str | None:
        """A size that no model has, or None."""
        text = self.get_text_config()
        for name in SIZES:
            size = getattr(text, name, 1)
            most = _MOST_LAYERS if name == "num_hidden_layers" else size
            if not isinstance(size, list) and not (isinstance(size, int) and 1 <= size <= most):
                return f"config.json is damaged ({name} is {size!r})"
        return None


def resolve(name: str) -> str:
    """The folder, or the name on the hub, that a MODEL argument stands for.

    Raises:
        LoadError: the path does not exist, or is no model in Hugging Face format.
    """
    if name == DEMO:
        return str(Path(__file__).parents[1] / "demo")
    path = Path(name).expanduser()
    if not path.exists() and (found := _PAGE.fullmatch(name)):
        return found[1]
    if not (name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()):
        return name
    if path.is_file():
        raise LoadError(f"{name} is a file; give the folder that holds config.json")
    if not path.is_dir():
        raise LoadError(f"there is no model folder {name}{suggest(name)}")
    if not (path / "config.json").is_file():
        raise LoadError(f"{name} {missing(path)}")
    return str(path)


def check(name: str) -> None:
    """Refuse what cannot be loaded, as far as that shows at once: before torch is imported.

    Raises:
        LoadError: as `resolve`; or a local folder has no weights, or holds a model
            that cannot continue a text.
    """
    folder = Path(resolve(name))
    if folder.is_dir():
        check_config(name, folder)
        if absent := missing(folder):
            raise LoadError(f"{name} {absent}")


def check_config(name: str, folder: Path) -> None:
    """Refuse configurations that transformers cannot, or should not, make a model of.

    transformers would go on without a damaged generation config: with other stop tokens.

    Raises:
        LoadError: the message begins with the model's name.
    """
    config, again = Config({}), "download or copy it again"
    try:
        for file in ("config.json", GENERATION):
            with contextlib.suppress(FileNotFoundError):  # to be downloaded, or there is none
                stated = read_object(folder / file)
                config = Config(stated) if file == "config.json" else config
    except LoadError as error:
        fix = f"{again}, or delete it" if file == GENERATION else again
        raise LoadError(f"{name}: {error}; {fix}") from error
    if config.other_purpose:
        raise LoadError(f"{name} {config.other_purpose}, so it cannot continue a text")
    if config.fault:
        raise LoadError(f"{name}: {config.fault}; {again}")


def folder_of(source: str, revision: str | None = None) -> Path | None:
    """Where a model's files are, as far as they are on this machine, judged by its config.json.

    Args:
        source: as `resolve` returns it.
        revision: of a model of the hub.
    """
    if Path(source).is_dir():
        return Path(source)
    with contextlib.suppress(hub_errors.HFValidationError):  # loading reports it
        found = try_to_load_from_cache(source, "config.json", revision=revision)
        return Path(found).parent if isinstance(found, str) else None
    return None


def suggest(name: str) -> str:
    """The end of an error line: models on this machine with a similar name."""
    known = [DEMO, *(model.name for model in cached_models() if model.folder)]
    with contextlib.suppress(OSError):
        siblings = Path(name).expanduser().parent.iterdir()
        known += [str(path) for path in siblings if (path / "config.json").is_file()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    listed = ", ".join(near or sorted(known)[:3])
    return f"; {'did you mean' if near else 'models on this machine'}: {listed}"


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


def cache_folder() -> Path:
    """The Hugging Face cache, as HF_HUB_CACHE and HF_HOME set it; it may not exist."""
    return Path(constants.HF_HUB_CACHE)


def cached_models() -> list[CachedModel]:
    """The models in the Hugging Face cache by name, interrupted downloads included."""
    cache = cache_folder()
    try:
        folders = [path for path in cache.glob("models--*") if path.is_dir()]
        repos = {repo.repo_path.name: repo for repo in scan_cache_dir(cache).repos}
    except (OSError, ValueError, hub_errors.CacheNotFound):
        return []
    found = []
    for folder in folders:
        # The scan leaves out repositories that are incomplete or damaged.
        repo = repos.get(folder.name)
        revisions = [each for each in repo.revisions if each.files] if repo else []
        best = max(revisions, key=lambda r: ("main" in r.refs, r.last_modified), default=None)
        name = folder.name.removeprefix("models--").replace("--", "/")
        size = repo.size_on_disk if best and repo else size_on_disk(folder)
        found.append(CachedModel(name, best.snapshot_path if best else None, size))
    return sorted(found, key=lambda model: model.name.lower())


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below a folder; a link counts as itself."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def missing(folder: Path) -> str | None:
    """What a model's folder lacks, to be read after its name; None if all files are there."""
    if not (folder / "config.json").is_file():
        for pattern, what in _OTHER_FORMATS.items():
            if any(folder.glob(pattern)):
                return what
        return "holds no config.json; give a folder in Hugging Face format"
    try:
        files = weight_files(folder)
    except LoadError as error:
        return str(error)
    if not files:
        return "holds no weights; download or copy model.safetensors"
    if absent := sum(not path.is_file() for path in files):  # a dangling link is no file
        return f"holds {len(files) - absent} of {len(files)} files of weights; download the rest"
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        return "holds no tokenizer; copy tokenizer.json beside the weights"
    return None


def damage(folder: Path) -> str | None:
    """The first damaged file of a model, with the reason; None if all that exist are fine.

    Of the weights, only the heads of safetensors files are read.
    """
    try:
        for name in _JSON_FILES:
            # An index is not read where the whole file is there.
            if not (folder / name.removesuffix(".index.json")).is_file() or "index" not in name:
                with contextlib.suppress(FileNotFoundError):
                    read_object(folder / name)
        tensors = stored_tensors(folder)
        config = Config(read_object(folder / "config.json"))
    except FileNotFoundError:
        return None
    except LoadError as error:
        return str(error)
    layers = [int(found[1]) for each in tensors if (found := _LAYER.search(each.name))]
    held, stated = max(layers, default=-1) + 1, getattr(config.get_text_config(), SIZES[0], 0)
    if not config.fault and 0 < held < stated:
        return f"the weights have {held} layers, and config.json {stated}; copy both again"
    return config.fault


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        FileNotFoundError: there is no such file.
        LoadError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is damaged ({error})") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path.name} is damaged (it is no JSON object)")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that transformers would read, whether they exist or not.

    Raises:
        LoadError: the index of a sharded model is damaged.
    """
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        try:
            shards = read_object(folder / f"{name}.index.json")["weight_map"].values()
            return [folder / shard for shard in sorted(set(shards))]
        except FileNotFoundError:
            continue
        except (KeyError, TypeError, AttributeError) as error:
            raise LoadError(f"{name}.index.json is damaged (it names no files)") from error
    return []


def stored_tensors(folder: Path) -> list[Tensor]:
    """The tensors in those safetensors files of a model that exist.

    Raises:
        LoadError: a file is damaged or cut off.
    """
    found = []
    for path in weight_files(folder):
        if path.suffix != ".safetensors" or not path.is_file():
            continue
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118, not a dict
                    part = file.get_slice(name)
                    size = math.prod(part.get_shape())
                    found.append(Tensor(name, part.get_dtype(), size))
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path.name} is damaged or cut off ({error})") from error
    return found


def stored_type(folder: Path) -> str | None:
    """float32, float16 or bfloat16: the type of most plain weights in a folder's safetensors
    files; None where there are none, or they are damaged."""
    counts: Counter[str] = Counter()
    with contextlib.suppress(LoadError):
        for each in stored_tensors(folder):
            if each.kind in _TYPES:
                counts[_TYPES[each.kind]] += each.size
    return next((kind for kind, _ in counts.most_common(1)), None)


def version(package: str) -> str | None:
    """The version of an installed package, or None; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def missing_packages(weights: str) -> list[str]:
    """The packages to install before quantized weights can be loaded.

    Args:
        weights: the type or method, "gptq 4bit" for example; plain types need none.
    """
    return [name for name in _PACKAGES.get(weights.split(" ")[0], ()) if version(name) is None]


def explain(name: str, error: Exception, folder: Path | None, part: str) -> str:
    """One line for an error that a library raised while a model was loaded.

    Args:
        name: of the model.
        error: what was raised, with its causes.
        folder: the model's files, if they are on this machine.
        part: what was loaded, "its tokenizer" for example; "" for all of it.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__

    for kind, line in _BY_TYPE.items():
        if any(isinstance(each, kind) for each in chain):
            return line.format(name=name, near=suggest(name) if "{near}" in line else "")
    if any(isinstance(each, OSError) and each.errno == errno.ENOSPC for each in chain):
        return f"no space left on disk while downloading {name}; free some and run this again"
    # A damaged file leads libraries to all kinds of errors.
    if folder is not None and (damaged := damage(folder)) is not None:
        return f"{name}: {damaged}; download or copy it again"
    for words, meaning in _BY_WORDS.items():
        if words in str(error):
            return meaning.format(name=name)
    return f"{name}{': ' if part else ''}{part} cannot be loaded: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].endswith(":") and len(lines) > 1:
        return f"{lines[0]} {lines[1].strip()}"
    # "'added_tokens'" alone says nothing without the kind of error.
    if isinstance(error, LookupError | TypeError | AttributeError) or not lines[0]:
        return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return lines[0]
