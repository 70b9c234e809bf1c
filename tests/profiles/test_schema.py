"""Files of profiles: what they may hold, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.errors import UsageError
from ladecli.profiles.schema import Hardware

from .makers import shape

SETTING = """
[[setting]]
window = 3
ngram = 3
guesses = 3
origin = "derived"
"""
HARDWARE = """
[hardware]
bandwidth = 1e12
rates = { float16 = 1e14, float32 = 1e13 }
source = "a datasheet"
"""
TUNED = """
[tuned]
device = "x"
parameters = 1000
weights = "float32"
attention = "sdpa"
versions = { torch = "2.13.0" }
date = "2026-11-21"
"""
PAPER = """
[[paper]]
window = 3
ngram = 3
guesses = 3
source = "a paper"
"""
TOP = 'description = "x"\n'
COST = "[setting.step_cost]\nwidths = [1, 2]\ncontexts = [0]\ncosts = [[1.0]]\n"


SMALL = SETTING + "up_to_parameters = 1e9\n"
PACKED = SETTING + 'weights = ["nf4", "int8"]\n'


@pytest.mark.parametrize(
    "text",
    [
        *(TOP + SETTING, TOP + HARDWARE, TOP + HARDWARE + PAPER + SETTING + TUNED),
        TOP + SMALL + PACKED + SETTING,
        TOP + PACKED + SMALL + SETTING,
        TOP + SMALL + PACKED + SMALL.replace("1e9", "2e9") + SETTING,
    ],
)
def test_right_files(text: str) -> None:
    assert profiles.parse("p", text).name == "p"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SETTING * 2, "setting 2 never counts: setting 1 comes"),
        (SETTING + SMALL, "setting 2 never counts: setting 1 comes"),
        (SETTING + PACKED, "setting 2 never counts: setting 1 comes"),
        (SMALL + SMALL.replace("1e9", "1e8") + SETTING, "setting 2 never counts: setting 1 comes"),
        (SMALL + PACKED + PACKED.replace('"nf4", ', ""), "setting 3 never counts: setting 2 comes"),
    ],
)
def test_a_setting_that_no_model_gets_is_refused(settings: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^profile p, {message} first and fits every") as raised:
        profiles.parse("p", TOP + HARDWARE + settings)
    assert str(raised.value).endswith(" model that it fits; swap them, or remove one")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("bf16", "bfloat16"), ("BF16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")),
        *(("bfloat", "bfloat16"), ("flaot16", "float16"), ("NF4", "nf4"), ("GPTQ", "gptq")),
        *(("4bit", "nf4"), ("8bit", "int8"), ("bitsandbytes", "nf4 or int8"), (" awq", "awq")),
    ],
)
def test_a_type_of_weights_that_looks_like_a_slip_is_refused(word: str, meant: str) -> None:
    text = TOP + HARDWARE + SETTING + f'weights = ["int8", "{word}"]'
    with pytest.raises(UsageError) as raised:
        profiles.parse("p", text)
    assert str(raised.value) == (
        f"profile p, setting 1: unknown type of weights '{word}'; did you mean {meant}?"
    )


@pytest.mark.parametrize(
    "word", ["float32", "nf4", "gptq", "awq", "fp8", "compressed-tensors", "mxfp4", "a-new-method"]
)
def test_types_of_weights_are_names_of_ours_or_of_methods(word: str) -> None:
    profile = profiles.parse("p", TOP + HARDWARE + SETTING + f'weights = ["{word}"]')
    assert profile.settings[0].weights == (word,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "profile p is no valid TOML: "),
        ("", "profile p lacks 'description', a text"),
        ('description = " "' + SETTING, "profile p: description must be a text, not ' '"),
        (
            "name = 3\n" + TOP + SETTING,
            "profile p: unknown key 'name'; known: description, devices, hardware, memory,"
            " not_devices, paper, setting, tuned",
        ),
        (TOP + "devices = 'A100'\n", "profile p: devices must be a list of texts, not 'A100'"),
        (TOP + "devices = [100]\n", r"profile p: devices must be a list of texts, not \[100\]"),
        (TOP + "memory = [true]", "profile p: memory must be a list of numbers above 0"),
        (TOP + "memory = [-1]", "profile p: memory must be a list of numbers above 0"),
        (TOP + "hardware = 1", "profile p: hardware must be a table, not 1"),
        (TOP + "setting = 3", r"profile p: setting must be tables, each under \[\[setting\]\]"),
        (TOP, r"profile p lacks \[hardware\] to derive from, and no setting is for every model"),
        (TOP + SETTING + 'weights = ["nf4"]', r"profile p lacks \[hardware\]"),
        (TOP + SETTING + "up_to_parameters = 5", r"profile p lacks \[hardware\]"),
        (TOP + SETTING + "widnow = 3", "profile p, setting 1: unknown key 'widnow'; known: budget"),
        (TOP + SETTING * 2 + "x = 3", "profile p, setting 2: unknown key 'x'"),
        (TOP + SETTING.replace("window = 3", ""), "profile p, setting 1 lacks 'window', a whole"),
        (TOP + SETTING.replace("window = 3", "window = 0"), "setting 1: window must be at least 1"),
        (
            TOP + SETTING.replace("window = 3", "window = 3.5"),
            "profile p, setting 1: window must be a whole number, not 3.5",
        ),
        (TOP + SETTING + "budget = true", "setting 1: budget must be a whole number, not True"),
        (TOP + SETTING + "budget = 2", "setting 1: budget 2 is smaller than the 6 tokens"),
        (TOP + SETTING + 'sources = ["ctx"]', "profile p, setting 1: unknown source 'ctx'"),
        (TOP + SETTING + 'widths = ["1"]', "setting 1: widths must be a list of whole numbers"),
        (TOP + SETTING + "up_to_parameters = nan", "up_to_parameters must be a number above 0"),
        (
            TOP + SETTING.replace('"derived"', '"guessed"'),
            "profile p, setting 1: origin must begin with measured, published or derived, not",
        ),
        (TOP + SETTING.replace('"derived"', '"derivedly"'), "origin must begin with"),
        (TOP + SETTING + COST, "profile p, setting 1: step_cost: 1 costs for 2"),
        (
            TOP + SETTING + "[setting.step_cost]\nwidth = [1, 2]",
            "profile p, setting 1, step_cost: unknown key 'width'; known: contexts, costs, widths",
        ),
        (
            TOP + HARDWARE.replace("1e12", "'fast'"),
            "profile p, hardware: bandwidth must be a number above 0, not 'fast'",
        ),
        (TOP + HARDWARE.replace("1e12", "inf"), "bandwidth must be a number above 0, not inf"),
        (TOP + HARDWARE.replace("source", "sauce"), "profile p, hardware: unknown key 'sauce'"),
        (TOP + HARDWARE.replace("float16", "fp16"), "profile p, hardware, rates: unknown key"),
        (
            TOP + HARDWARE.replace(", float32 = 1e13", ""),
            "profile p, hardware, rates lacks 'float32', a number above 0",
        ),
        (TOP + HARDWARE.replace("rates", "#"), "profile p, hardware lacks 'rates', a table"),
        (TOP + HARDWARE + PAPER + "budget = 9", "profile p, paper 1: unknown key 'budget'"),
        (TOP + HARDWARE + PAPER.replace("ngram = 3", "ngram = 1"), "p, paper 1: ngram must be at"),
        (TOP + SETTING + TUNED + "x = 1", "profile p, tuned: unknown key 'x'"),
        (TOP + SETTING + TUNED.replace("date", "#"), "profile p, tuned lacks 'date', a text"),
        (
            TOP + SETTING + TUNED.replace('"2.13.0"', "2.13"),
            "profile p, tuned, versions: torch must be a text, not 2.13",
        ),
    ],
)
def test_wrong_files_name_the_fault(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        profiles.parse("p", text)
    assert "\n" not in str(raised.value)


def test_settings_fit_by_size_and_weights() -> None:
    text = TOP + HARDWARE
    text += SETTING + 'up_to_parameters = 1e9\nweights = ["nf4", "int8"]\n'
    text += SETTING.replace("window = 3", "window = 4") + "up_to_parameters = 1e9\n"
    profile = profiles.parse("p", text)

    def window(parameters: float, weights: str) -> int | None:
        setting = profile.setting(shape(parameters, weights))
        return setting and setting.lookahead.window

    assert window(1e9, "nf4") == 3
    assert window(1e9, "int8") == 3
    assert window(1e9, "bfloat16") == 4
    assert window(1.1e9, "nf4") is None


def test_a_type_without_units_of_its_own_runs_at_the_rate_of_float32() -> None:
    hardware = Hardware(1.0, {"float16": 8.0, "float32": 2.0}, "x")
    assert hardware.rates_for("float16").arithmetic == 8.0
    assert hardware.rates_for("bfloat16").arithmetic == 2.0
