"""Tokens for all rows at once: those that one row after the other would get."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.readout import choosing
from ladecli.decoder.readout.choosing import ONE, choose, choose_ahead, weights_of
from ladecli.decoder.sampling import distribution, draw
from ladecli.decoder.successors import NOTHING

ROWS = 64
HALF = torch.tensor([0.5], dtype=torch.float64)
SETTINGS = [
    SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.7, 1.5), (0, 1, 40), (0.4, 0.95, 1.0), (0.0, 0.02)
    )
] + [
    SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature in (1e-40, 1e-4, 50.0, 1e300)
    for top_k, top_p in ((0, 1.0), (20, 1.0), (0, 0.5))
]


def rows_of(vocabulary: int, kind: str, rows: int = ROWS, seed: int = 0) -> Tensor:
    """Logits of one kind: how sure a model is, how coarse its numbers, what it rules out."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator)
    if kind == "peaked":
        return logits * 6
    if kind == "quantised":
        return (logits * 3 + 10).bfloat16()
    if kind == "coarse":
        return (logits * 2).round()
    if kind == "few possible":
        few = torch.rand(rows, vocabulary, generator=generator) < 8 / vocabulary
        few[:, 1] = True
        return torch.where(few, logits, -torch.inf)
    return logits * 0.1


KINDS = ("flat", "peaked", "quantised", "coarse", "few possible")


def uniforms_of(rows: int = ROWS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(rows, generator=generator, dtype=torch.float64)
    numbers[0], numbers[-1] = 0.0, 1.0 - 2.0**-53
    return numbers


def drawn(scores: Tensor, u: float, config: SamplingConfig) -> int:
    """What a row gives, all of it looked at: by its weights, in plain integers."""
    through = np.cumsum(weights_of(scores, config).numpy())
    target = min(int(float(through[-1]) * u), int(through[-1]) - 1)
    return int(np.searchsorted(through, target, side="right"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [7, 300, 1500, 5003])
def test_rows_at_once_and_one_by_one_are_the_same(vocabulary: int, kind: str) -> None:
    logits, uniforms = rows_of(vocabulary, kind), uniforms_of()
    for turn, config in enumerate(SETTINGS):
        tokens = choose_ahead(logits, uniforms, config)
        assert tokens.dtype == torch.int32
        assert torch.equal(choose_ahead(logits, uniforms, config, logits.argmax(dim=1)), tokens)
        for row in range(turn % 13, ROWS, 13):
            expected = drawn(logits[row], float(uniforms[row]), config)
            assert choose(logits[row], float(uniforms[row]), config) == expected
            alone = choose_ahead(logits[row : row + 1], uniforms[row : row + 1], config)
            assert alone[0] == tokens[row]
            assert tokens[row] in (expected, NOTHING)


def test_most_rows_of_a_model_are_certain() -> None:
    """Otherwise nothing is gained; rows that are not must be those that many tokens share."""
    uniforms = uniforms_of()
    for config in SETTINGS:
        # The higher ones make more tokens alike than are listed.
        if config.temperature < 1.0:
            assert (choose_ahead(rows_of(20_000, "peaked"), uniforms, config) != NOTHING).all()
    unsure = SamplingConfig(temperature=1.0, top_p=0.9)
    assert (choose_ahead(rows_of(5000, "flat"), uniforms, unsure) == NOTHING).all()
    # With nothing removed, all tokens are looked at.
    sure = choose_ahead(rows_of(5000, "flat"), uniforms, SamplingConfig(temperature=1.0))
    assert (sure != NOTHING).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 3},
        {"top_p": 0.01},
        {"min_p": 1.0},
        {"top_k": 3, "top_p": 0.5},
        {"top_k": 3, "min_p": 0.5},
        {"top_k": 3, "top_p": 0.5, "min_p": 0.5},
    ],
)
def test_ties_at_the_end_of_the_list_are_not_certain(settings: dict[str, float]) -> None:
    """All tokens are alike, so all of them stay, and a list of some of them is no answer."""
    config = SamplingConfig(**{"temperature": 1.0, **settings})
    scores = torch.zeros(5000)
    assert choose_ahead(scores[None], HALF, config) == NOTHING
    assert (weights_of(scores, config) == ONE).all()
    assert choose(scores, 0.5, config) == 2500


def test_top_p_of_top_k_needs_all_of_top_k() -> None:
    """What ties with the k-th token counts for top-p, even where min-p removes it afterwards."""
    scores = torch.full((5000,), -1.0)
    scores[100:110] = 0.0
    config = SamplingConfig(temperature=1.0, top_k=20, top_p=0.5, min_p=0.9)
    assert choose_ahead(scores[None], HALF, config) == NOTHING
    # Without top-p, min-p alone decides, and all that it leaves is listed.
    config = SamplingConfig(temperature=1.0, top_k=20, min_p=0.9)
    assert choose_ahead(scores[None], HALF, config) == 105


def test_equal_tokens_at_the_cut_of_top_p_all_stay() -> None:
    scores = torch.tensor([0.5, 0.1, 0.2, 0.1, 0.1]).log()
    kept = [
        (weights_of(scores, SamplingConfig(temperature=1.0, top_p=p)) > 0).nonzero()[:, 0].tolist()
        for p in (0.4, 0.6, 0.75, 0.95)
    ]
    assert kept == [[0], [0, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_token_is_where_its_distribution_says(kind: str) -> None:
    """Whole numbers stand for probabilities to some 1e-7."""
    uniforms = uniforms_of(seed=1)
    for config in SETTINGS:
        for scores, u in zip(rows_of(300, kind, 4, seed=1), uniforms[:4].tolist(), strict=True):
            token, probabilities = choose(scores, u, config), distribution(scores, config)
            assert probabilities[token] > 0.0
            around = {draw(probabilities, min(max(u + by, 0.0), 1.0)) for by in (-1e-6, 0.0, 1e-6)}
            assert token in around


def test_parts_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, uniforms = rows_of(3000, "peaked", seed=3), uniforms_of(seed=3)
    configs = [SamplingConfig(temperature=1.3), SamplingConfig(temperature=1.3, top_p=0.9)]
    whole = [choose_ahead(logits, uniforms, config) for config in configs]
    for part in (1, ROWS * choosing.BLOCK * 5):
        monkeypatch.setattr(choosing, "PART", part)
        for config, expected in zip(configs, whole, strict=True):
            assert torch.equal(choose_ahead(logits, uniforms, config), expected)


@pytest.mark.parametrize("temperature", [1e-40, 0.8])
@pytest.mark.parametrize("top_k", [0, 30])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_a_device_is_never_waited_for(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Tracing fails on whatever asks for a number, and a trace knows no other shapes."""
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    traced = make_fx(lambda logits, uniforms: choose_ahead(logits, uniforms, config))(
        rows_of(1500, "peaked", 3), uniforms_of(3)
    )
    given = rows_of(1500, "coarse", 3, seed=5), uniforms_of(3, seed=5)
    assert torch.equal(traced(*given), choose_ahead(*given, config))


def test_a_model_that_says_nan_names_a_token_all_the_same() -> None:
    """An id outside the vocabulary would stop a GPU for good."""
    for bad in (torch.nan, -torch.inf, torch.inf):
        logits = torch.full((3, 5000), bad)
        for config in SETTINGS[::7]:
            tokens = choose_ahead(logits, uniforms_of(3), config)
            assert ((tokens >= 0) & (tokens < 5000) | (tokens == NOTHING)).all()
            assert 0 <= choose(logits[0], 0.5, config) < 5000
