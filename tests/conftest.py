"""Fixtures of all tests: one thread, no hub, no user settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's settings or cache, and none asks the hub."""
    home: Path = tmp_path_factory.mktemp("home")
    for name in ("XDG_CONFIG_HOME", "HF_HOME", "HOME"):
        monkeypatch.setenv(name, str(home))
    for name in ("LADE_MODEL", "LADE_STRATEGY", "NO_COLOR", "FORCE_COLOR", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Programs that tests start must not fight for the cores.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
