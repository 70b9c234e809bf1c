"""The generation config of a model, with the meaning that it has in transformers' `generate`.

Fields for sampling become a `SamplingConfig`, which flags override.  Logits processors of other
fields are applied at every node of a step's tree.  Fields that select another decoding method are
named in a notice, and refused inside `generate`.  All other fields change no text; docs/models.md
lists them, and a test finds fields that a new version of transformers adds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    WatermarkingConfig,
)

from .decoder.config import SamplingConfig
from .decoder.errors import ConfigError
from .decoder.sampling import LogitsProcessor

_CHAT = SamplingConfig(temperature=0.7, top_p=0.9)
"""The sampling of a chat if the model states none; greedy decoding makes small models loop."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields of a `SamplingConfig`; they apply if `do_sample` is true."""
PROCESSORS = (
    *("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
    *("min_length", "min_new_tokens", "exponential_decay_length_penalty"),
    *("forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "renormalize_logits", "watermarking_config"),
)
"""The fields from which transformers makes a logits processor."""
ENDS = ("max_length", "max_new_tokens", "stop_strings")
"""The fields that end a text, besides `eos_token_id`."""
OTHER_METHODS: dict[str, Any] = {
    "num_beams": 1,
    "penalty_alpha": 0,  # contrastive search
    "dola_layers": None,
    "constraints": None,
    "force_words_ids": None,
    "guidance_scale": 1,  # runs the model a second time
    "token_healing": False,  # changes the prompt
    "num_return_sequences": 1,
    "max_time": None,  # other texts on other machines
}
"""The fields that select another decoding method, with the values that turn it off."""
REFUSED = {
    **{k: off for k, off in OTHER_METHODS.items() if k not in ("token_healing", "max_time")},
    "return_dict_in_generate": False,
}
"""The fields that are refused inside `generate`, which handles token healing and time limits."""


class AsStated(GenerationConfig):  # type: ignore[misc]
    """A generation config that accepts invalid values, with which transformers would refuse the
    model; see `leave_out`."""

    def __init__(self, **fields: Any) -> None:
        watermarking = fields.pop("watermarking_config", None)
        super().__init__(**fields)
        self.watermarking_config = watermarking
        if isinstance(watermarking, dict):
            with contextlib.suppress(TypeError, ValueError):
                self.watermarking_config = WatermarkingConfig.from_dict(watermarking)

    def validate(self, *_: Any, **__: Any) -> None:
        """Accept all values."""


def leave_out(config: AsStated, model_config: Any, vocabulary: int) -> list[str]:
    """Remove values with which `generate` would fail from a generation config, and return them.

    Fields of a `SamplingConfig` stay; see `stated`.

    Args:
        config: from a file, which may have been edited by hand.
        model_config: of transformers.
        vocabulary: number of token ids.
    """
    maker, wrong = GenerationMixin(), []
    maker.config = model_config
    for name in (*ENDS, *PROCESSORS):
        value = getattr(config, name, None)
        if name == "stop_strings":
            usable = all(isinstance(text, str) and text for text in _listed(value))
        elif name in ENDS:
            usable = value is None or (type(value) is int and value > 0)
        else:
            usable = value is None or _works(maker, config, name, vocabulary)
        if not usable:
            wrong.append(f"{name} {value!r}")
            setattr(config, name, None)
    if not all(_is_token(token, vocabulary) for token in _listed(config.eos_token_id)):
        wrong.append(f"eos_token_id {config.eos_token_id!r}")
    return wrong


def _works(maker: GenerationMixin, config: AsStated, name: str, vocabulary: int) -> bool:
    """Return True if the logits processor of one field can be created and applied."""
    ids, scores = torch.zeros((1, 2), dtype=torch.long), torch.zeros((1, vocabulary))
    try:
        alone = _config_of(config, [name], SamplingConfig(temperature=1.0))
        alone.eos_token_id = [0]
        for processor in _processors(maker, alone, ids, 3):
            processor(ids, scores)  # most of them check their values only when they are applied
    except Exception:  # of any type
        return False
    return True


def _listed(value: Any) -> list[Any]:
    """Return a list, a single value or None as a list."""
    return list(value) if isinstance(value, list | tuple) else [value] * (value is not None)


def _is_token(value: object, vocabulary: int) -> bool:
    return type(value) is int and 0 <= value < vocabulary


def asking(config: Any, others: Mapping[str, Any]) -> list[str]:
    """Return the fields of a generation config that are not turned off, as `others` has it."""
    fields = [name for name in others if getattr(config, name, None) not in (None, others[name])]
    # `generate` ignores `penalty_alpha` if it samples.
    return [name for name in fields if name != "penalty_alpha" or not config.do_sample]


def stated(config: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a generation config for a `SamplingConfig`, and its invalid values, such
    as a `top_k` of -1."""
    values: dict[str, Any] = {}
    wrong = []
    for name in SAMPLING:
        if (value := getattr(config, name)) is None:
            continue
        try:
            number: Any = int(value) if name == "top_k" else float(value)
            SamplingConfig(**{name: number})
        except (ConfigError, OverflowError, ValueError, TypeError):
            wrong.append(f"{name} {value!r}")
        else:
            values[name] = number
    return values, wrong


def sampling_of(config: Any) -> SamplingConfig:
    """Return the sampling of a generation config.

    If it samples, transformers' defaults apply to missing fields, such as a `top_k` of 50.
    """
    values, _ = stated(config)
    if not config.do_sample:
        return SamplingConfig(repetition_penalty=values.get("repetition_penalty", 1.0))
    defaults = GenerationConfig._get_default_generation_params()
    usual = {name: defaults[name] for name in SAMPLING if defaults.get(name) is not None}
    return SamplingConfig(**{"temperature": 1.0} | usual | values)


def as_generate(
    own: GenerationConfig, sampling: SamplingConfig, stop_ids: Collection[int]
) -> GenerationConfig:
    """Return the generation config with which `generate` chooses the same tokens as we do.

    Args:
        own: the model's, with its logits processors.
        sampling: of the answer.
        stop_ids: the tokens that end the answer.
    """
    left_out = set()
    if own.min_new_tokens is not None:
        left_out.add("min_length")
    if not stop_ids:
        left_out.add("exponential_decay_length_penalty")  # it raises the score of the end
    config = _config_of(own, [name for name in PROCESSORS if name not in left_out], sampling)
    config.eos_token_id = sorted(stop_ids) or None
    return config


def _config_of(own: Any, names: Sequence[str], sampling: SamplingConfig) -> GenerationConfig:
    """Return a generation config with some fields of another one, and with a sampling."""
    config = GenerationConfig()
    for name in names:
        setattr(config, name, getattr(own, name, None))
    config.num_beams, config.do_sample = 1, not sampling.greedy
    config.repetition_penalty = sampling.repetition_penalty
    if not sampling.greedy:
        config.temperature, config.top_k = sampling.temperature, sampling.top_k
        config.top_p, config.min_p = sampling.top_p, sampling.min_p or None
    return config


def _processors(
    model: Any, config: GenerationConfig, ids: Any, max_length: int
) -> LogitsProcessorList:
    """Return the logits processors that `generate` creates from a config for a prompt [1, n].

    The config is changed, as in `generate`.
    """
    config.max_length = max_length
    model._prepare_special_tokens(config, True, device=ids.device)
    processors: LogitsProcessorList = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=ids.shape[1],
        encoder_input_ids=ids,
        logits_processor=LogitsProcessorList(),
        device=ids.device,
        model_kwargs={},
    )
    return processors


@dataclass(frozen=True, slots=True)
class AnswerDefaults:
    """The model's generation defaults."""

    config: GenerationConfig
    tokenizer: Any
    vocabulary: int  # number of token ids

    @property
    def sampling(self) -> SamplingConfig:
        """The sampling of a chat."""
        if self.config.do_sample is None:
            return replace(_CHAT, **stated(self.config)[0])
        return sampling_of(self.config)

    def states(self, name: str) -> bool:
        """Return True if a field of `sampling` comes from the model, not from the chat default."""
        return self.config.do_sample is not None or name in stated(self.config)[0]

    @property
    def without_samples(self) -> SamplingConfig:
        """The sampling outside of chats: greedy, with the model's penalty.

        With a user's temperature, the other fields of the generation config's sampling apply.
        """
        if self.config.do_sample:
            return replace(sampling_of(self.config), temperature=0.0)
        return replace(SamplingConfig(**stated(self.config)[0]), temperature=0.0)

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end a text: those of the generation config, or the tokenizer's."""
        stated, own = _listed(self.config.eos_token_id), self.tokenizer.eos_token_id
        ids = {token for token in stated if _is_token(token, self.vocabulary)}
        return frozenset(ids or (() if own is None else (own,)))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end a text."""
        return tuple(_listed(self.config.stop_strings))

    def length_limit(self, prompt: int) -> int | None:
        """Return the limit of new tokens after a prompt of `prompt` tokens; None without one."""
        if (most := self.config.max_new_tokens) is not None:
            return int(most)
        room = (self.config.max_length or 0) - prompt
        return room if room > 0 else None

    def choose(
        self,
        model: Any,
        sampling: SamplingConfig,
        prompt: Sequence[int],
        max_length: int,
        stop_ids: Collection[int],
        device: torch.device,
    ) -> tuple[SamplingConfig, list[LogitsProcessor]]:
        """Return the sampling and the processors with which the decoder chooses as `generate` does.

        If a `SamplingConfig` can express the generation config, the decoder samples a whole step at
        once.  Otherwise transformers' processors are applied in their order, and the decoder only
        draws the tokens.

        Args:
            model: of transformers.
            sampling, stop_ids: see `as_generate`.
            prompt: token ids.
            max_length: the most tokens of prompt and answer.
            device: of the logits.
        """
        config = as_generate(self.config, sampling, stop_ids)
        ids = torch.tensor([list(prompt)], device=device)
        plain = SamplingConfig(temperature=float(not sampling.greedy))
        neutral = _config_of(config, [*PROCESSORS, "eos_token_id"], plain)
        if not _processors(model, neutral, ids, max_length):
            return sampling, []
        return replace(plain, seed=sampling.seed), [*_processors(model, config, ids, max_length)]

    @property
    def ignored(self) -> list[str]:
        """The settings of the generation config that are not applied."""
        return asking(self.config, OTHER_METHODS) + stated(self.config)[1]
