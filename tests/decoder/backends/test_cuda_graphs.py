"""Captured steps give the text of eager steps; failures of captures.

On a CPU, replays run the captured work again.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from ladecli.decoder import layout
from ladecli.decoder.backends.cuda_graphs import CudaGraphs, Work
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.triton_attention import triton_available
from ladecli.decoder.config import CAPTURED_WIDTHS, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.executor import whole
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.model.families import ModelFacts
from ladecli.decoder.strategy import Draft
from tests.support.decoding import decoder_of, ids_of, run, steps_of, transformers_ids, use
from tests.support.device import FakeCapture
from tests.support.models import model_of, new_model, prompt_for
from tests.support.oracle import Oracle, counts

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma2", "phi3_long", "glm4", "smollm3", "gpt2")
"""Families that differ in the tensors of a capture: positions, rotary embedding and masks."""
CONFIG = LookaheadConfig(4, 4, 4, 24)
CONTEXT = LookaheadConfig(4, 4, 4, 24, sources=("context",))
"""Settings whose steps have many widths."""
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)


def captured(family: str, capture: FakeCapture | None = None, **options: Any) -> Decoder:
    return decoder_of(family, cuda_graphs=True, capture=capture or FakeCapture(), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_give_the_same_text(family: str) -> None:
    prompt, capture = prompt_for(family), FakeCapture()
    expected = transformers_ids(model_of(family), prompt, 32)
    decoder, eager = captured(family, capture), decoder_of(family)
    assert decoder.executor.overlaps
    for attention in ("sdpa", "reference") if family == "llama" else ("sdpa",):
        use(decoder, attention)
        decoder.executor.forget()
        for strategy in ("autoregressive", "lookahead"):
            before = capture.replays
            events = run(decoder, prompt, strategy, CONFIG, limits=Limits(32))
            assert ids_of(events) == expected
            assert capture.replays - before >= len(steps_of(events)) - 2
    for sampling in (SAMPLED, SamplingConfig(repetition_penalty=1.3)):
        expected = ids_of(run(eager, prompt, sampling=sampling))
        assert ids_of(run(decoder, prompt, "lookahead", CONFIG, sampling)) == expected
    assert not decoder.executor.notices


def fake_decoder(model: Oracle, capture: FakeCapture, context: int = 512) -> Decoder:
    facts = ModelFacts("oracle", 1, model.vocabulary, context, None, None)
    cache = KVCache(model.layer_shapes, context + 256)
    return Decoder(CudaGraphs(model, cache, facts, context, capture=capture))


def test_no_token_sees_padding() -> None:
    """The fake forward checks that every row sees a text without gaps."""
    model = Oracle(counts)
    decoder = fake_decoder(model, FakeCapture())
    for strategy in ("lookahead", "jacobi", "prompt-lookup", "autoregressive"):
        text = ids_of(run(decoder, [15, 16, 17], strategy, CONTEXT))
        assert text == [10 + (token - 9) % 20 for token in [17, *text[:-1]]]
    # Rows of padding exist, and see only themselves.
    assert {1, 4} <= {len(texts) for texts in model.steps} <= {1, 2, 3, 4, 8, 16, 24}


def test_a_cache_may_grow_under_captured_steps() -> None:
    model, capture = new_model("llama", max_position_embeddings=1024), FakeCapture()
    prompt, new = prompt_for("llama", 480), Limits(50)
    expected = ids_of(run(load_decoder(model, join=False), prompt, limits=new))
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


def test_long_pending_text_and_very_wide_steps_are_not_captured() -> None:
    capture, model = FakeCapture(), Oracle(counts)
    decoder = fake_decoder(model, capture, context=2048)
    run(decoder, [10 + i % 20 for i in range(300)], limits=Limits(1))
    assert capture.captures == 0
    config = LookaheadConfig(4, 4, 4, 600, ("trajectory", "context"), widths=(1, 600))
    run(decoder, [15], "lookahead", config, limits=Limits(20))
    assert {len(texts) for texts in model.steps} >= {600}


class StaleCapture(FakeCapture):
    """A capture whose replay does nothing."""

    def __call__(self, work: Work) -> Work:
        super().__call__(work)
        return lambda: None


FAILED, NO_MEMORY = [ValueError("not that\nat all")] * 2, [torch.OutOfMemoryError("CUDA out of")]


@pytest.mark.parametrize("capture", [FakeCapture(*FAILED), FakeCapture(*NO_MEMORY), StaleCapture()])
def test_a_model_runs_without_captures_that_fail_at_load(capture: FakeCapture) -> None:
    decoder, prompt = captured("llama", capture), prompt_for("llama")
    expected = ids_of(run(decoder_of("llama"), prompt))
    for _ in range(2):
        assert ids_of(run(decoder, prompt, "lookahead", CONTEXT)) == expected
    assert not decoder.executor.overlaps
    (notice,) = decoder.executor.notices
    assert "without CUDA graphs" in notice
    assert "\n" not in notice


def test_a_failed_capture_is_tried_once_more() -> None:
    capture = FakeCapture(None, None, RuntimeError("another thread was at work"))
    decoder = fake_decoder(Oracle(counts), capture)
    run(decoder, [15, 16, 17], "lookahead", CONTEXT)
    assert capture.errors == []
    assert not decoder.executor.notices


@pytest.mark.parametrize("errors", [FAILED, NO_MEMORY], ids=["failed", "memory"])
def test_a_width_that_cannot_be_captured_is_not_used(errors: list[Exception]) -> None:
    decoder = fake_decoder(Oracle(counts), FakeCapture(None, None, *errors))
    for _ in range(2):
        text = ids_of(run(decoder, [15, 16, 17], "lookahead", CONTEXT))
        assert text == [10 + (token - 9) % 20 for token in [17, *text[:-1]]]
    (notice,) = decoder.executor.notices
    assert notice.startswith("some steps run without CUDA graphs")
    assert decoder.executor.overlaps
    assert decoder.executor.graphs_made > 1
    assert len({*CAPTURED_WIDTHS[:6]} - {*decoder.executor.widths(24)}) == 1


def test_if_no_width_can_be_captured_any_width_is_used() -> None:
    decoder = fake_decoder(Oracle(counts), FakeCapture(*[ValueError("no")] * 99))
    executor = decoder.executor
    for width in executor.widths(24):
        executor.launch(layout.build([5], 0, Draft(width=width)), whole)()
    assert executor.widths(24) == ()
    assert len(executor.notices) == 1


def needs_triton() -> None:
    pytest.importorskip("triton")
    if not triton_available(CPU):
        pytest.skip("needs TRITON_INTERPRET=1")


@pytest.mark.parametrize("family", ["gemma2", "glm4"])
def test_kernels_give_the_same_text(family: str) -> None:
    """A captured step also runs once without a capture before it is replayed."""
    needs_triton()
    prompt, few = prompt_for(family, 4), Limits(3)
    decoder = captured(family)
    expected = ids_of(run(decoder, prompt, limits=few))
    decoder.forget()
    use(decoder, "triton", kernels=True)
    assert ids_of(run(decoder, prompt, limits=few)) == expected
    assert not decoder.executor.notices
    assert decoder.executor.graphs_made


@pytest.mark.parametrize("name", ["gate", "most_probable"])
def test_a_kernel_that_fails_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of resources\nshared memory")

    needs_triton()
    ranking = importlib.import_module("ladecli.decoder.backends.triton_ranking")
    ops = importlib.import_module("ladecli.decoder.backends.triton_ops").TritonOps
    monkeypatch.setattr(ops if name == "gate" else ranking, name, broken)
    decoder, prompt = decoder_of("llama"), prompt_for("llama")
    expected = ids_of(run(decoder, prompt))
    decoder.forget()
    use(decoder, "sdpa", kernels=True)
    assert ids_of(run(decoder, prompt)) == expected
    (notice,) = decoder.executor.notices
    assert "Triton" in notice
    assert notice.endswith("out of resources")
