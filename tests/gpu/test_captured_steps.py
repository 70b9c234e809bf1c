"""Captured steps on a GPU: the text of steps that run one operation at a time, and ways to fail."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ladecli.decoder import graphs
from ladecli.decoder.attention import BACKENDS
from ladecli.decoder.capture import Captured, Work
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import DecoderError
from ladecli.decoder.events import Step
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.ladder import ladder_for
from ladecli.decoder.lean import make_lean
from ladecli.decoder.probe import try_capture
from ladecli.decoder.strategies import make_strategy

from ..decoding import ids_of, run
from ..families import FAMILIES, prompt_for
from . import DEVICE, ON_GPU, capture_of, captured, eager, model_on_device, needs_cuda, needs_gpu

pytestmark = needs_gpu
CONFIG = LookaheadConfig(4, 4, 4, 24, widths=(1, 8, 16, 24))
NEW = Limits(40)
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "all": SamplingConfig(temperature=0.9, seed=3),
    "cut": SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01, seed=5),
    "penalized": SamplingConfig(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=5),
}
NEVER_CAPTURED = ("llama_dynamic",)
"""Their rotary embedding asks for the largest position of a step."""
PERHAPS = ("phi3_long", "mixtral")
"""Some versions of transformers ask there, too; and torch asks the device how many tokens go to
each expert, but for bfloat16 on a Hopper."""


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_give_the_same_text(family: str) -> None:
    model, prompt = model_on_device(family), prompt_for(family)
    expected = ids_of(run(eager(model), prompt, limits=NEW))
    decoder = captured(model)
    assert ids_of(run(decoder, prompt, limits=NEW)) == expected
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected
    assert decoder.runner.given_up is None
    if ON_GPU and family not in PERHAPS:
        assert (decoder.runner.trouble is not None) == (family in NEVER_CAPTURED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*NEVER_CAPTURED, *PERHAPS}))
def test_captured_logits_are_those_of_other_steps(family: str, dtype: torch.dtype) -> None:
    model = model_on_device(family, dtype)
    for attention in BACKENDS:
        if attention == "triton" and not ON_GPU:
            continue
        decoder, ladder = eager(model), ladder_for(model, attention)  # binds the attention
        said = try_capture(model, decoder.facts, attention, capture_of(model), ladder)
        assert said is None, attention
        assert ladder.given_up is None


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("attention", ["sdpa", "flash", "triton"])
def test_texts_do_not_depend_on_attention_or_on_how_tokens_are_drawn(
    attention: str, how: str
) -> None:
    model, prompt, sampling = model_on_device("llama"), prompt_for("llama"), SAMPLINGS[how]
    expected = ids_of(run(eager(model), prompt, sampling=sampling, limits=NEW))
    try:
        decoder = captured(model, attention)
        found = ids_of(run(decoder, prompt, "lookahead", CONFIG, sampling, NEW))
    except DecoderError as error:
        pytest.skip(str(error))
    assert found == expected
    assert decoder.runner.given_up is None


def test_a_cache_holds_what_other_steps_put_there() -> None:
    """Accepted tokens stand anywhere in a step: the next one moves their keys on its way."""
    model, prompt = model_on_device("llama"), prompt_for("llama")
    caches: list[KVCache] = []
    for decoder in (eager(model), captured(model)):
        run(decoder, prompt, "lookahead", CONFIG, limits=NEW)
        decoder.cache.settle()
        caches.append(decoder.cache)
    assert caches[0].length == caches[1].length > len(prompt)
    ours, theirs = (cache.tensors for cache in caches)
    assert ours is not None
    assert theirs is not None
    for mine, other in zip(ours, theirs, strict=True):
        held = slice(0, caches[0].length)
        torch.testing.assert_close(mine[:, :, :, held], other[:, :, :, held], rtol=1e-4, atol=1e-4)


def long_model() -> Any:
    """A Llama with room for texts that outgrow a new cache."""
    model = copy.deepcopy(model_on_device("llama"))
    model.config.max_position_embeddings = 1024
    return model


def test_a_cache_may_grow_under_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "FIRST_SLOTS", 0)
    model, prompt, new = long_model(), prompt_for("llama", 200), Limits(120)
    expected = ids_of(run(eager(model), prompt, limits=new))
    decoder = captured(model)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=new)) == expected
    assert decoder.cache.slots > 256, "it had no reason to grow"
    assert ids_of(run(decoder, prompt, limits=new)) == expected


def test_a_text_may_be_broken_off_anywhere() -> None:
    model, prompt = model_on_device("llama"), prompt_for("llama")
    expected = ids_of(run(eager(model), prompt, limits=NEW))
    decoder = captured(model)
    for steps in range(1, 6):
        events = decoder.generate(prompt, make_strategy("lookahead", CONFIG), None, NEW)
        for _, event in zip(range(steps + 1), events, strict=False):
            assert not isinstance(event, Step) or event.tokens
        events.close()
        assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected


class Interrupted:
    """Captures as another one does, and is interrupted while it waits for a step.

    Attributes:
        waits: this wait is broken off; further ones are not.
    """

    def __init__(self, model: Any) -> None:
        self._inner = capture_of(model)
        self.waits = -1

    def capture(self, work: Work) -> Captured:
        return self._inner.capture(work)

    def wait(self) -> None:
        self.waits -= 1
        if self.waits == 0:
            raise KeyboardInterrupt
        self._inner.wait()


def test_control_c_while_a_step_runs_leaves_a_cache_that_counts() -> None:
    model, prompt = model_on_device("llama"), prompt_for("llama")
    expected = ids_of(run(eager(model), prompt, limits=NEW))
    capture = Interrupted(model)
    decoder = Decoder(model, attention="sdpa", capture=capture)
    for waits in (1, 2, 5):
        capture.waits = waits
        with pytest.raises(KeyboardInterrupt):
            run(decoder, prompt, "lookahead", CONFIG, limits=NEW)
        assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected


def test_two_decoders_on_two_streams() -> None:
    families = ("llama", "qwen2")
    expected = {
        family: ids_of(run(eager(model_on_device(family)), prompt_for(family), limits=NEW))
        for family in families
    }
    decoders = {family: captured(model_on_device(family)) for family in families}
    for family, decoder in decoders.items():  # what is captured is captured alone
        run(decoder, prompt_for(family), "lookahead", CONFIG, limits=NEW)
    found: dict[str, list[list[int]]] = {family: [] for family in families}

    def decode(family: str) -> None:
        with torch.cuda.stream(torch.cuda.Stream()) if ON_GPU else nullcontext():
            for _ in range(5):
                decoders[family].forget(keep_memory=True)
                events = run(decoders[family], prompt_for(family), "lookahead", CONFIG, limits=NEW)
                found[family].append(ids_of(events))

    threads = [threading.Thread(target=decode, args=[family]) for family in families]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {family: [expected[family]] * 5 for family in families}


@needs_cuda
def test_forgetting_gives_the_memory_back() -> None:
    model, prompt = long_model(), prompt_for("llama", 100)
    decoder = captured(model)
    run(decoder, prompt, "lookahead", CONFIG, limits=NEW)  # libraries take their workspaces
    decoder.forget()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(3):
        run(decoder, prompt, "lookahead", CONFIG, limits=NEW)
        assert torch.cuda.memory_allocated() > before[0]
        decoder.forget()
    torch.cuda.empty_cache()
    # Kernels may keep a little of their own.
    assert torch.cuda.memory_allocated() <= before[0] + (1 << 20)
    assert torch.cuda.memory_reserved() <= before[1] + (32 << 20)


@needs_cuda
def test_graphs_that_end_take_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does memory that goes back, or who else drops the workspaces of cuBLAS."""
    monkeypatch.setattr(graphs, "KEPT", 2)
    model, prompt = long_model(), prompt_for("llama", 100)
    decoder = captured(model)
    expected = ids_of(run(eager(model), prompt, limits=NEW))
    for config in (CONFIG, LookaheadConfig(2, 3, 2), LookaheadConfig(5, 3, 5, 64), CONFIG):
        assert ids_of(run(decoder, prompt, "lookahead", config, limits=NEW)) == expected
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        # Memory that was freed and is somebody else's now.
        others = [torch.full((1 << 22,), 7.0, device=DEVICE) for _ in range(4)]
        assert ids_of(run(decoder, prompt, "lookahead", config, limits=NEW)) == expected
        assert all(bool((other == 7.0).all()) for other in others)


