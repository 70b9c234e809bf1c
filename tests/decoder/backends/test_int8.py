"""Weights of 8 bits on a CPU, as integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ladecli.decoder.backends import int8
from ladecli.decoder.backends.invariant import BLOCK
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.layout import build_chunk
from ladecli.decoder.model.transformer import Transformer
from ladecli.models import load as models
from ladecli.models.load import LoadedModel
from ladecli.options.model import ModelOptions, PlacementOptions
from ladecli.session.session import Session
from ladecli.session.setup import Attention, Setup
from tests.support.decoding import ids_of, run
from tests.support.hub import plan
from tests.support.models import new_model, prompt_for, saved

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not int8.available(), reason="this processor has no products of integers"),
]

PROMPTS = ("def largest(items):\n", "What is lookahead decoding?")
INVARIANT = Setup(Attention("invariant", "asked for"))


def load(quantize: str = "8bit", **options: Any) -> LoadedModel:
    return models.load(
        plan("demo", ModelOptions(quantize=quantize, **options), PlacementOptions(device="cpu"))
    )


@pytest.fixture(params=["own", "none"])
def vnni(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with this processor's instructions, and without VNNI."""
    if request.param == "none":
        monkeypatch.setattr(int8, "has_vnni", lambda: False)


@pytest.mark.usefixtures("vnni")
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_that_of_the_weight(bias: bool) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(96, 70, bias=bias)
    x = torch.randn(9, 96) * torch.logspace(-2, 2, 9)[:, None]
    x[4] = 0.0
    x[5] = 3.0  # a row of one number
    with torch.no_grad():
        product, exact = int8.Int8Linear(linear)(x), linear(x)
    off = (product - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-3)
    assert float(off.max()) < 0.03


@pytest.mark.usefixtures("vnni")
def test_an_outlier_leaves_room_for_other_numbers() -> None:
    torch.manual_seed(1)
    linear, x = torch.nn.Linear(576, 64, bias=False), torch.randn(9, 576)
    with torch.no_grad():
        others = linear(x)
        x[:, 100] += 60.0
        off = int8.Int8Linear(linear)(x) - linear(x)
    assert float(off.norm() / others.norm()) < 0.08


@pytest.mark.usefixtures("vnni")
def test_large_sums_do_not_overflow() -> None:
    linear, turned = torch.nn.Linear(64, 8, bias=False), int8.rotation(64)
    # After the rotation all numbers are ones, and so the largest integers.
    x = (torch.ones(5 * 64 // len(turned), len(turned)) @ turned).view(5, 64)
    linear.weight.data = x[:1].expand(8, 64)
    assert int8.Int8Linear(linear)(x).allclose(torch.tensor(64.0))


@pytest.mark.usefixtures("vnni")
def test_a_row_does_not_depend_on_others() -> None:
    torch.manual_seed(1)
    for size in ((96, 70), (576, 1536), (33, 97), (16, 20), (24, 9)):
        linear = int8.Int8Linear(torch.nn.Linear(*size))
        x = torch.randn(40, size[0])
        together = linear(x)
        for count in (0, 1, 2, 3, 7, 8, 16, 33):
            assert torch.equal(linear(x[:count]), together[:count])


def test_a_nan_input_stays_nan() -> None:
    linear = int8.Int8Linear(torch.nn.Linear(8, 4))
    assert bool(linear(torch.tensor([[float("nan")] + 7 * [1.0]])).isnan().all())


@pytest.mark.usefixtures("vnni")
def test_a_load_says_if_8_bits_save_no_time() -> None:
    assert ("VNNI" in " ".join(load().notices)) == (not int8.has_vnni())
    assert "VNNI" not in " ".join(load("none").notices)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "llama", "olmo"])
def test_families_whose_head_is_the_embedding(family: str) -> None:
    """Families that scale the embedding, and one whose weights all become integers."""
    model, prompt = new_model(family, tie_word_embeddings=True), prompt_for("llama", 20)
    with torch.no_grad():
        plain = model(torch.tensor([prompt])).logits[0]
        int8.quantise(model, torch.float32)
        theirs = model(torch.tensor([prompt])).logits[0]
    decoder = load_decoder(model, attention="invariant")
    assert isinstance(decoder.executor.model, Transformer) == (family != "olmo")
    layout = build_chunk(prompt, 0)
    layout.outputs.extend(range(len(prompt)))
    for logits in (theirs, decoder.executor.run(layout)):
        assert 1e-4 < float((logits - plain).square().mean().sqrt() / plain.std()) < 0.1
    plain, ahead = (ids_of(run(decoder, prompt, x)) for x in ("autoregressive", "lookahead"))
    assert plain == ahead or (len(ahead) > 5 and not decoder.batch_invariant)
    assert decoder.batch_invariant == (family != "olmo")


def test_unsupported_options_of_8_bits_are_refused(lade: Any, tmp_path: Path) -> None:
    answer = lade("generate", saved(tmp_path, "mamba"), "-p", "a", "--raw", "--quantize", "8bit")
    assert (answer.code, "; try another --quantize" in answer.err) == (1, True)


def test_texts_are_those_of_plain_decoding_bit_for_bit() -> None:
    session = Session(load(), INVARIANT)
    assert not session.new_notices()
    config, limits = LookaheadConfig(7, 5, 7), Limits(60)
    samplings = (SamplingConfig(), SamplingConfig(0.8, seed=5))
    for blocks, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True), start=1):
        # Texts longer than one and two blocks of keys, whose sums attention adds one by one.
        ids, texts = (session.encode(prompt) * 99)[: blocks * BLOCK - 20], []
        for strategy in ("autoregressive", "lookahead", "jacobi"):
            events = run(session.decoder, ids, strategy, config, sampling, limits)
            texts.append(ids_of(events))
        assert texts[0] == texts[1] == texts[2]


def test_other_weights_have_the_type_asked_for_and_frequencies_are_exact() -> None:
    model, exact = load(dtype="bfloat16").model, dict(load().model.named_buffers())
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert all(torch.equal(buffer, exact[name]) for name, buffer in model.named_buffers())


def test_weights_are_held_once() -> None:
    loaded = load()
    ids = torch.tensor([loaded.tokenizer.encode(PROMPTS[0])])
    # The embedding takes no memory, since its rows are read from the file.
    weight_bytes = loaded.spec.weight_bytes - loaded.spec.vocabulary * loaded.spec.hidden
    layers = [part for part in loaded.model.modules() if isinstance(part, int8.Int8Linear)]

    def size() -> int:
        """Return the bytes of all products; the head, tied to the embedding before, has its own."""
        products = {layer.product for layer in layers}
        return loaded.model.get_memory_footprint() + sum(x.dense().nbytes for x in products)

    def logits() -> Any:
        return loaded.model(input_ids=ids, use_cache=False).logits

    with torch.inference_mode():
        before = logits()
        assert size() == pytest.approx(weight_bytes, rel=0.05)
        for _ in range(2):  # another decoder uses the weights of the first one
            forward = Session(loaded).decoder.executor.model
            assert isinstance(forward, Transformer)
            products = [product for layer in forward.layers for product in layer.products]
            assert len(products) < len(layers) - 1
            assert {product.form for product in products} < {layer.product for layer in layers}
            assert size() == pytest.approx(weight_bytes, rel=0.05)
            assert torch.equal(logits(), before)
