"""Whole texts of a model of random weights: the host's part, memory, transformers beside it."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, StaticCache

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.ngrams import prepare
from ladecli.decoder.strategies import make_strategy

from .clock import Clock, middle, wholes
from .machine import empty
from .shapes import Subject
from .steps import Scale
from .watching import Watch, watch_for

PROMPT = 16
"""Tokens of the prompts of texts whose prompt is not what is measured."""
REPLAYS = 5
"""Each graph is launched so often to find out what it takes the device."""
WARM = 3
"""Texts that transformers generates before its compiled steps are timed: the first ones compile,
and capture what was compiled."""


def random_prompt(subject: Subject, count: int) -> list[int]:
    """Random tokens."""
    rng = random.Random(count)
    return [rng.randrange(subject.facts.vocabulary) for _ in range(count)]


def lookahead(budget: int) -> LookaheadConfig:
    """All sources, and every step as wide as the budget."""
    return LookaheadConfig(2, 3, 2, budget) if budget < 32 else LookaheadConfig(5, 3, 5, budget)


@contextmanager
def decoder_of(subject: Subject, attention: str) -> Iterator[tuple[Decoder, Watch]]:
    """A decoder with captured steps, and what watches them; its memory is given back."""
    # To compile is not what is measured.
    prepare()
    watch = watch_for(subject.model)
    decoder = Decoder(subject.model, attention=attention, capture=watch)
    try:
        yield decoder, watch
    finally:
        decoder.forget()
        watch.last = None


def text_of(
    decoder: Decoder, prompt: list[int], strategy: str, config: LookaheadConfig, new: int
) -> list[int]:
    """One greedy text of `new` tokens, from its prompt on; captured steps are kept."""
    decoder.forget(keep_memory=True)
    events = decoder.generate(prompt, make_strategy(strategy, config), None, Limits(new))
    return [token.id for event in events if isinstance(event, Step) for token in event.tokens]


def host_share(
    subject: Subject, attention: str, clock: Clock, scale: Scale, data: dict[str, Any]
) -> None:
    """How much of a lookahead step is not the device's: whole steps, less what their graphs take.

    The time between steps belongs to them: whoever waits for tokens waits for that, too.
    """
    prompt = random_prompt(subject, PROMPT)
    with decoder_of(subject, attention) as (decoder, watch):
        config = in_widths(lookahead(scale.budget), decoder)
        for strategy in ("lookahead", "autoregressive"):
            _warm_up(decoder, watch, prompt, strategy, config, scale.tokens)
            data[strategy] = _one_share(decoder, watch, prompt, strategy, config, scale, clock)
        parts: dict[str, list[float]] = defaultdict(list)
        decoder.forget(keep_memory=True)
        chosen = make_strategy("lookahead", config)
        for event in decoder.generate(prompt, chosen, None, Limits(scale.tokens), timed=True):
            if isinstance(event, Step) and event.parts is not None:
                for part, seconds in event.parts.items():
                    parts[part].append(seconds)
        # With waits for the device between them, which a step does not have otherwise.
        data["parts_seconds"] = {part: middle(seconds) for part, seconds in parts.items()}
        data |= {"trouble": decoder.runner.trouble, "given_up": decoder.runner.given_up}


def in_widths(config: LookaheadConfig, decoder: Decoder) -> LookaheadConfig:
    """The same settings for steps of the widths that are captured."""
    return replace(config, widths=decoder.runner.widths(config.step_limit))


def _warm_up(
    decoder: Decoder,
    watch: Watch,
    prompt: list[int],
    strategy: str,
    config: LookaheadConfig,
    new: int,
) -> None:
    """Decode a text until nothing of it is captured any more: first a cache has to grow."""
    for _ in range(WARM + 1):
        captured = len(watch.seconds)
        text_of(decoder, prompt, strategy, config, new)
        if len(watch.seconds) == captured:
            return


def _one_share(
    decoder: Decoder,
    watch: Watch,
    prompt: list[int],
    strategy: str,
    config: LookaheadConfig,
    scale: Scale,
    clock: Clock,
) -> dict[str, Any]:
    decoder.forget(keep_memory=True)
    began, before, widths, tokens = 0.0, watch.counts(), list[int](), 0
    captured = len(watch.seconds)
    chosen = make_strategy(strategy, config)
    for event in decoder.generate(prompt, chosen, None, Limits(scale.tokens)):
        if not isinstance(event, Step):
            continue
        if began:
            widths.append(event.width)
            tokens += len(event.tokens)
        else:  # the first one reads the prompt
            began, before = time.perf_counter(), watch.counts()
    whole = time.perf_counter() - began
    launched = sum(count - before.get(each, 0) for each, count in watch.counts().items())
    device = watch.device_seconds(before, clock, REPLAYS)
    steps = len(widths)
    if not steps:
        raise RuntimeError("the text ended with its first step")
    return share_of(whole, device, steps) | {
        "tokens": tokens,
        "mean_width": sum(widths) / steps,
        "steps_not_launched": steps - launched,
        "captured_meanwhile": len(watch.seconds) - captured,
    }


def share_of(whole: float, device: float, steps: int) -> dict[str, float]:
    """The host's share of steps that took `whole` seconds in all, of which the device `device`."""
    return {
        "steps": steps,
        "step_seconds": whole / steps,
        "device_seconds": device / steps,
        "host_share": (whole - device) / whole,
    }


