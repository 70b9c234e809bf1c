"""transformers' own `generate` as an independent baseline, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, StaticCache, StoppingCriteriaList
from transformers.generation import BaseStreamer

from ..decoder.backends.compat import GENERATE_CACHE
from ..errors import LadeError
from ..generation_config import as_generate
from ..session.text import TextStream
from .result import STOCK_COMPILED, STOCK_LOOKUP, Method
from .runners import Answer

if TYPE_CHECKING:
    from ..events import Reason
    from ..session.session import Session, Settings

LOOKUP = 10
"""The number of tokens that transformers' prompt lookup proposes, as in its documentation."""


class StockRunner:
    """`generate` by itself, with prompt lookup, or with a static cache and compiled steps.

    The generation config has the same effects as for our own strategies: the ends of texts, logits
    processors, and the repetition penalty, which the settings contain.

    `room` is the estimated length of the static cache, for prompt and answer.
    """

    def __init__(self, method: Method, session: Session, settings: Settings, room: int = 0) -> None:
        self.method = method
        self._session, self._settings = session, settings
        self._lookup = method.strategy == STOCK_LOOKUP
        # One cache for all answers: torch compiles again for another length, and on a GPU captures
        # again for another address.
        self._cache: StaticCache | None = None
        if method.strategy == STOCK_COMPILED:
            self._make_cache(room)

    def _make_cache(self, length: int) -> None:
        self._room = length
        self._cache = StaticCache(config=self._session.stock_model.config, max_cache_len=length)

    @property
    def built(self) -> int:
        """The number of graphs compiled so far; a longer text than before needs another one."""
        return compilations() if self._cache is not None else 0

    def begin(self) -> None:
        """Free the memory of our own decoder, except captured steps, which are slow to create."""
        decoder = self._session.decoder
        decoder.forget(keep_memory=decoder.executor.overlaps)

    def answer(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Answer:
        """Answer one prompt; errors are those of transformers."""
        self._session.decoder.check_prompt(prompt)
        settings, model, length = self._settings, self._session.stock_model, len(prompt)
        config = _config(self._session, length, settings, self._lookup)
        kwargs: dict[str, Any] = {}
        if self._cache is not None:
            if (needed := length + config.max_new_tokens) > self._room:
                self._make_cache(needed + needed // 4)  # later texts may be a little longer
            self._cache.reset()
            kwargs = {GENERATE_CACHE: self._cache, "compile_config": compile_config()}
        stops = self._session.stops(settings)
        stream = TextStream(self._session.loaded.tokenizer, prompt, stops)
        steps = _Steps(cancelled, stream.feed if stops else None)
        ids = torch.tensor([list(prompt)], device=model.device)
        if not settings.sampling.greedy:
            torch.manual_seed(settings.sampling.seed)
        began = time.perf_counter()
        with _without_defaults(model):
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([steps.ended]),
                streamer=steps,
                **kwargs,
            )
        if self._cache is not None and not compilations():
            raise LadeError("transformers does not compile the steps of this model")
        # Prompt lookup may generate tokens after the end, and cuts the text afterwards.
        answer = steps.ids[: out.shape[1] - length]
        ended = bool(answer) and answer[-1] in (config.eos_token_id or ())
        reason: Reason = "eos" if ended and not steps.stopped else "stop"
        if steps.cancelled:
            reason = "interrupted"
        elif len(answer) == config.max_new_tokens and not steps.stopped:
            reason = "length"
        return Answer(
            ids=answer,
            delta=self._session.text_of(answer, prompt, settings),
            marks=[mark - began for mark in steps.marks],
            lengths=[min(length, len(answer)) for length in steps.lengths],
            reason=reason,
        )


class _Steps(BaseStreamer):  # type: ignore[misc]
    """Records the tokens of an answer (`ids`), and their number (`lengths`) and the time (`marks`)
    after every step.

    `should_stop` is called with every token, and True ends the text after it.
    """

    def __init__(
        self, cancelled: Callable[[], bool], should_stop: Callable[[int], bool] | None
    ) -> None:
        self.ids: list[int] = []
        self.marks: list[float] = []
        self.lengths: list[int] = []
        self.stopped = self.cancelled = False
        self._is_cancelled, self._should_stop = cancelled, should_stop
        self._prompt_follows = True

    def put(self, tokens: Tensor) -> None:
        """Record the tokens of a step; the first call has the prompt, and calls after the end are
        ignored."""
        if self._prompt_follows or self.stopped or self.cancelled:
            self._prompt_follows = False
            return
        self.marks.append(time.perf_counter())
        for token in tokens.flatten().tolist():
            self.ids.append(token)
            if self._should_stop is not None and self._should_stop(token):
                self.stopped = True
                break
        self.lengths.append(len(self.ids))
        self.cancelled = self._is_cancelled()

    def end(self) -> None:
        """Do nothing, since no token is held back."""

    def ended(self, ids: Tensor, _scores: Any, **_: Any) -> Tensor:
        """Return True, as a tensor [1], if the text ends here."""
        return torch.tensor([self.stopped or self.cancelled], device=ids.device)


def compilations() -> int:
    """Return the number of graphs that torch compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _config(session: Session, prompt: int, settings: Settings, lookup: bool) -> GenerationConfig:
    """Return the config for `generate`; `prompt` is the number of its tokens."""
    loaded, longest = session.loaded, session.decoder.max_context
    stop_ids = session.stop_ids(settings)
    config = as_generate(loaded.defaults.config, settings.sampling, stop_ids)
    config.max_new_tokens = min(settings.max_new_tokens or longest, longest - prompt)
    config.pad_token_id = 0  # unused, but transformers warns if there is none
    config.prompt_lookup_num_tokens = LOOKUP if lookup else None
    config.use_cache = True
    return config


def compile_config() -> CompileConfig:
    """Return transformers' own config, also for devices on which it does not compile by default."""
    config = CompileConfig()
    config._compile_all_devices = True
    return config


@contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Remove the model's own generation config, whose values would fill the gaps of ours."""
    before = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before
