"""How much memory a captured step takes beside weights and cache: its logits, and not much more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from ladecli.decoder import layout
from ladecli.decoder.attention import bound
from ladecli.decoder.capture import Work
from ladecli.decoder.config import LOGIT_ROWS, SamplingConfig
from ladecli.decoder.graphs import GraphRunner
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.readout import Wanted, choosing, pack, ranking
from ladecli.decoder.readout.penalty import Penalized, Scores
from ladecli.decoder.step_cost import fitting
from ladecli.decoder.tree import TokenTree

from ..held import Held

META = torch.device("meta")
VOCABULARY = 151_936
"""That of Qwen 2.5, whose smallest models have the largest share of it."""
ALL = SamplingConfig(temperature=0.7)
CUT = SamplingConfig(temperature=0.7, top_p=0.9)
PENALIZED = SamplingConfig(temperature=0.7, top_p=0.9, repetition_penalty=1.1)
SAMPLINGS = (None, ALL, CUT, SamplingConfig(temperature=0.7, top_k=40, min_p=0.01), PENALIZED)


ROOM = 1.2 * 8 * max(choosing.PART, ranking.PART)
"""What may be held beside logits: a part of them in numbers of 8 bytes, and lists of the best."""


@pytest.mark.parametrize("rows", [1, 64, 128])
@pytest.mark.parametrize("successors", [0, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_copy_of_all_logits_is_made(
    rows: int, successors: int, sampling: SamplingConfig | None
) -> None:
    """One in float32 would be twice the logits, and one in float64 four times."""
    with torch.inference_mode():
        logits = torch.empty(rows, VOCABULARY, dtype=torch.bfloat16, device=META)
        uniforms = torch.empty(rows, dtype=torch.float64, device=META)
        scores: Scores = logits
        if sampling is PENALIZED:
            before = torch.empty(rows, VOCABULARY, dtype=torch.bool, device=META)
            scores = Penalized(logits, before, sampling.repetition_penalty)
        with Held() as held:
            pack(scores, successors, sampling, uniforms)
    # Penalised, what is looked at exists three times in float32.
    more = 1.0 if sampling is not PENALIZED else 1.35
    # Of one row there may be all.
    assert held.most < more * (12 * VOCABULARY if rows == 1 else ROOM)
    assert held.most < more * 0.55 * logits.nbytes or rows < 128


@pytest.mark.parametrize("vocabulary", [32_000, 128_256])
def test_penalized_ones_of_any_vocabulary_are_made_in_parts(vocabulary: int) -> None:
    """Chats remove tokens by top-p, which takes the longest lists."""
    with torch.inference_mode():
        logits = torch.empty(128, vocabulary, dtype=torch.bfloat16, device=META)
        before = torch.empty(128, vocabulary, dtype=torch.bool, device=META)
        uniforms = torch.empty(128, dtype=torch.float64, device=META)
        with Held() as held:
            pack(Penalized(logits, before, 1.1), 4, PENALIZED, uniforms)
    assert held.most < 1.35 * ROOM


class Counted:
    """Stands for CUDA graphs, and counts what captured work holds.

    Attributes:
        held: counts.
    """

    def __init__(self) -> None:
        self.held = Held()

    def capture(self, work: Work) -> Any:
        with self.held:
            return SimpleNamespace(outputs=work())

    def wait(self) -> None:
        """Nothing runs by itself here."""


def captured(wanted: Wanted, *widths: int) -> tuple[GraphRunner, Held]:
    """Steps of a model that is small but for its vocabulary, without numbers."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    with META:
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    capture = Counted()
    with bound(model), torch.inference_mode():
        runner = GraphRunner(model, KVCache(1, 512), "sdpa", capture)
        # A model without numbers is otherwise taken for one on the CPU.
        runner.device = META
        runner.forward(layout.build_chunk([0], 0))
        runner.cache.length = 1
        for width in widths:
            tree = TokenTree()
            tree.add([*range(1, width)], "trial", limit=width)
            assert runner._step(layout.build([1], 1, layout.Draft(tree)), wanted, width)
    return runner, capture.held


@pytest.mark.parametrize("wanted", [Wanted(4, logits=False), Wanted(4, sampling=ALL)])
def test_a_step_holds_its_logits_once_and_leaves_none(wanted: Wanted) -> None:
    runner, held = captured(wanted, 1, 16, 64, 128)
    size = 128 * VOCABULARY * 2
    assert size < held.most < size + ROOM
    assert held.now < size / 1000
    assert not runner._logits


@pytest.mark.parametrize("wanted", [Wanted(4), Wanted(4, sampling=CUT)])
def test_logits_that_are_looked_at_lie_in_few_places(wanted: Wanted) -> None:
    runner, held = captured(wanted, 1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert [*runner._logits] == [1, 16, 64] == [*LOGIT_ROWS[:3]]
    kept = sum(runner._logits) * VOCABULARY * 2
    assert kept < held.now < 1.01 * kept
    # Once more while they are copied there; then that memory is free for what is read out of them.
    assert held.most < 1.02 * kept + 64 * VOCABULARY * 2
    for kind, step in runner._steps.items():
        assert step.logits is not None
        assert step.logits is runner._logits[fitting(kind.width, LOGIT_ROWS)]
