"""Properties in a GGUF file that transformers ignores: rotary scaling, cuts of texts.

The configuration and the tokenizer that transformers made of the file are completed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import LoadError
from .gguf_header import GGUFHeader, GGUFTensor, quick_gguf

_PLAIN = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Settings that transformers does not read, and what its configurations call them."""
_SCALING = (
    *("type", "factor", "original_context_length", "finetuned", "attn_factor"),
    *("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"),
)
"""Settings of `rope.scaling` that are read; others change nothing if they are 0 or neutral."""
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_NEUTRAL = {"yarn_ext_factor": 1}
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(numbers: str, letters: str = r"\p{L}") -> str:
    """The cut of Llama 3, Qwen and their kin: words with a sign before them, then numbers."""
    other = rf"[^\s{letters}\p{{N}}]"
    return rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{numbers}| ?{other}+[\r\n]*" + _END


def _cased(numbers: str, suffix: str = "") -> str:
    """The cut of GPT-4o, Tekken and their kin: words end where small letters meet large ones."""
    upper, lower = f"[{_UPPER}]", f"[{_LOWER}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _END
    )


_SIGNS = r"!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"
_SPLITS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx"
        " smaug-bpe chatglm-bpe glm4",
        (_words(r"\p{N}{1,3}"),),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open",
        (_words(r"\p{N}"),),
    ),
    ("qwen35", (_words(r"\p{N}", r"\p{L}\p{M}"),)),
    ("tekken", (_cased(r"\p{N}"),)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", (_cased(r"\p{N}{1,3}", f"{_SUFFIX}?"),)),
    (
        "deepseek-v3 hunyuan-dense joyai-llm",
        (
            r"\p{N}{1,3}",
            "[一-龥\u3040-ヿ]+",
            rf"[{_SIGNS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*" + _END,
        ),
    ),
    (
        "deepseek-coder",
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais trillion exaone4 gigachat a.x-4.0 mellum granite-docling",
        (_GPT2,),
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b", (r"\p{N}", _GPT2)),
    ("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
)
"""The rules by which texts are cut before pairs are merged, by name in `tokenizer.ggml.pre`."""
CUTS = {name: cut for names, cut in _SPLITS for name in names.split()}
_WHOLE = (*_SPLITS[0][0].split()[:9], "tekken")
"""Names of tokenizers that take words of the vocabulary whole, and begin texts with BOS unless the
file says otherwise."""


def complete_config(header: GGUFHeader, config: Any) -> None:
    """Put into a configuration what transformers did not read of the file.

    Raises:
        LoadError: the model cannot be built as the file says; the message follows its name.
    """
    for key, name in _PLAIN.items():
        value = header.get(key)
        by_layer = name == "sliding_window" and getattr(config, "layer_types", None)
        if isinstance(value, int | float) and hasattr(config, name) and not by_layer:
            setattr(config, name, value or None)
    named = hasattr(config, "num_experts") or hasattr(config, "num_local_experts")
    if header.get("expert_count") and not named:
        raise LoadError(f"holds experts, which transformers does not read of {header.architecture}")
    for name, tensor in (("attention_bias", "attn_output"), ("mlp_bias", "ffn_up")):
        if f"blk.0.{tensor}.bias" in header.tensors and hasattr(config, name):
            setattr(config, name, True)
    rope = getattr(config, "rope_parameters", None)
    scaling = _scaling(header, config)
    if not rope:
        if scaling:
            raise LoadError(f"scales rotary positions, which a {config.model_type} does not have")
        return
    target = rope.get("full_attention", rope)
    if base := header.get("rope.freq_base"):
        target["rope_theta"] = base
    if (base := header.get("rope.freq_base_swa")) and "sliding_attention" in rope:
        rope["sliding_attention"]["rope_theta"] = base
    proportional = target.get("rope_type") == "proportional"
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn") and (proportional or config.model_type == "phi3"):
        raise LoadError(f"has {kind} scaling, which a {config.model_type} does not have")
    if proportional:  # as in Gemma 4; the factors of dimensions that do not turn are huge
        if factors := scaling.get("long_factor"):
            target["partial_rotary_factor"] = factors.count(1.0) / len(factors)
        return
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if (stated := header.get("attention.key_length")) and stated != width:
        config.head_dim = width = stated
    _turn_part(header, target, width)
    turned = int(width * target.get("partial_rotary_factor", 1)) // 2
    for name in ("short_factor", "long_factor"):
        if name in scaling and len(scaling[name]) != turned:
            raise LoadError(
                f"has {len(scaling[name])} factors of rotary frequencies for {turned} of them"
            )
    target.update(scaling)
    original = scaling.get("original_max_position_embeddings")
    if original and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = original


def _turn_part(header: GGUFHeader, target: dict[str, Any], width: int) -> None:
    """Let only as many dimensions of each head turn as the file says."""
    count = header.get("rope.dimension_count")
    stated = target.get("partial_rotary_factor")
    if not count or count == int(width * (stated or 1)):
        return
    if stated is None:
        raise LoadError(
            f"turns {count} of {width} dimensions of each head, which transformers does not do for"
            f" {header.architecture}"
        )
    target["partial_rotary_factor"] = count / width


def _scaling(header: GGUFHeader, config: Any) -> dict[str, Any]:
    """Return the scaling of rotary frequencies as transformers writes it; {} without any."""
    get, most = header.get, getattr(config, "max_position_embeddings", None)
    prefix = f"{header.architecture}.rope.scaling."
    for key, value in header.settings.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name not in _SCALING and value not in (0, _NEUTRAL.get(name)):
            raise LoadError(f"states {key}, which transformers does not have")
    factor = get("rope.scaling.factor") or get("rope.scale_linear") or 1.0
    kind = get("rope.scaling.type") or "linear"
    original = get("rope.scaling.original_context_length")
    attention = get("rope.scaling.yarn_attn_factor") or get("rope.scaling.attn_factor")
    factors = {name[5:-7]: header.floats(name) for name in _ROPE_TENSORS if name in header.tensors}
    more: dict[str, Any] = {"attention_factor": float(attention)} if attention else {}
    if "factors_long" in factors or "factors_short" in factors:
        if len(factors) != 2 or not original:
            lack = "rope_factors_long and rope_factors_short" if original else ""
            raise LoadError(f"lacks {lack or 'rope.scaling.original_context_length'} for longrope")
        return {
            "rope_type": "longrope",
            "short_factor": factors["factors_short"],
            "long_factor": factors["factors_long"],
            "original_max_position_embeddings": original,
            **more,
        }
    if kind != "yarn" and attention not in (None, 1):
        raise LoadError("states rope.scaling.attn_factor without YaRN or longrope")
    if any(factor != 1 for factor in factors.get("freqs", ())):
        if kind not in ("linear", "none"):
            raise LoadError(f"has both rope_freqs.weight and {kind} scaling")
        freqs = [one * (factor if kind == "linear" else 1) for one in factors["freqs"]]
        return {  # the same for all lengths
            "rope_type": "longrope",
            "short_factor": freqs,
            "long_factor": freqs,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": most,
        }
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise LoadError(f"has {kind} scaling of rotary frequencies, which cannot be read here")
    for name in ("beta_fast", "beta_slow"):
        if (value := get(f"rope.scaling.yarn_{name}")) is not None:
            more[name] = value
    more["original_max_position_embeddings"] = original or most
    return {"rope_type": "yarn", "factor": factor, **more}


Change: TypeAlias = Callable[[GGUFTensor, Any, dict[str, Any]], Any]
"""Returns the numbers of a tensor as the model has them; None if it put them among those parsed."""


class StoredWeight:
    """A weight of a model, whose rows are unpacked as they are read.

    Args:
        parts: the tensors of the file that it is made of; most are made of one.
        change: what transformers does to their numbers.
        shape: of the weight.
        on_read: is called with the number of bytes whenever some were read.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        parts: list[GGUFTensor],
        change: Change,
        shape: Sequence[int],
        on_read: Callable[[int], None],
    ) -> None:
        self.parts, self._change, self.shape, self._on_read = parts, change, shape, on_read
        self._held: np.ndarray[Any, Any] | None = None
        # What changes no number leaves these as they are, and they take no memory.
        blank = np.broadcast_to(np.float32(0), parts[0].shape)
        self._plain = blank.ndim == 2 and change(parts[0], blank, {"tensors": {}}) is blank

    def __getitem__(self, rows: Any) -> Tensor:
        """Return rows in float32."""
        if not self._plain:
            tensors: dict[str, Any] = {}
            for part in self.parts:
                numbers = self._change(part, self._numbers(part, ...), {"tensors": tensors})
                if numbers is not None:
                    tensors[part.name] = torch.from_numpy(np.ascontiguousarray(numbers))
            whole: Tensor
            (whole,) = tensors.values()
            return whole[rows]
        return torch.from_numpy(self._numbers(self.parts[0], rows))

    def _numbers(self, part: GGUFTensor, rows: Any) -> Any:
        import gguf

        length = part.size // math.prod(part.shape[:-1])  # of a row, in bytes
        if isinstance(rows, Tensor):  # any of them: memory holds those that were looked up
            if self._held is None:
                self._held = np.memmap(part.path, np.uint8, "r", part.start, (part.size,))
            data = self._held.reshape(-1, length)[rows.numpy()]
        else:
            start, stop, _ = (slice(None) if rows is ... else rows).indices(part.shape[0])
            each = part.size // part.shape[0]
            at, size = part.start + start * each, (stop - start) * each
            shape = (-1, *part.shape[1:-1], length)[-len(part.shape) :]
            data = np.fromfile(part.path, np.uint8, size, offset=at).reshape(shape)
            self._on_read(size)
        return gguf.dequantize(data, gguf.GGMLQuantizationType[part.kind])


def _names_and_changes(header: GGUFHeader, model: Any) -> tuple[dict[str, str], Change]:
    """Return what a model calls the weights of a file, by their names there, and the function that
    gives their numbers the order that transformers has."""
    from transformers import modeling_gguf_pytorch_utils as loader

    kind = loader.TENSOR_PROCESSORS.get(header.architecture, loader.TensorProcessor)
    processor = kind(config=model.config.to_dict())
    try:
        with quick_gguf(header):
            names = loader.get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise LoadError(
            f"{header.path.name}: transformers has no names for the weights of a"
            f" {header.architecture}"
        ) from error

    def change(part: GGUFTensor, numbers: Any, parsed: dict[str, Any]) -> Any:
        done = processor.process(
            numbers, part.name, tensor_key_mapping=names, parsed_parameters=parsed
        )
        return None if done.name is None else done.weights

    return names, change


def stored_weights(
    header: GGUFHeader,
    model: Any,
    on_share: Callable[[float], None] | None = None,
    *,
    eight: bool = False,
) -> dict[str, StoredWeight]:
    """Return the weights of a model without weights, by the names that it has for them; {} if
    transformers has a reader of its own for the family.

    `on_share` is called with the share of the tensors that was read, as reading goes on; with
    `eight` bits, of all but the embedding, whose rows are read later.
    """
    from transformers.integrations.gguf import is_gguf_arch_supported

    if is_gguf_arch_supported(header.architecture):
        if header.files > 1:
            file = header.path.name
            raise LoadError(
                f"{file} is split, and transformers reads a {header.architecture} whole; join it:"
                f" llama-gguf-split --merge {file} whole.gguf"
            )
        return {}
    names, change = _names_and_changes(header, model)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    parts: dict[str, list[GGUFTensor]] = {}
    for tensor in header.tensors.values():
        name = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))
        if name and name in shapes:
            parts.setdefault(name, []).append(tensor)
    later, read = ("token_embd.weight",) if eight else (), 0
    total = sum(tensor.size for name, tensor in header.tensors.items() if name not in later)

    def on_read(size: int) -> None:
        nonlocal read
        read += size
        if on_share is not None:
            on_share(min(read / total, 1.0))

    return {
        name: StoredWeight(tensors, change, shapes[name], on_read)
        for name, tensors in parts.items()
    }


def notices(header: GGUFHeader, model: Any) -> Iterator[str]:
    """Yield lines about tensors that a model leaves out, and about a guess at its tokenizer."""
    if stored := stored_weights(header, model):  # others say themselves what is left over
        taken = {part.name for weight in stored.values() for part in weight.parts}
        if left := [name for name in header.tensors if name not in {*taken, *_ROPE_TENSORS}]:
            more = f" and {len(left) - 1} more" if left[1:] else ""
            yield (
                f"{header.path.name}: transformers does not take {left[0]}{more}, so answers may be"
                " wrong"
            )
    pre = header.tokenizer("pre")
    if header.tokenizer("model") == "gpt2" and pre not in CUTS:
        yield (
            f"{header.path.name} names no pre-tokenizer that is known here ({pre}): texts are cut"
            " as GPT-2 cuts them, and tokens may differ"
        )


def complete_tokenizer(header: GGUFHeader, tokenizer: Any) -> None:
    """Have a tokenizer cut texts as the file says, and give it all chat templates of the file."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    backend, pre = tokenizer.backend_tokenizer, header.tokenizer("pre")
    prefix = header.tokenizer("add_space_prefix")
    if header.tokenizer("model") == "gpt2":
        cut = CUTS.get(pre, (_GPT2,))
        splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in cut if cut != (_GPT2,)]
        last = pre_tokenizers.ByteLevel(bool(prefix) and not splits, use_regex=not splits)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
        changes: list[Any] = [normalizers.NFC()] if pre in ("qwen2", "qwen35") else []
        changes += [normalizers.Prepend(" ")] if prefix and splits else []
        backend.normalizer = normalizers.Sequence(changes)
        if pre in _WHOLE:
            backend.model.ignore_merges = True
            if header.tokenizer("add_bos_token") is None and tokenizer.bos_token is not None:
                tokenizer.add_bos_token = True
    elif prefix is header.architecture.startswith("gemma"):  # not as transformers takes it to be
        scheme = "first" if prefix else "never"
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
        plain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        strip = [decoders.Strip(" ", 1, 0)] if prefix else []
        backend.decoder = decoders.Sequence([*plain, *strip])
    if len(header.chat_templates) > 1:
        tokenizer.chat_template = header.chat_templates
