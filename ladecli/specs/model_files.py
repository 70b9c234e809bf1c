"""A model's folder: its configuration, its weights, and what is missing or damaged.  No torch."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import sys
import zipfile
from collections import Counter
from collections.abc import Collection
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from .. import files
from ..errors import LoadError

GENERATION = "generation_config.json"
GGUF = ".gguf"
"""The suffix of files that hold a whole model, and the first bytes of one in capitals."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_JSON_FILES = (
    *("config.json", GENERATION, "tokenizer_config.json", "special_tokens_map.json"),
    *("tokenizer.json", *(f"{name}.index.json" for name in _WEIGHTS)),
)
_PIECE_FILES = ("tokenizer.model", "spiece.model", "*.tiktoken")
"""Tokenizers in the formats of SentencePiece and tiktoken."""
_PIECES = ("sentencepiece", "protobuf")
"""The packages that read a model of SentencePiece's."""
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
    *_PIECE_FILES,
)
_POINTER = b"version https://git-lfs.github.com/spec/"
"""How the file begins that stands for another one in a repository of Git LFS."""
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
_BY_LAYER = "num_attention_heads"
"""The only one of them that may be a list, with a size for each layer."""
_MOST_LAYERS = 1000
"""A configuration with more layers is damaged; building its model would take forever."""
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_BITSANDBYTES = ("bitsandbytes", "accelerate")
_PACKAGES = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "torchao": ("torchao",),
    "fp8": ("accelerate",),
    **dict.fromkeys(("nf4", "fp4", "int8"), _BITSANDBYTES),
}
"""Packages that load quantized weights, by method."""
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Plain types of safetensors files, and torch's names of them."""
_TYPES_OF = ("auto_mappings.py", "configuration_auto.py")
"""Files of transformers that list the types of models that it knows."""


class Tensor(NamedTuple):
    """A tensor of a safetensors file: its name, type ("BF16"), and how many numbers it has."""

    name: str
    kind: str
    size: int


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
    def unknown_type(self) -> str | None:
        """What the model is, where transformers knows no models of the kind; None if it does."""
        kind = self.stated.get("model_type")
        own_code = "AutoConfig" in str(self.stated.get("auto_map"))
        return None if own_code or not isinstance(kind, str) or knows(kind) else kind

    @property
    def fault(self) -> str | None:
        """A size that no model has, or None."""
        text = self.get_text_config()
        for name in SIZES:
            size = getattr(text, name, 1)
            most = _MOST_LAYERS if name == "num_hidden_layers" else size
            if isinstance(size, list) and name == _BY_LAYER:
                continue
            if not (isinstance(size, int) and 1 <= size <= most):
                return f"config.json is damaged ({name} is {size!r})"
        return None


def knows(model_type: str) -> bool:
    """Whether transformers knows models of a type; it is not imported for the answer."""
    if (loaded := sys.modules.get("transformers.models.auto.configuration_auto")) is not None:
        return model_type in loaded.CONFIG_MAPPING  # also what a program registered
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    # Names of types stand there in quotes.
    paths = [Path(spec.origin).parent / "models" / "auto" / file for file in _TYPES_OF]
    return any(f'"{model_type}"' in path.read_text("utf-8") for path in paths if path.exists())


def check_config(name: str, folder: Path) -> None:
    """Refuse configurations that transformers cannot, or should not, make a model of.

    transformers would go on without a damaged generation config: with other stop tokens.

    Raises:
        LoadError: the message begins with the model's name.
    """
    config, again = Config({}), "download or copy it again"
    if irregular := _irregular(folder):
        raise LoadError(f"{name} {irregular}")
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
    if config.unknown_type:
        raise LoadError(
            f"{name}: transformers {version('transformers')} knows no models of the type"
            f" {config.unknown_type!r}; a newer one may: pip install -U transformers"
        )
    if config.fault:
        raise LoadError(f"{name}: {config.fault}; {again}")


def _irregular(folder: Path) -> str | None:
    """What is said of a folder with a pipe or a device, whose reader waits, or never ends."""
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError):  # a link to nothing
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"holds {path.name}, which is no regular file; delete it"
    return None


def check_gguf(name: str, path: Path) -> None:
    """Refuse a GGUF file that cannot be read; one that is not on this machine passes.

    Raises:
        LoadError: the message begins with the model's name.
    """
    if version("gguf") is None:
        raise LoadError(
            f"{name} is a GGUF file, which needs the package gguf: pip install 'ladecli[gguf]'"
        )
    if is_pointer(path):
        raise LoadError(f"{name} is a Git LFS pointer, not the model; run git lfs pull beside it")
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise LoadError(f"{name} is no GGUF file; download or copy it again")


def missing(folder: Path) -> str | None:
    """What a model's folder lacks, to be read after its name; None if all files are there."""
    if not (folder / "config.json").is_file():
        if (folder / "model_index.json").is_file():
            return "is a diffusion pipeline, not a language model"
        return "holds no config.json; give a folder in Hugging Face format"
    if irregular := _irregular(folder):
        return irregular
    try:
        files = weight_files(folder)
    except LoadError as error:
        return str(error)
    if not files:
        return "holds no weights; download or copy model.safetensors"
    if absent := sum(not os.path.isfile(path) for path in files):  # a dangling link is no file
        return f"holds {len(files) - absent} of {len(files)} files of weights; download the rest"
    tokenizers = [path for pattern in TOKENIZERS for path in folder.glob(pattern)]
    if not tokenizers:
        return "holds no tokenizer; copy tokenizer.json beside the weights"
    if pointers := [path.name for path in (*files, *tokenizers) if is_pointer(path)]:
        return f"holds a Git LFS pointer in place of {pointers[0]}; run git lfs pull in it"
    return None


