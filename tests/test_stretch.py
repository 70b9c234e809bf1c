"""Longer texts than a model was made for: where that can be, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ladecli import models
from ladecli.errors import UsageError
from ladecli.stretch import stretched

from .test_models import demo_with


def test_a_model_is_stretched_to_see_what_long_texts_cost() -> None:
    planned = stretched(models.plan("demo"), 4096)
    assert planned.facts.context == 4096
    assert planned.made_for == 2048
    assert "was made for 2,048 tokens" in planned.notices[-1]
    loaded = models.load(planned)
    assert loaded.made_for == 2048
    ids = torch.arange(3000)[None] % 4096
    logits = loaded.model(ids, logits_to_keep=1).logits
    # Positions that it was made for mean what they meant.
    short = loaded.model(ids[:, :100]).logits
    assert torch.allclose(short, models.load("demo").model(ids[:, :100]).logits)
    assert bool(logits.isfinite().all())


def test_a_model_with_room_enough_stays_as_it_is() -> None:
    planned = models.plan("demo")
    assert stretched(planned, 2048) is planned
    assert models.load(planned).made_for is None


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 16,
            "long_factor": [2.0] * 16,
            "original_max_position_embeddings": 1024,
        },
    ],
    ids=["dynamic", "longrope"],
)
def test_positions_that_change_their_meaning_cannot_be_stretched(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    planned = models.plan(demo_with(tmp_path, rope_parameters=rope))
    with pytest.raises(UsageError, match=r"has positions for 2,048 tokens, and 4,096 are wanted"):
        stretched(planned, 4096)


def test_a_table_of_positions_cannot_be_stretched(tmp_path: Path) -> None:
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, n_positions=64)
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has positions for 64 tokens, and 128 are wanted"):
        stretched(models.plan(str(tmp_path)), 128)
