"""Files of profiles: valid ones, and the line about a fault."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.errors import UsageError
from tests.support.profiles import shape

TOP = 'description = "x"\n'
SETTING = '[[setting]]\nwindow = 3\nngram = 3\nguesses = 3\norigin = "derived"\n'
SMALL = SETTING + "up_to_parameters = 1e9\n"
HARDWARE = """[hardware]
bandwidth = 1e12
rates = { float16 = 1e14, float32 = 1e13 }
source = "a datasheet"
"""
COST = "[setting.step_cost]\nwidths = [1, 2]\ncontexts = [0]\ncosts = [[1.0]]\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[", "is not valid TOML: "),
        (SETTING, ", description: it is missing"),
        (TOP + "devics = []\n" + SETTING, ", devics: unknown key"),
        (TOP + "devices = 'A100'\n" + SETTING, ", devices: it must be a list"),
        (TOP + "memory = [40e9, -1]\n" + SETTING, ", memory 2: input should be greater than 0"),
        (TOP + SMALL, ", lacks [hardware] to derive from, and no setting is for every model"),
        (TOP + SETTING + "budget = 2", ", setting 1: budget 2 is smaller than the 6 tokens"),
        (TOP + SETTING.replace("derived", "derivedly"), ", setting 1 origin: "),
        (TOP + SETTING + COST, ", setting 1 step_cost: "),
        (TOP + HARDWARE.replace("1e12", "inf"), ", hardware bandwidth: "),
        (TOP + HARDWARE.replace("float16", "fp16"), ", hardware rates fp16"),
    ],
)
def test_a_fault_is_one_line_with_place_and_key(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        profiles.parse("p", text)
    assert str(raised.value).removeprefix("profile p").lstrip().startswith(fault)
    assert "\n" not in str(raised.value)


def test_settings_fit_by_size_and_weights() -> None:
    packed = SMALL + 'weights = ["nf4", "a-new-method"]\n'
    wide = SMALL.replace("window = 3", "window = 4")
    profile = profiles.parse("p", TOP + HARDWARE + packed + wide)

    def window(parameters: float, weights: str) -> int:
        return profiles.choose(profile, shape(parameters, weights)).lookahead.window

    assert window(1e9, "nf4") == window(1e9, "a-new-method") == 3
    assert window(1e9, "bfloat16") == 4
    assert window(1.1e9, "nf4") == 7, "derived"
