"""Lookahead decoding inside transformers: `generate(..., custom_generate=lookahead)`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .decoder.compat import CACHE_NAMES
from .decoder.config import Limits, LookaheadConfig, SamplingConfig
from .decoder.decoder import Decoder
from .decoder.errors import UnsupportedModelError
from .decoder.events import Finished
from .decoder.load import Wanted, find_way, new_cache
from .decoder.model.forward import Forward
from .decoder.model.modified import (
    depends_on_rows,
    fingerprint,
    intervention,
    prepares_inputs,
)
from .decoder.model.own_cache import OwnCacheModel
from .decoder.model.rotary import facts_of
from .decoder.model.stock import StockModel
from .decoder.model.transformer import Transformer
from .decoder.run.runner import Runner
from .decoder.strategies import make_strategy
from .generation_config import REFUSED, asking
from .options.model import StepOptions
from .profiles import measured
from .session.setup import choose_profile
from .specs.device import detect
from .specs.model_spec import empty_model, spec_of


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a model; that takes longer than a short answer does."""

    # where the model was then, its type, and what had been done to it
    state: tuple[torch.device, torch.dtype, int]
    lookahead: LookaheadConfig  # the profile's settings
    # makes what runs it, of the model itself, which stays as it is and whose weights may be others
    # by then; None for transformers' own decoding
    make_forward: Callable[[Any], Forward] | None
    # whether something of the caller's hangs on it, such as hooks.  What those do may be another
    # thing at every call, so nothing is remembered then but the settings.
    intervention: bool
    notices: tuple[str, ...]  # what there was to say


_MEASURED, _LOAD_SECONDS = 256, 3.0
"""Tokens of context to measure steps in, and what the load of a model is taken to have taken."""
_MODELS: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


class CustomGenerate:
    """`generate(..., custom_generate=lookahead)`: see `__call__`.

    An object in place of a function because transformers drops `streamer`, `tokenizer` and others
    where `custom_generate` is no string.  It asks for the signature just after it has done so.
    """

    @property
    def __signature__(self) -> inspect.Signature:
        _take_back(inspect.currentframe())
        return inspect.signature(self.__call__)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        lade_config: LookaheadConfig | None = None,
        lade_seed: int | None = None,
        tokenizer: Any = None,
        assistant_model: Any = None,
        lade_dropped: Mapping[str, Any] | None = None,
        **model_kwargs: Any,
    ) -> Tensor:
        """Decode as `generate` would, several tokens per forward pass.

            model.generate(**inputs, custom_generate=ladecli.lookahead, max_new_tokens=100)

        Greedy output equals that of `generate`.  With `do_sample` the distribution is the same
        and the text depends on the seed alone; all of transformers' logits processors and
        stopping criteria apply.  A model with hooks or replaced forwards runs through
        transformers' own forward, which calls them with the drafts, too; where they depend on
        how a text is cut into steps, through transformers' own decoding.  A warning says so.

        Args:
            model, input_ids, logits_processor, stopping_criteria, generation_config,
                model_kwargs: as transformers passes them.
            lade_config: window, n-grams, guesses; None for those of the device's profile, which
                are chosen once for a model; what there is to say of them comes as warnings.
            lade_seed: of sampling; None takes one from torch's generator.
            tokenizer: of stop strings, which transformers looks for.
            assistant_model: refused.
            lade_dropped: what `generate` was given and would drop; see `_take_back`.

        Returns:
            int64 [1, prompt + new tokens].

        Raises:
            ValueError: beams, several sequences, padding or a filled cache were asked for.
            UnsupportedModelError: the model cannot be decoded this way.
        """
        dropped = lade_dropped or {}
        asked = {"assistant_model": assistant_model, "synced_gpus": dropped.get("synced_gpus")}
        facts = facts_of(model)
        _refuse(model, input_ids, generation_config, model_kwargs | asked)
        streamer = dropped.get("streamer")  # which has the prompt already
        known = _known(model)
        if known.make_forward is None:
            return model._sample(  # type: ignore[no-any-return]
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                streamer=streamer,
                **model_kwargs,
            )
        prompt = input_ids[0].tolist()
        text = _GrowingText(input_ids, generation_config.max_length, stopping_criteria, streamer)
        sampling = SamplingConfig()
        if generation_config.do_sample:
            if lade_seed is None:
                lade_seed = int(torch.randint(2**62, (1,)))
            # Temperature, top-k and the like are among the logits processors already.
            sampling = SamplingConfig(temperature=1.0, seed=lade_seed)
        forward = known.make_forward(model)
        decoder = Decoder(
            Runner(forward, new_cache(forward, text.most)), facts, max_context=text.most
        )
        if text.most > decoder.max_context:
            warnings.warn(
                f"the text ends at the model's context of {decoder.max_context} tokens,"
                f" before max_length={text.most}",
                stacklevel=2,
            )
        events = decoder.generate(
            prompt,
            make_strategy("lookahead", lade_config or known.lookahead),
            sampling,
            Limits(generation_config.max_length - len(prompt), should_stop=text.add),
            processors=list(logits_processor or ()),
        )
        for event in events:
            if event == Finished("memory"):
                warnings.warn(
                    f"out of memory after {text.length} tokens: the text ends there", stacklevel=2
                )
        if streamer is not None:
            streamer.end()
        return text.tokens


