"""What a model's generation config asks for, as far as it makes sense and can be had here.

Many of these files are edited by hand: what makes no sense is left out, and named.
"""

from __future__ import annotations

from typing import Any

from .decoder.config import SamplingConfig
from .decoder.errors import ConfigError

_NOT_APPLIED = frozenset(
    {"no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"}
    | {"forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens"}
    | {"sequence_bias", "exponential_decay_length_penalty", "guidance_scale", "num_beams"}
)
"""Settings that change even greedy text, and that this decoder does not have."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_PENALTY = "repetition_penalty"
_CHAT = {"temperature": 0.7, "top_p": 0.9}
"""How a chat samples where the model does not say: greedy, small models run into loops."""


def stop_ids(config: Any, vocabulary: int) -> frozenset[int]:
    """Every id that ends a text; none where the file names none.

    Args:
        config: a GenerationConfig of transformers.
        vocabulary: ids that the model knows.
    """
    return frozenset(each for each in _ends(config) if _is_id(each, vocabulary))


def sampling(config: Any) -> SamplingConfig:
    """How tokens of a chat are to be chosen."""
    names = (*_SAMPLING, _PENALTY) if config.do_sample else (_PENALTY,)
    given = {name: value for name in names if (value := _setting(config, name)) is not None}
    if config.do_sample:
        given.setdefault("temperature", 1.0)  # as transformers does
    elif config.do_sample is None:
        given |= _CHAT
    return SamplingConfig(**given)


def ignored(config: Any, vocabulary: int) -> list[str]:
    """Settings that are not applied; arguments as for `stop_ids`."""
    given = config.to_diff_dict()
    found = [name for name in _NOT_APPLIED if given.get(name)]
    names = [*_SAMPLING, _PENALTY] if config.do_sample else [_PENALTY]
    wrong = [n for n in names if getattr(config, n) is not None and _setting(config, n) is None]
    if not all(_is_id(each, vocabulary) for each in _ends(config)):
        wrong.append("eos_token_id")
    return sorted([*found, *(f"{name} {getattr(config, name)!r}" for name in wrong)])


def _ends(config: Any) -> list[Any]:
    ends = config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]


def _is_id(value: object, vocabulary: int) -> bool:
    return type(value) is int and 0 <= value < vocabulary


def _setting(config: Any, name: str) -> Any:
    """A setting as `SamplingConfig` has it; None where it makes no sense."""
    value = getattr(config, name)
    if type(value) not in (int, float):
        return None
    number: Any
    try:
        number = int(value) if name == "top_k" else float(value)
        SamplingConfig(**{name: number})
    except (ConfigError, OverflowError, ValueError):
        return None
    return number if number == value else None
