"""Selection: shipped profiles are whole, fit devices and models, and can be forced."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.errors import UsageError
from ladecli.profiles import Rates
from ladecli.profiles.listing import shapes_for
from ladecli.profiles.schema import VALUES

from .makers import CPU, DEMO, Fake, shape

A100 = Fake("cuda", "NVIDIA A100-SXM4-80GB", int(85e9))
UNKNOWN = Fake("cuda", "ACME Accelerator 9000", int(16e9))
MEASURED = Rates(5e11, 5e13, "measured here, ACME Accelerator 9000")


def test_what_ships() -> None:
    assert set(profiles.shipped_names()) >= {
        *("a100", "a100-80gb", "h100", "h200", "b200", "l4", "l40s", "a10g", "t4", "v100"),
        *("rtx3090", "rtx4090", "rtx5090", "mi300x", "apple", "cpu", "gpu"),
    }
    assert profiles.names() == list(profiles.shipped_names())


@pytest.mark.parametrize("name", profiles.shipped_names())
def test_shipped_profiles_settle_every_model(name: str) -> None:
    profile = profiles.shipped(name)
    assert profile.place == "shipped"
    sizes = [p.up_to_parameters for p in profile.papers]
    assert sizes == sorted(sizes)
    for size, model in shapes_for(profile):
        choice = profiles.choose(profile, model)
        assert choice.lookahead.step_limit >= 2, size
        assert choice.lookahead.step_cost.widths[0] == 1
        assert list(choice.origins) == list(VALUES)
        for origin in choice.origins.values():
            assert origin.split(":")[0] in ("measured", "published", "derived", "default")
        assert choice.paper.sources == ("trajectory",)
        assert choice.paper_origin.startswith("published: arXiv 2402.02057")


@pytest.mark.parametrize("name", sorted(set(profiles.shipped_names()) - {"cpu"}))
def test_figures_are_of_the_right_order(name: str) -> None:
    hardware = profiles.shipped(name).hardware
    assert hardware is not None
    assert 1e11 <= hardware.bandwidth <= 1e13, "bytes per second"
    assert 1e12 <= hardware.rates["float32"] <= 2e14
    assert max(hardware.rates.values()) <= 2.5e15, "sparse rates are twice the dense ones"
    ridge = max(hardware.rates.values()) / hardware.bandwidth
    assert 20 < ridge < 420, "tokens in 16 bits at which reading and multiplying take as long"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (CPU, "cpu"),
        (Fake("cpu", "Apple M2 Max"), "cpu"),
        (Fake("mps", "Apple M2 Max"), "apple"),
        (A100, "a100-80gb"),
        (UNKNOWN, "gpu"),
        (Fake("cuda", ""), "gpu"),
    ],
)
def test_devices_find_their_profile(device: Fake, expected: str) -> None:
    assert profiles.select(None, device, shape()).profile == expected


def test_the_papers_settings_by_model_size() -> None:
    sizes = {6.7e9: (15, 5, 15), 10e9: (15, 5, 15), 13e9: (10, 5, 10), 34e9: (7, 5, 7)}
    for size, expected in sizes.items():
        paper = profiles.select(None, A100, shape(size)).paper
        assert (paper.window, paper.ngram, paper.guesses) == expected
        assert paper.budget is None, "the paper's algorithm is not cut short"
    assert profiles.select(None, A100, shape(13e9)).paper_origin.endswith("table 2, 13B")
    # The paper gives a range for this card; the least of it is here, and said to be.
    card = Fake("cuda", "NVIDIA GeForce RTX 3090", int(25.4e9))
    for device in (card, CPU):
        choice = profiles.select(None, device, DEMO)
        assert (choice.paper.window, choice.paper_origin) == (
            7,
            "published: arXiv 2402.02057, RTX 3090, 7B: the least of its W=7 to 10",
        )


def test_settings_know_the_weights() -> None:
    # Large enough that a step takes as long as its weights do, not as its launches.
    plain = profiles.select(None, A100, shape(70e9, "bfloat16"))
    packed = profiles.select(None, A100, shape(70e9, "nf4"))
    cost = [choice.lookahead.step_cost.at(2, 1024) for choice in (plain, packed)]
    assert cost[0] < 1.1 < cost[1], "bitsandbytes multiplies packed weights with one token only"
    assert plain.notices == ()
    assert f"the first draft token costs {cost[1]:.1f} plain steps" in packed.notices[0]
    assert plain.origin == "derived: from 1935 GB/s and 312 TFLOP/s (NVIDIA A100 datasheet, 2021)"


def test_a_type_without_units_costs_more() -> None:
    t4 = Fake("cuda", "Tesla T4", int(15.7e9))
    half, brain = (
        profiles.select(None, t4, shape(weights=kind, compute=kind)).lookahead
        for kind in ("float16", "bfloat16")
    )
    assert half.step_cost.at(64, 1024) < brain.step_cost.at(64, 1024)


def test_an_unknown_gpu_is_measured() -> None:
    choice = profiles.select(None, UNKNOWN, shape(), measure=lambda: MEASURED)
    assert choice.profile == "measured here"
    assert choice.origin == f"derived: from 500 GB/s and 50 TFLOP/s ({MEASURED.source})"
    assert "no profile knows ACME Accelerator 9000" in choice.notices[0]


def test_without_a_measurement_an_unknown_gpu_gets_cautious_settings() -> None:
    choice = profiles.select(None, Fake("cuda", ""), shape())
    assert choice.profile == "gpu"
    assert "no profile knows this GPU" in choice.notices[0]
    known = profiles.select(None, A100, shape())
    assert choice.lookahead.step_limit < known.lookahead.step_limit


@pytest.mark.parametrize("device", [CPU, A100, Fake("mps", "Apple M2")])
def test_known_devices_are_not_measured_and_nothing_is_said(device: Fake) -> None:
    def measure() -> Rates:
        raise AssertionError("measured")

    assert profiles.select(None, device, shape(), measure=measure).notices == ()
    assert profiles.select("t4", UNKNOWN, shape(), measure=measure).notices == ()


@pytest.mark.parametrize("name", ["x", "../cpu", "cpu.toml", "CPU", " cpu", "measured here"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=r"^unknown profile .*; known profiles: a100, a100-80gb,"):
        profiles.select(name, CPU, DEMO)


def test_costs_are_those_of_the_way_in_which_steps_run() -> None:
    def wide(**given: bool) -> float:
        return profiles.select(None, A100, shape(), **given).lookahead.step_cost.at(128, 1024)

    # While kernels are launched one by one there is time for more tokens.
    assert wide(captured=False) < 1.05 < 1.1 < wide(captured=True) == wide()
    apple, known = Fake("mps", "Apple M2"), profiles.shipped("apple")
    usual = profiles.select(None, apple, shape()).lookahead
    assert usual == profiles.choose(known, shape()).lookahead, "also where it is only shown"
    assert usual != profiles.choose(known, shape(), captured=True).lookahead