@needs_cuda
def test_a_model_that_cannot_be_captured_says_so_and_goes_on() -> None:
    model = model_on_device("llama_dynamic")
    decoder = captured(model)
    assert decoder.runner.trouble is not None
    assert len(ids_of(run(decoder, prompt_for("llama", 8), limits=Limits(12)))) == 12
    # A capture that failed must leave a device that works.
    assert float(torch.ones(4, device=DEVICE).sum()) == 4.0


LEAN = [
    "llama",
    "qwen2",
    "qwen3",
    "mixtral",
    "gemma2",
    "gemma3",
    "granite",
    "glm4",
    "phi3",
    "olmo2",
]
"""Of each way in which layers become lean, a family."""


@pytest.mark.parametrize("family", LEAN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lean_forwards_say_the_same(family: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(model_on_device(family, dtype))
    model.set_attn_implementation("eager")  # decoders may have bound theirs
    ids = torch.tensor([prompt_for(family)], device=DEVICE)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits.float()
        lean = make_lean(model)
        found = model(input_ids=ids, use_cache=False).logits.float()
    assert len(lean) > 0
    off = float((found - expected).abs().max() / expected.std())
    assert off <= (1e-4 if dtype == torch.float32 else 1e-1)
    if dtype == torch.float32:
        text = ids_of(run(eager(model_on_device(family)), prompt_for(family), limits=NEW))
        decoder = captured(model)
        assert ids_of(run(decoder, prompt_for(family), "lookahead", CONFIG, limits=NEW)) == text
