"""Special content of checkpoints: weights without a place in the model, FP8 weights, and embeddings
of adapters."""

from __future__ import annotations

import contextlib
import json
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..decoder.backends.stored import StoredTensor
from ..errors import LoadError, counted
from . import model_files
from .adapters import Adapter

BLOCK = 128
"""The rows and columns of a block of FP8 weights with one scale, if the configuration states none.
"""
_NUMBER = re.compile(r"\d+")
_TABLES = frozenset({"inv_freq", "masked_bias", "causal_mask", "position_ids"})
"""Names of tensors that models formerly saved and now compute."""
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_OF_ACTIVATIONS = re.compile(r"\.(input|output|activation|q|k|v|kv)_scale$")
"""Suffixes of scales that do not matter to unquantised activations, keys and values."""


def mapped_tensors(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return all tensors of safetensors files by name, mapped into memory; {} if one of them is of
    another type than float32, float16 and bfloat16, or has no numbers.

    Their headers were checked before (`model_files.stored_tensors`), by the safetensors package,
    which does not tell where a tensor begins.
    """
    tensors = {}
    for path in paths:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header.pop("__metadata__", None)
        for name, stated in header.items():
            kind, shape = model_files.TYPES.get(stated["dtype"]), stated["shape"]
            if kind is None or 0 in (len(shape), *shape):
                return {}
            start = 8 + size + stated["data_offsets"][0]
            tensors[name] = StoredTensor(memory, start, getattr(torch, kind), shape)
    return tensors


def check_unread(
    name: str, model: Any, unexpected: Iterable[str], paths: Sequence[Path]
) -> Iterator[str]:
    """Yield a line about unread weights that the model does not need.

    Args:
        name: of the model.
        model: as built by transformers.
        unexpected: names of weights in its files without a place in the model.
        paths: its files of weights on this machine.

    Raises:
        LoadError: such a weight belongs to a layer or another module of the model, and would change
            the text.
    """
    modules = dict(model.named_modules())
    read = {_NUMBER.sub("N", key) for key, _ in model.named_parameters()}
    layers: list[str] = []
    inside: list[str] = []
    others: list[str] = []
    for key in sorted(unexpected):
        owner = _owner(key, modules, model.base_model_prefix)
        if owner is None:
            (layers if _NUMBER.sub("N", key) in read else others).append(key)
        elif owner and not _is_zero(key, paths):
            inside.append(key)
    if inside:
        raise LoadError(
            f"{name}: the model of config.json has no place for {_listed(inside)} of its files,"
            " without which the text would be another one; take the config.json that belongs to"
            " the weights"
        )
    if layers:
        yield (
            f"{name}: weights of layers that config.json does not have are left out"
            f" ({_listed(layers)}); check its num_hidden_layers"
        )
    if others:
        yield f"{name}: the model has no part for {_listed(others)} of its files: left out"


def _listed(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - 1, 'more weight')}" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _owner(key: str, modules: dict[str, Any], prefix: str) -> bool | None:
    """Return True if a weight would change the output of a module of the model; None if it belongs
    to no module.

    Args:
        key: the weight's name; files of the inner model lack a prefix.
        modules: of the model, by name.
        prefix: of the inner model.
    """
    for start in ((), (prefix,)):
        parts = [*start, *key.split(".")]
        for end in range(len(parts) - 1, 0, -1):
            module = modules.get(".".join(parts[:end]))
            if module is None:
                continue
            in_layer = any(part.isdigit() for part in parts[:end])
            if in_layer or [*module.parameters(recurse=False)]:
                mask = parts[end:] == ["bias"] and bool([*module.children()])  # of old GPT models
                return not mask and parts[-1] not in _TABLES
            break
    return None


def _is_zero(key: str, paths: Sequence[Path]) -> bool:
    """Return True if a weight is a bias of zeros, which some tools write."""
    for path in paths if key.endswith("bias") else ():
        with contextlib.suppress(Exception), safe_open(path, framework="pt") as file:
            if key in file.keys():  # noqa: SIM118, not a dict
                return not file.get_tensor(key).any()
    return False


def plain_tensors(folder: Path, dtype: torch.dtype, block: Sequence[int]) -> dict[str, Tensor]:
    """Return all tensors of an FP8 checkpoint by name, with plain weights.

    Args:
        folder: with safetensors files.
        dtype: of the converted weights.
        block: the rows and columns of a block with one scale, for scales of blocks.

    Raises:
        LoadError: the shape of a scale does not fit that of its weight.
    """
    tensors: dict[str, Tensor] = {}
    for path in model_files.weight_files(folder):
        tensors |= load_file(path)
    for name in [name for name, tensor in tensors.items() if tensor.dtype in _FP8]:
        stem = name.removesuffix(".weight")
        names = f"{name}_scale_inv", f"{name}_scale", f"{stem}.scale", f"{stem}.qscale_weight"
        weight = tensors[name].float()
        scale = next((tensors.pop(key) for key in names if key in tensors), None)
        if scale is not None:
            try:
                weight *= _spread(scale, weight.shape, block)
            except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
                raise LoadError(
                    f"the scale of {name} has the shape {[*scale.shape]}, which does not go with"
                    f" the weight's {[*weight.shape]}"
                ) from error
        tensors[name] = weight.to(dtype)
    return {key: tensor for key, tensor in tensors.items() if not _OF_ACTIVATIONS.search(key)}


def _spread(scale: Tensor, shape: Sequence[int], block: Sequence[int]) -> Tensor:
    """Return a scale in a form that can be multiplied with a weight of a shape; it may be a single
    number, or have one for each matrix, row, group of rows or block."""
    # Bytes are exponents, as in MXFP8.
    scale = (scale.float() - 127).exp2() if scale.dtype == torch.uint8 else scale.float()
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim > len(shape):  # [blocks, 1, blocks, 1]
        scale = scale.squeeze()
    if scale.ndim < len(shape):  # without columns
        whole = len(shape) == 3 and scale.shape == shape[:1]
        scale = scale[:, None, None] if whole else scale[..., None]
    for axis in (-2, -1):
        size, count = shape[axis], scale.shape[axis]
        share = block[axis] if -(-size // block[axis]) == count else size // count
        if share * count < size:
            raise ValueError
        scale = scale.repeat_interleave(share, axis).narrow(axis, 0, size)
    return scale


def fit_embeddings(model: Any, adapter: Adapter) -> None:
    """Resize the embeddings of a model, with or without weights, to those of an adapter, which may
    have additional tokens."""
    from peft import load_peft_weights

    ends = [e for e in (model.get_input_embeddings(), model.get_output_embeddings()) if e]
    names = {name for name, module in model.named_modules() if any(module is end for end in ends)}
    trained = adapter.stated.get("trainable_token_indices") or []
    parts = trained.values() if isinstance(trained, dict) else [trained]
    rows = 1 + max((index for part in parts for index in part), default=-1)
    if rows > len(ends[0].weight):
        model.resize_token_embeddings(rows, mean_resizing=False)
    for key, tensor in load_peft_weights(str(adapter.folder), device="cpu").items():
        owner = key.removeprefix("base_model.model.").partition(".base_layer")[0]
        if owner.removesuffix(".weight") in names and len(tensor) != len(ends[0].weight):
            model.resize_token_embeddings(len(tensor), mean_resizing=False)
            return
