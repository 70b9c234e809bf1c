"""Lookahead decoding inside transformers: `generate(..., custom_generate=lookahead)`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.integrations import is_deepspeed_zero3_enabled

from .decoder.backends.compat import CACHE_NAMES
from .decoder.backends.load import LoadOptions, choose_backend, decoder_of
from .decoder.backends.modified import fingerprint, intervention, why_not_drafted
from .decoder.backends.transformers_cache import OwnCacheModel
from .decoder.backends.transformers_forward import StockModel
from .decoder.backends.trial import facts_of
from .decoder.backends.weights import make_transformer
from .decoder.config import Limits, LookaheadConfig, SamplingConfig
from .decoder.errors import UnsupportedModelError
from .decoder.events import Finished
from .decoder.model.forward import Forward
from .decoder.model.transformer import Transformer
from .decoder.strategies import make_strategy
from .generation_config import REFUSED, asking
from .models.describe import empty_model
from .models.device import detect
from .models.fit import spec_of
from .profiles import measured, select


class _Decoding(NamedTuple):
    """The choice of a backend for a model, after a trial."""

    fingerprint: int | None  # None if hooks may change their behaviour from call to call
    # Not a forward itself, which would keep the model alive; None for transformers' own decoding.
    make_forward: Callable[[Any], Forward] | None
    settings: LookaheadConfig
    notices: tuple[str, ...]


_DECODINGS: WeakKeyDictionary[Any, _Decoding] = WeakKeyDictionary()


def lookahead(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    lade_config: LookaheadConfig | None = None,
    lade_seed: int | None = None,
    lade_streamer: Any = None,
    **model_kwargs: Any,
) -> Tensor:
    """Return prompt and answer as `generate` would, with several tokens per forward pass.

        model.generate(**inputs, custom_generate=ladecli.lookahead, max_new_tokens=100)

    Args:
        lade_config: window, n-grams, guesses; None for the settings of the device's profile.
        lade_seed: the seed of sampling; None draws one from torch's generator.
        lade_streamer: a streamer of transformers, which drops its own argument `streamer`.

    Raises:
        ValueError, UnsupportedModelError: the call or the model is not supported.
    """
    facts = facts_of(model)
    _refuse(model, input_ids, generation_config, model_kwargs)
    decoding = _decoding_of(model)
    if lade_streamer is not None:
        lade_streamer.put(input_ids.cpu())
    if decoding.make_forward is None:
        plain: Tensor = model._sample(
            *(input_ids, logits_processor, stopping_criteria, generation_config),
            streamer=lade_streamer,
            **model_kwargs,
        )
        return plain
    text = _Text(input_ids, generation_config.max_length, stopping_criteria, lade_streamer)
    decoder = decoder_of(decoding.make_forward(model), facts, text.room)
    if text.room > decoder.max_context:
        ends = f"ends at the model's context of {decoder.max_context} tokens"
        warnings.warn(f"the text {ends}, before max_length={text.room}", stacklevel=2)
    for event in decoder.generate(
        input_ids[0].tolist(),
        make_strategy("lookahead", lade_config or decoding.settings),
        _sampling(generation_config.do_sample, lade_seed),
        Limits(text.room - text.length, should_stop=text.add),
        processors=list(logits_processor or ()),
    ):
        if event == Finished("memory"):
            warnings.warn(f"out of memory: the text ends after {text.length} tokens", stacklevel=2)
    return text.end()


class _Text:
    """Prompt and answer, [1, tokens]; a streamer gets each token of the answer."""

    def __init__(self, prompt: Tensor, limit: int, criteria: Any, streamer: Any) -> None:
        self.length = prompt.shape[1]
        self.room = max(limit, self.length)
        self._ids = torch.nn.functional.pad(prompt, (0, self.room - self.length))
        self._criteria, self._streamer = criteria, streamer

    def add(self, token: int) -> bool:
        """Add a token; return True if the stopping criteria end the text."""
        self._ids[0, self.length] = token
        self.length += 1
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        return bool(self._criteria and self._criteria(self._ids[:, : self.length], None).all())

    def end(self) -> Tensor:
        """Return the whole text."""
        if self._streamer is not None:
            self._streamer.end()
        return self._ids[:, : self.length].clone()


def _sampling(samples: bool, seed: int | None) -> SamplingConfig:
    """Return the sampling, without temperature and the like, which are logits processors here."""
    if not samples:
        return SamplingConfig()
    drawn = int(torch.randint(2**62, (1,))) if seed is None else seed
    return SamplingConfig(temperature=1.0, seed=drawn)


def _decoding_of(model: Any) -> _Decoding:
    """Return the backend of a model; the first call, and each call after a change, runs a trial."""
    mark, before = fingerprint(model), _DECODINGS.get(model)
    if before is not None and before.fingerprint == mark:
        return before
    facts, added, why = facts_of(model), intervention(model), why_not_drafted(model)
    # If a model has code from the hub, that is running already, so it is on this machine.
    hub = {"trust_remote_code": True, "local_files_only": True}
    spec, device = spec_of(empty_model(model.config, hub), model.dtype), detect(str(model.device))
    choice = select(None, device, spec, captured=False)
    backend = make = None
    with suppress(*[UnsupportedModelError] if added else []):
        if not why:
            backend = choose_backend(model, facts, LoadOptions(join=False, not_ours=added))
    # Hooks may not support a prompt in chunks, which the model's own cache would require.
    if backend is None or (added and not isinstance(backend.forward, StockModel)):
        lines = [f"transformers' own decoding runs, without drafts: {why or added}"]
    else:
        makers: dict[type[Forward], Callable[[Any], Forward]] = {
            Transformer: partial(make_transformer, facts=facts, join=False),
            StockModel: partial(StockModel, shapes=backend.forward.layer_shapes),
        }
        make, lines = makers.get(type(backend.forward), OwnCacheModel), [*backend.notices]
        if added is None:  # hooks may count steps
            decoder = decoder_of(backend.forward, facts, 256)
            choice = choice.priced(measured.after_load(decoder, device, spec, load_seconds=3.0))
    notices = (*choice.notices, *lines)
    for notice in notices:
        if before is None or notice not in before.notices:
            warnings.warn(notice, stacklevel=3)
    _DECODINGS[model] = _Decoding(None if added else mark, make, choice.lookahead, notices)
    return _DECODINGS[model]


# Arguments that transformers always passes, or that do not change the result.
_ALLOWED_KWARGS = frozenset(
    {"attention_mask", "use_cache", "cache_position", "position_ids", "logits_to_keep"}
    | {"next_sequence_length", "output_attentions", "output_hidden_states", *CACHE_NAMES}
)


def _refuse(model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise a ValueError that names an unsupported argument, if there is one."""
    what = None
    passed = {k: v for k, v in model_kwargs.items() if not (v is None or v is False or v == {})}
    mask, positions = passed.get("attention_mask"), passed.get("position_ids")
    others = [name for name in passed if name not in _ALLOWED_KWARGS]
    if config is None:
        what = "a call without a generation config; call it through model.generate"
    elif fields := asking(config, REFUSED):
        name, value = fields[0], getattr(config, fields[0])
        own = getattr(model.generation_config, name, None) == value
        whose = " of the model's generation config" if own else ""
        what = f"{name}={value!r}{whose}; pass {name}={REFUSED[name]!r}"
    elif others:
        instead = (
            "pass it as lade_streamer" if others[0] == "streamer" else "it reads only input_ids"
        )
        what = f"{others[0]}; {instead}"
    elif is_fsdp_managed_module(model) or is_deepspeed_zero3_enabled():
        what = "weights that are split over processes (FSDP, ZeRO-3)"
    elif input_ids.shape[0] != 1:
        what = f"a batch of {input_ids.shape[0]} prompts; pass one at a time"
    elif mask is not None and not bool(mask.all()):
        what = (
            "padding: the attention mask, which transformers makes if none is passed, leaves tokens"
            " out; pass the prompt without padding, or attention_mask=torch.ones_like(input_ids)"
        )
    elif any(_holds_tokens(passed[name]) for name in CACHE_NAMES if name in passed):
        what = "a cache that holds tokens already; pass the whole text without a cache"
    elif positions is not None and bool((positions != torch.arange(positions.shape[-1])).any()):
        what = "position_ids that do not count from 0"
    if what:
        raise ValueError(f"lookahead does not support {what}")


def _holds_tokens(cache: Any) -> bool:
    if cache.layers and all(cache.is_linear):  # a recurrent state has no length
        return bool(cache.has_previous_state())
    return bool(cache.get_seq_length())
