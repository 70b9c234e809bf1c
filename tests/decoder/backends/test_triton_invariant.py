"""Products and attention that do not depend on the width of a step, in Triton's interpreter."""

from __future__ import annotations

import copy
import importlib
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ladecli.decoder.backends.attention import BACKENDS, choose_operations
from ladecli.decoder.backends.facts import model_facts
from ladecli.decoder.backends.load import decoder_of
from ladecli.decoder.backends.triton_attention import triton_available
from ladecli.decoder.backends.weights import project
from ladecli.decoder.layout import StepLayout, build
from ladecli.decoder.model.forward import Operations
from ladecli.decoder.model.mask import CapturedMask, Rules, StepMask
from ladecli.decoder.model.transformer import Transformer
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree
from tests.support.decoding import paths_of
from tests.support.models import model_of

interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
attention: Any = importlib.import_module("ladecli.decoder.backends.triton_invariant")
racing: Any = importlib.import_module("ladecli.decoder.backends.product_race")
ops: Any = importlib.import_module("ladecli.decoder.backends.triton_ops")
products: Any = importlib.import_module("ladecli.decoder.backends.triton_product")

NO_TRITON = not triton_available(torch.device("cpu"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NO_TRITON, reason="needs TRITON_INTERPRET=1")]
HALVES = (torch.float16, torch.bfloat16)
WIDTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64)


def numbers(draw: random.Random, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(draw.getrandbits(30))).to(
        dtype
    )


def product(draw: random.Random, outputs: int, inputs: int, dtype: torch.dtype) -> Any:
    weight = numbers(draw, outputs, inputs, dtype=dtype)
    bias = numbers(draw, outputs, dtype=dtype) if draw.random() < 0.5 else None
    return products.SkinnyProduct(weight, bias, alike=True)


