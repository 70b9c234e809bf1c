"""What is drawn from lists by Triton's kernel: the same as by torch's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.errors import DeviceLostError
from ladecli.decoder.lean import fused
from ladecli.decoder.readout import choosing, quick, quick_draw
from ladecli.decoder.readout.choosing import ONE, choose_ahead
from ladecli.decoder.readout.quick_draw import Cuts, draw, may_draw
from ladecli.decoder.readout.ranking import leaders

from ..counting import Counting
from ..triton_compiler import printed
from .test_choosing import KINDS, rows_of

pytest.importorskip("triton")

SETTINGS = [
    SamplingConfig(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in [
        (0.7, 1, 1.0, 0.0),
        (0.7, 20, 0.8, 0.0),
        (1.0, 64, 0.95, 0.0),
        (1.5, 40, 1.0, 0.05),
        (1.0, 300, 1.0, 0.0),
        (1.0, 10**6, 0.9, 0.0),
        (0.8, 0, 0.9, 0.0),
        (1e-40, 0, 0.999, 0.0),
        (1e300, 3, 0.5, 0.5),
        (0.9, 0, 1e-9, 0.0),
        (1.0, 0, 1.0, 0.05),
        (0.5, 0, 0.999, 1e-9),
        (1.0, 0, 1.0, 1.0),
    ]
]
UNIFORMS = torch.tensor([0.0, 0.37, 1.0 - 2.0**-53], dtype=torch.float64)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has them, too: in the interpreter, whose exponentials are NumPy's."""

    def weigh(scores: Tensor, best: Tensor, temperature: float) -> Tensor:
        scaled = (scores - best.double()) * (1.0 / choosing._warm(temperature))
        return torch.from_numpy(np.floor(np.exp(scaled.numpy()) * ONE))

    monkeypatch.setattr(choosing, "_weigh", weigh)
    monkeypatch.setattr(quick, "DEVICES", ("cpu",))
    monkeypatch.setattr(quick_draw, "TRIED", 4)
    monkeypatch.setattr(quick_draw, "_draws", quick_draw._draws.__wrapped__)
    # Its exponentials are none of this file's.
    monkeypatch.setattr(choosing, "may_weigh", lambda *_: False)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is used without a trial."""
    monkeypatch.setattr(choosing, "may_draw", lambda *_: not fused.off())


def both(logits: Tensor, uniforms: Tensor, config: SamplingConfig) -> list[tuple[Tensor, Tensor]]:
    """What is drawn by the kernel, and by torch."""
    by_kernel = choose_ahead(logits, uniforms, config)
    with fused.switched(False):
        return [by_kernel, choose_ahead(logits, uniforms, config)]


SIZES = (7, 300, 700, 2000)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("kind", [*KINDS, "equal"])
def test_kernel_and_torch_draw_the_same(kind: str) -> None:
    sure = []
    for turn, config in enumerate(SETTINGS):
        vocabulary, count = SIZES[turn % len(SIZES)], 1 + turn % 3
        if kind == "equal":
            logits = torch.full((count, vocabulary), -2.0)
        else:
            logits = rows_of(vocabulary, kind, count, seed=turn)
        logits = logits.to(TYPES[turn % len(TYPES)])
        mine, expected = both(logits, UNIFORMS[-count:], config)
        for one, other in zip(mine, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        sure += mine[1].tolist()
    assert any(sure)
    assert not all(sure) or kind in ("peaked", "quantised", "few possible")


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("vocabulary", [5, 5000])
def test_of_rows_that_are_not_finite_nothing_is_certain(vocabulary: int) -> None:
    logits = torch.zeros(5, vocabulary)
    logits[0], logits[1, 2], logits[2, 1] = -torch.inf, torch.nan, torch.inf
    # This one is: a single token is possible.
    logits[3], logits[3, 4] = -torch.inf, 1.0
    for config in SETTINGS[1:8:2]:
        # The interpreter's NumPy warns of what a GPU does in silence.
        with np.errstate(invalid="ignore"):
            tokens, certain = choose_ahead(logits, UNIFORMS[:1].expand(5), config)
        assert ((tokens >= 0) & (tokens < vocabulary)).all()
        assert certain.tolist()[:4] == [False, False, False, True]
        assert tokens[3] == 4


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_what_ties_with_the_last_of_top_k_counts_for_top_p_alone(top_p: float) -> None:
    """And that is not all listed, though min-p removes it afterwards."""
    logits = torch.full((1, 1000), -1.0)
    logits[0, 100:110] = 0.0
    config = SamplingConfig(1.0, top_k=20, top_p=top_p, min_p=0.9)
    mine, expected = both(logits, UNIFORMS[1:2], config)
    assert torch.equal(mine[0], expected[0])
    assert mine[1].tolist() == expected[1].tolist() == [top_p == 1.0]


def test_only_the_last_of_a_list_says_whether_others_can_be_drawn() -> None:
    tokens, uniforms = torch.tensor([[4, 9, 2]]), UNIFORMS[:1]
    for last, sure in ((-1e9, True), (-2.0, False)):
        values = torch.tensor([[0.0, -1.0, last]])
        drawn, certain = draw(values, tokens, None, Cuts(1.0, 0, 1.0, 0, 10), uniforms)
        assert certain.tolist() == [sure]
        assert drawn.tolist() == [4 if sure else 2]


@pytest.mark.parametrize(("total", "token"), [(2 * ONE, 4), (2 * ONE + 1, 9)])
def test_a_token_stays_while_all_better_ones_lack_some_of_the_share(total: int, token: int) -> None:
    values, tokens = torch.tensor([[0.0, -1.0, -2.0]]), torch.tensor([[4, 9, 2]])
    asked = values, tokens, torch.tensor([[total]]), Cuts(1.0, 0, 0.5, 0, 10), UNIFORMS[-1:]
    for drawn, certain in (draw(*asked), choosing._draw_by_torch(*asked)):
        assert (int(drawn), bool(certain)) == (token, True)


def test_what_weighs_as_little_as_min_p_allows_stays() -> None:
    values, tokens = torch.zeros(1, 3), torch.tensor([[4, 9, 2]])
    drawn, certain = draw(values, tokens, None, Cuts(1.0, 0, 1.0, ONE, 10), UNIFORMS[-1:])
    assert (int(drawn), bool(certain)) == (9, False)


def test_rows_may_lie_apart() -> None:
    logits = rows_of(500, "flat", 4, seed=2)
    values, tokens = leaders(logits, 72)
    cuts = Cuts(0.8, 20, 0.9, 0, 500)
    expected = draw(values[::2].clone(), tokens[::2].clone(), None, cuts, UNIFORMS[:2])
    spread = UNIFORMS[:2].repeat_interleave(2)
    found = draw(values[::2], tokens[::2], None, cuts, spread[::2])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    totals = torch.arange(1, 13).reshape(4, 3) * 5 * ONE
    cuts = cuts._replace(top_k=0)
    expected = choosing._draw_by_torch(values, tokens, totals[:, :1], cuts, spread)
    for one, other in zip(draw(values, tokens, totals[:, :1], cuts, spread), expected, strict=True):
        assert torch.equal(one, other)


def test_a_draw_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows_of(5000, "peaked", 2)
    counting = Counting(nn.ModuleList([nn.Identity()]))
    monkeypatch.setattr(choosing, "may_draw", lambda *_: True)
    with counting.on(monkeypatch):
        leaders(logits, 72)
    listing = [*counting.outside]
    counting.outside.clear()
    with counting.on(monkeypatch):
        choose_ahead(logits, UNIFORMS[:2], SamplingConfig(0.8, top_k=20, top_p=0.9, min_p=0.01))
    assert counting.outside == [*listing, "draw"]


def test_what_the_kernel_does_not_take() -> None:
    values = leaders(rows_of(200, "peaked", 2), 33)[0]
    own = choosing._draw_by_torch
    assert may_draw(values, own)
    assert not may_draw(torch.nn.Parameter(values), own)
    assert not may_draw(torch.empty(2, quick_draw.MOST + 1), own)
    with fused.switched(False):
        assert not may_draw(values, own)


Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def more_by_one(tokens: Tensor, certain: Tensor) -> tuple[Tensor, Tensor]:
    return tokens + 1, certain


def the_opposite(tokens: Tensor, certain: Tensor) -> tuple[Tensor, Tensor]:
    return tokens, ~certain


@pytest.mark.parametrize("change", [more_by_one, the_opposite])
def test_a_kernel_that_says_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    own = choosing._draw_by_torch
    values = torch.zeros(2, 50)
    monkeypatch.setattr(quick_draw, "draw", own)
    assert may_draw(values, own)
    for place in range(3):
        launches = iter(range(3))

        def wrong(*given: Any, place: int = place, launches: Iterator[int] = launches) -> Any:
            found = own(*given)
            return change(*found) if next(launches) == place else found

        monkeypatch.setattr(quick_draw, "draw", wrong)
        assert not may_draw(values, own)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_trial_sees_the_last_bit_of_a_weight(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    weigh, right = choosing._weigh, choosing._draw_by_torch

    def wrong(*given: Any) -> tuple[Tensor, Tensor]:
        def off(*args: Any) -> Tensor:
            weights = weigh(*args)
            weights[:, 1] += by
            return weights

        with monkeypatch.context() as patch:
            patch.setattr(choosing, "_weigh", off)
            return right(*given)

    monkeypatch.setattr(quick_draw, "TRIED", 16)
    monkeypatch.setattr(quick_draw, "draw", wrong)
    assert not may_draw(torch.zeros(1, 300), right)
    monkeypatch.setattr(quick_draw, "draw", right)
    assert may_draw(torch.zeros(1, 300), right)


def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Callable[..., Any]:
        def draw(*_: object) -> None:
            raise error

        return draw

    values, own = torch.zeros(2, 50), choosing._draw_by_torch
    for error in (ValueError("no such instruction"), torch.OutOfMemoryError("out of memory")):
        monkeypatch.setattr(quick_draw, "draw", fails(error))
        assert not may_draw(values, own)
    monkeypatch.setattr(quick_draw, "draw", fails(DeviceLostError("gone")))
    with pytest.raises(DeviceLostError):
        may_draw(values, own)


COMPILER = """
def compiled(type, architecture, count):
    types = {name: "i32" for name in kernels.draw.arg_names} | {
        "values": type, "tokens": "*i64", "totals": "*i64", "uniforms": "*fp64", "drawn": "*i64",
        "certain": "*u1", "inverse": "i64", "top_p": "i64", "least": "i64",
    }
    constants = {"ONE": 2.0**40, "COUNT": count}
    types.update(dict.fromkeys(constants, "constexpr"))
    source = triton.compiler.ASTSource(kernels.draw, types, constants, {})
    options = {"num_warps": max(1, count // 128), "enable_fp_fusion": False}
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options=options)


for architecture, type, count in ((80, "*fp16", 64), (90, "*bf16", 512), (90, "*fp32", 1024)):
    print(stack(compiled(type, architecture, count)))
special = [each for each in kernels.draw.params if not each.do_not_specialize]
print(*(each.name for each in special if not each.is_constexpr))
"""


def test_the_kernel_compiles_for_a_gpu_and_once_for_all_settings(tmp_path: Path) -> None:
    source = Path(quick_draw.__file__).with_name("draw_kernel.py")
    *stacks, special = printed(COMPILER, source, tmp_path).splitlines()
    assert stacks == ["0"] * 3
    assert special == "values tokens totals drawn certain"
