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
from ladecli.decoder.readout import choosing, pack, packing, quick, quick_draw
from ladecli.decoder.readout.choosing import ONE, choose_ahead
from ladecli.decoder.readout.penalty import Penalized, Scores
from ladecli.decoder.readout.quick_draw import Cuts, draw, may_draw, may_pick
from ladecli.decoder.readout.ranking import leaders
from ladecli.decoder.successors import NOTHING

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


def both(logits: Scores, uniforms: Tensor, config: SamplingConfig) -> list[Tensor]:
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
        assert mine.dtype == expected.dtype
        assert torch.equal(mine, expected)
        sure += (mine != NOTHING).tolist()
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
            tokens = choose_ahead(logits, UNIFORMS[:1].expand(5), config)
        assert ((tokens >= 0) & (tokens < vocabulary) | (tokens == NOTHING)).all()
        assert tokens.tolist()[:4] == [NOTHING, NOTHING, NOTHING, 4]


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_what_ties_with_the_last_of_top_k_counts_for_top_p_alone(top_p: float) -> None:
    """And that is not all listed, though min-p removes it afterwards."""
    logits = torch.full((1, 1000), -1.0)
    logits[0, 100:110] = 0.0
    config = SamplingConfig(1.0, top_k=20, top_p=top_p, min_p=0.9)
    mine, expected = both(logits, UNIFORMS[1:2], config)
    assert torch.equal(mine, expected)
    assert (mine != NOTHING).tolist() == [top_p == 1.0]


def test_only_the_last_of_a_list_says_whether_others_can_be_drawn() -> None:
    tokens, uniforms = torch.tensor([[4, 9, 2]]), UNIFORMS[:1]
    for last, sure in ((-1e9, True), (-2.0, False)):
        values = torch.tensor([[0.0, -1.0, last]])
        drawn = draw(values, tokens, None, Cuts(1.0, 0, 1.0, 0, 10), uniforms)
        assert drawn.tolist() == [4 if sure else NOTHING]


@pytest.mark.parametrize(("total", "token"), [(2 * ONE, 4), (2 * ONE + 1, 9)])
def test_a_token_stays_while_all_better_ones_lack_some_of_the_share(total: int, token: int) -> None:
    values, tokens = torch.tensor([[0.0, -1.0, -2.0]]), torch.tensor([[4, 9, 2]])
    asked = values, tokens, torch.tensor([[total]]), Cuts(1.0, 0, 0.5, 0, 10), UNIFORMS[-1:]
    for drawn in (draw(*asked), choosing._draw_by_torch(*asked)):
        assert drawn.tolist() == [token]


def test_what_weighs_as_little_as_min_p_allows_stays() -> None:
    values, tokens = torch.tensor([[0.0, 0.0, -1.0]]), torch.tensor([[4, 9, 2]])
    drawn = draw(values, tokens, None, Cuts(1.0, 0, 1.0, ONE, 10), UNIFORMS[-1:])
    assert drawn.tolist() == [9]


def test_rows_may_lie_apart() -> None:
    logits = rows_of(500, "flat", 4, seed=2)
    values, tokens = leaders(logits, 72)
    cuts = Cuts(0.8, 20, 0.9, 0, 500)
    expected = draw(values[::2].clone(), tokens[::2].clone(), None, cuts, UNIFORMS[:2])
    spread = UNIFORMS[:2].repeat_interleave(2)
    found = draw(values[::2], tokens[::2], None, cuts, spread[::2])
    assert torch.equal(found, expected)
    totals = torch.arange(1, 13).reshape(4, 3) * 5 * ONE
    cuts = cuts._replace(top_k=0)
    expected = choosing._draw_by_torch(values, tokens, totals[:, :1], cuts, spread)
    assert torch.equal(draw(values, tokens, totals[:, :1], cuts, spread), expected)


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


