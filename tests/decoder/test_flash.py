"""Attention in two parts against the reference; GPU kernels by stand-ins that check their inputs.

The stand-ins compute what the kernels compute, from the shapes and strides that those are given,
so that a wrong layout gives wrong numbers.  That the arguments fit the real kernels is asked of
PyTorch's own shape functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.attention import StepAttention, flash
from ladecli.decoder.attention.flash import flash_attention
from ladecli.decoder.attention.reference import reference_attention
from ladecli.decoder.attention.sdpa import sdpa_attention
from ladecli.decoder.attention.step import Parts

REACH = 768
"""Slots of a static step."""


class Static(StepAttention):
    """A step that does not say how long the text is; keys and values are those of all slots."""

    def __init__(self, visible: Tensor, positions: Tensor, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__(flash_attention, visible, positions, 0, REACH - 1)
        self._own = own
        self.filled = torch.zeros(1, dtype=torch.int32)

    @property
    def prefix(self) -> None:
        return None

    @property
    def length(self) -> Tensor:
        return self.filled

    def split(self, key: Tensor, value: Tensor) -> Parts:
        return Parts(key, value, self._own(key), self._own(value))


def tree(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Who sees whom in a random tree of so many tokens, and how deep they are."""
    generator = torch.Generator().manual_seed(seed)
    visible = torch.eye(count, dtype=torch.bool)
    for token in range(1, count):
        parent = int(torch.randint(max(0, token - 4), token, (1,), generator=generator))
        visible[token] |= visible[parent]
    return visible, visible.sum(dim=1) - 1


def live(prefix: int, count: int) -> StepAttention:
    visible, depths = tree(count)
    positions = prefix + depths
    seen = visible if count > 1 else None
    return StepAttention(flash_attention, seen, positions, prefix, int(positions.max()))


def static(prefix: int, count: int) -> Static:
    visible, depths = tree(count)
    step = Static(visible, prefix + depths, lambda x: x[:, :, prefix : prefix + count].clone())
    step.filled += prefix
    return step


