"""Sampling: agreement with torch and transformers, reproducible draws, the right distribution;
and sampling on a (simulated) device."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from scipy import stats
from torch import Tensor

from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.errors import NaNLogitsError
from ladecli.decoder.events import Token
from ladecli.decoder.noise import drawn_probabilities, gumbel_noise
from ladecli.decoder.sampling import SHORTLIST, Sampler, choose, draw, restricted, top_tokens
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import Choose
from tests.support.decoding import (
    BEFORE,
    FULL_WALK,
    FULL_WALK_STEP,
    FullWalkTree,
    read_out,
    run,
    steps_of,
    tokens_of,
)
from tests.support.device import DEVICE, Circle, SimulatedDevice, simulated_decoder
from tests.support.oracle import decoder_with

pytestmark = pytest.mark.slow


def noise_at(seed: int, positions: Iterable[int], count: int) -> Tensor:
    return gumbel_noise(seed, list(positions), torch.arange(count))


def random_logits(*shape: int, seed: int = 1, scale: float = 3.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("vocabulary", [5, 97, 40_003])
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_tokens_are_those_of_topk(vocabulary: int, count: int, dtype: torch.dtype) -> None:
    for rows in (1, 4):
        # Many logits are equal in bfloat16.
        scores = random_logits(rows, vocabulary, seed=rows).to(dtype)
        values, ids = top_tokens(scores, count)
        assert torch.equal(values, scores.topk(count).values)
        assert torch.equal(scores.gather(1, ids), values)
        assert all(len({*row}) == count for row in ids.tolist())
        first = [row.index(max(row)) for row in scores.tolist()]
        assert ids[:, 0].tolist() == first, "the choice depends on how many are asked for"


def test_a_nucleus_of_equally_probable_tokens() -> None:
    sampling = SamplingConfig(temperature=1.0, top_p=1e-9)
    assert bool(restricted(torch.zeros(1, 300), sampling).isfinite().any())


@pytest.mark.parametrize("temperature", [1e-6, 0.3, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 500])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.1, 1.0])
def test_the_distribution_is_that_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(6, 64)
    logits[:, 5] = logits[:, 9] = logits[:, 20]  # ties, which top-k keeps
    expected = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = transformers.TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = transformers.TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = transformers.MinPLogitsWarper(min_p)(None, expected)
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = restricted(logits, config)
    torch.testing.assert_close(scores.softmax(-1), expected.softmax(-1))
    assert (scores.amax(dim=-1) == 0.0).all()
    # A row alone, as on a CPU, gives the same result as among others.
    assert torch.equal(torch.cat([restricted(row[None], config) for row in logits]), scores)


def test_noise_depends_on_seed_and_position_only() -> None:
    pairs = [(s, p) for s in (0, 1, 2**63, 2**64 - 1) for p in (0, 1, 2, 10**6)]
    rows = {tuple(noise_at(seed, [position], 3)[0].tolist()) for seed, position in pairs}
    assert len(rows) == len(pairs)
    alone = torch.cat([noise_at(7, [position], 500) for position in (9, 12, 400)])
    assert torch.equal(noise_at(7, (9, 12, 400), 500), alone)
    some = torch.tensor([[3, 477, 20], [499, 0, 1], [7, 7, 8]])
    assert torch.equal(gumbel_noise(7, (9, 12, 400), some), alone.gather(1, some))
    # SplitMix64 is specified to the bit; a change would change texts.
    pinned = torch.tensor([1.9016414, -1.2652518, 1.1223969])
    torch.testing.assert_close(noise_at(0, [0], 3)[0], pinned, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0, seed=3),
        SamplingConfig(temperature=0.5, top_k=5, seed=4),
        SamplingConfig(temperature=1.7, top_p=0.8, seed=5),
        SamplingConfig(temperature=0.8, min_p=0.2, top_p=0.95, seed=6),
    ],
)
def test_probabilities_given_the_noise_are_those_of_the_draw(config: SamplingConfig) -> None:
    for position, logits in enumerate(random_logits(20, 12, scale=2.0)):
        shares, tokens = logits.softmax(-1).sort(descending=True)
        noisy = restricted(logits[None], config) + noise_at(config.seed, [position], 12)
        drawn = drawn_probabilities(config, tokens.tolist(), shares.tolist(), position)
        expected = noisy.softmax(-1)[0, tokens].tolist()
        assert drawn == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_noise_of_a_few_tokens() -> None:
    assert drawn_probabilities(SamplingConfig(temperature=1.0, min_p=0.1), [], [], 0) == []
    cold, vague = (SamplingConfig(temperature=t, seed=1) for t in (1e-9, 1.0))
    assert drawn_probabilities(cold, [5, 6], [0.9, 0.05], 7)[0] > 0.999
    # Estimates may have a sum above 1.
    assert sum(drawn_probabilities(vague, [5, 6], [1.5, 0.9], 7)) == pytest.approx(1.0)


COUNT = 4000


@pytest.mark.parametrize(
    "numbers",
    [
        noise_at(3, [77], COUNT)[0],
        noise_at(3, range(COUNT), 1)[:, 0],
        torch.cat([noise_at(seed, [5], 1)[0] for seed in range(COUNT)]),
    ],
    ids=["tokens", "positions", "seeds"],
)
def test_noise_follows_gumbels_distribution(numbers: Tensor) -> None:
    assert numbers.isfinite().all()
    assert stats.kstest(numbers.numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    assert abs(stats.pearsonr(numbers[:-1].numpy(), numbers[1:].numpy()).statistic) < 0.06


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "settings",
    [{"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 200, "top_p": 0.95, "min_p": 0.01}],
    ids=str,
)
def test_a_draw_from_a_shortlist_equals_one_from_all_tokens(
    settings: dict[str, Any], scale: float
) -> None:
    config, positions = SamplingConfig(temperature=0.8, seed=7, **settings), range(60)
    for dtype in (torch.float32, torch.bfloat16):
        logits = random_logits(60, 5000, scale=scale).to(dtype)
        expected = choose(logits, config, noise_at(7, positions, 5000))
        few = restricted(logits, config).isfinite().sum(-1) < SHORTLIST
        assert torch.equal(draw(logits, config, positions), torch.where(few, expected, -1))
        assert scale < 4.0 or bool(few.all())


def test_a_wide_top_k_is_not_drawn_from_a_shortlist() -> None:
    """Top-p needs the sum over the tokens that top-k keeps, which are more than the shortlist."""
    logits = random_logits(len(FULL_WALK_STEP.outputs), 5000)
    for seed in range(40):
        config = SamplingConfig(temperature=1.0, top_k=1000, top_p=0.5, seed=seed)
        noise = noise_at(seed, [len(BEFORE)], 5000)
        assert read_out(logits, config).tokens[0].id == int(choose(logits[:1], config, noise))


def test_processors_come_first_and_see_the_text_and_the_path() -> None:
    texts: list[list[list[int]]] = []

    def look(ids: Tensor, scores: Tensor) -> Tensor:
        texts.append(ids.tolist())
        scores[:, 3] += 50.0  # processors may write to their input
        return scores

    logits = random_logits(len(FULL_WALK_STEP.outputs), 12)
    output = read_out(logits, SamplingConfig(), [look])
    assert output.tokens[2].id == 3
    assert texts[2] == [[*BEFORE, 1, 2]]
    assert output.best == logits.argmax(-1).tolist(), "drafts learn what the model itself said"
    with_penalty = read_out(logits, SamplingConfig(repetition_penalty=1e6), [look])
    assert with_penalty.tokens[-1].id == 3
    assert with_penalty.tokens[3].id != 3, "the penalty comes after processors"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocabulary", [12, 40_000])
def test_nan_logits_are_refused(temperature: float, vocabulary: int) -> None:
    config = SamplingConfig(temperature=temperature)
    good = random_logits(len(FULL_WALK_STEP.outputs), vocabulary)
    for place in (0, vocabulary - 1):
        for bad in (float("nan"), float("inf")):
            logits = good.clone()
            logits[3, place] = bad
            with pytest.raises(NaNLogitsError, match="NaN or infinite"):
                read_out(logits, config)
            if bad != bad:  # processors may repair other values
                with pytest.raises(NaNLogitsError, match="NaN or infinite"):
                    read_out(logits, config, [lambda ids, scores: scores])
        logits = good.clone()
        logits[:, place] = float("-inf")  # a token that a model excludes
        assert read_out(logits, config).tokens[0].id != place
    good[2] = float("-inf")
    with pytest.raises(NaNLogitsError):
        read_out(good, config)


# On a device.

SAMPLED = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
SETTINGS = [
    SamplingConfig(),
    SamplingConfig(repetition_penalty=1.3),
    SamplingConfig(temperature=1.0, seed=1),
    SAMPLED,
    SamplingConfig(temperature=1.0, top_k=20, seed=2, repetition_penalty=1.2),
    SamplingConfig(temperature=1.5, top_k=300, top_p=0.9, seed=4),
    SamplingConfig(temperature=1.2, min_p=0.02, seed=5),
]
DRAFTS = LookaheadConfig(sources=("context", "recycled"), budget=15, widths=(1, 8, 16))
WINDOW = LookaheadConfig(4, 4, 4, sources=("trajectory",))


@pytest.mark.parametrize(
    ("strategy", "config", "sampling"),
    [
        ("autoregressive", DRAFTS, None),
        ("lookahead", DRAFTS, None),
        ("lookahead", WINDOW, None),
        ("lookahead", DRAFTS, SAMPLED),
    ],
    ids=["plain", "drafted", "window", "sampled"],
)
def test_a_step_waits_once(
    strategy: str, config: LookaheadConfig, sampling: SamplingConfig | None
) -> None:
    with SimulatedDevice() as device:
        decoder = simulated_decoder(device, 1000)
        run(decoder, [0, 1, 2], strategy, config, sampling, Limits(20))  # captures
        decoder.forget(keep_memory=True)
        device.counts.clear()
        steps = steps_of(run(decoder, [0, 1, 2], strategy, config, sampling, Limits(20)))
        assert not decoder.executor.notices
    assert device.counts["waits"] == device.counts["to host"] == len(steps)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_texts_are_those_of_the_host(sampling: SamplingConfig) -> None:
    """Log-probabilities also come from the model's own logits, before any penalty."""

    def tokens(decoder: Decoder, strategy: str, config: LookaheadConfig) -> list[Any]:
        events = run(decoder, [0, 1, 2], strategy, config, sampling, Limits(20), logprobs=2)
        names = [(token.id, *dict(token.logprobs.best)) for token in tokens_of(events)]
        own = [token.logprobs.own for token in tokens_of(events)]
        return [names, own]

    host = decoder_with(Circle(1000, torch.device("cpu")))
    expected = tokens(host, "autoregressive", DRAFTS)
    with SimulatedDevice() as device:
        decoder = simulated_decoder(device, 1000)
        for config in (DRAFTS, WINDOW):
            names, own = tokens(decoder, "lookahead", config)
            assert names == expected[0]
            assert own == pytest.approx(expected[1], abs=1e-4)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(0.0, torch.float32), (0.5, torch.bfloat16), (4.0, torch.float32)]
)
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_a_step_is_read_out_as_on_the_host(
    sampling: SamplingConfig, scale: float, dtype: torch.dtype
) -> None:
    """With small scales more tokens remain than the shortlist holds; half precision has ties."""
    logits = random_logits(len(FULL_WALK_STEP.outputs), 2000, scale=scale).to(dtype)
    expected = read_out(logits, sampling, successors=3)
    with SimulatedDevice() as device:

        class CountingTree(FullWalkTree):
            def walk(self, choose: Choose) -> tuple[list[int], list[Token]]:
                assert device.counts["waits"] <= 2  # one for the logits' way to the device
                return super().walk(choose)

        tree = CountingTree(
            FULL_WALK.tokens, FULL_WALK.parents, FULL_WALK.depths, FULL_WALK.sources
        )
        result = read_out(logits.to(DEVICE), sampling, successors=3, tree=tree)
    assert (result.tokens, result.best) == (expected.tokens, expected.best)
    for ours, theirs in zip(result.successors, expected.successors, strict=True):
        assert list(ours.values()) == pytest.approx(list(theirs.values()))
        assert scale == 0.0 or dtype == torch.bfloat16 or list(ours) == list(theirs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_logits_on_a_device(bad: float) -> None:
    for sampling in SETTINGS:
        with SimulatedDevice():
            logits = random_logits(len(FULL_WALK_STEP.outputs), 2000).to(DEVICE)
            logits[3, slice(None) if bad < 0 else 1999] = bad
            with pytest.raises(NaNLogitsError):
                read_out(logits, sampling, successors=3)


def test_everything_is_launched_before_anything_is_waited_for() -> None:
    with SimulatedDevice(seconds=0.02) as device:
        decoder = simulated_decoder(device, 1000)
        decoder.cache.length = 3
        sampler = Sampler(SAMPLED)
        read = partial(sampler.read, layout=FULL_WALK_STEP, draft=Draft(FULL_WALK, successors=3))
        decoder.executor.launch(FULL_WALK_STEP, read)()  # captures
        device.counts.clear()
        began = time.perf_counter()
        wait = decoder.executor.launch(FULL_WALK_STEP, read)
        launched = device.counts.copy()
        wait()
        assert time.perf_counter() - began >= 0.02
    assert launched["waits"] == 0
    assert device.counts - launched == {"waits": 1, "to host": 1}
