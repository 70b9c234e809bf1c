"""A trial at load, which compares the logits of a forward's steps with the model's own forward."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from .. import layout
from ..errors import DeviceLostError, NaNLogitsError, UnsupportedModelError
from ..executor import Executor, whole
from ..faults import check_alive, is_out_of_memory, reason_of
from ..kv_cache import LayerShape
from ..model.families import ModelFacts
from ..sampling import most_probable
from ..strategy import Draft
from ..tree import ROOT, TokenTree
from .compat import GENERATE_CACHE, cache_argument
from .facts import model_facts
from .int8 import holds_int8
from .transformers_forward import input_device

TOLERANCE = defaultdict(lambda: 1e-1, {torch.float32: 1e-4, torch.float16: 3e-2, torch.int8: 3e-1})
"""The largest difference of logits that counts as rounding, relative to their spread: of a single
logit in float32, else the root mean square of a row.  If inputs are rounded to 8 bits, any tiny
difference may grow to this one."""
LENGTH = 12
"""The number of tokens of the trial text."""
GOLDEN = 0.382
"""The distance of two of its ids, as a share of the vocabulary, whose start may be untrained."""
GPU_LENGTH, GPU_WIDTH = 80, 24
"""The length on a GPU, and the width of the trial's wide step, since kernels depend on the rows of
a tile."""

REST = 5
"""The number of tokens after those that are read as a prompt."""
RANKED = 6
"""The number of tokens that are ranked after each of the last two."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A short text, and the results of the model's own forward."""

    text: list[int]  # ids spread over the vocabulary, so that no two of them are alike by chance
    expected: Tensor  # logits after each of them, float32 [tokens, vocabulary]
    shapes: list[LayerShape]  # what layers cache
    facts: ModelFacts  # about the model
    dtype: torch.dtype  # whose rounding counts as such

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, facts: ModelFacts) -> Trial:
        """Run the model.

        Raises:
            UnsupportedModelError: it fails.
            NaNLogitsError: its logits are NaN.
        """
        on_gpu = input_device(model).type == "cuda" and facts.context > 2 * GPU_LENGTH
        length = GPU_LENGTH if on_gpu else LENGTH
        step = int(GOLDEN * facts.vocabulary)
        text = [(7 + step * i) % facts.vocabulary for i in range(length)]
        try:
            expected, shapes = _own_logits(model, text)
        except Exception as error:
            if is_out_of_memory(error):
                raise  # that says nothing about the family
            check_alive(input_device(model), error)
            raise UnsupportedModelError(f"a trial step failed: {reason_of(error)}") from error
        if not bool(expected.isfinite().all()):
            raise NaNLogitsError
        return cls(text, expected, shapes, facts, rounding_type(model))

    @property
    def slots(self) -> int:
        """The number of slots for the text and the steps."""
        return 2 * len(self.text) + GPU_WIDTH

    def failure(self, executor: Executor) -> str | None:
        """Return how steps of an executor fail or differ; None if they are right.

        Args:
            executor: with an empty cache of its own.

        Raises:
            DeviceLostError: the GPU met a fault.
        """
        try:
            off = self._difference(executor)
            ranked = self._ranks(executor)
        except DeviceLostError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            check_alive(executor.device, error)
            return f"failed: {reason_of(error)}"
        if off != off:
            return "gave NaN logits"
        if off > TOLERANCE[self.dtype]:
            return f"was off by {off:.1g} of the logits' spread"
        return None if ranked else "ranked its tokens wrongly"

    @torch.no_grad()
    def is_batch_invariant(self, executor: Executor) -> bool:
        """Return True if tokens alone and side by side have the same logits, bit for bit.

        Args:
            executor: with an empty cache of its own.
        """
        text, cache = self.text, executor.cache
        alone = []
        for position, token in enumerate(text):
            alone.append(executor.run(layout.build([token], position, Draft())).clone())
            cache.keep([0])
        cache.truncate(0)
        tree, node = TokenTree(), ROOT
        for token in text[1:]:
            tree.grow(node, (token + 1) % self.facts.vocabulary, "trial")  # a rival beside it
            node = tree.grow(node, token, "trial")
        together = executor.run(layout.build(text[:1], 0, Draft(tree)))
        return torch.equal(together[::2], torch.cat(alone))

    @torch.no_grad()
    def _ranks(self, executor: Executor) -> bool:
        """Return True if the executor finds the most probable tokens."""
        logits = self.expected[-2:].to(executor.device, executor.model.dtype)
        ranked, shares = executor.ranking(logits, RANKED)
        ids, expected = most_probable(logits, RANKED)
        # Equally probable tokens may be ranked in any order.
        same = torch.equal(logits.gather(1, ranked), logits.gather(1, ids))
        return same and torch.allclose(shares, expected, rtol=1e-3)

    @torch.no_grad()
    def _difference(self, executor: Executor) -> float:
        """Return the difference of logits from the expected ones, relative to their spread.

        Two rival continuations are decoded in one step after a prefix, the second one is kept,
        and other steps follow it.  This takes correct masks, positions and slots.
        """
        text, cache, start = self.text, executor.cache, len(self.text) - REST
        executor.run(layout.build_chunk(text[:start], 0))
        cache.keep(range(start))
        tree = TokenTree()
        tree.add([(text[start + 1] + 1) % self.facts.vocabulary, text[3]], "trial", limit=9)
        tree.add(text[start + 1 : start + 3], "trial", limit=9)
        draft = Draft(tree, width=GPU_WIDTH if len(text) == GPU_LENGTH else 1)
        logits = executor.launch(layout.build(text[start : start + 1], start, draft), whole)()
        # Rows: the current token, two rivals, then the path that is kept.  Copies, because the next
        # step may overwrite them.
        results = [logits[[0, 3, 4]].float()]
        cache.keep([0, 3, 4])
        for position in (start + 3, start + 4):
            step = layout.build(text[position : position + 1], position, Draft())
            results.append(executor.launch(step, whole)().float().clone())
            cache.keep([0])
        expected = self.expected[start:].to(executor.device)
        return difference(torch.cat(results).to(expected.device), expected, self.dtype)


