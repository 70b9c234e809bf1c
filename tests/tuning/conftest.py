"""Fixtures of the tests of tuning: time that passes only in a fake decoder's steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .fakes import FakeDecoder


@pytest.fixture
def on_its_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeDecoder], FakeDecoder]:
    """Let tuning live by a fake decoder's clock."""

    def use(decoder: FakeDecoder) -> FakeDecoder:
        for module in ("curve", "search"):
            monkeypatch.setattr(f"ladecli.tuning.{module}.time", decoder)
        return decoder

    return use
