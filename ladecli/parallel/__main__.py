"""A follower of `--parallel K`."""

from __future__ import annotations

import os

from ..launch import open_follower
from .follow import as_child

if __name__ == "__main__":
    os._exit(as_child(open_follower))  # torch's own end would take a second