def drawn(
    prefix: int, count: int, groups: int = 1, depth: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """A query as models make it, and keys and values as a cache of more slots hands them out."""
    keys, generator = 2, torch.Generator().manual_seed(prefix + count)
    query = torch.randn(1, count, keys * groups, depth, generator=generator).transpose(1, 2)
    slots = torch.randn(2, 1, keys, REACH + 8, depth, generator=generator)
    key, value = slots[:, :, :, : prefix + count].to(dtype)
    return query.to(dtype), key, value


def all_slots(part: Tensor, prefix: int, count: int) -> Tensor:
    """The same behind the whole reach: garbage where neither text nor step is."""
    slots = torch.full((*part.shape[:2], REACH, part.shape[3]), 1e4).to(part.dtype)
    slots[:, :, : prefix + count] = part[:, :, : prefix + count]
    return slots


def near(out: Tensor, expected: Tensor) -> None:
    # Half precision is rounded twice: each part, and the whole.
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[expected.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts on a CPU even where they do not pay."""
    monkeypatch.setattr(flash, "PAYS_FROM", 0)
    monkeypatch.setattr(flash, "PAYS_BY", 0)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("prefix", [0, 1, 30, 700])
@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_two_parts_come_to_the_whole(
    prefix: int, count: int, groups: int, dtype: torch.dtype
) -> None:
    for depth in (8, 64, 80, 128):
        inputs = drawn(prefix, count, groups, depth, dtype)
        step = live(prefix, count)
        out = flash_attention(*inputs, step, depth**-0.5, None, None)
        near(out, reference_attention(*inputs, step, depth**-0.5, None, None))
        assert out.dtype == dtype


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("prefix", [0, 1, 30, 700])
def test_garbage_behind_the_text_does_not_leak(prefix: int) -> None:
    query, key, value = drawn(prefix, 20, 2)
    expected = reference_attention(query, key, value, live(prefix, 20), 0.3, None, None)
    slots = [all_slots(x, prefix, 20) for x in (key, value)]
    near(flash_attention(query, *slots, static(prefix, 20), 0.3, None, None), expected)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize(("sliding", "softcap"), [(9, None), (35, None), (None, 2.0), (9, 2.0)])
def test_what_a_kernel_cannot_know_is_left_to_sdpa(
    sliding: int | None, softcap: float | None
) -> None:
    inputs, step = drawn(30, 20), live(30, 20)
    assert step.reach(sliding) == sliding
    out = flash_attention(*inputs, step, 0.3, sliding, softcap)
    assert torch.equal(out, sdpa_attention(*inputs, step, 0.3, sliding, softcap))
    near(out, reference_attention(*inputs, step, 0.3, sliding, softcap))


@pytest.mark.usefixtures("_always")
def test_windows_are_known_even_where_they_hide_nothing() -> None:
    step = live(30, 20)
    near(
        flash_attention(*drawn(30, 20), step, 0.3, 1000, None),
        reference_attention(*drawn(30, 20), step, 0.3, None, None),
    )
    assert step.sliding_windows == {1000}


@pytest.mark.usefixtures("_always")
def test_values_of_another_size_are_left_to_sdpa() -> None:
    query, key, _ = drawn(30, 20, depth=16)
    value, step = drawn(30, 20, depth=8)[2], live(30, 20)
    out = flash_attention(query, key, value, step, 0.3, None, None)
    near(out, reference_attention(query, key, value, step, 0.3, None, None))


def kernel_for(prefix: int, count: int, heads: int, depth: int) -> object:
    tensor = torch.empty(1, heads, count, depth)
    return flash._kernel(tensor, tensor, live(prefix, count))


def test_the_rule_for_a_cpu() -> None:
    assert kernel_for(2047, 64, 8, 8) is None  # Too few scores.
    assert kernel_for(2048, 64, 8, 8) is not None
    assert kernel_for(1024, 64, 32, 128) is None  # The step itself is half of the work.
    assert kernel_for(1536, 64, 32, 128) is not None
    assert kernel_for(9999, 1024, 32, 128) is not None
    assert kernel_for(9999, 1025, 32, 128) is None  # Its own scores would be too many.


def test_kernels_read_heads_whole() -> None:
    """Those of a GPU refuse a last dimension with gaps, and the one of a CPU may copy it."""
    step, query, value = live(2048, 64), *drawn(700, 64, 16, 16)[::2]
    assert flash._kernel(query, value, step) is not None
    gaps = torch.stack([value, value], dim=-1)[..., 0]
    assert flash._kernel(query, gaps, step) is None
    assert flash._kernel(torch.stack([query, query], dim=-1)[..., 0], value, step) is None


def test_the_rule_gives_the_same_answer_on_both_sides() -> None:
    for prefix in (409, 410):
        assert flash.pays(64, 40, 8, prefix) == (prefix == 410)
        inputs, step = drawn(prefix, 40, 32), live(prefix, 40)
        near(
            flash_attention(*inputs, step, 0.3, None, None),
            reference_attention(*inputs, step, 0.3, None, None),
        )


def dense(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """What a flash kernel makes of [rows, K, D] and [slots, K, D]: the same, and lse [K, rows]."""
    if not len(key):
        return torch.zeros_like(query), torch.full(query.shape[1::-1], float("inf"))
    query, key, value = (x.transpose(0, 1).float() for x in (query, key, value))
    scores = query @ key.transpose(1, 2) * scaling
    out = torch.softmax(scores, dim=-1) @ value
    return out.transpose(0, 1).contiguous(), torch.logsumexp(scores, dim=-1)


def check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """What flash-attn demands of its inputs."""
    assert query.dtype == key.dtype == value.dtype
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.shape[-2:] == key.shape[-2:] == value.shape[-2:]  # Groups are rows.
    assert key.shape == value.shape


def packaged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor | None = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Stands in for `flash_attn_with_kvcache`."""
    check(q, k_cache, v_cache)
    assert q.dim() == 4
    assert k_cache.shape[1] > 0
    assert softmax_scale is not None
    assert return_softmax_lse
    length = k_cache.shape[1]
    if cache_seqlens is not None:
        assert cache_seqlens.dtype == torch.int32
        assert cache_seqlens.shape == (1,)
        length = int(cache_seqlens)
    out, lse = dense(q[0], k_cache[0, :length], v_cache[0, :length], softmax_scale)
    return out[None].to(q.dtype), lse[None]


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor | None,
    key_starts: Tensor | None,
    rows: int,
    slots: int,
    *rest: Any,
    scale: float,
) -> tuple[Tensor, Tensor, None, None, None]:
    """Stands in for `_flash_attention_forward`, in both of its forms."""
    assert rest == (0.0, False, False)
    check(query, key, value)
    if starts is None or key_starts is None:
        assert query.shape[:2] == (1, rows)
        assert key.shape[:2] == (1, slots)
        assert slots > 0
        out, lse = dense(query[0], key[0], value[0], scale)
        return out[None].to(query.dtype), lse[None], None, None, None
    assert starts.dtype == key_starts.dtype == torch.int32
    assert starts.shape == key_starts.shape
    assert starts.is_contiguous()
    assert key_starts.is_contiguous()
    assert starts.diff().eq(rows).all()
    assert starts[-1] == len(query)
    assert key_starts.diff().ge(0).all()
    assert int(key_starts[-1]) <= slots == len(key)
    edges, key_edges = starts.tolist(), key_starts.tolist()
    parts = [
        dense(query[a:b], key[c:d], value[c:d], scale)
        for a, b, c, d in zip(edges, edges[1:], key_edges, key_edges[1:], strict=False)
    ]
    out, lse = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts], dim=1)
    return out.to(query.dtype), lse, None, None, None


