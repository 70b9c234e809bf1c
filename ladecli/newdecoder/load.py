"""From a loaded model to a decoder: which forward runs it, and whether a trial step agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import layout
from .config import GROWTH, PREFILL_CHUNK
from .engine import Decoder
from .errors import NaNLogitsError, UnsupportedModelError
from .families import ModelFacts, examine
from .kv_cache import KVCache, LayerShape
from .memory import is_out_of_memory
from .runner import Forward, Runner
from .stock_model import ShapeRecorder, StockModel, input_device
from .transformer import Transformer, can_run
from .tree import TokenTree

TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference of logits that counts as rounding, relative to their spread."""
_LENGTH = 12
"""Tokens of the trial text."""


def load_decoder(
    model: Any,
    *,
    attention: str = "auto",
    max_context: int | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    cuda_graphs: bool = False,
    compile: bool = False,
    kernels: bool = True,
    join: bool = True,
    pack: bool = True,
) -> Decoder:
    """A decoder for a causal language model of transformers, in evaluation mode.

    Args:
        model: the model; with `join`, its linear layers share joined weights afterwards.
        attention: name of the attention backend.
        max_context: the most tokens of prompt and text together; None for the model's own.
        prefill_chunk: prompt tokens per forward.
        cuda_graphs: whether steps are captured, where that works.
        compile: whether the forward is compiled before it is captured.
        kernels: whether Triton kernels may be used.
        join: whether weights may be joined; not for a model that belongs to somebody else.
        pack: whether float32 weights on a CPU may be stored twice, for speed.

    Raises:
        UnsupportedModelError: the model cannot verify drafts in one pass.
        NaNLogitsError: its weights are damaged.
    """
    facts = examine(model.config)
    forward, notices = make_forward(model, facts, attention, join=join, pack=pack)
    limit = min(max_context or facts.context, facts.context)
    # A step's own tokens stand after the text.
    cache = KVCache(forward.layer_shapes, limit + GROWTH)
    runner = Runner(forward, cache)
    runner.notices += notices
    return Decoder(runner, facts, max_context=limit, prefill_chunk=prefill_chunk)


@torch.inference_mode()
def make_forward(
    model: Any, facts: ModelFacts, attention: str, *, join: bool = True, pack: bool = True
) -> tuple[Forward, list[str]]:
    """Our own forward where it says what the model says, else the model's, and notices.

    Two rival continuations are decoded in one step after a prefix, the second one is kept, and
    another step follows it.  Masks, positions and slots all have to work for that.

    Raises:
        UnsupportedModelError: steps through the model's own forward fail or differ, too.
        NaNLogitsError: the model's logits are NaN.
    """
    # Ids spread over the vocabulary, so that no two of them are alike by chance.
    text = [(7 + 37 * i) % facts.vocabulary for i in range(_LENGTH)]
    expected, shapes = own_logits(model, text)
    if not bool(expected.isfinite().all()):
        raise NaNLogitsError
    notices = []
    if can_run(model):
        ours = Transformer(model, attention, join=join, pack=pack)
        off = difference(ours, text, expected, facts)
        if off <= tolerance(model.dtype):
            return ours, notices
        notices.append(
            f"steps run through transformers' forward, and slower: our own forward of"
            f" {facts.family!r} was off by {off:.1g} of the logits' spread"
        )
    stock = StockModel(model, shapes, attention)
    try:
        off = difference(stock, text, expected, facts)
    except UnsupportedModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise  # that says nothing about the family
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _refused(facts, f"failed: {reason}") from error
    if facts.sliding_window is not None and facts.sliding_window not in stock.sliding_windows:
        # The trial is shorter than the window, so it could not see what is hidden beyond it.
        raise _refused(facts, f"never asked for its sliding window of {facts.sliding_window}")
    if not off <= tolerance(model.dtype):
        raise _refused(facts, f"was off by {off:.1g} of the logits' spread")
    return stock, notices


def own_logits(model: Any, text: Sequence[int]) -> tuple[Tensor, list[LayerShape]]:
    """Logits after each token by the model's own forward, and what its layers cache.

    Returns:
        Float32 [tokens, vocabulary].
    """
    recorder = ShapeRecorder()
    ids = torch.tensor([list(text)], device=input_device(model))
    result = model(input_ids=ids, past_key_values=recorder, use_cache=True)
    return result.logits[0].float(), recorder.shapes


def difference(
    forward: Forward, text: Sequence[int], expected: Tensor, facts: ModelFacts
) -> float:
    """How far the logits of trial steps are from the expected ones, relative to their spread."""
    cache = KVCache(forward.layer_shapes, 2 * _LENGTH)
    runner = Runner(forward, cache)
    runner.run(layout.build_chunk(text[:7], 0))
    cache.keep(range(7))
    tree = TokenTree()
    tree.add([(text[8] + 1) % facts.vocabulary, text[3]], "trial", limit=9)
    tree.add(text[8:10], "trial", limit=9)
    # Rows: the current token, two rivals, then the path that is kept.
    logits = [runner.run(layout.build(text[7:8], 7, layout.Draft(tree)))[[0, 3, 4]]]
    cache.keep([0, 3, 4])
    for position in (10, 11):
        logits.append(runner.run(layout.build(text[position : position + 1], position, layout.Draft())))
        cache.keep([0])
    found = torch.cat(logits).float()
    wanted = expected[7:].to(found.device)
    return float((found - wanted).abs().max() / wanted.std())


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference that counts as rounding."""
    return TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])


def _refused(facts: ModelFacts, how: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"models of the family {facts.family!r} are not supported: a trial step against the"
        f" model's own forward {how}"
    )
