"""What tests need that is not on every machine."""

from __future__ import annotations

import pytest

from ladecli.decoder.lean import fused

TRITON = pytest.mark.skipif(fused.loaded() is None, reason="needs the package triton")
