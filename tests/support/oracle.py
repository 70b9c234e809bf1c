"""Fake forwards that follow a rule: the text that a token sees determines the next token.

They write token ids and positions to the cache as if they were keys, and read the text back from
the cache through the step's mask.  So a wrong mask, slot or position changes their output, and a
test can read the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.load import load_decoder, new_cache
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.executor import Executor, Read, T
from ladecli.decoder.kv_cache import LayerShape, StepCache
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.model.families import ModelFacts
from ladecli.decoder.model.forward import Drafts, Operations, StepInputs

CPU = torch.device("cpu")

Rule = Callable[[Sequence[int]], int]
"""The text that a token sees, itself included and in order of position -> the next token."""


class Oracle:
    """Chooses `rule(visible text)` after every token.

    Attributes:
        steps: for every forward, the text that each of its tokens saw.
    """

    operations = Operations("oracle")
    device = CPU
    dtype = torch.float32
    context = staticmethod(torch.inference_mode)
    drafts: Drafts = "trees"

    def __init__(self, rule: Rule, vocabulary: int = 100) -> None:
        self.rule = rule
        self.vocabulary = vocabulary
        self.steps: list[list[tuple[int, ...]]] = []

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """One layer of one head: keys are token and position, values the token."""
        return [LayerShape(1, 2, 1, torch.float32, self.device)]

    def use(self, operations: Operations) -> None:
        """Ignore operations, since there are no kernels."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Return logits of `step.outputs`: 1 for the token that follows, 0 for all others."""
        written = torch.stack([step.tokens, step.positions], dim=-1).float()[None]
        keys, values = cache.write(0, written, written[..., :1])
        assert torch.equal(keys[..., :1], values)
        # As lists: one number of a tensor takes a thousand times as long as one of a list.
        tokens, positions = (column.long().tolist() for column in keys[0].unbind(-1))
        mask = step.mask.additive_mask(None, 1, torch.float32, CPU)
        order = sorted(range(len(tokens)), key=positions.__getitem__)
        rows = [[0.0] * len(tokens)] if mask is None else mask.tolist()
        texts = []
        for row in rows:
            visible = [cell for cell in order if row[cell] == 0.0]
            seen = [positions[cell] for cell in visible]
            assert seen == [*range(len(seen))], "a token sees a gap or a rival"
            texts.append(tuple(tokens[cell] for cell in visible))
        self.steps.append(texts)
        outputs = range(len(texts)) if step.outputs is None else step.outputs.tolist()
        return self.logits([texts[output] for output in outputs])

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        logits = torch.zeros(len(texts), self.vocabulary)
        for row, text in enumerate(texts):
            logits[row, self.rule(text)] = 1.0
        return logits


class Markov(Oracle):
    """Gives every token the logits in the row of the token before it, [tokens, vocabulary]; after
    the last row the first one follows."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(lambda text: 0, table.shape[1])
        self.table = table

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Return the logits of `step.outputs`, which do not depend on the text before."""
        written = torch.stack([step.tokens, step.positions], dim=-1).float()[None]
        cache.write(0, written, written[..., :1])
        tokens = step.tokens if step.outputs is None else step.tokens[step.outputs]
        return self.table[tokens % len(self.table)]


class EagerCapture(Executor):
    """An executor that computes a step when it is started, as a GPU does with captured steps."""

    overlaps = True

    def launch(self, layout: StepLayout, read: Read[T]) -> Callable[[], T]:
        return read(self.run(layout))


def decoder_with(
    model: Oracle, context: int = 512, chunk: int = 512, kind: type[Executor] = Executor
) -> Decoder:
    """Return a decoder that runs a fake forward."""
    facts = ModelFacts("oracle", 1, model.vocabulary, context, None, None)
    return Decoder(kind(model, new_cache(model, context), facts, chunk=chunk))


def oracle(rule: Rule, vocabulary: int = 100, context: int = 512, chunk: int = 512) -> Decoder:
    """Return a decoder whose texts follow a rule."""
    return decoder_with(Oracle(rule, vocabulary), context, chunk)


def scrambled(memory: int = 1, chunk: int = 512, kind: type[Executor] = Executor) -> Decoder:
    """Return a decoder whose texts of 12 tokens look random."""
    return decoder_with(Oracle(scrambles(12, memory), 12), chunk=chunk, kind=kind)


def cached_ids(decoder: Decoder) -> list[int]:
    """Return the tokens whose keys the cache of a fake forward holds."""
    if not decoder.cache.length:
        return []
    keys, _ = decoder.cache.layer(0)
    return [int(token) for token in keys[0, : decoder.cache.length, 0]]


def change_logits(decoder: Decoder, change: Callable[[StepInputs, Tensor], Tensor]) -> None:
    """Let a function change the logits of every forward of a decoder, or raise an error.

    It is called at the end, after the step has written to the cache.
    """
    model: Any = decoder.executor.model
    forward = model.forward
    model.forward = lambda step, cache: change(step, forward(step, cache))


def watch(decoder: Decoder, after: Callable[[StepInputs], object]) -> Decoder:
    """Let a decoder call a function at the end of every forward."""

    def call(step: StepInputs, logits: Tensor) -> Tensor:
        after(step)
        return logits

    change_logits(decoder, call)
    return decoder


def run_out(decoder: Decoder, fails: Callable[[StepInputs], bool]) -> list[int]:
    """Let forwards run out of memory if `fails` is true; return the widths of the others."""
    widths: list[int] = []

    def after(step: StepInputs) -> None:
        if fails(step):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        widths.append(len(step.tokens))

    watch(decoder, after)
    return widths


def change_decoders(monkeypatch: pytest.MonkeyPatch, change: Callable[[Decoder], object]) -> None:
    """Change the decoder of every session from now on, once its trial steps have passed."""

    def load(*args: Any, **options: Any) -> Decoder:
        decoder = load_decoder(*args, **options)
        change(decoder)
        return decoder

    monkeypatch.setattr("ladecli.session.session.load_decoder", load)


def during_forward(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Call a function in the n-th forward of the sessions' texts from now on."""
    numbers = itertools.count(1)
    change_decoders(monkeypatch, lambda x: watch(x, lambda _: next(numbers) == number and act()))


def spells(text: Sequence[int]) -> Rule:
    """A rule that gives `text` by position, whatever it sees: every guess converges at once."""
    return lambda seen: text[len(seen)] if len(seen) < len(text) else 0


def counts(seen: Sequence[int]) -> int:
    """A rule that goes round a circle of 20 tokens, whatever came before the last one."""
    return 10 + (seen[-1] - 9) % 20


def scrambles(vocabulary: int = 100, memory: int = 3) -> Rule:
    """A rule that depends on every one of the last `memory` tokens, and looks random."""

    def rule(seen: Sequence[int]) -> int:
        value = len(seen) // 40
        for token in seen[-memory:]:
            value = (value * 31 + token * 7 + 3) % 10007
        return value % vocabulary

    return rule
