"""Attention backends on a GPU against attention written out, live and in steps of fixed shape."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import BACKENDS, StepAttention
from ladecli.decoder.errors import DecoderError
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.layout import Draft, StepLayout, build
from ladecli.decoder.static_step import StaticCache, StaticStep, StepInputs
from ladecli.decoder.tree import TokenTree

from . import DEVICE, ON_GPU, needs_gpu

pytestmark = needs_gpu
OFF = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Norm of the error over norm of the result; kernels in half precision round inside, too."""
PREFIXES = (0, 1, 63, 300, 2000) if ON_GPU else (0, 1, 63)
WIDTHS = (1, 2, 17, 64, 128) if ON_GPU else (1, 17)
HEADS = ((1, 64), (4, 64), (1, 80), (1, 128), (4, 128), (7, 128))
"""Query heads that share a key head, and their size: each compiles kernels of its own, which takes
a core half a minute."""
SPECIAL = ((40, None), (None, 20.0), (5, 20.0))
"""Sliding windows and soft caps, behind the second but last prefix: each compiles kernels anew."""


def step_of(width: int, prefix: int) -> StepLayout:
    rng, tree = random.Random(width), TokenTree()
    for node in range(width - 1):
        tree.grow(rng.randrange(max(-1, node - 5), node), node, "context")
    return build([3], prefix, Draft(tree))


def live(step: StepLayout, prefix: int, backend: str) -> StepAttention:
    visible = None if step.visible is None else torch.from_numpy(step.visible).to(DEVICE)
    positions = torch.tensor(step.positions, device=DEVICE)
    return StepAttention(BACKENDS[backend], visible, positions, prefix, max(step.positions))


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)


def off(out: Tensor, expected: Tensor) -> float:
    """The error in parts of the result; what is no number is as far off as can be."""
    error = (out.double() - expected.double()).norm() / expected.double().norm()
    return float(error.nan_to_num(float("inf")))


def cases() -> Iterator[tuple[int, int, int | None, float | None]]:
    for prefix, width in itertools.product(PREFIXES, WIDTHS):
        yield prefix, width, None, None
    for (window, cap), width in itertools.product(SPECIAL, (1, 17)):
        yield PREFIXES[-2], width, window, cap


@pytest.mark.parametrize(("groups", "depth"), HEADS)
@pytest.mark.parametrize("dtype", list(OFF), ids=str)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
@torch.inference_mode()
def test_live_steps(backend: str, dtype: torch.dtype, groups: int, depth: int) -> None:
    heads = 2
    for seed, (prefix, width, window, cap) in enumerate(cases()):
        step, what = step_of(width, prefix), f"{prefix} + {width}, window {window}, cap {cap}"
        query = numbers(1, heads * groups, width, depth, dtype=dtype, seed=seed)
        key, value = (
            numbers(1, heads, prefix + width, depth, dtype=dtype, seed=1000 * i + seed)
            for i in (1, 2)
        )
        scale = depth**-0.5
        given = [x.float() for x in (query, key, value)]
        expected = BACKENDS["reference"](
            *given, live(step, prefix, "reference"), scale, window, cap
        )
        try:
            out = BACKENDS[backend](
                query, key, value, live(step, prefix, backend), scale, window, cap
            )
        except DecoderError as error:
            pytest.skip(str(error))
        assert out.dtype == dtype
        assert off(out, expected) <= OFF[dtype], what


@pytest.mark.parametrize(("groups", "depth"), [(1, 64), (4, 128), (7, 128)])
@pytest.mark.parametrize("dtype", list(OFF), ids=str)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
@torch.inference_mode()
def test_steps_of_fixed_shape(backend: str, dtype: torch.dtype, groups: int, depth: int) -> None:
    """The length is read on the device; what lies behind it must not count."""
    heads = 2
    for seed, (prefix, width, window, cap) in enumerate(cases()):
        if prefix == 0:
            continue
        step, padded = step_of(width, prefix), width + 3
        what = f"{prefix} + {width}, window {window}, cap {cap}"
        cache = KVCache(1, 4096)
        cache.reserve(prefix + padded + 700)
        texts = [
            numbers(1, heads, prefix, depth, dtype=dtype, seed=1000 * i + seed) for i in (1, 2)
        ]
        cache.update(texts[0], texts[1], 0)
        assert cache.tensors is not None
        for tensor in cache.tensors:
            tensor[:, :, :, prefix:] = 50.0
        cache.length = prefix
        inputs = StepInputs(padded, DEVICE)
        inputs.fill(step, prefix, None, ())
        inputs.send()
        static = StaticCache(cache, inputs, cache.slots)
        query, own_key, own_value = (
            numbers(1, count, padded, depth, dtype=dtype, seed=5000 * i + seed)
            for i, count in enumerate((heads * groups, heads, heads))
        )
        key, value = static.update(own_key, own_value, 0)
        scale = depth**-0.5
        whole = [
            torch.cat([text, own[:, :, :width]], dim=2).float()
            for text, own in zip(texts, (own_key, own_value), strict=True)
        ]
        expected = BACKENDS["reference"](
            query[:, :, :width].float(), *whole, live(step, prefix, "reference"), scale, window, cap
        )
        run = StaticStep(BACKENDS[backend], inputs, static, cache.slots)
        try:
            out = BACKENDS[backend](query, key, value, run, scale, window, cap)
        except DecoderError as error:
            pytest.skip(str(error))
        assert off(out[:, :, :width], expected) <= OFF[dtype], what
        assert bool(out.isfinite().all()), f"{what}: padding is no number"
