"""Captured steps, kernels and the compiler on a GPU give the text of plain eager steps."""

from __future__ import annotations

import copy
import gc
import threading
from functools import cache
from typing import Any

import pytest
import torch

from ladecli.decoder.backends.cuda_graphs import CudaGraphs, GraphCapture, Work
from ladecli.decoder.backends.load import load_decoder, new_cache
from ladecli.decoder.backends.trial import Trial
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.strategies import make_strategy
from tests.support.decoding import ids_of, run
from tests.support.models import model_of, new_model, prompt_for

GPU = torch.device("cuda", 0)
CONFIG = LookaheadConfig(4, 4, 4, 24, widths=(1, 8, 24))
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
FAMILIES = ("llama", "gemma2", "qwen3", "olmo2", "phi3_long", "glm4", "smollm3", "gpt2")


@cache
def on_gpu(family: str, dtype: torch.dtype = torch.float32) -> Any:
    return copy.deepcopy(model_of(family)).to(GPU, dtype)


def captured(model: Any, **options: Any) -> Decoder:
    decoder = load_decoder(model, join=False, cuda_graphs=True, **options)
    assert decoder.executor.overlaps
    assert not decoder.executor.notices
    return decoder


def eager(model: Any) -> Decoder:
    return load_decoder(model, join=False, attention="reference", kernels=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_give_the_same_text(family: str) -> None:
    model, prompt = on_gpu(family), prompt_for(family)
    decoder = captured(model)
    for sampling in (None, SAMPLED):
        expected = ids_of(run(eager(model), prompt, sampling=sampling))
        for strategy in ("autoregressive", "lookahead"):
            assert ids_of(run(decoder, prompt, strategy, CONFIG, sampling)) == expected
    assert decoder.executor.graphs_made
    assert not decoder.executor.notices


@pytest.mark.parametrize("attention", ["sdpa", "triton"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_captured_steps_in_half_precision(family: str, attention: str) -> None:
    """The trial at load compares logits; afterwards texts are interrupted, and others begun."""
    decoder = captured(on_gpu(family, torch.bfloat16), attention=attention)
    prompt = prompt_for(family)
    expected = ids_of(run(decoder, prompt))
    for steps in range(1, 4):
        events = decoder.generate(prompt, make_strategy("lookahead", CONFIG))
        for _, _event in zip(range(steps + 1), events, strict=False):
            pass
        events.close()
        decoder.forget(keep_memory=True)  # otherwise the prompt would be read in other steps
        assert ids_of(run(decoder, prompt)) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_batch_invariant_steps_give_the_text_of_plain_ones(family: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(on_gpu(family, dtype))
    decoder = load_decoder(model, attention="invariant", cuda_graphs=True)
    assert decoder.batch_invariant
    for sampling in (None, SAMPLED):
        for length in (5, 40, 60):
            prompt = prompt_for(family, length)
            expected = ids_of(run(decoder, prompt, sampling=sampling, limits=Limits(60)))
            found = run(decoder, prompt, "lookahead", CONFIG, sampling, Limits(60))
            assert ids_of(found) == expected


def test_joined_weights_and_chunks() -> None:
    model, prompt = on_gpu("qwen3"), prompt_for("qwen3", 150)
    expected = ids_of(run(eager(model), prompt))
    decoder = load_decoder(copy.deepcopy(model), cuda_graphs=True, prefill_chunk=64)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert not decoder.executor.notices


def test_a_cache_may_grow_under_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model("llama", max_position_embeddings=1024).to(GPU)
    prompt, new = prompt_for("llama", 200), Limits(400)
    expected = ids_of(run(eager(model), prompt, limits=new))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda *_: (0, 0)
    )  # no slots to allocate at once
    decoder = captured(model)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=new)) == expected
    assert decoder.cache.slots > 512
    decoder.forget()
    assert ids_of(run(decoder, prompt, limits=new)) == expected


def test_a_capture_that_fails_leaves_the_gpu_usable() -> None:
    """The capture reads a number from the device, so it fails; later steps and graphs work."""
    model, prompt = on_gpu("llama"), prompt_for("llama")
    expected = ids_of(run(eager(model), prompt))

    class SyncingCapture(GraphCapture):
        def __call__(self, work: Work) -> Work:
            def asks() -> None:
                work()
                torch.ones(1, device=GPU).item()

            return super().__call__(asks)

    decoder = load_decoder(model, join=False, cuda_graphs=True, capture=SyncingCapture(GPU))
    (notice,) = decoder.executor.notices
    assert notice.startswith("steps run without CUDA graphs, and slower: ")
    assert ids_of(run(decoder, prompt)) == expected
    torch.rand(3, device=GPU)
    torch.cuda.empty_cache()
    assert ids_of(run(captured(model), prompt, "lookahead", CONFIG)) == expected


def test_graphs_outlive_other_graphs_and_the_garbage_collector() -> None:
    """Graphs own the workspaces, pools and tables to which they write."""
    model, prompt = on_gpu("llama", torch.bfloat16), prompt_for("llama")
    decoder = captured(model)
    expected = ids_of(run(decoder, prompt, "lookahead", CONFIG))
    other = captured(on_gpu("qwen3", torch.bfloat16))
    run(other, prompt_for("qwen3"), "lookahead", CONFIG)
    del other
    gc.collect()
    torch.cuda.empty_cache()
    decoder.forget(keep_memory=True)
    filler = [torch.full((1 << 18,), float("nan"), device=GPU) for _ in range(64)]
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert len(filler) == 64


def test_another_thread_may_use_the_gpu_during_a_capture() -> None:
    model, prompt = on_gpu("llama"), prompt_for("llama")
    expected = ids_of(run(eager(model), prompt))
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            torch.ones(256, 256, device=GPU).square().sum().item()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ids_of(run(captured(model), prompt, "lookahead", CONFIG)) == expected
    finally:
        done.set()
        thread.join()


def test_the_trial_tells_right_kernels_from_wrong_ones() -> None:
    model = on_gpu("llama", torch.bfloat16)
    decoder = captured(model)
    trial, forward = Trial.of(model, decoder.facts), decoder.executor.model
    assert isinstance(forward, Transformer)
    assert forward.operations.simpler
    cache = new_cache(forward, trial.slots)
    executor = CudaGraphs(forward, cache, decoder.facts, decoder.max_context)
    assert trial.failure(executor) is None
    norm = forward.layers[0].norms.before_attention
    assert norm is not None
    before, kept = norm.weight, norm.weight.clone()
    before.data.mul_(1.5)
    again = CudaGraphs(forward, trial.new_cache(forward), decoder.facts, decoder.max_context)
    assert trial.failure(again) is not None
    before.data.copy_(kept)
