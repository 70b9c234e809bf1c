"""A follower of `--parallel K`: torchrun starts it, and the environment says whose it is."""

from __future__ import annotations

import sys

from ..launch import open_follower
from .follow import as_child

if __name__ == "__main__":
    sys.exit(as_child(open_follower))
