"""Selection: shipped profiles fit devices and models, the user's own come before them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ladecli import profiles
from ladecli.errors import UsageError
from ladecli.models.device import Device
from ladecli.profiles import user
from tests.support.profiles import A100, ACME, CPU, DEMO, OWN, put, shape

SHIPPED = profiles.shipped()
APPLE = Device("mps", "mps", "Apple M2 Max")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_settle_every_model_by_plausible_figures(name: str) -> None:
    profile = profiles.shipped()[name]
    assert profiles.parse(name, profiles.dump(profile)) == profile
    for size, weights in itertools.product((5e8, 7e9, 7e10), ("bfloat16", "int8", "nf4")):
        choice = profiles.choose(profile, shape(size, weights))
        assert choice.lookahead.step_limit >= 2, size
        assert choice.paper.sources == ("trajectory",)
    if hardware := profile.hardware:
        most = max(hardware.rates.values())
        assert 1e11 <= hardware.bandwidth <= 1e13, "bytes per second"
        assert 1e12 <= hardware.rates["float32"] <= most <= 2.5e15, "sparse rates are twice that"
        assert 20 < most / hardware.bandwidth < 420, "operations per byte"


@pytest.mark.parametrize(
    ("device", "expected"), [(CPU, "cpu"), (APPLE, "apple"), (A100, "a100-80gb"), (ACME, "gpu")]
)
def test_devices_find_their_profile(device: Device, expected: str) -> None:
    choice = profiles.select(None, device, shape())
    assert (choice.profile, bool(choice.notices)) == (expected, expected == "gpu")


def test_the_papers_settings_by_model_size() -> None:
    sizes = {6.7e9: (15, 5, 15), 10e9: (15, 5, 15), 13e9: (10, 5, 10), 34e9: (7, 5, 7)}
    for size, expected in sizes.items():
        paper = profiles.select(None, A100, shape(size)).paper
        assert (paper.window, paper.ngram, paper.guesses) == expected
        assert paper.budget is None, "the paper's algorithm is not cut short"
    assert profiles.select(None, CPU, DEMO).paper.window == 7


def test_a_type_without_units_of_its_own_has_the_lowest_rate() -> None:
    t4 = profiles.shipped()["t4"]  # which has units for float16 alone
    half, brain = (
        profiles.choose(t4, shape(weights=kind, compute=kind)).lookahead.step_cost.at(64, 1024)
        for kind in ("float16", "bfloat16")
    )
    assert half < brain


def test_the_curve_of_dense_models_rises_with_the_experts_of_a_step() -> None:
    dense = shape(8e9, "float32", "float32")
    experts = replace(dense, active=2e9)
    flat, steep = (
        profiles.select(None, CPU, model).lookahead.step_cost for model in (dense, experts)
    )
    # A quarter of the weights for one token, 1 - 0.75 ** width of them for more, at worst.
    for width in (4, 8, 16):
        met = (1 - 0.75**width) / 0.25
        assert steep.at(width, 128) == pytest.approx(met * flat.at(width, 128))
    seconds = {1: 1.0, 4: 2.0, 16: 3.0}
    choice = profiles.select(None, CPU, experts).priced(seconds)
    assert choice.lookahead.step_cost.at(16, 128) == 3.0, "what was measured knows"


def test_a_profile_by_hand_is_found_by_name_and_by_device() -> None:
    put("mine", OWN).with_name("x.toml~").write_text("no profile")
    assert user.names() == ["mine"]
    assert profiles.select("mine", CPU, DEMO).lookahead.window == 4
    assert profiles.select(None, A100, DEMO).profile == "mine", "before a longer name"
    put("mine", OWN.replace("[[setting]]", "memory = [40e9]\n[[setting]]"))
    assert profiles.select(None, A100, DEMO).profile == "a100-80gb", "mine is for another one"
    put("mine", OWN.replace("A100", "AMD EPYC"))
    assert profiles.select(None, CPU, DEMO).profile == "mine", "a processor has a name too"


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"[", "not valid TOML"), (b"widnow = 3", "unknown key"), (b"\xff", "not UTF-8")],
)
def test_a_broken_file_is_reported_and_left_out(content: bytes, fault: str) -> None:
    path = put("cpu", "")
    path.write_bytes(content)
    choice = profiles.select(None, CPU, DEMO)
    assert (choice.profile, choice.lookahead.window) == ("cpu", 3), "the shipped one serves"
    (notice,) = choice.notices
    for part in (fault, str(path), "; left out"):
        assert part in notice
    with pytest.raises(UsageError, match=fault):
        profiles.select("cpu", CPU, DEMO)
