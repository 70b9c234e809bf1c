"""The Python API: load a model, stream events or take text."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import launch, models, ways
from .decoder.config import LookaheadConfig, SamplingConfig
from .decoder.errors import PromptError
from .errors import LadeError, UsageError
from .events import Ended, TextEvent, TextStep
from .metrics import Tally
from .options import LoadOptions, Request
from .provision import provide
from .session import Session, Settings
from .visualize import memory_line

Prompt = str | Sequence[dict[str, str]]
"""A text to continue, or a conversation: messages with `role` and `content`."""


class Model:
    """A loaded model that answers prompts.

    Args:
        session: the model at work.
        lookahead: settings used where a call gives none.
        notices: what was worth a warning when it was loaded.
    """

    def __init__(
        self, session: Session, lookahead: LookaheadConfig, notices: Sequence[str] = ()
    ) -> None:
        self.session = session
        self.lookahead = lookahead
        self.notices = tuple(notices)

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
        """The whole answer as text; options and errors as for `stream`.

        Raises:
            LadeError: memory did not suffice for all of it; `stream` gives what there is.
        """
        text, tally = [], Tally()
        for event in self.stream(prompt, **options):
            tally.add(event)
            match event:
                case TextStep():
                    text += [piece.text for piece in event.pieces]
                case Ended():
                    text.append(event.rest)
        if tally.reason == "memory":
            raise LadeError(memory_line(tally) or "out of memory")
        return "".join(text)


def load(
    name: str | Path = models.DEMO,
    *,
    attention: str = "auto",
    cuda_graphs: bool | None = None,
    compile: bool = False,
    kernels: bool = True,
    max_context: int | None = None,
    profile: str | None = None,
    budget: int | None = None,
    **options: Any,
) -> Model:
    """Load a model from the Hugging Face hub or a local folder.

    What `lade generate` would tell its user on the way comes as warnings, and stays in the
    model's `notices`.  Messages name arguments as the command line does: `--max-context` is
    `max_context`.

    Args:
        name: a hub id, a folder, or "demo" for the bundled model.
        attention: auto (the fastest here), reference, sdpa, flash or triton.
        cuda_graphs: whether steps are captured as CUDA graphs; None for wherever that can be.
        compile: whether captured steps are compiled by torch first.
        kernels: whether Triton kernels may be used.
        max_context: the most tokens of prompt and answer together; None for as many as the model
            was made for and memory has room for.
        profile: name of the hardware profile; None for the detected device's.
        budget: tokens in one step; None for the profile's.
        options: fields of `settings.LoadOptions`: dtype, device, quantize, …; but for
            `tensor_parallel`, which takes processes that the command line starts.

    Raises:
        UsageError, ConfigError: an argument is out of range, or memory has no room for the
            context or the steps that were asked for.
        LadeError: the model cannot be loaded; the message says why and what helps.
        UnsupportedModelError: it cannot be decoded here.
    """
    request = Request(
        model=str(name),
        attention=attention,
        cuda_graphs=cuda_graphs,
        compile=compile,
        kernels=kernels,
        max_context=max_context,
        profile=profile,
        budget=budget,
        **_fields(LoadOptions(**options)),
    )
    request.check()
    planned = models.plan(str(name), request.load_options())
    ways.check(request, planned.device, planned.part)
    backend = ways.attention_of(request, planned.device, planned.part).name
    graphs = ways.no_graphs(request, planned.device) is None
    choice = launch.choice_for(request, planned.device, planned.shape)
    settings = request.lookahead(choice.lookahead)
    provided = provide(request, planned, settings, backend, graphs)
    loaded = models.load(planned, beside=provided.beside)
    session = Session(
        loaded,
        attention=backend,
        max_context=provided.context,
        graphs=graphs,
        compiled=compile,
        kernels=kernels,
        pack=provided.pack,
    )
    more = provided.notice, ways.without_graphs(request, session)
    notices = [*session.notices, *choice.notices, *filter(None, more)]
    for notice in notices:
        warnings.warn(notice, stacklevel=2)
    return Model(session, settings, notices)


def _fields(options: LoadOptions) -> dict[str, Any]:
    """The options as fields of a request."""
    given = asdict(options)
    if given.pop("tensor_parallel") > 1:
        raise UsageError("tensor_parallel takes several processes: lade generate --parallel K does")
    return given
