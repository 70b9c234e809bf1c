"""What holds in a chat: the value of every option, and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import LIVE, ChatRequest

if TYPE_CHECKING:
    from ..profiles import Choice
    from ..session import Settings


def in_effect(
    request: ChatRequest, choice: Choice, settings: Settings
) -> dict[str, tuple[str, str]]:
    """Value and origin of every option that a chat can change, by the names of their flags.

    Args:
        request: what the user asked for.
        choice: what the profile says.
        settings: what became of both.
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
    }
    model = {"temperature", "top-k", "top-p", "min-p", "repetition-penalty"}
    tuned = {"window", "ngram", "guesses", "budget", "sources"}
    fresh = type(request)()
    shown = {}
    for name in LIVE:
        key, value = name.replace("-", "_"), values[name]
        if getattr(request, key) != getattr(fresh, key):
            origin = "set by you"
        elif name in tuned and getattr(lookahead, key) != getattr(choice.lookahead, key):
            origin = "follows from what you set"
        elif name in tuned:
            origin = f"profile {choice.profile}"
        else:
            origin = "the model's" if name in model else "default"
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        shown[name] = (text, origin)
    if sampling.greedy:
        seed = "" if request.seed is None else f"{request.seed}, but "
        shown["seed"] = (f"{seed}not needed: greedy", shown["seed"][1])
    return shown