def test_a_kernel_that_says_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    own = choosing._draw_by_torch
    values = torch.zeros(2, 50)
    monkeypatch.setattr(quick_draw, "draw", own)
    assert may_draw(values, own)
    for place, by in ((0, 1), (1, 1), (2, -1), (3, 1)):
        launches, found = iter(range(4)), list[Tensor]()

        def wrong(
            *given: Any,
            place: int = place,
            by: int = by,
            launches: Iterator[int] = launches,
            found: list[Tensor] = found,
        ) -> Any:
            found.append(own(*given))
            return found[-1] + by * (next(launches) == place)

        monkeypatch.setattr(quick_draw, "draw", wrong)
        assert not may_draw(values, own)
        # Tokens in all but the last list, of which nothing can be said.
        assert bool((found[-1] == NOTHING).all()) == (place == 3)
        assert place == 3 or bool((found[-1] != NOTHING).all())


@pytest.mark.parametrize("by", [-1, 1])
def test_a_trial_sees_the_last_bit_of_a_weight(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    weigh, right = choosing._weigh, choosing._draw_by_torch

    def wrong(*given: Any) -> Tensor:
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


@pytest.fixture
def picks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few tokens, and a trial for every question."""
    monkeypatch.setattr(choosing, "BLOCK", 16)
    monkeypatch.setattr(quick_draw, "_picks", quick_draw._picks.__wrapped__)


@pytest.mark.usefixtures("picks")
@pytest.mark.parametrize("kind", [*KINDS, "equal"])
@pytest.mark.parametrize("penalized", [False, True])
def test_tokens_picked_from_all_are_the_same(kind: str, *, penalized: bool) -> None:
    for turn, temperature in enumerate((0.7, 1e-40, 1.0, 1e300)):
        vocabulary, count = SIZES[turn], 1 + turn % 3
        logits = torch.full((count, vocabulary), -2.0)
        if kind != "equal":
            logits = rows_of(vocabulary, kind, count, seed=turn)
        logits = logits.to(TYPES[turn % len(TYPES)])
        scores: Scores = logits
        if penalized:
            scores = Penalized(logits, torch.arange(vocabulary).expand_as(logits) % 3 == 0, 1.2)
        assert may_pick(scores, choosing.BLOCK, choosing._pick_by_torch)
        for uniforms in (UNIFORMS[:count], UNIFORMS[-count:]):
            mine, expected = both(scores, uniforms, SamplingConfig(temperature))
            assert mine.dtype == expected.dtype == torch.int32
            assert torch.equal(mine, expected)


@pytest.mark.usefixtures("picks")
def test_tokens_are_picked_from_rows_that_lie_apart() -> None:
    wide = rows_of(400, "flat", 6, seed=1)
    logits, uniforms = wide[::2, 30:330], UNIFORMS.repeat_interleave(2)[::2]
    best = logits.argmax(dim=1).repeat_interleave(2)[::2]
    config = SamplingConfig(0.9)
    expected = choose_ahead(logits.contiguous(), UNIFORMS, config)
    assert torch.equal(choose_ahead(logits, uniforms, config, best), expected)


@pytest.mark.usefixtures("picks")
@pytest.mark.parametrize("vocabulary", [5, 500])
def test_what_is_picked_from_rows_that_are_not_finite_is_a_token(vocabulary: int) -> None:
    logits = torch.zeros(4, vocabulary)
    logits[0], logits[1, 2], logits[2, 1] = -torch.inf, torch.nan, torch.inf
    logits[3], logits[3, 4] = -torch.inf, 1.0
    with np.errstate(invalid="ignore"):
        for u in UNIFORMS:
            tokens = choose_ahead(logits, u.expand(4), SamplingConfig(0.9))
            assert ((tokens >= 0) & (tokens < vocabulary)).all()
            assert tokens[3] == 4


@pytest.mark.usefixtures("picks")
@pytest.mark.parametrize("penalized", [False, True])
def test_a_model_that_says_no_numbers_reads_nothing_but_its_own(*, penalized: bool) -> None:
    """A token that does not exist would be read from somebody else's memory."""
    logits = torch.full((3, 300), torch.nan)
    logits[1], logits[2] = torch.inf, -torch.inf
    scores: Scores = logits
    if penalized:
        scores = Penalized(logits, torch.arange(300).expand_as(logits) % 3 == 0, 1.2)
    with np.errstate(invalid="ignore"):
        for by_kernel in (True, False):
            with fused.switched(by_kernel):
                words = pack(scores, 4, SamplingConfig(0.7), UNIFORMS)
            tokens = torch.cat((words[:12], words[-3:]))
            assert ((tokens >= 0) & (tokens < 300)).all()


@pytest.mark.usefixtures("picks")
def test_what_is_drawn_by_kernels_does_not_depend_on_what_else_is_wanted() -> None:
    logits = rows_of(300, "coarse", 3, seed=4)
    for config in (SamplingConfig(0.7), SamplingConfig(1e-40)):
        expected = choose_ahead(logits, UNIFORMS, config)
        assert torch.equal(pack(logits, 4, config, UNIFORMS)[-3:], expected)


@pytest.mark.usefixtures("picks")
def test_to_pick_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "may_pick", lambda *_: True)
    monkeypatch.setattr(choosing, "may_weigh", lambda *_: True)
    monkeypatch.setattr(packing, "may_rank", lambda *_: True)
    logits = rows_of(500, "peaked", 2)
    for scores in (logits, Penalized(logits, logits > 1.0, 1.2)):
        counting = Counting(nn.ModuleList([nn.Identity()]))
        with counting.on(monkeypatch):
            pack(scores, 4, SamplingConfig(0.8), UNIFORMS[:2])
        assert counting.outside == ["rank", "join", "weigh", "pick", "cat"]


