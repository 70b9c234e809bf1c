"""The Python API: load a model, stream events or take text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import models, profiles
from .decoder.config import LookaheadConfig, SamplingConfig
from .decoder.errors import PromptError
from .events import Ended, TextEvent, TextStep
from .session import Session, Settings
from .settings import LoadOptions

Prompt = str | Sequence[dict[str, str]]
"""A text to continue, or a conversation: messages with `role` and `content`."""


class Model:
    """A loaded model that answers prompts.

    Args:
        session: the model at work.
        lookahead: settings used where a call gives none.
    """

    def __init__(self, session: Session, lookahead: LookaheadConfig) -> None:
        self.session = session
        self.lookahead = lookahead

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        strategy: str = "lookahead",
        lookahead: LookaheadConfig | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> Iterator[TextEvent]:
        """Stream the answer as events; `TextStep` events hold the text.

        Args:
            prompt: a text to continue, or the messages of a conversation.
            max_new_tokens: at most so many; None for as many as the context holds.
            strategy: lookahead, autoregressive, jacobi or prompt-lookup.
            lookahead: window, n-grams and guesses; None for the profile's.
            stop: a string that ends the answer, or several.
            ignore_eos: go on behind end tokens.
            sampling: fields of `SamplingConfig`: temperature, top_k, top_p, min_p,
                repetition_penalty, seed.  Without any, greedy with the model's own penalty.

        Raises:
            PromptError: the prompt is empty or too long.
            ConfigError: there is no such strategy, or a value is out of range.
        """
        if not prompt:
            raise PromptError("the prompt is empty")
        session = self.session
        chosen = {"repetition_penalty": session.loaded.repetition_penalty, **sampling}
        ids = session.encode(prompt) if isinstance(prompt, str) else session.encode_chat(prompt)
        settings = Settings(
            strategy=strategy,
            lookahead=lookahead or self.lookahead,
            sampling=SamplingConfig(**chosen),
            max_new_tokens=max_new_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
        )
        return session.stream(ids, settings)

    def generate(self, prompt: Prompt, **options: Any) -> str:
        """The whole answer as text; options and errors as for `stream`."""
        text = []
        for event in self.stream(prompt, **options):
            match event:
                case TextStep():
                    text += [piece.text for piece in event.pieces]
                case Ended():
                    text.append(event.rest)
        return "".join(text)


def load(
    name: str | Path = models.DEMO,
    *,
    attention: str = "auto",
    max_context: int | None = None,
    profile: str | None = None,
    **options: Any,
) -> Model:
    """Load a model from the Hugging Face hub or a local folder.

    Args:
        name: a hub id, a folder, or "demo" for the bundled model.
        attention: auto, reference or sdpa.
        max_context: the most tokens of prompt and answer together.
        profile: name of the hardware profile; None for the detected device's.
        options: fields of `settings.LoadOptions`: dtype, device, quantize, …

    Raises:
        LadeError: the model cannot be loaded; the message says why and what helps.
        UnsupportedModelError: it cannot be decoded here.
    """
    loaded = models.load(str(name), LoadOptions(**options))
    session = Session(loaded, attention=attention, max_context=max_context)
    chosen = profiles.select(profile, loaded.device, loaded.model.num_parameters())
    return Model(session, chosen.lookahead)
