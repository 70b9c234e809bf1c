"""transformers' own `generate`, timed step by step: what our decoding is measured against.

Its fastest form has a static cache, and steps that torch compiles; see `CompiledSteps`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    CompileConfig,
    GenerationConfig,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .errors import LadeError
from .text import TextStream

if TYPE_CHECKING:
    from .decoder.config import SamplingConfig
    from .session import Session, Settings

LOOKUP = 10
"""Tokens that transformers' prompt lookup proposes, as in its documentation."""
WARM = 3
"""Texts that are generated before compiled steps count: the first compiles them, and on a GPU the
next ones capture what was compiled."""
TRIAL = 16
"""Tokens of each of these texts."""


@dataclass(slots=True)
class Marks:
    """When steps ended, and how long the text was then.

    Attributes:
        seconds: on the clock of `time.perf_counter`.
        lengths: tokens of prompt and answer.
        stopped: whether a stop string ended it.
    """

    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    stopped: bool = False


class _Clock(StoppingCriteria):  # type: ignore[misc]  # transformers has no types
    """Is asked after every step: looks at the clock, and for what ends the text.

    Some versions of transformers ask about candidates of prompt lookup, too, before a forward has
    looked at them; that is no step.

    Args:
        marks: where it writes down what it sees.
        prompt: tokens of the prompt.
        cancelled: true ends the text.
        should_stop: asked about every token; true ends the text behind it.
        candidates: whether it may be asked about candidates.
    """

    def __init__(
        self,
        marks: Marks,
        prompt: int,
        cancelled: Callable[[], bool],
        should_stop: Callable[[int], bool] | None,
        candidates: bool,
    ) -> None:
        self._marks = marks
        self._known = prompt
        self._cancelled = cancelled
        self._should_stop = should_stop
        self._candidates = candidates
        self._looked = False

    @contextlib.contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Learn of every forward pass, where that has to be known.

        A compiled step would be compiled anew for every hook.
        """
        hook = model.register_forward_hook(self._has_looked) if self._candidates else None
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def _has_looked(self, *_: Any) -> None:
        self._looked = True

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if self._candidates and not self._looked:
            return torch.full((input_ids.shape[0],), False, device=input_ids.device)
        self._looked = False
        if input_ids.device.type == "cuda":
            torch.cuda.synchronize(input_ids.device)
        elif input_ids.device.type == "mps":
            torch.mps.synchronize()
        length, stopped = input_ids.shape[1], self._cancelled()
        if self._should_stop is not None:
            for at in range(self._known, length):
                if self._should_stop(int(input_ids[0, at])):
                    length, stopped, self._marks.stopped = at + 1, True, True
                    break
            self._known = length
        self._marks.seconds.append(time.perf_counter())
        self._marks.lengths.append(length)
        return torch.full((input_ids.shape[0],), stopped, device=input_ids.device)


class CompiledSteps:
    """A static cache, with which transformers compiles its steps; prompts are read without.

    One cache serves all answers, emptied in between: torch looks at its length and at where it
    lies, and compiles, and on a GPU captures, anew for another one.  That happens for a text that
    is longer than foreseen.

    Args:
        model: as it was loaded.
        room: tokens of the longest prompt and its answer.  Every step attends to as many, so it
            should not be more than what is needed.

    Attributes:
        seconds: what compiling took so far.
    """

    def __init__(self, model: Any, room: int) -> None:
        self.seconds = 0.0
        self._model_config = model.config
        # Room for the texts that it is compiled on, too.
        self._make_room(max(room, 2 * TRIAL))
        self._config = _compile_config()

    def prepare(
        self,
        session: Session,
        prompt: Sequence[int],
        settings: Settings,
        cancelled: Callable[[], bool],
    ) -> None:
        """Compile, on a few short texts that nobody sees.

        Args:
            session: whose model it is.
            prompt: token ids, of which as many are taken as there is room for.
            settings: as for answers.
            cancelled: asked after every step; true ends it.

        Raises:
            LadeError: transformers does not compile the steps of this model here.
            Exception: whatever transformers or the compiler raises.
        """
        short = replace(settings, max_new_tokens=TRIAL, ignore_eos=True, stop=())
        began, before = time.perf_counter(), compilations()
        for _ in range(WARM):
            generate(
                session,
                prompt[: self._room - TRIAL],
                short,
                lookup=False,
                compiled=self,
                cancelled=cancelled,
            )
            if cancelled():
                return
            if compilations() == before:
                raise LadeError("transformers does not compile the steps of this model")
        self.seconds += time.perf_counter() - began

    def given(self, config: GenerationConfig, prompt: int) -> dict[str, Any]:
        """What `model.generate` needs beside its usual arguments, for one more text.

        Args:
            config: what it is asked for; is told how to compile.
            prompt: tokens of the prompt.
        """
        needed = prompt + config.max_new_tokens
        if needed > self._room:
            # Others may be a little longer still.
            self._make_room(needed + needed // 4)
        config.compile_config = self._config
        self._cache.reset()
        return {"past_key_values": self._cache}

    def _make_room(self, room: int) -> None:
        self._room = room
        self._cache = StaticCache(config=self._model_config, max_cache_len=room)


def compilations() -> int:
    """How often something was compiled by torch in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _compile_config() -> CompileConfig:
    """transformers' own, for devices too on which it does not compile by itself."""
    config = CompileConfig()
    config._compile_all_devices = True
    return config


