"""Shorthand for tests that decode ids."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from ladecli.decoder.backends.attention import choose_operations
from ladecli.decoder.backends.cpu_layouts import packs, rows_alike
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.trial import facts_of
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Event, Finished, FinishReason, Step, Token
from ladecli.decoder.layout import StepLayout, build
from ladecli.decoder.sampling import LogitsProcessor, Sampler
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft, StepResult
from ladecli.decoder.tree import ROOT, Choose, TokenTree
from ladecli.events import TextEvent
from tests.support.models import model_of

ALIKE_BFLOAT16 = pytest.mark.skipif(
    not (packs(torch.bfloat16) or rows_alike()),
    reason="products in bfloat16 round by the number of tokens on this processor",
)
PAPER = LookaheadConfig(window=4, ngram=4, guesses=4, sources=("trajectory",))


def decoder_of(family: str, **options: Any) -> Decoder:
    """Return a decoder of a shared small model, whose weights stay unchanged."""
    return load_decoder(model_of(family), join=False, **options)


def run(
    decoder: Decoder,
    prompt: Sequence[int],
    strategy: str = "autoregressive",
    config: LookaheadConfig = PAPER,
    sampling: SamplingConfig | None = None,
    limits: Limits | None = None,
    store: DraftStore | None = None,
    **options: Any,
) -> list[Event]:
    """Return all events of one generation, by default of 40 tokens."""
    chosen = make_strategy(strategy, config, store)
    return list(decoder.generate(prompt, chosen, sampling, limits or Limits(40), **options))


def steps_of(events: Sequence[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def tokens_of(events: Sequence[Event]) -> list[Token]:
    return [token for step in steps_of(events) for token in step.tokens]


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token.id for token in tokens_of(events)]


def text_ids(events: Iterable[TextEvent]) -> list[int]:
    """Return all token ids of an answer of a session."""
    return [token for event in events for token in getattr(event, "token_ids", ())]


def reason_of(events: Sequence[Event]) -> FinishReason:
    """Return the reason why a generation ended."""
    assert isinstance(events[-1], Finished)
    return events[-1].reason


def transformers_ids(model: Any, prompt: Sequence[int], new: int, **options: Any) -> list[int]:
    """Return the text of transformers' own generate, with its own attention.

    A model that rereads its text runs without a cache, since transformers 5.17 would keep one token
    of the text, and yield a wrong answer.
    """
    before = model.config._attn_implementation
    sdpa = model._supports_sdpa and model.config.model_type != "gemma2"
    model.set_attn_implementation("sdpa" if sdpa else "eager")
    try:
        ids = torch.tensor([list(prompt)])
        settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        settings |= {"use_cache": not facts_of(model).rereads, **options}
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **settings
        )
    finally:
        model.config._attn_implementation = before
    return [int(i) for i in out[0, len(prompt) :]]


def paths_of(tree: TokenTree) -> list[list[int]]:
    """Return the nodes from the root to each node, itself included."""
    paths: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        paths.append([*(paths[parent] if parent != ROOT else ()), node])
    return paths


class FullWalkTree(TokenTree):
    """A tree whose walk visits every node, whatever the model chooses, and so has all choices."""

    def walk(self, choose: Choose) -> tuple[list[int], list[Token]]:
        paths = [[self.tokens[node] for node in nodes] for nodes in ([], *paths_of(self))]
        return [], [Token(choose(row, path)) for row, path in enumerate(paths)]


FULL_WALK, BEFORE = FullWalkTree(), [9, 9, 8, 7]
"""Three candidates, and the text that they follow."""
for candidate in ([1, 2, 3], [1, 4], [5]):
    FULL_WALK.add(candidate, "context", 9)
FULL_WALK_STEP = build(BEFORE[-1:], len(BEFORE) - 1, Draft(FULL_WALK))


def read_out(
    logits: torch.Tensor,
    sampling: SamplingConfig,
    processors: Sequence[LogitsProcessor] = (),
    successors: int = 0,
    tree: TokenTree = FULL_WALK,
) -> StepResult:
    """Return the result of a sampler for the logits of `FULL_WALK_STEP`."""
    sampler = Sampler(sampling, processors)
    sampler.commit(BEFORE)
    return sampler.read(logits.clone(), FULL_WALK_STEP, Draft(tree, successors=successors))()


def tree_step(count: int, prefix: int) -> StepLayout:
    """Return a step of `count` tokens: the current one and a random tree."""
    draw, tree = random.Random(count), TokenTree()
    for node in range(count - 1):
        tree.grow(draw.randrange(max(-1, node - 5), node), node, "context")
    return build([3], prefix, Draft(tree))


def use(decoder: Decoder, attention: str, *, kernels: bool = False) -> None:
    """Change a decoder's attention backend, or turn on Triton kernels."""
    model = decoder.executor.model
    model.use(choose_operations(attention, model.device, model.dtype, kernels=kernels))
