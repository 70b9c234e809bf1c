"""Models that say something, in bfloat16: where lookahead's text differs, and how fast it comes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ladecli import models, suites
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.recheck import Fed, Recheck
from ladecli.decoder.strategies import make_strategy
from ladecli.settings import LoadOptions
from ladecli.text import apply_chat_template

from .answers import text_of
from .clock import Clock, interval
from .journal import LeftOut
from .shapes import Subject
from .steps import Scale

STORIES = "stories260K"
BEGINNINGS = (
    *("Once upon a time", "Lily and Tom went to the park.", "The big dog was sad because"),
    *("One day, a little girl named Sue", "There was a red ball in the box."),
    *("Mom said it was time for bed.", "A bird sat on a tree and", "Tim wanted to help his friend"),
)
"""Prompts of stories260K, which knows children's stories only."""
ARMS = ("autoregressive", "lookahead")
Answer = tuple[list[int], list[Fed]]


def source_of(name: str) -> str:
    """Where a model is: in this checkout, or beside it.

    Raises:
        LeftOut: it is not there.
    """
    if name == models.DEMO:
        return name
    checkout = Path(__file__).resolve().parents[2]
    for place in (checkout, checkout.parent):
        folder = place / "shared" / "models" / name
        if (folder / "config.json").is_file():
            return str(folder)
    raise LeftOut(f"there is no shared/models/{name} in the checkout, nor beside it")


def load(name: str, device: torch.device, scale: Scale) -> tuple[Subject, list[list[int]]]:
    """A trained model in bfloat16, and the prompts for it.

    Raises:
        LeftOut: it is not there.
    """
    options = LoadOptions(dtype="bfloat16", device=str(device), offline=True)
    loaded = models.load(source_of(name), options, progress=False)
    subject = Subject.of(loaded.model.requires_grad_(False))
    if name != models.DEMO:
        return subject, [list(loaded.tokenizer(text)["input_ids"]) for text in BEGINNINGS]
    rows = [[{"role": "user", "content": row.turns[0]}] for row in suites.load("builtin").rows]
    prompts = [apply_chat_template(loaded.tokenizer, row) for row in rows]
    most = subject.facts.context - scale.tokens - 1
    return subject, [prompt for prompt in prompts if len(prompt) <= most]


def end_to_end(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    config: LookaheadConfig,
    clock: Clock,
    scale: Scale,
    data: dict[str, Any],
) -> None:
    """Plain decoding over lookahead in wall time, prompt by prompt, in turns.

    A text is timed from its prompt on; the fastest of the rounds counts for each.
    """
    data["settings"] = str(config)
    chosen, ratios, tokens = _spread(prompts, scale.prompts), list[float](), 0
    seconds = dict.fromkeys(ARMS, 0.0)
    for prompt in chosen:
        best, made = _race(decoder, prompt, config, clock, scale)
        tokens += made
        seconds = {name: seconds[name] + best[name] for name in ARMS}
        ratios.append(best[ARMS[0]] / best[ARMS[1]])
        mean, low, high = interval(ratios)
        data |= {"times_as_fast": mean, "low": low, "high": high, "by_prompt": ratios}
        data["tokens_per_second"] = {name: tokens / each for name, each in seconds.items()}
    data |= {"trouble": decoder.runner.trouble, "given_up": decoder.runner.given_up}


def _race(
    decoder: Decoder, prompt: list[int], config: LookaheadConfig, clock: Clock, scale: Scale
) -> tuple[dict[str, float], int]:
    """Seconds of the fastest text of each arm, and how many tokens it has."""
    taken: dict[str, list[float]] = {name: [] for name in ARMS}
    for turn in range(scale.rounds + 1):
        for name in ARMS if turn % 2 else ARMS[::-1]:
            work = partial(text_of, decoder, prompt, name, config, scale.tokens)
            spent = clock.whole(work)
            if turn:  # the first round captures what it meets
                taken[name].append(spent)
    # Nobody's end token ends a text here.
    return {name: min(each) for name, each in taken.items()}, scale.tokens


def _spread(prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """So many prompts from all over the suite, whose rows are ordered by category."""
    step = max(len(prompts) // count, 1)
    return list(prompts[::step][:count])


def divergence(
    decoder: Decoder,
    subject: Subject,
    prompts: Sequence[list[int]],
    attention: str,
    config: LookaheadConfig,
    scale: Scale,
    data: dict[str, Any],
) -> None:
    """Where lookahead's greedy text first differs from the plain one, and by what logit gap."""
    recheck = Recheck(decoder, subject.model, attention)
    data |= {"texts": 0, "tokens": 0, "different": 0, "unexplained": 0, "first": []}
    for number, prompt in enumerate(prompts[: scale.texts]):
        plain, _ = _answer(decoder, prompt, "autoregressive", config, scale.tokens)
        ids, steps = _answer(decoder, prompt, "lookahead", config, scale.tokens)
        data["texts"] += 1
        data["tokens"] += len(plain)
        if ids == plain:
            continue
        data["different"] += 1
        place = next(i for i, (a, b) in enumerate(zip(plain, ids, strict=True)) if a != b)
        found = recheck.movement(
            [*prompt, *plain[:place]],
            len(prompt),
            (plain[place], ids[place]),
            _to(steps, place),
            SamplingConfig(),
        )
        first: dict[str, Any] = {"prompt": number, "token": place + 1}
        if found is not None:
            data["unexplained"] += not found.explained
            first |= {"gap": found.gap, "noise": found.noise, "allowed": found.allowed}
            first["explained"] = found.explained
        data["first"].append(first)
    # Behind a first difference texts say different things, and nothing more is to be learned.
    compared = data["tokens"] - sum(scale.tokens - each["token"] for each in data["first"])
    data["per_thousand_tokens"] = 1e3 * data["different"] / compared


def _answer(
    decoder: Decoder, prompt: list[int], strategy: str, config: LookaheadConfig, new: int
) -> Answer:
    decoder.forget(keep_memory=True)
    ids, steps = list[int](), list[Fed]()
    for event in decoder.generate(prompt, make_strategy(strategy, config), None, Limits(new)):
        if isinstance(event, Step):
            ids += [token.id for token in event.tokens]
            steps.append(Fed(event.width, len(event.tokens)))
    return ids, steps


def _to(steps: Sequence[Fed], place: int) -> list[Fed]:
    """The steps up to the one that yielded a token, counted from 0."""
    done, kept = 0, list[Fed]()
    for step in steps:
        kept.append(step)
        done += step.tokens
        if done > place:
            break
    return kept
