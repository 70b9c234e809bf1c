"""Where options are set for good: the config file and the environment.  Paths and words alone."""

from __future__ import annotations

from pathlib import Path

PREFIX = "LADE_"
"""Of every variable that sets an option."""
CONFIG_FILE = "config file"
"""The origin of what the config file says."""


def config_path() -> Path:
    """Where the config file is, or would be."""
    from platformdirs import user_config_path

    return user_config_path("lade", appauthor=False) / "config.toml"