@pytest.mark.usefixtures("picks")
@pytest.mark.parametrize("penalized", [False, True])
def test_a_pick_that_is_off_by_the_last_bit_is_not_used(
    monkeypatch: pytest.MonkeyPatch, *, penalized: bool
) -> None:
    weigh, right = choosing._weigh, choosing._pick_by_torch
    scores: Scores = torch.zeros(1, 300)
    if penalized:
        scores = Penalized(torch.zeros(1, 300), torch.zeros(1, 300, dtype=torch.bool), 1.1)
    monkeypatch.setattr(quick_draw, "TRIED", 16)
    for by, used in ((-1, False), (0, True), (1, False)):

        def other(*given: Any, by: int = by) -> Tensor:
            with monkeypatch.context() as patch:
                patch.setattr(choosing, "_weigh", lambda *args: weigh(*args) + by)
                return right(*given[:-1])

        monkeypatch.setattr(quick_draw, "pick", other)
        assert may_pick(scores, choosing.BLOCK, right) == used


@pytest.mark.usefixtures("picks")
def test_what_is_not_picked_by_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = choosing.BLOCK, choosing._pick_by_torch
    logits = rows_of(200, "flat", 2)
    assert may_pick(logits, *asked)
    assert not may_pick(logits.t(), *asked)
    assert not may_pick(torch.nn.Parameter(logits), *asked)
    with fused.switched(False):
        assert not may_pick(logits, *asked)
    monkeypatch.setattr(quick_draw, "MOST_SUMS", 12)
    assert not may_pick(logits, *asked)
    assert may_pick(logits[:, :192], *asked)
    monkeypatch.setattr(quick_draw, "pick", lambda *_: 1 // 0)
    assert not may_pick(logits[:, :192], *asked)


COMPILER = """
def compiled(type, architecture, count):
    types = {name: "i32" for name in kernels.draw.arg_names} | {
        "values": type, "tokens": "*i64", "totals": "*i64", "uniforms": "*fp64", "drawn": "*i32",
        "inverse": "i64", "top_p": "i64", "least": "i64",
    }
    constants = {"ONE": 2.0**40, "NOTHING": -1, "COUNT": count}
    types.update(dict.fromkeys(constants, "constexpr"))
    source = triton.compiler.ASTSource(kernels.draw, types, constants, {})
    options = {"num_warps": max(1, count // 128), "enable_fp_fusion": False}
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options=options)


for architecture, type, count in ((80, "*fp16", 64), (90, "*bf16", 512), (90, "*fp32", 1024)):
    print(stack(compiled(type, architecture, count)))
print(*(name for name in specialised(kernels.draw) if name.islower()))
"""


def test_the_kernel_compiles_for_a_gpu_and_once_for_all_settings(tmp_path: Path) -> None:
    source = Path(quick_draw.__file__).with_name("draw_kernel.py")
    *stacks, special = printed(COMPILER, source, tmp_path).splitlines()
    assert stacks == ["0"] * 3
    assert special == "values tokens totals drawn"
