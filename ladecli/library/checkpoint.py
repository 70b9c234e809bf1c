"""A model's folder, read without loading it: its configuration, and what weights are there."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shape import FULL

_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TYPES |= {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8"}
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_PACKED = frozenset({"U8", "I32", "I64", "U32", "F4"})
"""Types that quantisation packs several weights into."""
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("vocab.json", "vocab.txt", "spiece.model"),
)
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model's folder holds.

    Attributes:
        family: transformers' model type, "" if unknown.
        dtype: of the weights: float32, float16 or bfloat16, or the method of quantisation, with
            its bits where that is told ("gptq 4bit"); "" if unknown.
        context: tokens that the configuration says a text may have, or None.
        parameters: number of weights, or None where it cannot be read off.
        generates: whether it was made to continue texts; True where that is not told.
        problem: why it cannot be loaded as a causal language model, or None.
    """

    family: str = ""
    dtype: str = ""
    context: int | None = None
    parameters: int | None = None
    generates: bool = True
    problem: str | None = None


def read(folder: Path) -> Checkpoint:
    """What a folder holds.  What is broken or missing in it becomes `problem`."""
    config, problem = _config(folder)
    if config is None:
        return Checkpoint(problem=problem)
    tensors, problem = _weights(folder)
    given = _one(config, "quantization_config")
    dtype = _method(given) if isinstance(given, Mapping) else _dtype(config, tensors)
    limits = [n for key in _CONTEXT if isinstance(n := _one(config, key), int) and n > 0]
    purpose = _purpose(config)
    return Checkpoint(
        family=str(config.get("model_type") or ""),
        dtype=dtype,
        context=limits[0] if limits else None,
        parameters=_parameters(folder, tensors, dtype),
        generates=purpose is None,
        problem=purpose or problem or _tokenizer(folder),
    )


def lacking(folder: Path) -> str | None:
    """What a folder lacks of a model's weights and tokenizer, or None."""
    return _files(folder)[1] or _tokenizer(folder)


def broken(folder: Path) -> str | None:
    """What is damaged of the weights, where all of them are there, or None."""
    return None if _files(folder)[1] else _weights(folder)[1]


def stored_type(folder: Path) -> str | None:
    """The type of most plain weights, as the safetensors files of a folder say.

    Returns:
        float32, float16 or bfloat16; None where no such file is there, or none can be read.
    """
    tensors, _ = _weights(folder)
    return next((_TYPES[k] for k, _ in tensors.most_common() if _TYPES.get(k) in FULL), None)


def _config(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The configuration, or why there is none."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, _instead(folder)
    except (OSError, ValueError, RecursionError) as error:
        return None, f"its config.json cannot be read: {str(error).splitlines()[0]}"
    if not isinstance(config, dict):
        return None, "its config.json is no JSON object"
    return config, None


def _instead(folder: Path) -> str:
    """What a folder without a config.json is."""
    if (folder / "model_index.json").is_file():
        return "is a diffusion pipeline, no language model"
    if (folder / "adapter_config.json").is_file():
        return "is an adapter for another model; merge the two to use it here"
    if any(folder.glob("*.gguf")):
        return "holds GGUF files; lade needs the checkpoint that they were made from"
    return "holds no config.json, so it is no model for transformers, or not all of one"


def _one(config: Mapping[str, Any], key: str) -> Any:
    """A value of the configuration, or of the part of it that is about text."""
    text = config.get("text_config")
    nested = text.get(key) if isinstance(text, Mapping) else None
    return config.get(key) if config.get(key) is not None else nested


def _purpose(config: Mapping[str, Any]) -> str | None:
    """Why this was not made to continue texts, or None; nothing is said where it is unknown."""
    names, own_code = config.get("architectures"), config.get("auto_map")
    if not isinstance(names, list) or not names:
        return None
    if isinstance(own_code, Mapping) and "AutoModelForCausalLM" in own_code:
        return None
    generating = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "LMHead")
    if any(part in str(name) for name in names for part in generating):
        return None
    return f"is no causal language model but a {names[0]}"


def _tokenizer(folder: Path) -> str | None:
    if any((folder / name).is_file() for name in _TOKENIZERS) or any(folder.glob("*.tiktoken")):
        return None
    return "holds no tokenizer; download or copy it again"


def _method(given: Mapping[str, Any]) -> str:
    """How the weights of a checkpoint are quantised."""
    method = str(given.get("quant_method") or "quantised").removeprefix("QuantizationMethod.")
    if given.get("load_in_4bit"):
        return str(given.get("bnb_4bit_quant_type") or "nf4")
    if given.get("load_in_8bit"):
        return "int8"
    bits = given.get("bits") or given.get("w_bit")
    return f"{method.lower()} {bits}bit" if bits else method.lower()


def _dtype(config: Mapping[str, Any], tensors: Counter[str]) -> str:
    """The type of weights that are not quantised."""
    told = _one(config, "dtype") or _one(config, "torch_dtype")
    if isinstance(told, str) and told != "auto":
        return told.removeprefix("torch.")
    known = [kind for kind, _ in tensors.most_common() if kind in _TYPES]
    return _TYPES[known[0]] if known else ""


def _weights(folder: Path) -> tuple[Counter[str], str | None]:
    """How many numbers of each type there are, and what is wrong with the files."""
    names, problem = _files(folder)
    counted: Counter[str] = Counter()
    for name in names:
        if name.endswith(".safetensors"):
            try:
                counted += _header(folder / name)
            except OSError:
                problem = problem or f"{name} cannot be read; check its permissions"
            except ValueError as error:
                problem = problem or f"{name} {error}; download it again"
    return counted, problem


def _files(folder: Path) -> tuple[list[str], str | None]:
    """The files of weights that are there, and which are not."""
    for kind in ("model.safetensors", "pytorch_model.bin"):
        if (folder / kind).is_file():
            return [kind], None
        try:
            index = json.loads((folder / f"{kind}.index.json").read_text(encoding="utf-8"))
            wanted = sorted(set(index["weight_map"].values()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [], f"{kind}.index.json cannot be read; download it again"
        # A link to nothing is no file.
        there = [name for name in wanted if (folder / name).is_file()]
        if missing := len(wanted) - len(there):
            return there, f"{missing} of {len(wanted)} files of weights are missing"
        return there, None
    others = sorted(path.name for path in folder.glob("*.safetensors") if path.is_file())
    return [], (
        f"holds no model.safetensors but {others[0]}"
        if others
        else "the weights are missing: only the configuration was downloaded"
    )


def _header(path: Path) -> Counter[str]:
    """How many numbers of each type a safetensors file holds.

    Raises:
        ValueError: it is damaged; the message goes on from the file's name.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError("is damaged")
        try:
            header = json.loads(file.read(length))
            tensors = [entry for name, entry in header.items() if name != "__metadata__"]
            end = max((entry["data_offsets"][1] for entry in tensors), default=0)
            counted: Counter[str] = Counter()
            for entry in tensors:
                counted[str(entry["dtype"])] += math.prod(entry["shape"])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ValueError("is damaged") from None
    if path.stat().st_size < 8 + length + end:
        raise ValueError("is cut off")
    return counted


def _parameters(folder: Path, tensors: Counter[str], dtype: str) -> int | None:
    """Number of weights; None where they are packed, and a count would be of something else."""
    if tensors.keys() & _PACKED:
        return None
    if tensors:
        return sum(tensors.values())
    size = sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin") if path.is_file())
    return size // _SIZES[dtype] if size and dtype in _SIZES else None
