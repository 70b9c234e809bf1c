"""Trials: do steps of an unknown model family, or captured ones, say what they should?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import layout
from .attention import bound
from .capture import Capture, check_alive
from .errors import UnsupportedModelError
from .graphs import GraphRunner
from .kv_cache import KVCache
from .ladder import PLAIN, Ladder, ladder_for
from .lean import fused
from .memory import is_out_of_memory
from .places import device_of
from .readout import Wanted
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
        DeviceLostError: nothing can be computed any more, which says nothing about the family.
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
        check_alive(device_of(model), error)
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


def try_capture(
    model: Any,
    facts: ModelFacts,
    attention: str,
    capture: Capture,
    ladder: Ladder | None = None,
) -> str | None:
    """Why the steps of a model, whose attention is bound, cannot be captured; None if they can.

    A step is captured behind one text and replayed behind a longer one: whatever a model's Python
    code decided by the length of the text, or by what tokens there are, shows then.  So does a
    kernel of ours that says something else at the sizes of this model.

    Args:
        model: on the device that `capture` is for.
        facts: about it.
        attention: name of the attention backend.
        capture: captures work.
        ladder: what steps may use of ours; it is left at what has stood the trial.

    Raises:
        DeviceLostError: nothing can be computed any more.
    """
    ladder = ladder or ladder_for(model, attention)
    while True:
        try:
            why = _why_not_alike(model, facts, ladder, capture)
        except Exception as error:
            check_alive(device_of(model), error)
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if is_out_of_memory(error):
                return why
        # Where they could not be captured on any way, none is left.
        if why is None or not ladder.step_down(why):
            return why


def _why_not_alike(model: Any, facts: ModelFacts, ladder: Ladder, capture: Capture) -> str | None:
    text = [(7 + 37 * i) % facts.vocabulary for i in range(12)]
    tree = TokenTree()
    tree.add([text[9], text[3]], "probe", limit=3)
    tree.add([text[4]], "probe", limit=3)
    cache = KVCache(facts.layers, 2 * len(text))
    captured = GraphRunner(model, cache, ladder.way.attention, capture, ladder=ladder)
    said = _said(captured, text, tree)
    if captured.trouble is not None:
        return captured.trouble
    # By torch's own operations: the same mistake of ours must not be on both sides.
    with fused.switched(False):
        expected = _said(Runner(model, KVCache(facts.layers), PLAIN), text, tree)
    difference = float((said - expected).abs().max() / expected.std())
    if not difference <= TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16]):
        return f"captured steps were off by {difference:.1g} of the logits' spread"
    return None


def _said(runner: Runner, text: list[int], tree: TokenTree) -> Tensor:
    """Logits of a step behind five tokens, and of another one behind what was kept of it."""
    cache = runner.cache
    runner.forward(layout.build_chunk(text[:5], 0))
    cache.keep(range(5))
    logits: list[Tensor] = []
    for current in text[5:7]:
        step = layout.build([current], cache.length, layout.Draft(tree))
        shown = runner.start(step, Wanted()).result()
        # Copies: the next replay writes over them.
        logits += [shown.logits[i].to(torch.float32, copy=True) for i in range(len(step.outputs))]
        # The step's own token, and two of the tree's, which have to be brought together.
        cache.keep([0, 1, 3])
    return torch.stack(logits)


def _refused(facts: ModelFacts, how: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"models of the family {facts.family!r} are not supported: a trial step against the"
        f" model's own forward {how}"
    )
