"""Hybrid models, whose recurrent layers verify trees of drafts."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.prefixes import Prefixes
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Event, Started
from ladecli.decoder.strategies import make_strategy
from tests.support.decoding import PAPER, ids_of, run, steps_of, transformers_ids
from tests.support.models import HYBRIDS, VOCABULARY, model_of, new_model, prompt_for

WINDOW = LookaheadConfig(4, 3, 4, 20)
KINDS = ("qwen3_next", "granitemoehybrid", "lfm2")
"""One of each kind of layer."""


@cache
def decoder_of(family: str) -> Decoder:
    """Return a shared decoder that reads prompts in chunks."""
    return load_decoder(model_of(family), prefill_chunk=80, join=False)


@cache
def expected_of(family: str, length: int = 24) -> list[int]:
    return transformers_ids(model_of(family), prompt_for(family, length), 30)


def with_drafts(decoder: Decoder, prompt: list[int], new: int, **options: Any) -> list[Event]:
    """Return a text that was decoded with a tree of eleven drafts in every step."""
    config = LookaheadConfig(budget=12, sources=WITHOUT_WINDOW)
    return run(decoder, prompt, "lookahead", config, limits=Limits(new), **options)


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in HYBRIDS if family not in KINDS]


@pytest.mark.parametrize("family", [*KINDS, *SLOW])
def test_texts_are_those_of_generate(family: str) -> None:
    """Decode with trees and with the paper's window, for prompts that are read in chunks, continue
    an earlier one, or fork from it."""
    decoder, prompt, expected = decoder_of(family), prompt_for(family), expected_of(family)
    assert decoder.executor.model.drafts == "trees"
    assert not decoder.executor.notices
    long = prompt_for(family, 150)
    assert ids_of(run(decoder, long, "lookahead", WINDOW, limits=Limits(30))) == expected_of(
        family, 150
    )
    for ids, answer in (
        (prompt, expected),
        (prompt + expected[:9], expected[9:]),
        (prompt[:-1], transformers_ids(model_of(family), prompt[:-1], 9)),
        (prompt, expected),
    ):
        assert ids_of(with_drafts(decoder, ids, len(answer))) == answer
    assert ids_of(run(decoder, prompt, "lookahead", PAPER, limits=Limits(30))) == expected


@pytest.mark.parametrize("family", KINDS)
def test_a_known_answer_takes_few_steps(family: str) -> None:
    """Also with a rival before the right token at every position."""
    decoder, prompt, expected = decoder_of(family), prompt_for(family), expected_of(family)
    store = DraftStore()
    for step in range(len(expected)):
        rival = (expected[step] + 1) % VOCABULARY
        store.learn_text([*prompt, *expected[:step], rival, rival])
    store.learn_text(prompt + expected)
    decoder.forget()
    events = with_drafts(decoder, prompt, len(expected), store=store)
    assert ids_of(events) == expected
    steps = steps_of(events)
    assert len(steps) < len(expected) / 3
    assert any(step.width > 1 + len(step.tokens) for step in steps), "rivals in one step"


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("call", [1, 2, 3, 6])
@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_an_interrupted_step_changes_nothing(
    family: str, call: int, error: type[BaseException]
) -> None:
    """After Ctrl-C, the text can be continued from the tokens so far; if memory runs out, the step
    is fed again."""
    decoder, prompt, expected = decoder_of(family), prompt_for(family), expected_of(family)
    decoder.forget()
    calls = itertools.count(1)

    def fail(_ids: Tensor, scores: Tensor) -> Tensor:
        if next(calls) == call:
            raise error
        return scores

    strategy, ids = make_strategy("lookahead", WINDOW), []
    try:
        for event in decoder.generate(prompt, strategy, limits=Limits(30), processors=[fail]):
            ids += ids_of([event])
    except KeyboardInterrupt:
        assert decoder.cache.length == (len(prompt) + len(ids) - 1 if ids else 0)
    assert ids == expected[: len(ids)]
    rest = with_drafts(decoder, prompt + ids, 30 - len(ids)) if len(ids) < 30 else []
    assert ids + ids_of(rest) == expected
    assert next(calls) > call


def test_others_may_use_the_model_between_steps() -> None:
    model, prompt = new_model("qwen3_next"), prompt_for("qwen3_next")
    decoder, expected, ids = (
        load_decoder(model, join=False),
        transformers_ids(model, prompt, 30),
        [],
    )
    for event in decoder.generate(prompt, make_strategy("lookahead", WINDOW), limits=Limits(30)):
        ids += ids_of([event])
        assert transformers_ids(model, prompt, 2) == expected[:2]
    assert ids == expected


@pytest.mark.parametrize("family", KINDS)
def test_a_layer_with_another_computation_gets_chains(family: str) -> None:
    model = new_model(family)
    kind = {"qwen3_next": "DeltaNet", "granitemoehybrid": "Mamba", "lfm2": "ShortConv"}[family]
    module = next(part for part in model.modules() if kind in type(part).__name__)

    class Louder(type(module)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return 1.01 * super().forward(*args, **kwargs)

    module.__class__ = Louder
    decoder, prompt = load_decoder(model, join=False), prompt_for(family)
    assert "with chains of drafts instead of trees: a trial step" in decoder.executor.notices[0]
    assert ids_of(with_drafts(decoder, prompt, 20)) == transformers_ids(model, prompt, 20)


@pytest.mark.parametrize("family", KINDS)
def test_the_start_of_a_text_is_not_read_again(family: str) -> None:
    """After an answer, at the end of its prompt, and not far before what differs in the prompt."""
    model, prompt = new_model(family), prompt_for(family, 200)
    decoder, read = load_decoder(model, prefill_chunk=80, join=False), list[int]()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    text = prompt + ids_of(run(decoder, prompt, limits=Limits(12)))
    for ids, most in (
        ([*text, 5, 6, 7], 4),  # the next turn
        (prompt, 1),  # once more
        ([*text[:204], 9, 8, 7], 8),  # another end of the answer
        ([*prompt[:197], 9, 8, 7], 68),  # another end of the prompt
        ([*prompt[:100], *range(9, 20)], 111),  # another last message
        ([9, 8, 7, *prompt], 203),
    ):
        read.clear()
        answer = ids_of(run(decoder, ids, limits=Limits(1)))
        assert sum(read) <= most
        assert answer == model(input_ids=torch.tensor([ids])).logits[0, -1:].argmax(-1).tolist()


@pytest.mark.parametrize("family", KINDS)
def test_an_earlier_text_comes_back_with_its_states(family: str) -> None:
    """A long text comes back after an unrelated one."""
    long, decoder = prompt_for(family, 200), load_decoder(model_of(family), join=False)
    decoder.kept_texts = Prefixes(1 << 30)
    text = [*long, *ids_of(run(decoder, long, limits=Limits(8)))]
    run(decoder, [7, 8, 9], limits=Limits(2))
    for ids, least in (([*text, 5, 6], 207), ([*long[:150], 9, 9], 100)):
        events = run(decoder, ids, limits=Limits(8))
        assert least <= next(event.cached for event in events if isinstance(event, Started))
        assert ids_of(events) == transformers_ids(model_of(family), ids, 8)
