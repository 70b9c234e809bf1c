"""The quick measurement of a device, against what is known of any machine."""

from __future__ import annotations

import pytest
import torch

from ladecli import launch, rates
from ladecli.device import Device, detect
from ladecli.options import Request
from ladecli.rates import measure_rates

from .profiles.makers import shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rates_are_plausible_and_kept(dtype: str) -> None:
    device = detect("cpu")
    rates = measure_rates(device, dtype, seconds=0.02)
    # A memory chip's bandwidth to a large machine's; a slow core to a large machine.
    assert 2e8 < rates.bandwidth < 5e12
    assert 1e8 < rates.arithmetic < 1e15
    assert device.label in rates.source
    assert measure_rates(device, dtype, seconds=0.02) is rates, "asked twice, measured once"


def test_a_device_without_room_for_it_gets_cautious_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(rates, "measure_rates", fail)
    monkeypatch.setattr("ladecli.decoder.attention.triton_available", lambda _: True)
    choice = launch.choice_for(Request(), Device("cuda", "cuda:0", "Unheard Of"), shape())
    assert choice.profile == "gpu"
    assert any("settings are those of a slow one" in line for line in choice.notices)
