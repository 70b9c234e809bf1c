"""Lookahead decoding inside transformers: `generate(..., custom_generate=lookahead)`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .decoder.attention import bound
from .decoder.config import LookaheadConfig, SamplingConfig
from .decoder.engine import Decoder, Limits
from .decoder.strategies import make_strategy


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
        lade_config: window, n-grams and guesses.
        lade_seed: of sampling; None takes one from torch's generator.

    Returns:
        int64 [1, prompt + new tokens].

    Raises:
        ValueError: beams, several sequences, padding or a filled cache were asked for.
        UnsupportedModelError: the model cannot be decoded this way.
    """
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
    with bound(model):
        decoder = Decoder(model)
        if text.shape[1] > decoder.max_context:
            warnings.warn(
                f"the text ends at the model's context of {decoder.max_context} tokens,"
                f" before max_length={text.shape[1]}",
                stacklevel=2,
            )
        events = decoder.generate(
            prompt,
            make_strategy("lookahead", lade_config or LookaheadConfig()),
            sampling,
            Limits(max_new_tokens=limit, should_stop=should_stop),
            processors=list(logits_processor or ()),
        )
        for _event in events:
            pass
    if lade_streamer is not None:
        lade_streamer.end()
    return text[:, :length].clone()


def _refuse(input_ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Say clearly what this does not do."""
    what = None
    if config is None:
        what = "a call without a generation config; call it through model.generate"
    elif (config.num_beams or 1) > 1:
        what = f"beam search (num_beams={config.num_beams}); use num_beams=1"
    elif (config.num_return_sequences or 1) > 1:
        what = "several sequences; use num_return_sequences=1"
    elif config.return_dict_in_generate:
        what = "return_dict_in_generate; the result is a tensor of ids"
    elif input_ids.shape[0] != 1:
        what = f"a batch of {input_ids.shape[0]} prompts; pass one at a time"
    elif (mask := model_kwargs.get("attention_mask")) is not None and not bool(mask.all()):
        what = "padding in the attention mask; pass the prompt without padding"
    elif (cache := model_kwargs.get("past_key_values")) is not None and cache.get_seq_length():
        what = "a cache that holds tokens already; pass the whole text without past_key_values"
    elif input_ids.shape[1] == 0:
        what = "an empty prompt"
    elif model_kwargs.get("inputs_embeds") is not None:
        what = "inputs_embeds; pass input_ids"
    if what:
        raise ValueError(f"lookahead does not support {what}")