@pytest.fixture(params=["package", "torch", "torch, one split"])
def _gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for one of the kernels of a GPU."""
    chosen = flash._by_package if request.param == "package" else flash._by_torch
    monkeypatch.setattr(flash, "_package", lambda: packaged)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    processors = 1 if request.param == "torch, one split" else 132
    monkeypatch.setattr(flash, "_processors", lambda device: processors)
    monkeypatch.setattr(flash, "_kernel", lambda query, value, step: chosen)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("prefix", [0, 1, 2, 30, 700])
@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_for_the_kernels_of_a_gpu(
    prefix: int, count: int, groups: int, dtype: torch.dtype
) -> None:
    query, key, value = drawn(prefix, count, groups, 16, dtype)
    expected = reference_attention(query, key, value, live(prefix, count), 0.3, None, None)
    near(flash_attention(query, key, value, live(prefix, count), 0.3, None, None), expected)
    slots = [all_slots(x, prefix, count) for x in (key, value)]
    near(flash_attention(query, *slots, static(prefix, count), 0.3, None, None), expected)


def test_keys_are_split_until_a_gpu_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_processors", lambda device: 132)
    device = torch.device("cpu")
    assert flash._splits(8, 16384, device) == 33
    assert flash._splits(32, 16384, device) == 8
    assert flash._splits(8, 1024, device) == 4  # Each is to have something to do.
    assert flash._splits(300, 16384, device) == 1
    assert flash._splits(8, 64, device) == 1


@pytest.mark.parametrize("prefix", [None, 1, 700])
def test_arguments_fit_the_kernel_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, prefix: int | None
) -> None:
    asked: list[Any] = []
    real = torch.ops.aten._flash_attention_forward

    def recorded(*args: Any, **kwargs: Any) -> Any:
        asked.append(real(*args, **kwargs))
        return asked[-1]

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", recorded)
    monkeypatch.setattr(flash, "_processors", lambda device: 132)
    monkeypatch.setattr(flash, "_kernel", lambda query, value, step: flash._by_torch)
    # On "meta" there are shapes and no numbers.
    query = torch.empty(1, 20, 4, 64, device="meta", dtype=torch.bfloat16).transpose(1, 2)
    key = torch.empty(1, 2, REACH, 64, device="meta", dtype=torch.bfloat16)
    visible = torch.ones(20, 20, dtype=torch.bool, device="meta")
    positions = torch.zeros(20, dtype=torch.int64, device="meta")
    step: StepAttention
    if prefix is None:
        step = Static(visible, positions, lambda x: x[:, :, :20])
        step.filled = step.filled.to("meta")
    else:
        key = key[:, :, : prefix + 20]
        step = StepAttention(flash_attention, visible, positions, prefix, prefix + 19)
    out = flash_attention(query, key, key, step, 0.3, None, None)
    assert out.shape == (1, 4, 20, 64)
    assert out.dtype == torch.bfloat16
    shapes = [tuple(each.shape) for each in asked[0][:2]]
    assert shapes == (
        [(3 * 40, 2, 64), (2, 3 * 40)] if prefix is None else [(1, 40, 2, 64), (1, 2, 40)]
    )


class OnGpu:
    """As much of a tensor on a GPU as a choice between kernels looks at."""

    device = torch.device("cuda", 0)

    def __init__(self, dtype: torch.dtype, depth: int) -> None:
        self.dtype, self.shape = dtype, (1, 32, 16, depth)

    def stride(self, _dimension: int) -> int:
        return 1


@pytest.mark.parametrize(
    ("generation", "dtype", "depth", "package", "expected"),
    [
        (9, torch.bfloat16, 128, True, flash._by_package),
        (8, torch.float16, 80, True, flash._by_package),
        (9, torch.bfloat16, 128, False, flash._by_torch),
        (10, torch.bfloat16, 256, True, flash._by_torch),
        (7, torch.float16, 64, True, None),
        (9, torch.float32, 64, True, None),
        (9, torch.bfloat16, 60, True, None),
        (9, torch.bfloat16, 264, True, None),
    ],
)
def test_the_kernel_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    generation: int,
    dtype: torch.dtype,
    depth: int,
    package: bool,
    expected: object,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    monkeypatch.setattr(flash, "_package", lambda: packaged if package else None)
    tensor: Any = OnGpu(dtype, depth)
    assert flash._kernel(tensor, tensor, live(30, 16)) is expected
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert flash._kernel(tensor, tensor, live(30, 16)) is None, "AMD's has other rules"


def broken(name: str) -> Any:
    raise OSError("undefined symbol")


def without_lse(q: Tensor, k_cache: Tensor) -> Tensor:
    return q


@pytest.mark.parametrize(
    ("module", "there"),
    [
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(flash_attn_with_kvcache=without_lse), False),
        (SimpleNamespace(flash_attn_with_kvcache=packaged), True),
    ],
    ids=["missing", "another one", "too old", "there"],
)
def test_the_package_is_used_if_it_can_be(
    monkeypatch: pytest.MonkeyPatch, module: object, there: bool
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    assert (flash._package.__wrapped__() is not None) == there


def test_a_broken_package_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "import_module", broken)
    assert flash._package.__wrapped__() is None