class _GrowingText:
    """The text as transformers' stopping criteria want to see it, grown in place.

    Args:
        prompt: int64 [1, n].
        most: tokens of prompt and answer.
        criteria: of transformers, or None.
        streamer: takes every token, or None.
    """

    def __init__(self, prompt: Tensor, most: int, criteria: Any, streamer: Any) -> None:
        self.length = prompt.shape[1]
        self.most = max(most, self.length)
        self._ids = prompt.new_empty((1, self.most))
        self._ids[:, : self.length] = prompt
        self._criteria, self._streamer = criteria, streamer

    def add(self, token: int) -> bool:
        """Take a token; true where the criteria end the text."""
        self._ids[0, self.length] = token
        self.length += 1
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        return bool(self._criteria and self._criteria(self._ids[:, : self.length], None).all())

    @property
    def tokens(self) -> Tensor:
        """int64 [1, length]."""
        return self._ids[:, : self.length].clone()


lookahead = CustomGenerate()


def _take_back(frame: FrameType | None) -> None:
    """Put what `generate` drops for callables where it looks for arguments of their own.

    transformers sorts the arguments in one function, which is under way.
    """
    while frame is not None and frame.f_code.co_name != "_extract_generation_mode_kwargs":
        frame = frame.f_back
    if frame is None:
        return
    arguments = frame.f_locals.get("kwargs")
    dropped = frame.f_locals.get("generation_mode_kwargs")
    if isinstance(arguments, dict) and isinstance(dropped, dict):
        for name in ("tokenizer", "assistant_model"):
            if name in dropped:
                arguments[name] = dropped[name]
        arguments["lade_dropped"] = dropped


def _known(model: Any) -> _Known:
    """What is found out about a model as it is now, at the first call after a change."""
    state = model.device, model.dtype, fingerprint(model)
    before = _MODELS.get(model)
    if before is not None and before.state == state and not before.intervention:
        return before
    notices: list[str] = []
    choice = None
    if before is not None and before.state[:2] == state[:2]:
        settings = before.lookahead
    else:
        # Code of its own is running already, so it is here.
        hub = {"trust_remote_code": True, "local_files_only": True}
        spec = spec_of(empty_model(model.config, hub), model.dtype)
        steps = StepOptions(attention="sdpa", cuda_graphs=False)
        device = detect(str(model.device))
        choice = choose_profile(None, steps, device, spec)
        settings, notices = choice.lookahead, [*choice.notices]
    what = intervention(model)
    make_forward, more = _find_forward(model, what)
    notices += more
    if choice is not None and make_forward is not None and what is None:  # hooks count steps
        forward = make_forward(model)
        decoder = Decoder(Runner(forward, new_cache(forward, _MEASURED)), facts_of(model))
        settings = choice.priced(
            measured.after_load(decoder, device, spec, _LOAD_SECONDS)
        ).lookahead
    for notice in notices:
        if before is None or notice not in before.notices:
            warnings.warn(notice, stacklevel=4)
    known = _Known(state, settings, make_forward, what is not None, tuple(notices))
    _MODELS[model] = known
    return known


