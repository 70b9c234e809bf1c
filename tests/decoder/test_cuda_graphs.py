"""Captured steps give the text of steps that run one operation at a time; ways to fail.

What is captured here is done again in replays, Python and all, on a CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ladecli.decoder.attention import triton_available
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.cuda_graphs import CudaGraphs, Work
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Started, Step
from ladecli.decoder.families import ModelFacts
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.load import load_decoder
from ladecli.decoder.runner import Runner
from ladecli.decoder.strategies import make_strategy

from ..capturing import Again
from ..decoding import decoder_of, ids_of, run, steps_of, transformers_ids
from ..families import model_of, new_model, prompt_for
from ..oracle import Oracle, counts

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma2", "qwen3", "olmo2", "phi3_long", "glm4", "smollm3", "gpt2")
CONFIG = LookaheadConfig(4, 4, 4, 24)
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)


def captured(family: str, capture: Again | None = None, **options: Any) -> Decoder:
    return decoder_of(family, cuda_graphs=True, capture=capture or Again(), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_give_the_same_text(family: str) -> None:
    prompt, capture = prompt_for(family), Again()
    expected = transformers_ids(model_of(family), prompt, 60)
    decoder, eager = captured(family, capture), decoder_of(family)
    assert decoder.runner.captures
    for attention in ("sdpa", "reference") if family == "llama" else ("sdpa",):
        decoder.runner.model.use(attention)
        decoder.runner.forget()
        for strategy in ("autoregressive", "lookahead"):
            before = capture.replays
            events = run(decoder, prompt, strategy, CONFIG, limits=Limits(60))
            assert ids_of(events) == expected
            assert capture.replays - before >= len(steps_of(events)) - 2
    for sampling in (SAMPLED, SamplingConfig(repetition_penalty=1.3)):
        expected = ids_of(run(eager, prompt, sampling=sampling))
        assert ids_of(run(decoder, prompt, "lookahead", CONFIG, sampling)) == expected
    assert not decoder.runner.notices


def test_a_prefix_is_reused() -> None:
    decoder, prompt = captured("llama"), prompt_for("llama")
    first = ids_of(run(decoder, prompt, "lookahead", CONFIG))
    longer = [*prompt, *first[:30], 7, 8]
    expected = ids_of(run(decoder_of("llama"), longer))
    events = run(decoder, longer, "lookahead", CONFIG)
    assert ids_of(events) == expected
    assert isinstance(events[0], Started)
    assert events[0].cached > len(prompt)


class Padded(Oracle):
    """Notes the width of what is fed."""

    def __init__(self, rule: Callable[..., int]) -> None:
        super().__init__(rule)
        self.widths: set[int] = set()

    def forward(self, step: Any, cache: Any) -> torch.Tensor:
        self.widths.add(len(step.tokens))
        return super().forward(step, cache)


def fake_decoder(model: Oracle, capture: Again, context: int = 512, slots: int = 0) -> Decoder:
    facts = ModelFacts("oracle", 1, model.vocabulary, context, None, None)
    cache = KVCache(model.layer_shapes, context + 256, slots)
    return Decoder(CudaGraphs(model, cache, facts, context, capture=capture), facts)


def test_no_token_sees_padding() -> None:
    """The fake forward asserts of every row that it sees a text without gaps."""
    model = Padded(counts)
    decoder = fake_decoder(model, Again())
    for strategy in ("lookahead", "jacobi", "prompt-lookup", "autoregressive"):
        text = ids_of(run(decoder, [15, 16, 17], strategy, replace(CONFIG, sources=("context",))))
        assert text == [10 + (token - 9) % 20 for token in [17, *text[:-1]]]
    assert model.widths <= {1, 2, 3, 4, 8, 16, 24}
    # Rows of padding are there, and see themselves.
    assert any(len(texts) == 4 for texts in model.steps)


def test_only_some_widths_are_captured() -> None:
    decoder = captured("llama")
    runner = decoder.runner
    assert [*runner.widths(20)] == [1, 2, 4, 8, 16, 20]
    assert [*runner.widths(24)] == [1, 2, 4, 8, 16, 24]
    config = replace(CONFIG, budget=20, widths=tuple(runner.widths(20)))
    capture_count = runner.captured
    run(decoder, prompt_for("llama"), "lookahead", config)
    assert 0 < runner.captured - capture_count <= 6


def test_a_cache_may_grow_under_captured_steps() -> None:
    model = new_model("llama", max_position_embeddings=1024)
    prompt, new = prompt_for("llama", 200), Limits(400)
    expected = ids_of(run(load_decoder(model, join=False), prompt, limits=new))
    capture = Again()
    decoder = load_decoder(model, join=False, cuda_graphs=True, capture=capture)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=new)) == expected
    assert decoder.cache.slots > 512
    captures = capture.captures
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=new)) == expected
    assert capture.captures - captures <= 12
    decoder.forget()
    assert ids_of(run(decoder, prompt, limits=new)) == expected


def test_the_context_may_be_full() -> None:
    """Padding needs slots after the last token of the text."""
    prompt = prompt_for("llama", 200)
    expected = ids_of(run(decoder_of("llama"), prompt, limits=Limits()))
    assert len(expected) == 56
    assert ids_of(run(captured("llama"), prompt, "lookahead", CONFIG, limits=Limits())) == expected


def test_a_text_may_be_broken_off_anywhere() -> None:
    decoder, prompt = captured("llama"), prompt_for("llama")
    expected = ids_of(run(decoder_of("llama"), prompt))
    for steps in range(1, 6):
        events = decoder.generate(prompt, make_strategy("lookahead", CONFIG))
        for _, event in zip(range(steps + 1), events, strict=False):
            assert not isinstance(event, Step) or event.tokens
        events.close()
        assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected


def test_a_step_is_yielded_before_the_next_width_is_captured() -> None:
    capture = Again()
    decoder = fake_decoder(Oracle(counts), capture)
    events = decoder.generate([15, 16], make_strategy("autoregressive", CONFIG), None, Limits(9))
    seen = [(capture.captures, capture.replays) for event in events if isinstance(event, Step)]
    # The first step takes two tokens, all others one: each is captured once the one before it
    # has been yielded; a step that is captured is launched before.
    assert seen[:4] == [(1, 1), (2, 3), (2, 4), (2, 5)]


def test_long_pending_text_and_very_wide_steps_are_not_captured() -> None:
    capture = Again()
    model = Oracle(counts)
    decoder = fake_decoder(model, capture, context=2048)
    prompt = [10 + i % 20 for i in range(300)]
    run(decoder, prompt, limits=Limits(1))
    assert capture.captures == 0
    config = LookaheadConfig(4, 4, 4, 600, ("trajectory", "context"), widths=(1, 600))
    run(decoder, [15], "lookahead", config, limits=Limits(20))
    assert {len(texts) for texts in model.steps} >= {600}


def test_steps_that_cannot_be_captured_run_one_operation_at_a_time() -> None:
    prompt = prompt_for("llama")
    expected = ids_of(run(decoder_of("llama"), prompt))
    # At load: the trial's two widths can be captured, the next one cannot.
    decoder = captured("llama", Again(None, None, None, None, RuntimeError("no\nmore")))
    assert decoder.runner.captures
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert not decoder.runner.captures
    assert decoder.runner.notices == ["steps run without CUDA graphs, and slower: no"]
    assert not decoder.runner.widths(24)
    decoder = captured("llama", Again(ValueError("not that")))
    assert type(decoder.runner) is Runner
    assert decoder.runner.notices == ["steps run without CUDA graphs, and slower: not that"]
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected


def test_captured_steps_that_are_wrong_are_found_at_load() -> None:
    class Stale(Again):
        """Does nothing when it is replayed."""

        def __call__(self, work: Work) -> Work:
            super().__call__(work)
            return lambda: None

    decoder = captured("llama", Stale())
    assert type(decoder.runner) is Runner
    (notice,) = decoder.runner.notices
    assert notice.startswith("steps run without CUDA graphs, and slower: a trial step was off by")


def test_without_memory_for_a_capture_steps_run_one_operation_at_a_time() -> None:
    capture = Again(torch.OutOfMemoryError("CUDA out of memory"))
    decoder = fake_decoder(Oracle(counts), capture)
    expected = [10 + (17 + i - 9) % 20 for i in range(40)]
    for _ in range(2):
        assert ids_of(run(decoder, [15, 16, 17], "lookahead", CONFIG)) == expected
    assert capture.captures == 1
    assert len(decoder.runner.notices) == 1


def test_a_compiler_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        def forward(*_: Any) -> Any:
            raise RuntimeError("no compiler")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    decoder = captured("llama", compile=True)
    assert (decoder.runner.captures, decoder.runner.compiles) == (True, False)
    assert decoder.runner.notices == ["steps are not compiled, and slower: no compiler"]
    prompt = prompt_for("llama")
    assert ids_of(run(decoder, prompt)) == ids_of(run(decoder_of("llama"), prompt))


@pytest.mark.parametrize("family", ["gemma2"])
def test_a_captured_forward_is_one_graph_for_the_compiler(family: str) -> None:
    """Traced, not compiled: that takes most of a minute."""
    from torch import _dynamo

    _dynamo.reset()
    compiler = torch.compile

    def traced(forward: Any, **_: Any) -> Any:
        return compiler(forward, backend="eager", fullgraph=True, dynamic=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", traced)
        decoder = captured(family, compile=True)
    assert decoder.runner.compiles
    prompt = prompt_for(family)
    expected = ids_of(run(decoder_of(family), prompt))
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert not decoder.runner.notices


def triton_ops() -> Any:
    pytest.importorskip("triton")
    if not triton_available(CPU):
        pytest.skip("needs TRITON_INTERPRET=1")
    return importlib.import_module("ladecli.decoder.triton_kernels").TritonOps()


@pytest.mark.parametrize("family", ["gemma2", "glm4", "ministral3"])
def test_kernels_give_the_same_text(family: str) -> None:
    prompt, few = prompt_for(family, 6), Limits(3)
    eager, decoder = decoder_of(family), captured(family)
    expected = ids_of(run(eager, prompt, limits=few))
    for each in (eager, decoder):
        each.forget()
        each.runner.model.use("triton", triton_ops())
        assert ids_of(run(each, prompt, limits=few)) == expected
        assert not each.runner.notices
    assert decoder.runner.captured


def test_a_kernel_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of resources\nshared memory")

    ops = triton_ops()
    monkeypatch.setattr(ops, "gate", broken)
    decoder, prompt = decoder_of("llama"), prompt_for("llama")
    expected = ids_of(run(decoder, prompt))
    decoder.forget()
    decoder.runner.model.use("sdpa", ops)
    assert ids_of(run(decoder, prompt)) == expected
    (notice,) = decoder.runner.notices
    assert notice == "steps run without Triton kernels, and slower: out of resources"