@contextlib.contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Take the model's own generation config away: it would fill in what ours leaves open."""
    before = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before


def generate(
    session: Session,
    prompt: Sequence[int],
    settings: Settings,
    *,
    lookup: bool,
    compiled: CompiledSteps | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[list[int], Marks]:
    """Decode with `model.generate` and the model's own attention.

    Of the model's generation config it takes what our own strategies take, and nothing else: end
    tokens, and the repetition penalty by way of the settings.

    Args:
        session: whose model it is.
        prompt: token ids.
        settings: length, end tokens, stop strings and sampling; `strategy` and `lookahead` are
            not looked at.
        lookup: whether with `prompt_lookup_num_tokens`.
        compiled: the cache, and how to compile steps; None for a cache that grows, and for steps
            as they are.
        cancelled: asked after every step; true ends the answer.

    Returns:
        The ids of the answer, and when they came.

    Raises:
        Exception: whatever transformers raises.
    """
    model, marks = session.stock_model, Marks()
    config = _config(session, len(prompt), settings, lookup)
    stream = TextStream(session.loaded.tokenizer, prompt, settings.stop)
    should_stop = stream.feed if settings.stop else None
    clock = _Clock(marks, len(prompt), cancelled, should_stop, candidates=lookup)
    ids = torch.tensor([list(prompt)], device=model.device)
    if not settings.sampling.greedy:
        torch.manual_seed(settings.sampling.seed)
    given = {} if compiled is None else compiled.given(config, len(prompt))
    with clock.watching(model), _without_defaults(model):
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([clock]),
            **given,
        )
    end = marks.lengths[-1] if marks.stopped else out.shape[1]
    answer = [int(token) for token in out[0, len(prompt) : end]]
    # Prompt lookup may go on behind the end, and cuts the text afterwards.
    marks.lengths = [min(length, len(prompt) + len(answer)) for length in marks.lengths]
    return answer, marks


def _config(session: Session, prompt: int, settings: Settings, lookup: bool) -> GenerationConfig:
    """What transformers is asked for; `prompt` is the number of its tokens."""
    own, longest = session.loaded.model.generation_config, session.decoder.max_context
    return GenerationConfig(
        max_new_tokens=min(settings.max_new_tokens or longest, longest - prompt),
        eos_token_id=None if settings.ignore_eos else sorted(session.loaded.stop_ids) or None,
        pad_token_id=own.pad_token_id or 0,
        repetition_penalty=settings.sampling.repetition_penalty,
        prompt_lookup_num_tokens=LOOKUP if lookup else None,
        use_cache=True,
        num_beams=1,
        **_drawing(settings.sampling),
    )


def _drawing(sampling: SamplingConfig) -> dict[str, Any]:
    """How tokens are chosen, in transformers' words."""
    if sampling.greedy:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p or None,
    }
