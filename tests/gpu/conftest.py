"""Skip tests without a GPU; multiply float32 without TF32."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

MISSING = os.environ.get("LADE_TEST_GPU") != "1" or not torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _on_a_gpu() -> Iterator[None]:
    if MISSING:
        pytest.skip("needs a GPU; where there is one, LADE_TEST_GPU=1")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