def is_pointer(path: Path) -> bool:
    """Whether a file is a pointer of Git LFS, in place of what was to be fetched."""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def tokenizer_fault(folder: Path) -> str | None:
    """Why the tokenizer of a folder without tokenizer.json cannot be read, to be said after the
    model's name; None where there is one, or nothing is known."""
    if (folder / "tokenizer.json").is_file():
        return None
    for path in (each for pattern in _PIECE_FILES for each in sorted(folder.glob(pattern))):
        lacking = [name for name in _packages_for(path) if version(name) is None]
        if lacking:
            needed, them = " and ".join(lacking), " ".join(lacking)
            return f"has its tokenizer in {path.name}, which needs {needed}: pip install {them}"
        return (
            f"holds no tokenizer.json, and {path.name} cannot be read; copy tokenizer.json beside"
            " the weights"
        )
    return None


def chat_templates(folder: Path) -> dict[str, str]:
    """The chat templates in a folder by name, where the model's own is `default`; {} where there
    are none.  Files of templates replace those in the tokenizer's configuration."""
    try:
        stated = read_object(folder / "tokenizer_config.json").get("chat_template")
    except (FileNotFoundError, LoadError):
        stated = None
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    named = {"default": folder / "chat_template.jinja"} | {each.stem: each for each in others}
    if found := {name: path for name, path in named.items() if path.is_file()}:
        return {name: path.read_text("utf-8", "replace") for name, path in found.items()}
    if isinstance(stated, list):  # several, in the way of older files
        return {each["name"]: each["template"] for each in stated}
    return {"default": stated} if isinstance(stated, str) else {}


def _packages_for(path: Path) -> tuple[str, ...]:
    """The packages that read a tokenizer of SentencePiece's, or of tiktoken's; () for neither."""
    with path.open("rb") as file:
        start = file.read(100)
    if start.startswith(b"\n"):  # the tag of a model's first piece
        return _PIECES
    return ("tiktoken",) if re.match(rb"[A-Za-z0-9+/=]+ \d+\s", start) else ()


def damage(folder: Path) -> str | None:
    """The first damaged file of a model, with the reason; None if all that exist are fine.

    Of the weights, only the heads and the ends of files are read.
    """
    try:
        for name in _JSON_FILES:
            # An index is not read where the whole file is there.
            if not (folder / name.removesuffix(".index.json")).is_file() or "index" not in name:
                with contextlib.suppress(FileNotFoundError):
                    read_object(folder / name)
    except LoadError as error:
        return str(error)
    return weights_damage(folder)


def weights_damage(folder: Path) -> str | None:
    """What is wrong with the weights of a model, as far as the heads of their files, and the ends
    of pickled ones, tell; None if nothing is, or nothing is here."""
    try:
        tensors = stored_tensors(folder)
        config = Config(read_object(folder / "config.json"))
    except FileNotFoundError:
        return None
    except LoadError as error:
        return str(error)
    found = [match for each in tensors if (match := _LAYER.search(each.name))]
    held = max((int(match[1]) for match in found), default=-1) + 1
    stated = getattr(config.get_text_config(), SIZES[0], 0)
    # Several stacks of layers may be run more than once, and count as often (HRM).
    one_stack = len({match.string[: match.start()] for match in found}) == 1
    if not config.fault and one_stack and held < stated:
        return f"the weights have {held} layers, and config.json {stated}; copy both again"
    return config.fault


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        FileNotFoundError: there is no such file.
        LoadError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(files.read(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is damaged (it is no JSON)") from error
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
            if any(shard.startswith("/") or ".." in PurePath(shard).parts for shard in shards):
                raise LoadError(f"{name}.index.json names files outside of its folder")
            return [folder / shard for shard in sorted(set(shards))]
        except FileNotFoundError:
            continue
        except (KeyError, TypeError, AttributeError) as error:
            raise LoadError(f"{name}.index.json is damaged (it names no files)") from error
    return []


def stored_tensors(folder: Path) -> list[Tensor]:
    """The tensors in those safetensors files of a model that exist; LoadError if one is damaged."""
    found = []
    for path in weight_files(folder):
        if path.suffix != ".safetensors" or not os.path.isfile(path):
            if _is_cut(path):
                raise LoadError(f"{path.name} is damaged or cut off (its end is missing)")
            continue
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118, not a dict
                    part = file.get_slice(name)
                    size = math.prod(part.get_shape())
                    found.append(Tensor(name, part.get_dtype(), size))
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path.name} is damaged or cut off") from error
    return found


def _is_cut(path: Path) -> bool:
    """Whether a file begins as a zip archive, as pickled weights do, and does not end as one."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\3\4" and not zipfile.is_zipfile(path)
    except OSError:
        return False


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
    """The packages to install before weights of a type such as "gptq 4bit" can be loaded."""
    return [name for name in _PACKAGES.get(weights.split(" ")[0], ()) if version(name) is None]


def find_prefix(missing: Collection[str], unexpected: Collection[str]) -> str | None:
    """What stands before the names of all missing weights among those that are not expected."""
    first = min(missing)
    prefixes = [each.removesuffix(first) for each in unexpected if each.endswith(first)]
    whole = (each for each in prefixes if {each + key for key in missing} <= {*unexpected})
    return next(whole, None)