def difference(logits: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the error of logits [rows, vocabulary], relative to their spread (`TOLERANCE`)."""
    off = logits - expected
    if dtype != torch.float32:
        # A mean, since in half precision single logits among many thousand may round further.
        off = off.square().mean(dim=-1).sqrt()
    return float(off.abs().max() / expected.std())


def rounding_type(model: Any) -> torch.dtype:
    """Return the type by which a model's logits are rounded."""
    if holds_int8(model):
        return torch.int8
    # Kernels of packed weights round by the number of rows.
    packed = getattr(model, "quantization_method", None) is not None
    return torch.bfloat16 if packed else model.dtype


def _own_logits(model: Any, text: Sequence[int]) -> tuple[Tensor, list[LayerShape]]:
    """Return the logits after each token, float32 [tokens, vocabulary], and the shapes of the
    cache's layers."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    known = inspect.signature(model.forward).parameters
    device, name = input_device(model), cache_argument(model.forward) or GENERATE_CACHE
    # Some recurrent layers read a prompt differently from later tokens.
    rest = REST if any(cache.is_linear) else 0
    rows: list[Tensor] = []
    for part in torch.split(torch.arange(len(text)), [len(text) - rest, *[1] * rest]):
        fed = {"input_ids": torch.tensor([text[i] for i in part], device=device)[None]}
        if rest and "position_ids" in known:  # some do not ask the cache
            fed["position_ids"] = part[None].to(device)
        rows.append(model(use_cache=True, **{name: cache}, **fed).logits[0])
    return torch.cat(rows).float(), [_shape(layer, rows[0]) for layer in cache.layers]


def _shape(layer: Any, like: Tensor) -> LayerShape:
    """Return the shape of a layer of transformers' cache; of size 0 without keys."""
    if (keys := getattr(layer, "keys", None)) is None:
        return LayerShape(0, 0, 0, like.dtype, like.device)
    sizes = keys.shape[1], keys.shape[-1], layer.values.shape[-1]
    return LayerShape(*sizes, keys.dtype, keys.device)


def facts_of(model: Any) -> ModelFacts:
    """Return the facts about a loaded model; errors as for `model_facts`."""
    facts = model_facts(model.config)
    boundary = facts.rope_boundary
    return replace(facts, rereads=boundary is not None and _rereads(model, boundary))


class _Full(DynamicCache):  # type: ignore[misc]
    """A cache that reports a number of tokens."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return 1

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return the number of tokens."""
        return self._length


def _rereads(model: Any, boundary: int) -> bool:
    """Return True if `generate` reads a text again one token beyond a boundary, according to the
    model's class."""
    ids = torch.zeros((1, boundary + 1), dtype=torch.long)
    more = {"attention_mask": torch.ones_like(ids), "use_cache": True, "next_sequence_length": 1}
    try:
        fed = model.prepare_inputs_for_generation(ids, **{GENERATE_CACHE: _Full(boundary)}, **more)
        return fed.get(GENERATE_CACHE) is None
    except Exception:  # code from the hub may have other parameters
        return False
