"""Shorthand for tests that decode ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Event, Step, Token
from ladecli.decoder.strategies import make_strategy

PAPER = LookaheadConfig(window=4, ngram=4, guesses=4, sources=("trajectory",))


def run(
    decoder: Decoder,
    prompt: Sequence[int],
    strategy: str = "autoregressive",
    config: LookaheadConfig = PAPER,
    sampling: SamplingConfig | None = None,
    limits: Limits | None = None,
) -> list[Event]:
    """All events of one generation."""
    chosen = make_strategy(strategy, config)
    return list(decoder.generate(prompt, chosen, sampling, limits or Limits(40)))


def tokens_of(events: Sequence[Event]) -> list[Token]:
    """All tokens of all steps."""
    return [token for event in events if isinstance(event, Step) for token in event.tokens]


def ids_of(events: Sequence[Event]) -> list[int]:
    """All token ids of all steps."""
    return [token.id for token in tokens_of(events)]


def transformers_ids(model: Any, prompt: Sequence[int], new: int, **options: Any) -> list[int]:
    """What transformers' own generate says, with its own attention.

    Where rotary frequencies change with the length it runs without a cache: transformers 5.17
    keeps one token of the text when it starts its cache anew, and says something else.
    """
    long_rope = "longrope" in str(getattr(model.config, "rope_parameters", ""))
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa" if model.config.model_type != "gemma2" else "eager")
    try:
        ids = torch.tensor([list(prompt)])
        settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
        settings["use_cache"] = not long_rope
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **settings
        )
    finally:
        model.config._attn_implementation = before
    return [int(i) for i in out[0, len(prompt) :]]
