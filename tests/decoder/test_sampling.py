"""Sampling: agreement with transformers, reproducible draws, and the right distribution."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import ConfigError
from ladecli.decoder.sampling import (
    AHEAD,
    Sampler,
    Uniforms,
    distribution,
    draw,
    penalize,
    uniform,
)
from ladecli.decoder.successors import NOTHING

from ..decoding import ids_of, run, tokens_of
from ..oracle import MarkovModel


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 500])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.1, 1.0])
def test_distribution_is_that_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    scores = torch.randn(64, generator=torch.Generator().manual_seed(1)) * 3
    scores[5] = scores[9] = scores[20]  # ties, which top-k keeps
    expected = TemperatureLogitsWarper(temperature)(None, scores[None])
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    mine = distribution(scores, config)
    torch.testing.assert_close(mine, torch.softmax(expected[0], dim=-1))
    assert math.isclose(float(mine.sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("penalty", [0.8, 1.2, 3.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    scores = torch.randn(30, generator=torch.Generator().manual_seed(2))
    text = [3, 3, 7, 12, 29]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([text]), scores[None])[0]
    torch.testing.assert_close(penalize(scores, torch.tensor(sorted(set(text))), penalty), expected)


def test_what_the_host_draws_is_penalised_in_float32_as_the_device_has_it() -> None:
    sampler = Sampler(SamplingConfig(2e-4, repetition_penalty=1.1))
    sampler.commit([0])
    # 3 / 1.1 is more than the other one, and in bfloat16 as much.
    row = torch.tensor([[3.0, 2.71875]], dtype=torch.bfloat16)
    assert {sampler.chooser(row, [0], place)(0, []) for place in range(20)} == {0}


def test_uniform_depends_on_seed_and_position_only() -> None:
    numbers = {(s, p): uniform(s, p) for s in (0, 1, 2**63) for p in (0, 1, 2, 10**6)}
    assert len(set(numbers.values())) == len(numbers)
    assert all(0.0 <= number < 1.0 for number in numbers.values())
    assert uniform(1, 2) == numbers[1, 2]
    # Philox4x64 is specified to the bit, so this may never change.
    assert uniform(0, 0) == pytest.approx(0.011546754286331562, abs=1e-15)


def test_uniforms_of_many_positions_are_those_of_each() -> None:
    for seed in (0, 7, 2**64 - 1):
        numbers = Uniforms(seed)
        # Back and forth, within what is drawn ahead and beyond it: a later question does not
        # depend on an earlier one.
        asked = ((5, 9), (0, 1), (300, 70), (AHEAD - 3, 3), (AHEAD - 2, 3), (10**6, 70))
        for position, count in (*asked, (2**32 - 2, AHEAD + 1), (2**32, 4), (5, 3)):
            expected = [uniform(seed, position + i) for i in range(count)]
            assert numbers.at(position, count) == expected


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [
        ({}, False),
        ({"temperature": 0.8}, True),
        ({"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.1}, True),
        ({"temperature": 0.8, "repetition_penalty": 1.1}, True),
        ({"repetition_penalty": 1.1}, False),
    ],
)
def test_choices_are_made_ahead_where_no_processor_has_a_say(
    settings: dict[str, float], ahead: bool
) -> None:
    config = SamplingConfig(**settings)
    assert Sampler(config).ahead == ahead
    assert not Sampler(config, [lambda ids, scores: scores]).ahead


def test_a_row_that_is_not_certain_is_drawn_after_all() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(6))
    sampler, best = Sampler(SamplingConfig(temperature=1.0, seed=5)), [0, 0, 0]
    alone = sampler.chooser(logits, best, 40)
    paths = [[], [1], [1, 2]]
    drawn = [alone(row, path) for row, path in enumerate(paths)]
    assert drawn == [
        draw(distribution(scores, sampler.config), u)
        for scores, u in zip(logits, sampler.uniforms(40, [0, 1, 2]), strict=True)
    ]
    chosen = sampler.chooser(logits, best, 40, [71, NOTHING, 73])
    assert [chosen(row, path) for row, path in enumerate(paths)] == [71, drawn[1], 73]
    assert sampler.uniforms(40, [2, 0, 2]) == [uniform(5, 42), uniform(5, 40), uniform(5, 42)]
    # Where processors have a say, what was drawn without them does not.
    strict = Sampler(SamplingConfig(temperature=1.0, seed=5), [lambda ids, scores: scores])
    strict.commit([7])
    walked = strict.chooser(logits, best, 40, [71, 72, 73])
    assert all(walked(row, path) < 50 for row, path in enumerate(paths))


def test_what_was_committed_is_penalised() -> None:
    # Without a processor it is the step that does it.
    sampler = Sampler(SamplingConfig(repetition_penalty=1.5), [lambda ids, scores: scores])
    logits = torch.tensor([[0.0, 1.5, 1.0, 2.0]])

    def chosen(*path: int) -> int:
        return sampler.chooser(logits, [3], 40)(0, path)

    sampler.commit([0])
    assert [chosen(), chosen(3), chosen(3, 1)] == [3, 1, 3]
    sampler.commit(iter([3]))
    assert [chosen(), chosen(1)] == [1, 3]


def test_processors_see_what_was_committed_and_the_path() -> None:
    texts: list[list[list[int]]] = []

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        texts.append(ids.tolist())
        return scores

    sampler = Sampler(SamplingConfig(), [look])
    sampler.commit(iter([4, 5]))
    sampler.commit([5])
    assert sampler.chooser(torch.eye(9), [0] * 9, 40)(7, [6, 1]) == 7
    assert texts == [[[4, 5, 5, 6, 1]]]


def test_no_temperature_is_too_small() -> None:
    scores = torch.tensor([3.0, 90.0, 89.9, -5.0])
    for temperature in (1e-6, 1e-40, 5e-324):
        mine = distribution(scores, SamplingConfig(temperature=temperature))
        assert mine.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_draw_never_takes_an_impossible_token() -> None:
    probabilities = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0])
    assert [draw(probabilities, u) for u in (0.0, 0.29, 0.31, 1 - 2**-53)] == [1, 1, 3, 3]


def chi_square(observed: list[int], probabilities: list[float]) -> float:
    total = sum(observed)
    return sum(
        (o - total * p) ** 2 / (total * p) for o, p in zip(observed, probabilities, strict=True)
    )


@pytest.mark.parametrize("strategy", ["lookahead", "prompt-lookup"])
def test_sampled_text_has_the_models_distribution(strategy: str) -> None:
    """20,000 sampled transitions, many of them accepted drafts, against the direct ones."""
    tokens, draws = 6, 20_000
    table = torch.randn(tokens, tokens, generator=torch.Generator().manual_seed(4)) * 1.5
    config = SamplingConfig(temperature=0.7, top_k=5)
    decoder = Decoder(MarkovModel(table))
    counts = torch.zeros(tokens, tokens, dtype=torch.long)
    accepted = seed = 0
    while counts.sum() < draws:
        sampling = SamplingConfig(temperature=0.7, top_k=5, seed=seed)
        events = run(decoder, [0], strategy, LookaheadConfig(3, 3, 3), sampling, Limits(500))
        text = [0, *ids_of(events)]
        accepted += sum(token.source is not None for token in tokens_of(events))
        for last, token in pairwise(text):
            counts[last, token] += 1
        seed += 1
    assert accepted > draws / 4, "the drafts must have had their chance to spoil it"
    statistic, cells = 0.0, 0
    for last in range(tokens):
        expected = distribution(table[last], config)
        possible = expected.nonzero()[:, 0].tolist()
        assert counts[last].sum() == counts[last, possible].sum()
        statistic += chi_square(counts[last, possible].tolist(), expected[possible].tolist())
        cells += len(possible) - 1
    assert cells == 24
    # 24 degrees of freedom: 51.2 is exceeded once in a thousand.
    assert statistic < 51.2


def test_inverse_cdf_over_many_positions() -> None:
    """20,000 draws at consecutive positions of one seed, as a long text takes them."""
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    counts = [0] * 5
    for position in range(20_000):
        counts[draw(probabilities, uniform(3, position))] += 1
    # 4 degrees of freedom: 18.5 is exceeded once in a thousand.
    assert chi_square(counts, probabilities.tolist()) < 18.5


BAD = {
    "temperature": (-0.1, float("nan"), float("inf")),
    "top_k": (-1,),
    "top_p": (0.0, 1.1, -1.0, float("nan")),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0.0, -1.0, 1e39, math.nan),
    "seed": (-1, 2**64),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        SamplingConfig(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"ngram": 1}, "ngram must be at least 2, not 1"),
        ({"guesses": -1}, "guesses must be at least 0, not -1"),
        ({"budget": 0}, "budget must be at least 1, not 0"),
        ({"budget": 10}, "budget 10 is smaller than the 28 tokens of a window with W=7, N=5"),
        ({"sources": ()}, "sources must name at least one of trajectory, context, recycled"),
        ({"sources": ("context", "context")}, "a source is named twice: context, context"),
        ({"sources": ("x",)}, "unknown source 'x'; known sources: trajectory, context, recycled"),
    ],
)
def test_lookahead_settings_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LookaheadConfig(**settings)


def test_window_cells_bound_every_phase_of_filling() -> None:
    for window, ngram in itertools.product((1, 2, 3, 7), (2, 3, 5, 8)):
        config = LookaheadConfig(window, ngram, 0)
        phases = [r * (window + ngram - 1 - r) for r in range(1, ngram)]
        assert config.window_cells == max(phases)
