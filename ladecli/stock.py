"""transformers' own `generate`, timed step by step: the baseline that decoding is compared with.

Its fastest form has a static cache, and steps that torch compiles; see `CompiledSteps`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, StaticCache, StoppingCriteriaList

from .device import synchronize
from .errors import LadeError
from .text import TextStream

if TYPE_CHECKING:
    from .session import Session, Settings

LOOKUP = 10
"""Tokens that transformers' prompt lookup proposes, as in its documentation."""
WARM = 3
"""Texts that are generated before compiled steps count: the first compiles them, and on a GPU the
next ones capture what was compiled."""
TRIAL = 16
"""Tokens of each of these texts."""


class Marks:
    """When steps ended, and how long the text was then; called by transformers after every step.

    Args:
        prompt: tokens of the prompt.
        cancelled: true ends the text.
        should_stop: called with every token; true ends the text after it.

    Attributes:
        seconds: on the clock of `time.perf_counter`.
        lengths: tokens of prompt and answer.
        stopped: whether a stop string ended it.
    """

    def __init__(
        self,
        prompt: int,
        cancelled: Callable[[], bool],
        should_stop: Callable[[int], bool] | None,
    ) -> None:
        self.seconds: list[float] = []
        self.lengths: list[int] = []
        self.stopped = False
        self._known, self._cancelled, self._should_stop = prompt, cancelled, should_stop
        self._candidates = self._forwarded = False

    @contextlib.contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Notice forward passes: with prompt lookup, transformers calls for candidates too, before
        a forward has looked at them, and that is no step."""
        self._candidates = True
        hook = model.register_forward_hook(self._after_forward)
        try:
            yield
        finally:
            hook.remove()

    def _after_forward(self, *_: Any) -> None:
        self._forwarded = True

    def __call__(self, ids: Tensor, _scores: Any, **_: Any) -> Tensor:
        """Whether the text ends here."""
        ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        if self._candidates and not self._forwarded:
            return ended
        self._forwarded = False
        synchronize(ids.device)
        length, cancelled = ids.shape[1], self._cancelled()
        if self._should_stop is not None:
            for at in range(self._known, length):
                if self._should_stop(int(ids[0, at])):
                    length, self.stopped = at + 1, True
                    break
        self._known = length
        self.seconds.append(time.perf_counter())
        self.lengths.append(length)
        return ended | self.stopped | cancelled


class CompiledSteps:
    """A static cache, with which transformers compiles its steps; prompts are read without.

    One cache serves all answers: torch looks at its length and at where it lies, and compiles, and
    on a GPU captures, anew for another one.  That happens for a text that is longer than expected.

    Args:
        model: as it was loaded.
        room: tokens of the longest prompt and its answer.  Every step attends to all of them.

    Attributes:
        seconds: what compiling took so far.
    """

    def __init__(self, model: Any, room: int) -> None:
        self.seconds = 0.0
        self._model_config = model.config
        self._make_room(max(room, 2 * TRIAL))
        self._config = _compile_config()

    def prepare(
        self,
        session: Session,
        prompt: Sequence[int],
        settings: Settings,
        cancelled: Callable[[], bool],
    ) -> None:
        """Compile, on a few short texts that are not shown.

        Args:
            session: whose model it is.
            prompt: token ids, cut to what there is room for.
            settings: as for answers.
            cancelled: called after every step; true ends it.

        Raises:
            LadeError: transformers does not compile the steps of this model here.
            Exception: any that transformers or the compiler raises.
        """
        short = replace(settings, max_new_tokens=TRIAL, ignore_eos=True, stop=())
        prompt = prompt[: self._room - TRIAL]
        began, before = time.perf_counter(), compilations()
        for _ in range(WARM):
            generate(session, prompt, short, lookup=False, compiled=self, cancelled=cancelled)
            if cancelled():
                return
            if compilations() == before:
                raise LadeError("transformers does not compile the steps of this model")
        self.seconds += time.perf_counter() - began

    def keywords(self, needed: int) -> dict[str, Any]:
        """What `model.generate` needs besides, for a text of this many tokens."""
        if needed > self._room:
            self._make_room(needed + needed // 4)  # others may be a little longer still
        self._cache.reset()
        return {"past_key_values": self._cache, "compile_config": self._config}

    def _make_room(self, room: int) -> None:
        self._room = room
        self._cache = StaticCache(config=self._model_config, max_cache_len=room)


def compilations() -> int:
    """How often something was compiled by torch in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


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
        cancelled: called after every step; true ends the answer.

    Returns:
        The ids of the answer, and when they came.

    Raises:
        Exception: any that transformers raises.
    """
    model, length = session.stock_model, len(prompt)
    config = _config(session, length, settings, lookup)
    given = compiled.keywords(length + config.max_new_tokens) if compiled else {}
    stream = TextStream(session.loaded.tokenizer, prompt, settings.stop)
    marks = Marks(length, cancelled, stream.feed if settings.stop else None)
    # A hook would have a compiled step compiled anew.
    watching = marks.watching(model) if lookup else contextlib.nullcontext()
    ids = torch.tensor([list(prompt)], device=model.device)
    if not settings.sampling.greedy:
        torch.manual_seed(settings.sampling.seed)
    with watching, _without_defaults(model):
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([marks]),
            **given,
        )
    end = marks.lengths[-1] if marks.stopped else out.shape[1]
    answer = [int(token) for token in out[0, length:end]]
    # Prompt lookup may go on after the end, and cuts the text afterwards.
    marks.lengths = [min(each, length + len(answer)) for each in marks.lengths]
    return answer, marks


def _config(session: Session, prompt: int, settings: Settings, lookup: bool) -> GenerationConfig:
    """What transformers is asked for; `prompt` is the number of its tokens."""
    own, longest = session.loaded.model.generation_config, session.decoder.max_context
    sampling = settings.sampling
    drawing = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p or None,
    }
    return GenerationConfig(
        max_new_tokens=min(settings.max_new_tokens or longest, longest - prompt),
        eos_token_id=None if settings.ignore_eos else sorted(session.loaded.stop_ids) or None,
        pad_token_id=own.pad_token_id or 0,
        repetition_penalty=sampling.repetition_penalty,
        prompt_lookup_num_tokens=LOOKUP if lookup else None,
        use_cache=True,
        num_beams=1,
        do_sample=not sampling.greedy,
        **({} if sampling.greedy else drawing),
    )


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