@pytest.mark.parametrize("seed", range(10))
def test_products_are_right(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        dtype, width = draw.choice(HALVES), draw.choice((1, 1, 2, 7, 16, 31, 64, 130))
        made = product(draw, draw.randint(1, 90), draw.choice((16, 72, 320, 576)), dtype)
        # Rows need not be adjacent.
        x = numbers(draw, width, made.weight.shape[1] + 8, dtype=dtype)[:, 8:]
        expected = x.double() @ made.weight.double().T
        expected += 0 if made.bias is None else made.bias.double()
        result = made(x)
        assert (result.shape, result.dtype) == (expected.shape, dtype)
        off = (result.double() - expected).norm() / expected.norm()
        assert off < (1e-3 if dtype == torch.float16 else 8e-3)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `tl.dot` add one input after the other in float32, as a GPU does for every row; the
    library that the interpreter calls chooses another order for another number of rows."""

    def dot(_self: Any, a: Any, b: Any, total: Any, *_: Any) -> Any:
        left, right = (matrix.data.astype(np.float32) for matrix in (a, b))
        parts = left.swapaxes(-1, -2)[..., None] * right[..., None, :]
        parts = np.concatenate((total.data[..., None, :, :], parts), axis=-3)
        # numpy adds along any axis but the last one as they come.
        result = np.add.reduce(parts, axis=-3, dtype=np.float32)
        return interpreter.TensorHandle(result, total.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.mark.parametrize(
    ("outputs", "inputs", "dtype"), [(20, 512, torch.float16), (70, 300, torch.bfloat16)]
)
def test_a_row_is_the_same_among_others(
    outputs: int, inputs: int, dtype: torch.dtype, in_order: None
) -> None:
    """Bit for bit, whatever the tiles; what is left of numbers that cancel out is rounding."""
    draw = random.Random(inputs)
    made = product(draw, outputs, inputs // 2, dtype)
    made.bias, made.splits = None, 2
    x, order = numbers(draw, max(WIDTHS), inputs // 2, dtype=dtype), torch.randperm(inputs)
    made.weight = 99 * torch.cat((made.weight, made.weight), 1)[:, order].contiguous()
    x = torch.cat((x, -x), 1)[:, order]
    alone = torch.cat([made(row[None]) for row in x[::8]])
    for number, width in enumerate(WIDTHS):
        made.block = products.BLOCKS[number % len(products.BLOCKS)]
        assert torch.equal(made(x[:width])[::8], alone[: -(-width // 8)]), width
    made.splits = 1
    assert not torch.equal(made(x)[::8], alone)


def step_of(draw: random.Random, text: int, nodes: int, prefix: int) -> tuple[StepLayout, Any]:
    """Some tokens that follow one another, and a random tree of drafts after them."""
    tree = TokenTree()
    for node in range(nodes):
        tree.grow(draw.randint(max(-1, node - 5), node - 1), draw.randrange(99), "test")
    return build([0] * text, prefix, Draft(tree)), [*paths_of(tree)] if nodes else []


CASES = [  # text, drafts, prefix, key heads, query heads of each, head size, window, cap, sinks
    (1, 0, 0, 1, 1, 16, None, None, False),
    (1, 16, 3, 2, 2, 16, None, None, False),
    (1, 20, 62, 1, 4, 40, None, 20.0, False),
    (1, 20, 64, 1, 3, 16, 7, None, True),
    (66, 3, 120, 1, 1, 16, None, None, False),
    (2, 24, 250, 1, 2, 16, None, None, True),
    (1, 24, 256, 1, 20, 16, 100, None, False),
    (1, 6, 500, 2, 1, 144, 300, 20.0, False),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_attention_of_a_token_is_the_same_among_others(number: int, in_order: None) -> None:
    """It is right, too, and what stands in slots after the step does not matter."""
    text, drafts, prefix, kv_heads, groups, size, window, cap, sunk = CASES[number]
    draw, dtype = random.Random(number), HALVES[number % 2]
    step, paths = step_of(draw, text, drafts, prefix)
    count = len(step.tokens)
    sinks = numbers(draw, kv_heads * groups, dtype=dtype) if sunk else None
    rules = Rules(size**-0.5, window, cap, sinks)
    query = 2 * numbers(draw, 1, count, kv_heads * groups, size, dtype=dtype).transpose(1, 2)
    key, value = numbers(draw, 2, 1, kv_heads, prefix + count + 9, size, dtype=dtype)
    key[:, :, prefix + count :] = value[:, :, prefix + count :] = float("nan")
    mask = StepMask(step.rows, step.positions, prefix)
    captured = CapturedMask(mask.on_device(query.device), key.shape[2])
    together = attention.invariant_attention(query, key, value, captured, rules)
    key, value = key[:, :, : prefix + count], value[:, :, : prefix + count]
    assert torch.equal(attention.invariant_attention(query, key, value, mask, rules), together)
    exact = BACKENDS["reference"](query.float(), key.float(), value.float(), mask, rules)
    near = 4e-3 if dtype == torch.float16 else 3e-2
    torch.testing.assert_close(together.float(), exact, atol=near, rtol=near)
    for node in draw.sample(range(-1, drafts), min(1 + drafts, 2)):
        # Alone it stands after its own past, whose keys are in the order of the text.
        path = paths[node] if node >= 0 else ()
        seen = [*range(prefix + text), *[prefix + text + above for above in path]]
        row, length = text + node, len(seen) - 1
        single = StepMask([1], [length], length)
        alone = attention.invariant_attention(
            query[:, :, row : row + 1], key[:, :, seen], value[:, :, seen], single, rules
        )
        assert torch.equal(alone[:, :, 0], together[:, :, row]), node


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_logits_of_a_token_are_the_same_among_others(family: str, in_order: None) -> None:
    """With norms, rotary embeddings and gates, which are computed row by row."""
    stock = copy.deepcopy(model_of(family)).to(torch.float16)
    operations = Operations("invariant", attention.invariant_attention, True, ops.TritonOps())

    def project(parts: Any) -> Any:
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        return products.SkinnyProduct(torch.cat([part.weight for part in parts]), bias, alike=True)

    facts = model_facts(stock.config)
    decoder = decoder_of(Transformer(stock, facts, operations, project), facts, 200)
    draw, cache = random.Random(5), decoder.cache
    cache.reserve(90)
    for tensor in cache.tensors:  # a text of random keys and values
        tensor[..., :62, :].normal_(generator=torch.Generator().manual_seed(2))
    cache.length = 62
    step, paths = step_of(draw, 1, 7, 62)
    together = decoder.executor.run(step).clone()
    cache.truncate(62)
    deepest = max(paths, key=len)
    assert len(deepest) > 2  # beyond a tile of keys
    for row in (0, *[1 + node for node in deepest]):
        alone = decoder.executor.run(build([step.tokens[row]], cache.length, Draft()))
        cache.keep([0])
        assert torch.equal(alone[0], together[row])


class TimedProduct(products.SkinnyProduct):  # type: ignore[misc]  # of type Any
    """A product that advances its own clock by a given time for each method."""

    now = 0.0

    def __init__(self, seconds: dict[Any, float], *, alike: bool) -> None:
        weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(1)).half()
        super().__init__(weight, None, alike=alike)
        self.seconds = {None: 1.0, **dict.fromkeys(products.BLOCKS, 2.0), **seconds}

    def by_library(self, x: Tensor) -> Tensor:
        return self._after(None, x)

    def by_tiles(self, x: Tensor, block: int) -> Tensor:
        return self._after(block, x)

    def _after(self, method: int | None, x: Tensor) -> Tensor:
        seconds = self.seconds[method]
        if seconds == FAILS:
            raise RuntimeError("out of registers")
        TimedProduct.now += abs(seconds)
        return super().by_library(x) * (1.0 if seconds > 0 else 1.1)


@pytest.mark.parametrize("kernels", [False, True])
def test_a_gpu_has_its_own_invariant_attention(kernels: bool) -> None:
    """It reads the length on the device, and has no simpler fallback."""
    chosen = choose_operations("invariant", torch.device("cuda"), torch.float16, kernels=kernels)
    assert chosen.attend is attention.invariant_attention
    assert chosen.reads_length
    assert chosen.simpler is None


def test_weights_in_half_precision_on_a_gpu_become_skinny_products() -> None:
    """Checked on the meta device, which computes nothing."""
    for dtype, alike in ((torch.float16, True), (torch.bfloat16, False)):
        parts = [torch.nn.Linear(64, n, device="meta", dtype=dtype) for n in (48, 16)]
        options = {"join": True, "pack": True, "kernels": True, "invariant": alike}
        made = project(dtype, torch.empty(0), parts, **options)
        assert isinstance(made, products.SkinnyProduct)
        assert (made.weight.shape, made.alike) == ((64, 64), alike)
        options["kernels"] = False
        assert not isinstance(project(dtype, torch.empty(0), parts, **options), type(made))


FAILS, WRONG = 0.0, -0.1
ALL_FAIL = dict.fromkeys(products.BLOCKS, FAILS)


@pytest.mark.parametrize(
    ("seconds", "alike", "block", "failures"),
    [
        ({}, False, None, 0),
        ({32: 0.5, 64: 0.6}, False, 32, 0),
        ({128: 1.02}, False, 128, 0),
        ({128: 1.04}, False, None, 0),
        ({128: 1.9}, True, 128, 0),
        ({32: WRONG, 64: FAILS, 128: 0.9}, False, 128, 2),
        (ALL_FAIL, False, None, 3),
        (ALL_FAIL, True, None, 3),
    ],
)
def test_the_fastest_method_with_right_results_is_chosen(
    seconds: dict[Any, float], alike: bool, block: int | None, failures: int
) -> None:
    """The library is kept if it is more than 3 % faster, unless rows must be alike."""
    made, times = [TimedProduct(seconds, alike=alike) for _ in range(3)], dict[str, Any]()
    choose = partial(racing.choose_products, prepare=lambda work: work, machine="a GPU")
    notices = choose([object(), *made], times, clock=lambda: TimedProduct.now)
    assert {one.block for one in made} == {block}
    assert {one.alike for one in made} == {alike and block is not None}
    assert len(notices) == failures
    assert all("24 x 64" in notice for notice in notices)
    if not failures:  # saved times are not measured again
        began, again = TimedProduct.now, TimedProduct({}, alike=alike)
        assert not choose([again], times, clock=lambda: TimedProduct.now)
        assert (TimedProduct.now, again.block) == (began, block)
