"""Random models as sessions, and faults to find in them."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.recheck import Recheck
from ladecli.decoder.runner import Runner
from ladecli.device import detect
from ladecli.models import LoadedModel
from ladecli.session import Session, Settings
from ladecli.suites import Row

from ..families import model_of, prompt_for
from ..tokenizers_here import byte_level

CONFIG = LookaheadConfig(window=4, ngram=4, guesses=4)
ROWS = (Row("one", "a", ("x",)), Row("two", "b", ("xy", "xyz")))


class RandomSession(Session):
    """A random model of a family; prompts are random ids, as many more as the text is long."""

    def __init__(self, family: str, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        model = model_of(family)
        if dtype != torch.float32:
            model = copy.deepcopy(model).to(dtype)
        shape = cast(Any, None)
        super().__init__(
            LoadedModel(family, model, byte_level(), detect("cpu"), shape, shape, (), 0.0),
            **options,
        )
        self._family = family

    def encode(self, prompt: str) -> list[int]:
        return prompt_for(self._family, 20 + len(prompt))


def settings(new: int = 40, sampling: SamplingConfig | None = None, **others: Any) -> Settings:
    return Settings(
        lookahead=CONFIG,
        sampling=sampling or SamplingConfig(),
        max_new_tokens=new,
        ignore_eos=True,
        **others,
    )


def recheck_of(session: Session) -> Recheck:
    return Recheck(session.decoder, session.loaded.model, "auto")


def plant(patch: pytest.MonkeyPatch, by: float, widest: int = 4) -> None:
    """Let steps with more tokens than that behind the text say something else."""
    forward = Runner.forward

    def wrong(self: Runner, layout: StepLayout) -> Tensor:
        logits = forward(self, layout)
        if len(layout.tokens) - layout.pending < widest:
            return logits
        generator = torch.Generator().manual_seed(len(layout.tokens))
        signs = torch.randint(0, 2, (logits.shape[-1],), generator=generator) * 2 - 1
        return logits + by * signs.to(logits.dtype)

    patch.setattr(Runner, "forward", wrong)
