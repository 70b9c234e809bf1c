"""Attention: all kinds of masks, and every backend against a plain implementation."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.attention import BACKENDS, choose_backend
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.triton_attention import triton_available
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.layout import StepLayout, build, build_chunk
from ladecli.decoder.model.mask import CapturedMask, Rules, StepMask
from ladecli.decoder.strategy import Draft
from ladecli.decoder.window import LookaheadWindow
from tests.support.decoding import tree_step
from tests.support.models import model_of

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


class FlashAttn(types.ModuleType):
    """A replacement for the package flash-attn, which runs only on GPUs."""

    @staticmethod
    def flash_attn_with_kvcache(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        cache_seqlens: Tensor,
        softmax_scale: float,
        return_softmax_lse: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the output [1, T, H, D], and the log-sum-exp of scores [1, H, T]."""
        assert return_softmax_lse
        end = int(cache_seqlens)
        query, keys, values = (x.transpose(1, 2).float() for x in (query, keys, values))
        scores = query @ keys[:, :, :end].mT * softmax_scale
        out = scores.softmax(-1) @ values[:, :, :end]
        return out.transpose(1, 2), scores.logsumexp(-1)


@pytest.fixture(autouse=True)
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", FlashAttn("flash_attn"))


NO_TRITON = "triton is not installed, or TRITON_INTERPRET is not 1"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(not triton_available(CPU), reason=NO_TRITON)
)
OTHERS = ["sdpa", "flash", TRITON]


def mask_of(layout: StepLayout) -> StepMask:
    return StepMask(layout.rows, layout.positions, layout.positions[0])


