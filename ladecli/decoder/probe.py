"""A trial of an unknown model family: does a step say what the model's own forward says?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import layout
from .attention import bound
from .errors import UnsupportedModelError
from .kv_cache import KVCache
from .memory import is_out_of_memory
from .places import device_of
from .runner import Runner
from .support import ModelFacts
from .tree import TokenTree

TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference of logits that is taken for rounding, relative to their spread."""


def probe(model: Any, facts: ModelFacts) -> None:
    """Refuse a model whose steps differ from its own forward.

    Two rival continuations are decoded in one step behind a prefix in chunks, the second is
    kept, and another step follows it.  Masks, positions and slots all have to work for that.

    Raises:
        UnsupportedModelError: naming the family and how far off it was.
    """
    # Ids spread over the vocabulary, so that no two of them are alike by chance.
    text = [(7 + 37 * i) % facts.vocabulary for i in range(12)]
    rival = [(text[8] + 1) % facts.vocabulary, text[3]]
    try:
        with torch.no_grad():
            ids = torch.tensor([text], device=device_of(model))
            own: Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
        cache = KVCache(facts.layers)
        runner = Runner(model, cache)
        with bound(model):
            mine = _decode(runner, cache, text, rival).float()
    except UnsupportedModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise  # that says nothing about the family
        words = str(error).splitlines() or [type(error).__name__]
        raise _refused(facts, f"failed: {words[0]}") from error
    if facts.sliding_window is not None and facts.sliding_window not in runner.sliding_windows:
        # The trial is shorter than the window, so it could not see what is hidden behind it.
        raise _refused(facts, f"never asked for its sliding window of {facts.sliding_window}")
    expected = own[[7, 8, 9, 10, 11]]
    difference = float((mine - expected).abs().max() / expected.std())
    if not difference <= TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16]):
        raise _refused(facts, f"was off by {difference:.1g} of the logits' spread")


def _decode(runner: Runner, cache: KVCache, text: list[int], rival: list[int]) -> Tensor:
    """Logits after the tokens 7 to 11 of `text`, by way of steps."""
    for start, end in ((0, 3), (3, 7)):
        runner.forward(layout.build_chunk(text[start:end], start))
        cache.keep(range(end - start))
    tree = TokenTree()
    tree.add(rival, "probe", limit=9)
    tree.add(text[8:10], "probe", limit=9)
    # Rows: the current token, two rivals, then the path that is kept.
    first = runner.forward(layout.build(text[7:8], 7, layout.Draft(tree)))[[0, 3, 4]]
    cache.keep([0, 3, 4])
    last: list[Tensor] = []
    for position in (10, 11):
        step = layout.build(text[position : position + 1], position, layout.Draft())
        last.append(runner.forward(step))
        cache.keep([0])
    return torch.cat([first, *last])


def _refused(facts: ModelFacts, how: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"models of the family {facts.family!r} are not supported: a trial step against the"
        f" model's own forward {how}"
    )
