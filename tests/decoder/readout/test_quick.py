"""What is read out of logits by Triton's kernels: the same as by torch's operations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.errors import DeviceLostError
from ladecli.decoder.lean import fused
from ladecli.decoder.readout import choosing, pack, quick, ranking
from ladecli.decoder.readout.penalty import Penalized, maxima, part
from ladecli.decoder.readout.quick import may_rank, may_top, rank, top, weigh
from ladecli.decoder.readout.ranking import leaders, ranked

from ..triton_compiler import printed
from .test_ranking import KINDS, rows_of

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has them, too: in the interpreter."""
    monkeypatch.setattr(quick, "DEVICES", ("cpu",))
    monkeypatch.setattr(quick, "BLOCK", 64)
    for name in ("_ranks", "_tops", "_weighs"):
        monkeypatch.setattr(quick, name, getattr(quick, name).__wrapped__)


SIZES = [(4, 4), (63, 1), (64, 3), (65, 2), (129, 4)]


@pytest.mark.parametrize(
    ("kind", "vocabulary", "count"),
    [*((kind, 200, 4) for kind in KINDS), *(("quantised", *size) for size in SIZES)],
)
def test_the_greatest_come_first_and_of_equal_ones_the_lowest(
    kind: str, vocabulary: int, count: int
) -> None:
    logits = rows_of(3, vocabulary, kind)
    tokens, bits = rank(logits, count)
    order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(tokens.long(), order)
    assert torch.equal(tokens[:, 0].long(), logits.argmax(dim=-1))
    exact = torch.softmax(logits.double(), dim=-1).nan_to_num().gather(1, order)
    shares = bits.view(torch.float32).double()
    torch.testing.assert_close(shares, exact, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    wide = rows_of(6, 300, "random").to(dtype)
    logits = wide[::2, 40:250]
    tokens, bits = rank(logits, 4)
    expected, probabilities = ranked(logits.contiguous(), 4)
    greatest = logits.gather(1, tokens.long())
    assert torch.equal(greatest, logits.gather(1, expected))
    torch.testing.assert_close(bits.view(torch.float32), probabilities, rtol=1e-6, atol=0.0)


def test_a_step_brings_home_the_same_words() -> None:
    logits = rows_of(5, 130, "random")
    asked = logits, 4, None, None
    expected = pack(*asked)
    with fused.switched(False):
        assert not may_rank(logits, 4, ranked)
        by_torch = pack(*asked)
    count = 5 * 4
    assert torch.equal(expected[:count], by_torch[:count])
    shares = [words[count:].view(torch.float32) for words in (expected, by_torch)]
    torch.testing.assert_close(*shares, rtol=1e-6, atol=0.0)


def test_what_the_kernels_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows_of(3, 200, "random")
    assert may_rank(logits, 4, ranked)
    assert not may_rank(logits.t(), 2, ranked)
    parameter = torch.nn.Parameter(logits)
    assert not may_rank(parameter, 4, ranked), "nor whatever else is no plain tensor"
    assert not may_rank(logits, quick.MOST + 1, ranked)
    monkeypatch.setattr(quick, "MOST_BLOCKS", 3)
    assert not may_rank(logits, 4, ranked)
    assert may_rank(logits[:, :192], 4, ranked)


def test_kernels_that_say_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows_of(3, 200, "random")

    def fails(*_: object) -> Tensor:
        raise ValueError("no such instruction")

    def no_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    def other(at: int, place: int, by: int) -> None:
        def wrong(logits: Tensor, count: int) -> Tensor:
            found = rank(logits, count)
            found[at, :, place] += by
            return found

        monkeypatch.setattr(quick, "rank", wrong)
        assert not may_rank(logits, 4, ranked)

    def lost(*_: object) -> Tensor:
        raise DeviceLostError("gone")

    other(0, 0, 1)
    other(0, 3, 1)
    other(1, 2, 1 << 10)
    for broken in (fails, no_memory):
        monkeypatch.setattr(quick, "rank", broken)
        assert not may_rank(logits, 4, ranked)
    monkeypatch.setattr(quick, "rank", lost)
    with pytest.raises(DeviceLostError):
        may_rank(logits, 4, ranked)


def weights(logits: Tensor, temperature: float, block: int) -> list[list[int]]:
    """By the definition, in numbers of Python's."""
    sums = []
    for row in logits.double().tolist():
        best = max(row)
        each = [int((1 << 40) * math.exp((x - best) * (1.0 / temperature))) for x in row]
        sums.append([sum(each[at : at + block]) for at in range(0, len(each), block)])
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("vocabulary", "temperature", "block"),
    [(63, 0.7, 4), (64, 1.0, 16), (300, 1e-3, 16), (300, 3.0, 8), (17, 0.9, 64)],
)
def test_weights_are_summed_in_blocks(
    vocabulary: int, temperature: float, block: int, dtype: torch.dtype
) -> None:
    logits = rows_of(6, 2 * vocabulary, "random").to(dtype)[::2, vocabulary:]
    logits[1, ::2] = -torch.inf
    best = logits.argmax(dim=-1)
    found = weigh(logits, best, temperature, block)
    expected = torch.tensor(weights(logits, temperature, block))
    # Exponentials of several libraries differ in their last bit now and then.
    assert found.dtype == torch.int64
    assert (found - expected).abs().max() <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.8, 1.1])
