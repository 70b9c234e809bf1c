"""What holds in a chat: the value of every option, and where it comes from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..option_fields import default_of
from ..options import ChatRequest
from .changes import SHOWN

if TYPE_CHECKING:
    from ..profiles import Choice
    from ..session import Settings
    from ..ways import Attention

_MODELS = ("temperature", "top-k", "top-p", "min-p", "repetition-penalty")
"""What a model's generation config says where nobody else does."""
_TUNED = ("window", "ngram", "guesses", "budget", "sources")
"""What a profile says where the user does not."""


def in_effect(
    request: ChatRequest,
    choice: Choice,
    settings: Settings,
    ranks: int,
    attention: Attention,
    no_graphs: str | None,
) -> dict[str, tuple[str, str]]:
    """Value and origin of every option that a chat shows, by the names of their flags.

    Args:
        request: what the user asked for.
        choice: what the profile says.
        settings: what became of both.
        ranks: processes that decode together.
        attention: the backend, and what speaks for it.
        no_graphs: why steps are no CUDA graphs; None if they are.
    """
    lookahead, sampling = settings.lookahead, settings.sampling
    values: dict[str, object] = {
        "strategy": settings.strategy,
        "profile": choice.profile,
        "window": lookahead.window,
        "ngram": lookahead.ngram,
        "guesses": lookahead.guesses,
        "budget": lookahead.step_limit,
        "sources": ",".join(lookahead.sources),
        "temperature": sampling.temperature,
        "top-k": sampling.top_k or "off",
        "top-p": sampling.top_p,
        "min-p": sampling.min_p or "off",
        "repetition-penalty": sampling.repetition_penalty,
        "seed": "a new one for each reply" if request.seed is None else request.seed,
        "max-new-tokens": settings.max_new_tokens or "until the context is full",
        "stop": " ".join(map(repr, settings.stop)) or "none",
        "ignore-eos": settings.ignore_eos,
        "markdown": request.markdown,
        "token-colors": request.token_colors,
        "stats": not request.quiet if request.stats is None else request.stats,
        "parallel": ranks,
        "parallel-mode": request.parallel_mode,
        "attention": attention.name,
        "cuda-graphs": no_graphs is None,
        "compile": request.compile,
    }
    shown = {}
    for name in SHOWN:
        value, origin = values[name], _origin(name, request, choice, settings)
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        shown[name] = (text, origin)
    if sampling.greedy:
        seed = "" if request.seed is None else f"{request.seed}, but "
        shown["seed"] = (f"{seed}not needed: greedy", shown["seed"][1])
    if request.attention == "auto":
        shown["attention"] = (attention.name, attention.why)
    if no_graphs is not None and request.cuda_graphs is not False:
        shown["cuda-graphs"] = ("off", no_graphs)
    if request.parallel is None and ranks > 1:
        shown["parallel"] = (str(ranks), "torchrun")
    return shown


def _origin(name: str, request: ChatRequest, choice: Choice, settings: Settings) -> str:
    """Where the value of an option is from, short enough for a table."""
    key = name.replace("-", "_")
    if key in request.origins:
        return request.origins[key]
    if getattr(request, key) != default_of(type(request), key):
        return "given"  # by a program, which says no more
    tuned = name in _TUNED
    base = choice.base(request.wants_paper)
    other = tuned and getattr(settings.lookahead, key) != getattr(base, key)
    if other or (name == "stats" and request.quiet):
        return "follows from what you set"
    if tuned:
        # "measured: AMD EPYC, 2026-11, torch 2.13": what, and the first thing about it.
        origin = choice.paper_origin if request.wants_paper else choice.origins[key]
        return f"profile {choice.profile}: {re.split(', | [(]', origin)[0]}"
    if name == "profile":
        return "fits this machine"
    return "the model's" if name in _MODELS else "default"