def _find_forward(
    model: Any, what: str | None
) -> tuple[Callable[[Any], Forward] | None, list[str]]:
    """What makes the forward of a model, and notices; see `_Known`.

    Args:
        model: as it is now.
        what: hangs on it; see `intervention`.
    """
    if prepares_inputs(model):
        what = "something else than its class prepares its inputs"
        return None, [f"transformers' own decoding runs, without drafts: {what}"]
    if depends_on_rows(model):
        what = "its 8-bit products depend on how many tokens a step has"
        return None, [f"transformers' own decoding runs, without drafts: {what}"]
    try:
        facts = facts_of(model)
        way = find_way(model, facts, Wanted(join=False, not_ours=what))
    except UnsupportedModelError:
        if what is None:
            raise
    else:
        if what is None or isinstance(way.forward, StockModel):
            makers: dict[type[Forward], Callable[[Any], Forward]] = {
                Transformer: partial(Transformer, facts=facts, join=False),
                StockModel: partial(StockModel, shapes=way.forward.layer_shapes),
            }
            return makers.get(type(way.forward), OwnCacheModel), [*way.notices]
    # It is not meant for steps of several tokens, or for a prompt in parts.
    return None, [f"transformers' own decoding runs, without drafts: {what}"]


# What transformers always passes, and what is the same whether it is passed or not.
_ALLOWED_KWARGS = frozenset(
    {"attention_mask", "use_cache", "cache_position", "position_ids", "logits_to_keep"}
    | {"next_sequence_length", "output_attentions", "output_hidden_states", *CACHE_NAMES}
)


def _refuse(model: Any, input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Say clearly what this does not do."""
    what = None
    mask = model_kwargs.get("attention_mask")
    caches = [model_kwargs[name] for name in CACHE_NAMES if model_kwargs.get(name) is not None]
    further = ((k, v) for k, v in model_kwargs.items() if k not in _ALLOWED_KWARGS)
    others = [k for k, v in further if v is not None and v is not False and v != {}]
    if config is None:
        what = "a call without a generation config; call it through model.generate"
    elif asked := asking(config, REFUSED):
        name = asked[0]
        value = getattr(config, name)
        own = getattr(model.generation_config, name, None) == value
        whose = " of the model's generation config" if own else ""
        what = f"{name}={value!r}{whose}; pass {name}={REFUSED[name]!r}"
    elif others:
        what = f"{others[0]}; it decodes from input_ids alone"
    elif input_ids.shape[0] != 1:
        what = f"a batch of {input_ids.shape[0]} prompts; pass one at a time"
    elif mask is not None and not bool(mask.all()):
        what = (
            "padding: the attention mask, which transformers makes where none is passed, leaves"
            " tokens out; pass the prompt without padding, or"
            " attention_mask=torch.ones_like(input_ids)"
        )
    elif any(map(_holds_tokens, caches)):
        what = "a cache that holds tokens already; pass the whole text without a cache"
    elif not _consecutive(model_kwargs.get("position_ids")):
        what = "position_ids that do not count from 0"
    if what:
        raise ValueError(f"lookahead does not support {what}")


def _holds_tokens(cache: Any) -> bool:
    if cache.layers and all(cache.is_linear):  # a recurrent state has no length
        return bool(cache.has_previous_state())
    return bool(cache.get_seq_length())


def _consecutive(positions: Tensor | None) -> bool:
    return positions is None or positions.flatten().tolist() == [*range(positions.numel())]
