"""The texts that ranks and one process must agree on."""

from __future__ import annotations

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits

from .decoding import ids_of, run
from .families import prompt_for

_CONFIG = LookaheadConfig(window=4, ngram=4, guesses=4, budget=20)


def texts(decoder: Decoder) -> list[list[int]]:
    """Plain, with lookahead, and with lookahead and sampling."""
    prompt = prompt_for("llama")
    ways = (
        ("autoregressive", None),
        ("lookahead", None),
        ("lookahead", SamplingConfig(temperature=1.0, seed=3)),
    )
    return [
        ids_of(run(decoder, prompt, strategy, _CONFIG, sampling, Limits(16)))
        for strategy, sampling in ways
    ]
