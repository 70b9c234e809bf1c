"""Lookahead decoding inside transformers: `generate(..., custom_generate=lookahead)`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .decoder.compat import CACHE_NAMES
from .decoder.config import LookaheadConfig, SamplingConfig
from .decoder.engine import Decoder, Limits
from .decoder.events import Finished
from .decoder.families import examine
from .decoder.kv_cache import LayerShape
from .decoder.load import make_forward, new_cache
from .decoder.own_cache_model import OwnCacheModel
from .decoder.runner import Forward, Runner
from .decoder.stock_model import StockModel
from .decoder.strategies import make_strategy
from .decoder.transformer import Transformer
from .options import Request
from .session.setup import choice_for
from .specs.device import detect
from .specs.model_spec import empty_model, spec_of


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a model; that takes longer than a short answer does.

    Attributes:
        place: where the model was then, and its type.
        lookahead: the profile's settings.
        forward: the kind of forward that runs it.
        shapes: of what its layers cache.
    """

    place: tuple[torch.device, torch.dtype]
    lookahead: LookaheadConfig
    forward: type[Forward]
    shapes: list[LayerShape]


_MODELS: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def lookahead(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    lade_streamer: Any = None,
    lade_config: LookaheadConfig | None = None,
    lade_seed: int | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Decode as `generate` would, several tokens per forward pass.

        model.generate(**inputs, custom_generate=ladecli.lookahead, max_new_tokens=100)

    Greedy output equals that of `generate`.  With `do_sample` the distribution is the same
    and the text depends on the seed alone; all of transformers' logits processors apply.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config,
            model_kwargs: as transformers passes them.
        lade_streamer: a transformers streamer (`streamer=` is not passed on to callables).
            A streamer passed as `streamer=` gets the prompt and nothing else.
        lade_config: window, n-grams, guesses; None for those of the device's profile, which are
            chosen once for a model; what there is to say of them comes as warnings.
        lade_seed: of sampling; None takes one from torch's generator.

    Returns:
        int64 [1, prompt + new tokens].

    Raises:
        ValueError: beams, several sequences, padding or a filled cache were asked for.
        UnsupportedModelError: the model cannot be decoded this way.
    """
    facts = examine(model.config)
    _refuse(input_ids, generation_config, model_kwargs)
    prompt = input_ids[0].tolist()
    limit = generation_config.max_length - len(prompt)
    # The text as transformers' stopping criteria want to see it, grown in place.
    text = torch.empty((1, len(prompt) + max(limit, 0)), dtype=torch.long, device=input_ids.device)
    text[0, : len(prompt)] = input_ids[0]
    length = len(prompt)
    if lade_streamer is not None:
        lade_streamer.put(input_ids.cpu())

    def should_stop(token: int) -> bool:
        nonlocal length
        text[0, length] = token
        length += 1
        if lade_streamer is not None:
            lade_streamer.put(torch.tensor([token]))
        return bool(stopping_criteria and stopping_criteria(text[:, :length], None).all())

    sampling = SamplingConfig()
    if generation_config.do_sample:
        if lade_seed is None:
            lade_seed = int(torch.randint(2**62, (1,)))
        # Temperature, top-k and the like are among the logits processors already.
        sampling = SamplingConfig(temperature=1.0, seed=lade_seed)
    known = _known(model)
    # The model belongs to the caller: it stays as it is, and its weights may be others by now.
    forward: Forward
    if known.forward is Transformer:
        forward = Transformer(model, facts, join=False)
    elif known.forward is StockModel:
        forward = StockModel(model, known.shapes)
    else:
        forward = OwnCacheModel(model)
    decoder = Decoder(Runner(forward, new_cache(forward, text.shape[1])), facts)
    if text.shape[1] > decoder.max_context:
        warnings.warn(
            f"the text ends at the model's context of {decoder.max_context} tokens,"
            f" before max_length={text.shape[1]}",
            stacklevel=2,
        )
    events = decoder.generate(
        prompt,
        make_strategy("lookahead", lade_config or known.lookahead),
        sampling,
        Limits(max_new_tokens=limit, should_stop=should_stop),
        processors=list(logits_processor or ()),
    )
    for event in events:
        if event == Finished("memory"):
            warnings.warn(f"out of memory after {length} tokens: the text ends there", stacklevel=2)
    if lade_streamer is not None:
        lade_streamer.end()
    return text[:, :length].clone()


def _known(model: Any) -> _Known:
    """What is found out about a model where it is now, at the first call."""
    place = model.device, model.dtype
    known = _MODELS.get(model)
    if known is not None and known.place == place:
        return known
    # Code of its own is running already, so it is here.
    hub = {"trust_remote_code": True, "local_files_only": True}
    spec = spec_of(empty_model(model.config, hub), model.dtype)
    request = Request(attention="sdpa", cuda_graphs=False)
    choice = choice_for(request, detect(str(model.device)), spec)
    forward, notices, _ = make_forward(model, examine(model.config), "auto", join=False)
    for notice in (*choice.notices, *notices):
        warnings.warn(notice, stacklevel=3)
    known = _Known(place, choice.lookahead, type(forward), forward.layer_shapes)
    _MODELS[model] = known
    return known


# What transformers always passes, and what is the same whether it is passed or not.
_KNOWN_KWARGS = frozenset(
    {"attention_mask", "use_cache", "cache_position", "position_ids", "logits_to_keep"}
    | {"next_sequence_length", *CACHE_NAMES}
)


def _refuse(input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Say clearly what this does not do."""
    what = None
    mask = model_kwargs.get("attention_mask")
    caches = [model_kwargs[name] for name in CACHE_NAMES if model_kwargs.get(name) is not None]
    given = [k for k, v in model_kwargs.items() if v is not None and v != {}]
    others = [k for k in given if k not in _KNOWN_KWARGS]
    if config is None:
        what = "a call without a generation config; call it through model.generate"
    elif (config.num_beams or 1) > 1:
        what = f"beam search (num_beams={config.num_beams}); use num_beams=1"
    elif (config.num_return_sequences or 1) > 1:
        what = "several sequences; use num_return_sequences=1"
    elif config.return_dict_in_generate:
        what = "return_dict_in_generate; the result is a tensor of ids"
    elif (config.guidance_scale or 1) != 1:
        what = f"guidance_scale={config.guidance_scale}; it runs the model a second time"
    elif others:
        what = f"{others[0]}; it decodes from input_ids alone"
    elif input_ids.shape[0] != 1:
        what = f"a batch of {input_ids.shape[0]} prompts; pass one at a time"
    elif input_ids.shape[1] == 0:
        what = "an empty prompt"
    elif mask is not None and not bool(mask.all()):
        what = "padding in the attention mask; pass the prompt without padding"
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
