"""Random models as sessions, and faults to find in them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.engine import Decoder
from ladecli.decoder.load import load_decoder
from ladecli.decoder.runner import Forward
from ladecli.decoder.step_inputs import StepInputs
from ladecli.decoder.transformer import StepCache
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
        # A copy: the decoder joins weights.
        model = copy.deepcopy(model_of(family)).to(dtype)
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


class Faulty:
    """A forward whose steps of many tokens have wrong logits.

    Args:
        inner: the right one.
        by: how far they are off.
        widest: tokens of the widest step that is right.
    """

    def __init__(self, inner: Forward, by: float, widest: int = 4) -> None:
        self.inner, self.by, self.widest = inner, by, widest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        logits = self.inner.forward(step, cache)
        if len(step.tokens) <= self.widest:
            return logits
        generator = torch.Generator().manual_seed(len(step.tokens))
        signs = torch.randint(0, 2, (logits.shape[-1],), generator=generator) * 2 - 1
        return logits + self.by * signs.to(logits.dtype)


def after_loading(patch: pytest.MonkeyPatch, change: Callable[[Decoder], object]) -> None:
    """Change the decoders of sessions, of which trial steps were right."""

    def load(model: Any, **options: Any) -> Decoder:
        decoder = load_decoder(model, **options)
        change(decoder)
        return decoder

    patch.setattr("ladecli.session.load_decoder", load)


def plant(patch: pytest.MonkeyPatch, by: float) -> None:
    """Let wide steps of sessions be wrong."""

    def change(decoder: Decoder) -> None:
        decoder.runner.model = Faulty(decoder.runner.model, by)

    after_loading(patch, change)
