"""The cost model: what may not depend on what, what must fall, and what one GPU comes to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ladecli import profiles
from ladecli.decoder.drafting.ngram_model import MAX_SUCCESSORS
from ladecli.decoder.parallel.messages import MessageFormat
from ladecli.planning.cost import LOOKAHEAD, PLAIN, TENSOR, exchanged, step, uneven
from ladecli.planning.typical import typical
from ladecli.profiles.derive import HOST, LAUNCH, step_seconds
from ladecli.split import evenly

from .makers import setup_of

COUNTS = (1, 2, 4, 8)


@pytest.mark.parametrize("gpu", ["a100", "h100", "l4", "mi300x"])
@pytest.mark.parametrize("size", ["1.5b", "7b", "13b"])
def test_one_gpu_is_what_its_profile_says(gpu: str, size: str) -> None:
    setup = setup_of(gpu, size)
    plain = step(setup, PLAIN, 1)
    assert plain.seconds == step_seconds(setup.rates, setup.shape, 1, 1024, captured=True)
    assert (plain.talking, plain.sent, plain.tokens) == (0, 0, 1)
    # The same curve that `lade profiles show` prints, which has three digits.
    costs = profiles.choose(profiles.shipped(gpu), setup.shape).lookahead.step_cost
    for mode in (LOOKAHEAD, TENSOR):
        ratio = step(setup, mode, 1).seconds / plain.seconds
        assert ratio == pytest.approx(costs.at(64, 1024), abs=6e-4)


def test_what_ranks_tell_one_another_does_not_depend_on_the_model() -> None:
    sent = {step(setup_of(size=size), LOOKAHEAD, 4).sent for size in ("0.5b", "7b", "70b", "405b")}
    assert sent == {exchanged(64)} == {4 * MessageFormat(65, MAX_SUCCESSORS).length}
    talking = {step(setup_of(size=size), LOOKAHEAD, 4).talking for size in ("0.5b", "405b")}
    assert len(talking) == 1
    assert exchanged(64) < 4096  # it is kilobytes
    assert {step(setup_of(), LOOKAHEAD, gpus).sent for gpus in (2, 4, 8, 64)} == {exchanged(64)}


def test_steps_of_lookahead_parallelism_stay_about_as_long() -> None:
    steps = [step(setup_of(), LOOKAHEAD, gpus) for gpus in COUNTS]
    assert len({each.computing for each in steps}) == 1  # the width of each GPU is the same
    assert all(a.seconds < b.seconds for a, b in pairwise(steps))
    # What comes on top: every process drafts for all others, too, and they agree in some 70 us.
    later = steps[-1].seconds - 7 * 64 * HOST
    assert steps[0].seconds < later < 1.01 * steps[0].seconds


def test_steps_of_tensor_parallelism_fall_until_exchanges_outweigh_them() -> None:
    # 13B on a GPU that reads slowly: launching is no bound there.
    fast = setup_of("l4", "13b")
    seconds = [step(fast, PLAIN, gpus).seconds for gpus in (1, 2, 4)]
    assert all(a > 1.3 * b for a, b in pairwise(seconds))
    several = setup_of("l4", "13b", per_node=1, link="ethernet")
    slow = [step(several, PLAIN, gpus) for gpus in (1, 2, 4, 8, 20)]
    assert all(a.computing > b.computing for a, b in pairwise(slow))
    assert slow[-1].seconds > slow[-2].seconds
    assert slow[-1].talking > slow[-1].computing


def test_launching_bounds_a_step_however_the_model_is_split() -> None:
    setup = setup_of("h100", "7b")
    for gpus in COUNTS[1:]:
        assert step(setup, PLAIN, gpus).computing >= LAUNCH * setup.shape.layers
    # A whole model is captured, on one GPU and on each of several.
    assert step(setup, PLAIN, 1).computing < 0.5 * LAUNCH * setup.shape.layers
    assert step(setup, LOOKAHEAD, 4).computing < 0.5 * LAUNCH * setup.shape.layers


def test_where_drafts_do_not_pay_steps_are_plain_ones() -> None:
    # bitsandbytes unpacks all weights for the first draft token.
    setup = setup_of("a100", "70b", quantize="4bit", budget=2)
    plain, drafted = step(setup, PLAIN, 1), step(setup, LOOKAHEAD, 1)
    assert drafted.speed == plain.speed
    assert drafted.needed > plain.needed
    many = step(setup, LOOKAHEAD, 8)
    assert (many.tokens, many.drafting, many.sent) == (1, 0, exchanged(2))


@pytest.mark.parametrize("mode", [LOOKAHEAD, TENSOR, PLAIN])
def test_a_slower_link_makes_nothing_faster(mode: str) -> None:
    for gpus in (2, 4, 8):
        links = ("nvlink", "pcie", "5,5", "0.1,0.1")
        speeds = [step(setup_of(link=link), mode, gpus).speed for link in links]
        assert speeds == sorted(speeds, reverse=True)
        spread, together = setup_of(per_node=2, link="ethernet"), setup_of(per_node=8)
        assert step(spread, mode, gpus).speed <= step(together, mode, gpus).speed


def test_a_part_has_its_share_of_everything() -> None:
    """transformers' plans cut the embeddings, too; norms do not count."""
    _, shape = typical("llama-3-70b")
    own = evenly(shape, 4)
    assert own.parameters == pytest.approx(shape.parameters / 4)
    assert own.weight_bytes == 2 * own.parameters
    assert own.cache_bytes * 4 == shape.cache_bytes
    assert (own.heads, own.kv_heads, own.layers) == (16, 2, 80)
    assert evenly(shape, 1) == shape


def test_every_gpu_needs_less_the_more_there_are() -> None:
    setup = setup_of(size="70b")
    tensor = [step(setup, TENSOR, gpus).needed for gpus in COUNTS]
    assert all(a > 1.8 * b for a, b in pairwise(tensor))
    assert len({step(setup, LOOKAHEAD, gpus).needed for gpus in COUNTS}) == 1


@pytest.mark.parametrize(
    ("size", "gpus", "why"),
    [
        ("7b", 8, None),
        ("7b", 3, "32 key/value heads cannot be split over 3 GPUs"),
        ("qwen2.5-7b", 4, None),
        ("qwen2.5-7b", 8, "4 key/value heads cannot be split over 8 GPUs"),
        ("0.5b", 2, None),
        ("llama-3-8b", 16, "8 key/value heads cannot be split over 16 GPUs"),
        ("qwen2.5-14b", 5, "8 key/value heads cannot be split over 5 GPUs"),
        ("13b", 8, None),
        # Ranks may hold different shares of what is inside a layer, and of the vocabulary.
        ("13b", 40, None),
    ],
)
def test_what_cannot_be_split(size: str, gpus: int, why: str | None) -> None:
    _, shape = typical(size)
    assert uneven(shape, gpus) == why


def test_weights_that_bitsandbytes_packs_are_not_split() -> None:
    _, shape = typical("7b", quantize="4bit")
    assert uneven(shape, 1) is None
    assert uneven(shape, 2) == "weights in nf4 cannot be split"