def inputs(
    heads: int, kv_heads: int, count: int, slots: int, size: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values in the strides that a step and a cache have."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, count, heads, size, generator=generator).transpose(1, 2)
    keys, values = torch.randn(2, 1, kv_heads, slots + 3, size, generator=generator)
    return query.to(dtype), keys.to(dtype)[:, :, :slots], values.to(dtype)[:, :, :slots]


def assert_agree(
    backend: str,
    layout: StepLayout,
    heads: tuple[int, int, int] = (4, 2, 16),
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    **rules: Any,
) -> None:
    """Check a backend against `reference` in float32; `heads` are query heads, key heads, size."""
    count = len(layout.tokens)
    query, key, value = inputs(*heads[:2], count, layout.positions[0] + count, heads[2], dtype)
    chosen, query = Rules(0.3, **rules), scale * query
    out = BACKENDS[backend](query, key, value, mask_of(layout), chosen)
    exact = query.float(), key.float(), value.float()
    expected = BACKENDS["reference"](*exact, mask_of(layout), chosen)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("prefix", [0, 1, 30])
@pytest.mark.parametrize("window", [None, 1, 5, 1000])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -2.0, 3.0, 0.0])])
@pytest.mark.parametrize("count", [1, 6])
def test_reference_against_a_loop_over_queries(
    prefix: int, window: int | None, softcap: float | None, sinks: Tensor | None, count: int
) -> None:
    layout, rules = tree_step(count, prefix), Rules(0.5, window, softcap, sinks)
    query, key, value = inputs(4, 2, count, prefix + count, 8)
    out = BACKENDS["reference"](query, key, value, mask_of(layout), rules)
    positions = [*range(prefix), *layout.positions]
    for row, (bits, position) in enumerate(zip(layout.rows, layout.positions, strict=True)):
        seen = [*range(prefix), *(prefix + i for i in range(count) if bits >> i & 1)]
        if window is not None:
            seen = [slot for slot in seen if positions[slot] > position - window]
        for head in range(4):
            scores = key[0, head // 2, seen] @ query[0, head, row] * 0.5
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            # A sink is one more key, whose value is zero.
            sink = scores[:0] if sinks is None else sinks[head : head + 1]
            weights = torch.softmax(torch.cat([scores, sink]), dim=0)[: len(seen)]
            expected = weights @ value[0, head // 2, seen]
            torch.testing.assert_close(out[0, head, row], expected, atol=1e-5, rtol=1e-5)


CASES = [  # heads, key/value heads, head size, tokens, prefix, sliding window, soft cap
    (2, 2, 8, 1, 0, None, None),
    (4, 1, 16, 1, 50, 3, None),
    (1, 1, 80, 1, 300, None, None),
    (4, 2, 64, 2, 1, None, 5.0),
    (2, 2, 16, 7, 0, 1, 5.0),
    (4, 2, 16, 7, 50, 20, None),
    (2, 1, 128, 7, 300, 60, 5.0),
    (3, 3, 16, 1, 300, 20, 5.0),
    (2, 1, 8, 33, 1, None, None),
    (2, 1, 64, 33, 300, 3, None),
    (1, 1, 16, 70, 50, None, None),
]


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_backends_over_shapes_windows_soft_caps_and_sinks(backend: str, number: int) -> None:
    """Types with and without sinks alternate."""
    *heads, count, prefix, window, softcap = CASES[number]
    for turn, dtype in enumerate(TOLERANCE, start=number):
        sinks = torch.linspace(-3, 4, heads[0]).to(dtype) if turn % 2 else None
        rules = {"window": window, "softcap": softcap, "sinks": sinks}
        assert_agree(backend, tree_step(count, prefix), heads, dtype, **rules)


@pytest.mark.parametrize("backend", OTHERS)
def test_scores_far_apart_do_not_overflow(backend: str) -> None:
    assert_agree(backend, tree_step(9, 40), scale=200)


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("window", [None, 6])
def test_lookahead_windows_and_prompt_chunks(backend: str, window: int | None) -> None:
    ahead = LookaheadWindow(5, 4, [1, 2, 3])
    for _ in range(4):
        ahead.advance([7] * len(ahead.rows[0]))
    drafted = build([8, 9], 40, Draft(window=ahead.block(9), width=24))
    for layout in (drafted, build_chunk(range(20), 40, anchor=90)):
        assert_agree(backend, layout, window=window)


def assert_captured(
    backend: str, step: StepLayout, size: int, window: int | None, *spoiled: tuple[slice, float]
) -> None:
    """Check a step over all slots of a cache, some of them spoiled, against one of its own."""
    slots, end, rules = 384, step.positions[0] + len(step.tokens), Rules(0.3, window)
    query, key, value = inputs(4, 2, len(step.tokens), slots, size)
    exact = query, key[:, :, :end], value[:, :, :end]
    expected = BACKENDS["reference"](*exact, mask_of(step), rules)
    for places, number in spoiled:
        key[:, :, places] = value[:, :, places] = number
    captured = CapturedMask(mask_of(step).on_device(CPU), slots)
    out = BACKENDS[backend](query, key, value, captured, rules)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", [*OTHERS, "reference"])
@pytest.mark.parametrize(
    ("count", "prefix", "size"), [(1, 1, 16), (1, 50, 128), (9, 50, 16), (40, 1, 16), (40, 300, 16)]
)
@pytest.mark.parametrize("window", [None, 10])
def test_captured_steps_are_those_of_the_exact_length(
    backend: str, count: int, prefix: int, size: int, window: int | None
) -> None:
    after = slice(prefix + count, None)
    assert_captured(backend, tree_step(count, prefix), size, window, (after, 50.0))


@pytest.mark.skipif(not triton_available(CPU), reason=NO_TRITON)
def test_triton_reads_nothing_that_no_token_sees() -> None:
    after, before = (slice(305, None), math.nan), (slice(0, 256), math.nan)
    assert_captured("triton", tree_step(5, 300), 16, None, after)
    # The first token sees slot 281, in the tile from 256 on.
    assert_captured("triton", tree_step(5, 300), 16, 20, after, before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eager", "unknown attention 'eager'; use one of auto, reference"),
        ("flash", "'flash' needs the package flash-attn and a CUDA GPU"),
        pytest.param(
            "triton",
            "'triton' needs the package triton and a CUDA GPU",
            marks=pytest.mark.skipif(triton_available(CPU), reason="it is interpreted here"),
        ),
    ],
)
def test_backends_that_this_machine_lacks_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_backend(name, CPU, torch.float32)


def test_a_backend_that_fails_at_load_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setitem(BACKENDS, "reference", broken)
    executor = load_decoder(model_of("llama"), attention="reference").executor
    assert executor.model.operations.name == "sdpa"
    assert "attention 'reference'" in executor.notices[0]
    assert "no kernel image" in executor.notices[0]


@pytest.mark.parametrize("backend", OTHERS)
def test_values_of_another_size_than_keys(backend: str) -> None:
    query, key, value = inputs(4, 2, 5, 25, 16)
    tensors = query, key, value[..., :8], mask_of(tree_step(5, 20)), Rules(0.3)
    torch.testing.assert_close(BACKENDS[backend](*tensors), BACKENDS["reference"](*tensors))
