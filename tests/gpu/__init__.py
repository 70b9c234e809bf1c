"""Tests that need a GPU.

`LADE_TEST_GPU=1 python -m pytest tests/gpu` runs them where there is one; everywhere else they are
skipped.  `LADE_TEST_GPU=cpu` rehearses them, with work done again in place of CUDA graphs, so that
they can be written without a GPU.
"""

from __future__ import annotations

import copy
import os
from functools import cache
from typing import Any

import pytest
import torch

from ladecli.decoder.capture import Capture, capture_for
from ladecli.decoder.engine import Decoder

from ..decoder.tracing import Again
from ..families import model_of

_WHERE = os.environ.get("LADE_TEST_GPU", "")
ON_GPU = _WHERE == "1"
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
_MISSING = ON_GPU and not torch.cuda.is_available()

needs_gpu = pytest.mark.skipif(
    _MISSING or _WHERE not in ("1", "cpu"),
    reason="torch sees no GPU" if _MISSING else "needs a GPU; where there is one, LADE_TEST_GPU=1",
)
"""For every file here."""
needs_cuda = pytest.mark.skipif(not ON_GPU, reason="nothing on a CPU stands for this")
"""For what cannot be rehearsed."""


@cache
def model_on_device(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """The random model of a family where it is tested; tests must not change it."""
    return copy.deepcopy(model_of(family)).to(DEVICE, dtype)


def capture_of(model: Any) -> Capture:
    """What captures its steps: CUDA graphs, or in a rehearsal what stands for them."""
    return capture_for(model) or Again()


def captured(model: Any, attention: str = "sdpa") -> Decoder:
    """A decoder with captured steps."""
    return Decoder(model, attention=attention, capture=capture_of(model))


def eager(model: Any) -> Decoder:
    """One without, and with attention written out: what others are tested against."""
    return Decoder(model, attention="reference")
