"""A model's folder: its configuration, its weights, and checks of its files.  No torch."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ..errors import LoadError
from ..files import read, read_text
from .gguf_header import GGUFHeader, read_header

GENERATION = "generation_config.json"
ADAPTER = "adapter_config.json"
"""The configuration of an adapter, in place of config.json."""
GGUF = ".gguf"
"""The suffix of files that hold a whole model."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
"""Patterns of files that may belong to a tokenizer."""
_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of a pointer file of Git LFS."""
_GENERATES = ("ForCausalLM", "LMHead", "ForConditionalGeneration")
"""Parts of the names of model classes that generate text."""
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "dtype": ("torch_dtype",),
}
"""Names of settings in some families, by transformers' common names."""
_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")
"""Settings that every decoder has, and that are at least 1."""
_BY_LAYER = ("num_attention_heads", "num_key_value_heads", "head_dim")
"""Sizes that may be a list with a value for each layer."""
_MOST_LAYERS = 1000
"""A configuration with more layers is damaged; building its model would take forever."""
_BITSANDBYTES = ("bitsandbytes", "accelerate")
_PACKAGES = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "torchao": ("torchao",),
    "fp8": ("accelerate",),
    "gguf": ("accelerate", "gguf"),
    **dict.fromkeys(("nf4", "fp4", "int8"), _BITSANDBYTES),
}
"""Packages that load quantised weights, by method, or files of another format."""
TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Plain types of safetensors files, and torch's names for them."""


FP8 = "FP8"
"""The method of weights that become plain by multiplying with a scale."""
_PACKERS = {
    "trellis": "EXL3",
    "q_weight": "EXL2",
    "qweight": "GPTQ or AWQ",
    "weight_packed": "compressed-tensors",
    "weight_scale_2": "ModelOpt (NVFP4)",
    **dict.fromkeys(("absmax", "SCB"), "bitsandbytes, which config.json does not say"),
    "W_q": "HQQ",
    "codebooks": "AQLM",
    "scales": "MLX",
}
"""Quantisation methods by suffixes of tensor names; the first match counts."""


class Tensor(NamedTuple):
    """A tensor of a safetensors file."""

    name: str
    kind: str  # such as "BF16"
    size: int  # the number of elements


class Config:
    """A config.json whose settings are attributes, by transformers' names; it needs no torch."""

    def __init__(self, stated: dict[str, Any]) -> None:
        self.stated = stated

    def __getattr__(self, name: str) -> Any:
        for key in (name, *_ALIASES.get(name, ())):
            if self.stated.get(key) is not None:
                return self.stated[key]
        raise AttributeError(name)

    def get_text_config(self, decoder: bool = True) -> Config:
        """Return the settings of the language model in a model for images or audio."""
        text = self.stated.get("text_config")
        return Config({**self.stated, **text}) if isinstance(text, dict) else self

    @property
    def fault(self) -> str | None:
        """A description of an impossible setting, or None."""
        text = self.get_text_config()
        for name in (*_SIZES, *_BY_LAYER):
            size = getattr(text, name, 1)
            most = _MOST_LAYERS if name == "num_hidden_layers" else size
            by_layer = isinstance(size, list) and name in _BY_LAYER
            if not (by_layer or (isinstance(size, int) and 1 <= size <= most)):
                return f"config.json is damaged ({name} is {size!r})"
        quantization = getattr(text, "quantization_config", {})
        if not isinstance(quantization, dict) or not isinstance(
            quantization.get("quant_method") or "", str
        ):
            return f"config.json is damaged (quantization_config is {quantization!r})"
        return None


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the name of a model and a fix to an error about one of its files."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"{name}: {error}; download or copy it again") from error


def read_config(name: str, folder: Path) -> Config:
    """Read a model's configuration; LoadError if it is damaged or not a language model's."""
    with naming(name):
        config = Config(read_object(folder / "config.json"))
        # transformers ignores damaged files, and would use other stop tokens.
        for file in (GENERATION, "tokenizer_config.json", "special_tokens_map.json"):
            read_object(folder / file)
        if config.fault:
            raise LoadError(config.fault)
    # Embedding models are common, and would load without some weights.
    kinds = str(config.stated.get("architectures") or "")
    generates = not kinds or any(part in kinds for part in _GENERATES)
    if not generates and "AutoModelForCausalLM" not in str(config.stated.get("auto_map")):
        raise LoadError(
            f"{name} is not a causal language model but a {kinds.strip(chr(39) + '[]')}, so it"
            " cannot continue a text"
        )
    return config


def packing(config: Config, folder: Path, tensors: Sequence[Tensor]) -> str | None:
    """Return the quantisation method of the weights in a folder, by its files or by the names of
    its tensors; None if the weights are plain."""
    quantization = getattr(config.get_text_config(), "quantization_config", None) or {}
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return "bitsandbytes"
    method = quantization.get("quant_method")
    modelopt = read_object(folder / "hf_quant_config.json").get("quantization")
    if method == "modelopt" or (method is None and isinstance(modelopt, dict)):
        kind = str(quantization.get("quant_algo") or (modelopt or {}).get("quant_algo"))
        return FP8 if kind.startswith("FP8") else f"ModelOpt ({kind})"
    if method is not None:
        return str(method)
    if config.stated.get("quantization"):
        return "MLX"
    endings = {tensor.name.rpartition(".")[2] for tensor in tensors}
    for ending, packer in _PACKERS.items():
        if ending in endings:
            return packer
    if any(tensor.kind.startswith("F8") for tensor in tensors):
        return FP8
    return "a method that its quantization_config does not name" if quantization else None


def require_gguf(name: str) -> None:
    """Raise a LoadError if packages for GGUF files are missing."""
    if lacking := missing_packages("gguf"):
        raise LoadError(
            f"{name} is a GGUF file, which needs {' and '.join(lacking)}: pip install"
            " 'ladecli[gguf]'"
        )