def memory(subject: Subject, attention: str, scale: Scale, data: dict[str, Any]) -> None:
    """Peak memory of plain decoding and of lookahead behind a long prompt, in bytes.

    `used` is what the driver says, graphs and kernels included; both arms run once before, so
    that what is loaded once and for all is in none of them.
    """
    prompt, config, device = (
        random_prompt(subject, scale.long),
        lookahead(scale.budget),
        subject.device,
    )
    data["weight_bytes"] = subject.weight_bytes
    for strategy in ("autoregressive", "lookahead") * 2:
        _empty(device)
        with decoder_of(subject, attention) as (decoder, _):
            text_of(decoder, prompt, strategy, config, scale.tokens // 2)
            data[strategy] = _memory_of(device)
    for kind in data["lookahead"]:
        extra = data["lookahead"][kind] - data["autoregressive"][kind]
        data[f"extra_{kind}_share"] = extra / subject.weight_bytes


def _empty(device: torch.device) -> None:
    empty(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _memory_of(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
        "used": total - free,
    }


def beside_generate(
    subject: Subject,
    attention: str,
    clock: Clock,
    scale: Scale,
    data: dict[str, Any],
    *,
    compiled: bool,
) -> None:
    """Plain texts of ours and of transformers' `generate`, in turns: seconds per token.

    Args:
        subject, attention, clock, scale: as everywhere.
        data: where the figures go.
        compiled: whether `generate` has its static cache, and compiles its steps.
    """
    # Long enough that the prompt does not count.
    prompt, new = random_prompt(subject, PROMPT), max(scale.tokens // 2, 4)
    with decoder_of(subject, attention) as (decoder, _):
        # A decoder binds the model's attention; for `generate` it is given back.
        ours = partial(text_of, decoder, prompt, "autoregressive", LookaheadConfig(), new)
        ours()
        # One cache for all texts: for another one torch would capture its steps anew.
        cache = StaticCache(subject.config, max_cache_len=len(prompt) + new) if compiled else None
        theirs = partial(_generate, subject, prompt, new, cache)
        subject.be_stock(True)
        try:
            began = time.perf_counter()
            for _ in range(WARM if compiled else 1):
                count = theirs()
            data["warm_up_seconds"] = time.perf_counter() - began
            # On a CPU transformers does not compile by itself.
            data["compiled"] = "_compiled_call" in vars(subject.model)
            if compiled and subject.device.type == "cuda" and not data["compiled"]:
                raise RuntimeError("transformers did not compile its steps")
            if count != new:
                raise RuntimeError(f"generate made {count} tokens, not {new}")
            found: dict[str, list[float]] = {"ours": [], "generate": []}
            for _ in range(3):
                found["generate"] += wholes({0: theirs}, clock, 1)[0]
                subject.be_stock(False)
                found["ours"] += wholes({0: ours}, clock, 1)[0]
                subject.be_stock(True)
        finally:
            subject.be_stock(False)
    data |= {f"{name}_seconds_per_token": middle(s) / new for name, s in found.items()}
    ratios = [a / b for a, b in zip(found["generate"], found["ours"], strict=True)]
    data["times_as_fast"] = middle(ratios)
    data["all"] = {name: [s / new for s in seconds] for name, seconds in found.items()}


def _generate(subject: Subject, prompt: list[int], new: int, cache: StaticCache | None) -> int:
    """One text by transformers, compiled where it has a static cache; how many tokens it has."""
    ids = torch.tensor([prompt], device=subject.device)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=new, eos_token_id=None, pad_token_id=0
    )
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "generation_config": config}
    if cache is not None:
        cache.reset()
        given["past_key_values"] = cache
    out = subject.model.generate(ids, **given)
    return int(out.shape[1]) - len(prompt)


def forget_compiled(subject: Subject) -> None:
    """Give back what compiled steps of transformers hold."""
    for name in ("_cache", "_compiled_call"):
        if name in vars(subject.model):
            delattr(subject.model, name)
    torch._dynamo.reset()