def test_penalized_scores_are_read_as_they_are_made(factor: float, dtype: torch.dtype) -> None:
    wide = rows_of(6, 700, "random").to(dtype)
    wide[4, 40:90] = -torch.inf
    present = torch.rand(6, 700, generator=torch.Generator().manual_seed(7)) < 0.3
    scores = Penalized(wide[::2, 40:650], present[::2, 40:650], factor)
    every = part(scores, slice(None))
    assert not torch.equal(every, scores.logits.float())
    for size in (8, 64):
        assert may_top(scores, size)
        assert torch.equal(top(scores, size), maxima(every, size))
    tokens, bits = rank(scores, 3)
    found, probabilities = ranked(every, 3)
    assert torch.equal(every.gather(1, tokens.long()), every.gather(1, found))
    torch.testing.assert_close(bits.view(torch.float32), probabilities, rtol=1e-6, atol=0.0)
    # Whoever calls from Python may say 2.
    whole, same = (Penalized(scores.logits, scores.present, number) for number in (2, 2.0))
    assert torch.equal(top(whole, 8), top(same, 8))
    assert torch.equal(rank(whole, 3), rank(same, 3))
    best = every.argmax(dim=-1)
    assert torch.equal(weigh(scores, best, 0.7, 16), weigh(every, best, 0.7, 16))


def test_the_best_of_penalized_scores_come_by_a_kernel_that_says_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = rows_of(3, 600, "random")
    present = torch.arange(600).expand(3, 600) % 2 == 0
    scores = Penalized(logits, present, 1.3)
    expected = leaders(part(scores, slice(None)), 2)
    asked: list[int] = []

    def by_kernel(scores: Penalized, size: int) -> Tensor:
        asked.append(len(scores.logits))
        return maxima(scores, size) + (len(asked) > 2)

    for module in (quick, ranking):
        monkeypatch.setattr(module, "top", by_kernel)
    for tokens, same in zip(leaders(scores, 2), expected, strict=True):
        assert torch.equal(tokens, same)
    assert asked == [2, 3], "tried on two rows, then used"
    assert not may_top(scores, 16), "what is off by a little is not used"
    assert not may_top(scores, 2 * quick.BLOCK)


@pytest.mark.parametrize("right", [True, False])
def test_weights_by_a_kernel_are_used_where_they_are_the_same_to_the_last_bit(
    monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    logits = rows_of(3, 500, "random")
    asked: list[float] = []

    def by_kernel(logits: Tensor, best: Tensor, temperature: float, block: int) -> Tensor:
        asked.append(temperature)
        found = choosing._blocks_by_torch(logits, best, temperature)
        assert block == choosing.BLOCK
        return found if right else found + 1

    for module in (quick, choosing):
        monkeypatch.setattr(module, "weigh", by_kernel)
    uniforms = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    config = SamplingConfig(0.8)
    drawn = choosing.choose_ahead(logits, uniforms, config)
    assert asked == ([0.7, 0.8] if right else [0.7])
    monkeypatch.setattr(quick, "DEVICES", ())
    assert torch.equal(drawn, choosing.choose_ahead(logits, uniforms, config))
    assert len(asked) == 1 + right


COMPILER = """
FLOATS, INTS = "*fp32", "*i32"


def compiled(kernel, types, warps, architecture, **constants):
    types = {name: types.get(name, "i32") for name in kernel.arg_names}
    types.update(dict.fromkeys(constants, "constexpr"))
    source = triton.compiler.ASTSource(kernel, types, constants, {})
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options={"num_warps": warps})


present = {"present": "*u8", "penalty": "fp32"}
found = {"values": FLOATS, "tokens": INTS, "tops": FLOATS, "sums": FLOATS}
for architecture, type in ((80, "*fp16"), (90, "*bf16"), (90, "*fp32")):
    types = found | present | {"logits": type}
    for penalized in (False, True):
        constants = {"PENALIZED": penalized, "COUNT": 4, "BLOCK": 4096}
        print(stack(compiled(kernels.rank, types, 8, architecture, **constants)))
    types = found | {"out": INTS, "shares": FLOATS}
    print(stack(compiled(kernels.join, types, 4, architecture, COUNT=8, BLOCKS=256, FOUND=2048)))
types = {"logits": "*bf16", "best": "*i64", "inverse": "i64", "sums": "*i64"} | present
for penalized in (False, True):
    constants = {"PENALIZED": penalized, "ONE": 2.0**40, "BLOCK": 128, "HELD": 8}
    print(stack(compiled(kernels.weigh, types, 8, 90, **constants)))
types |= {"best": INTS, "uniforms": "*fp64", "out": INTS}
for held in (1, 2048, 8192):
    constants = {"PENALIZED": held > 1, "ONE": 2.0**40, "BLOCK": 128, "BLOCKS": held}
    print(stack(compiled(kernels.pick, types, max(1, min(held // 128, 8)), 90, **constants)))
types = {"logits": "*bf16", "out": FLOATS} | present
print(stack(compiled(kernels.tops, types, 8, 90, SIZE=128, HELD=32)))
"""


def test_the_kernels_compile_for_a_gpu_and_hold_all_in_registers(tmp_path: Path) -> None:
    source = Path(quick.__file__).with_name("kernels.py")
    assert printed(COMPILER, source, tmp_path).split() == ["0"] * 15