def check_gguf(name: str, path: Path) -> GGUFHeader:
    """Return the header of a GGUF file; LoadError, after the model's name, if it is damaged."""
    require_gguf(name)
    if is_pointer(path):
        raise LoadError(f"{name} is a Git LFS pointer, not the model; run git lfs pull beside it")
    try:
        return read_header(path)
    except LoadError as error:
        raise LoadError(f"{name} {error}") from error
    except OSError as error:
        raise LoadError(f"{name} cannot be read ({error.strerror})") from error


def holds_model(path: Path) -> bool:
    """Return True if a folder has a model, or an adapter."""
    return any(any(path.glob(pattern)) for pattern in ("config.json", ADAPTER, f"*{GGUF}"))


def snapshot_within(path: Path) -> Path:
    """Return the snapshot (that of main, or the newest) in a model's folder of the Hugging Face
    cache; return any other path unchanged."""
    root = path.parent if path.name == "snapshots" else path
    snapshots = [folder for folder in (root / "snapshots").glob("*") if holds_model(folder)]
    if not snapshots or holds_model(path):
        return path
    with contextlib.suppress(OSError, ValueError):
        main = root / "snapshots" / (root / "refs" / "main").read_text().strip()
        if main in snapshots:
            return main
    return max(snapshots, key=lambda folder: folder.stat().st_mtime)


def missing(folder: Path) -> str | None:
    """Return the fault of a model's folder, to follow its name; None if no file is missing."""
    if not (folder / "config.json").is_file():
        if (folder / "model_index.json").is_file():
            return "is a diffusion pipeline, not a language model"
        return "holds no config.json; give a folder in Hugging Face format"
    try:
        files = weight_files(folder)
    except LoadError as error:
        return str(error)
    if not files:
        if any(folder.glob("*-of-*.safetensors")):
            return "holds no model.safetensors.index.json; download or copy it beside the weights"
        return "holds no weights; download or copy model.safetensors"
    if absent := sum(not os.path.isfile(path) for path in files):  # including dangling links
        return f"holds {len(files) - absent} of {len(files)} files of weights; download the rest"
    tokenizers = [path for pattern in TOKENIZERS for path in folder.glob(pattern)]
    if not tokenizers:
        return "holds no tokenizer; copy tokenizer.json beside the weights"
    if pointers := [path.name for path in (*files, *tokenizers) if is_pointer(path)]:
        return f"holds a Git LFS pointer in place of {pointers[0]}; run git lfs pull in it"
    return None


def is_pointer(path: Path) -> bool:
    """Return True if a file is a pointer of Git LFS."""
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def chat_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates in a folder by name; the model's own is `default`.

    Files of templates replace those in the tokenizer's configuration.

    Raises:
        UsageError: the file of a template is not text.
        LoadError: a template in the configuration is not text.
    """
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    named = {"default": folder / "chat_template.jinja"} | {path.stem: path for path in others}
    texts = {n: read_text(str(p), "chat template") for n, p in named.items() if p.is_file()}
    if texts:
        return texts
    stated = None
    with contextlib.suppress(LoadError):  # loading reports the error
        stated = read_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(stated, list):  # the older form of several templates
        with contextlib.suppress(TypeError, LookupError):
            stated = {template["name"]: template["template"] for template in stated}
    templates: dict[str, Any] = stated if isinstance(stated, dict) else {"default": stated}
    if not stated:
        return {}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise LoadError("tokenizer_config.json is damaged (chat_template is not text)")
    return templates


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} if there is no file; LoadError if it cannot be read, or
    is not an object."""
    try:
        value = json.loads(read(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is damaged (it is not JSON)") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path.name} is damaged (it is not a JSON object)")
    return value


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights that transformers would read, even if they do not exist;
    LoadError if the index of a sharded model is damaged."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if not (index := read_object(folder / f"{name}.index.json")):
            continue
        try:
            files = [folder / shard for shard in sorted({*index["weight_map"].values()})]
        except (KeyError, TypeError, AttributeError) as error:
            raise LoadError(f"{name}.index.json is damaged (it names no files)") from error
        if not isinstance(index.get("metadata"), dict):
            raise LoadError(f'{name}.index.json has no metadata; add "metadata": {{}} to it')
        return files
    return []


def stored_tensors(paths: Iterable[Path]) -> tuple[Tensor, ...]:
    """Return the tensors in existing safetensors files; LoadError if a file is damaged."""
    tensors = []
    for path in paths:
        if path.suffix != ".safetensors" or not os.path.isfile(path):
            with contextlib.suppress(OSError), path.open("rb") as file:
                # Pickled weights are a zip archive.
                if file.read(4) == b"PK\3\4" and not zipfile.is_zipfile(path):
                    raise LoadError(f"{path.name} is damaged or cut off (its end is missing)")
            continue
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118, not a dict
                    part = file.get_slice(name)
                    tensors.append(Tensor(name, part.get_dtype(), math.prod(part.get_shape())))
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path.name} is damaged or cut off") from error
    return tuple(tensors)


def stored_type(tensors: Iterable[Tensor]) -> str | None:
    """Return the type of most plain weights: float32, float16 or bfloat16; None if all of them are
    packed."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.kind in TYPES:
            counts[TYPES[tensor.kind]] += tensor.size
    return next((kind for kind, _ in counts.most_common(1)), None)


def version(package: str) -> str | None:
    """Return the version of an installed package, or None; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def missing_packages(weights: str) -> list[str]:
    """Return the missing packages for weights of a type such as "gptq 4bit"."""
    return [name for name in _PACKAGES.get(weights.split(" ")[0], ()) if version(name) is None]
