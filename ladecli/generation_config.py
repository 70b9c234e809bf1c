"""What a model's generation config asks for, as far as it makes sense and can be had here.

Anybody can write these files, and many are edited by hand: what makes no sense is left out, and
told by its name.
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
"""They change even greedy text, and nobody here knows how to."""
_DRAWING = ("temperature", "top_k", "top_p", "min_p")
_PENALTY = "repetition_penalty"
_END = "eos_token_id"


def stop_ids(config: Any, vocabulary: int) -> frozenset[int]:
    """Every id that ends a text; none where the file says none.

    Args:
        config: a GenerationConfig of transformers.
        vocabulary: ids that the model knows.
    """
    return frozenset(each for each in _ends(config) if _is_id(each, vocabulary))


def sampling(config: Any) -> SamplingConfig:
    """How tokens are to be chosen.

    Args:
        config: a GenerationConfig of transformers.
    """
    # Without a word about it, transformers draws at temperature 1.
    drawing = {"temperature": 1.0} | _sensible(config, _DRAWING) if config.do_sample else {}
    return SamplingConfig(**drawing, **_sensible(config, (_PENALTY,)))


def repetition_penalty(config: Any) -> float:
    """The penalty, which holds for greedy decoding, too; 1 where there is none."""
    penalty: float = _sensible(config, (_PENALTY,)).get(_PENALTY, 1.0)
    return penalty


def ignored(config: Any, vocabulary: int) -> list[str]:
    """Settings that are not applied: nobody here knows how to, or they make no sense.

    Args:
        config, vocabulary: see `stop_ids`.
    """
    given = config.to_diff_dict()
    found = [name for name in _NOT_APPLIED if given.get(name)]
    names = (*_DRAWING, _PENALTY) if config.do_sample else (_PENALTY,)
    sensible = _sensible(config, names)
    said = [name for name in names if getattr(config, name) is not None and name not in sensible]
    if not all(_is_id(each, vocabulary) for each in _ends(config)):
        said.append(_END)
    return sorted([*found, *(f"{name} {getattr(config, name)!r}" for name in said)])


def _ends(config: Any) -> list[Any]:
    """What the file says that ends a text, whatever it is."""
    said = getattr(config, _END)
    if said is None:
        return []
    return list(said) if isinstance(said, list | tuple) else [said]


def _is_id(value: object, vocabulary: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocabulary


def _sensible(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings of these names that can be applied."""
    return {
        name: number
        for name in names
        if (number := _number(name, getattr(config, name, None))) is not None
    }


def _number(name: str, value: object) -> float | None:
    """A setting as `SamplingConfig` has it; None where it has none like that."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        given: dict[str, Any] = {name: int(value) if name == "top_k" else float(value)}
        SamplingConfig(**given)
    except (ConfigError, OverflowError, ValueError):
        return None
    number: float = given[name]
    return number if number == value else None  # half a token is none
