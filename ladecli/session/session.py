"""A loaded model: turns a prompt into ids, decodes them, and turns tokens into text events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..decoder.backends.load import load_decoder
from ..decoder.backends.prefixes import Prefixes
from ..decoder.config import Limits, LookaheadConfig, SamplingConfig
from ..decoder.drafting.constants import CONSTANTS
from ..decoder.drafting.store import DraftStore
from ..decoder.executor import Executor
from ..decoder.sampling import LogitsProcessor
from ..decoder.strategies import make_strategy
from ..errors import NoEmbeddingError
from ..events import TextEvent
from ..models.load import LoadedModel
from ..options.answer import TemplateChoice
from ..profiles import Choice, measured
from .chat_template import ChatMessage, ChatTemplate, text_of
from .grammar import AnswerGrammar, Grammar, grammar_tokenizer
from .reasoning import splitter
from .setup import Setup
from .text import TextDelta, TextStream, text_events
from .tokens import fill_in, fill_in_stops, shortened, token_ids

OWN_TEMPLATE = TemplateChoice()
"""The model's own chat template."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one answer."""

    strategy: str = "lookahead"  # a name in `decoder.config.STRATEGIES`
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_new_tokens: int | None = None  # None for as many as the context holds
    stop: tuple[str, ...] = ()  # strings that end the text
    ignore_eos: bool = False  # decoding goes on after end-of-text tokens
    template: TemplateChoice | None = None  # None for a text to continue
    fills_in: bool = False  # the prompt comes from `fill_in`
    calls: bool = False  # the text keeps the marks of tool calls, see `CallReader`
    logprobs: int | None = None  # see `Decoder.generate`
    grammar: Grammar | None = None  # constrains the answer


class Session:
    """A loaded model and its decoder.

    It keeps the cache and the learned drafts from one answer to the next.

    Args:
        loaded: model and tokenizer.
        setup: the decisions of `setup.decide`.
        on_layer: called with the number of prepared layers, and the number of all layers.

    Attributes:
        load_seconds: the time that opening took; 0 if it was not measured.

    Raises:
        UnsupportedModelError: the model cannot be decoded here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        setup: Setup | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> None:
        self.loaded = loaded
        self.load_seconds = 0.0
        self.setup = setup = setup or Setup()
        with measured.times_of_products() as times:
            self.decoder = load_decoder(
                loaded.model,
                attention=setup.attention.name,
                max_context=setup.context,
                cuda_graphs=setup.no_graphs_reason is None,
                kernels=setup.kernels,
                pack=setup.store_twice,
                on_layer=on_layer,
                times=times,
            )
        self.step_seconds: Mapping[int, float] = {}  # as measured here, by width
        self.drafts = DraftStore()  # learned by lookahead so far
        self._draft_texts: list[list[int]] = []
        self.executor: Executor | None = None  # runs steps with other ranks; None without them
        self.ranks = 1  # how many processes decode together
        self.followers: Any = None  # `parallel.Followers`, if this process leads other ranks
        self._shared: Generator[TextEvent] | None = None  # the last answer of all ranks
        self._notices_shown = {*self.decoder.executor.notices}
        self._template: tuple[str, ChatTemplate] | None = None  # the last one, with its choice
        self._grammar_tokenizers: dict[frozenset[int], Any] = {}  # by the ids that end an answer

    @cached_property
    def choice(self) -> Choice:
        """The profile's settings; the session must have been opened with a profile."""
        assert self.setup.choice is not None
        return self.setup.choice.priced(self.step_seconds)

    def measure(self, load_seconds: float) -> None:
        """Measure the cost of steps, after a load of `load_seconds`."""
        loaded = self.loaded
        self.step_seconds = measured.after_load(
            self.decoder, loaded.device, loaded.spec, load_seconds
        )

    @property
    def attention(self) -> str:
        """The attention backend of the steps: the setup's, unless that failed on this machine."""
        return self.decoder.executor.model.operations.name

    @cached_property
    def stock_model(self) -> Any:
        """The model as transformers loads it; loaded again if our forward has changed the layout of
        the weights, with which transformers' forward would have another speed."""
        keeps_weights = self.decoder.keeps_weights
        return self.loaded.model if keeps_weights else self.loaded.again()

    def keep_texts(self, limit: int) -> None:
        """Keep earlier texts in host memory, up to `limit` bytes."""
        self.decoder.kept_texts = Prefixes(limit) if limit else None

    def start_over(self) -> None:
        """Forget everything that was decoded or learned, as in a new session."""
        self._end_shared()
        self.decoder.forget(keep_memory=True)
        self._forget_drafts()

    def _end_shared(self) -> None:
        """End an unfinished answer of all ranks, since followers decode one answer at a time."""
        if self._shared is not None:
            self._shared.close()

    def add_draft_text(self, text: str, *, lasting: bool = True) -> int:
        """Let drafts learn a text that answers may repeat; return its number of tokens.

        It costs no forward, since the model does not read it.

        Args:
            text: the text, cut to the context length unless lasting.
            lasting: True if `start_over` keeps the text.
        """
        if not lasting:
            text = shortened(self.loaded.tokenizer, text, self.decoder.max_context)
        encoded = token_ids(self.loaded.tokenizer, text, special=False)
        ids = [i for i in encoded if i < self.decoder.facts.vocabulary]
        if lasting and ids not in self._draft_texts:
            self._draft_texts.append(ids)
            # Only the newest texts are kept; an editor may send hundreds of versions.
            while sum(map(len, self._draft_texts[1:])) > CONSTANTS.max_corpus:
                del self._draft_texts[0]
        self.add_draft_ids(ids if lasting else ids[: self.decoder.max_context])
        return len(ids)

    def add_draft_ids(self, ids: Sequence[int], *, expected: bool = True) -> None:
        """Let drafts learn the ids of a text that answers may repeat, unless they know it.

        Args:
            ids: the text.
            expected: True if the next answer may begin like it.
        """
        self._end_shared()
        with self.decoder.lock:
            if ids not in self.drafts.context.corpus:
                self.drafts.learn_text(ids, expected=expected)
                if self.followers is not None:
                    self.followers.drafts_changed()

    def _forget_drafts(self) -> None:
        """Forget all drafts except the texts that the user gave."""
        self.drafts = DraftStore()
        for ids in self._draft_texts:
            self.drafts.learn_text(ids)

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines that the user should see before the first answer."""
        notices = [*self.loaded.notices, *self.decoder.executor.notices]
        if ignored := self.loaded.defaults.ignored:
            names = ", ".join(ignored)
            notices.append(f"not applied, though the model's generation config has it: {names}")
        return (*notices, *self.setup.notices)

    def new_notices(self) -> list[str]:
        """Return new lines about steps and chat templates since the last call."""
        notices = list(self.decoder.executor.notices)
        if self._template is not None:
            notices += self._template[1].notices
        new = [line for line in notices if line not in self._notices_shown]
        self._notices_shown.update(new)
        return new

    def encode(
        self, prompt: str | list[int], most: int | None = None, suffix: str | None = None
    ) -> list[int]:
        """Return the ids of a raw prompt, with the special tokens that the tokenizer adds.

        Args:
            prompt: a text, or ids, which are checked.
            most: a prompt with more than twice as many ids may be cut, since it is too long anyway.
            suffix: the text after the answer, for fill-in-the-middle.

        Raises:
            UsageError: the model does not support fill-in-the-middle.
            NoEmbeddingError: the checkpoint has no embedding for an id.
        """
        if not isinstance(prompt, str):
            return self._embedded(prompt)
        if most is not None:
            prompt = shortened(self.loaded.tokenizer, prompt, most)
        if suffix is not None:
            return self._embedded(fill_in(self.loaded.tokenizer, prompt, suffix))
        return self._embedded(token_ids(self.loaded.tokenizer, prompt))

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        choice: TemplateChoice | None = OWN_TEMPLATE,
        most: int | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation, up to the start of the next answer.

        Args:
            messages: see `ChatTemplate.encode`.
            choice: the chat template; None for the bare messages, one per line.
            most: see `encode`.

        Raises:
            UsageError: there is no such template, or it refuses the messages.
            NoEmbeddingError: the checkpoint has no embedding for an id.
        """
        if choice is None:
            return self.encode("\n".join(map(text_of, messages)), most)
        template = self.template(choice)
        _ = template.end_token  # here, because Ctrl-C can still end a template that never returns
        return self._embedded(template.encode(messages, most))

    def _embedded(self, ids: list[int]) -> list[int]:
        """Return the ids of a prompt, after checking that they all have an embedding."""
        vocabulary = self.decoder.facts.vocabulary
        unknown = next((i for i in ids if i >= vocabulary), None)
        if unknown is None:
            return ids
        token = str(self.loaded.tokenizer.decode([unknown], skip_special_tokens=False))
        raise NoEmbeddingError(
            f"this checkpoint has no embedding for {token!r} (token {unknown}, and its weights end"
            f" at {vocabulary - 1}); leave it out, or use --raw if the chat template writes it"
        )

    def template(self, choice: TemplateChoice) -> ChatTemplate:
        """Return the chosen chat template; the last one is kept.

        Raises:
            UsageError: there is none of this name, or it has reserved arguments.
        """
        # The key is text, because 0 == False in Python but not in a template, and because the
        # caller may change its arguments later.
        if self._template is None or self._template[0] != repr(choice):
            self._template = repr(choice), ChatTemplate(self.loaded.tokenizer, choice)
        return self._template[1]

    def stop_ids(self, settings: Settings) -> frozenset[int]:
        """Return the ids that end an answer.

        These are the ids of the model's configs, and the one that its template puts after an
        answer, since configs of chat models often have only the base model's end token.
        """
        if settings.ignore_eos:
            return frozenset()
        stated, closing = self.loaded.defaults.stop_ids, None
        if settings.template is not None:
            closing = self.template(settings.template).end_token
        if closing is None or closing >= self.loaded.spec.vocabulary:
            return stated
        return stated | {closing}

    def text_of(
        self, answer: Sequence[int], prompt: Sequence[int], settings: Settings
    ) -> TextDelta:
        """Return the whole text of an answer's tokens, as `stream` would yield it in pieces."""
        text = self._text_stream(prompt, settings)
        ends = (number for number, token in enumerate(answer, start=1) if text.feed(token))
        end = next(ends, len(answer))
        parts = [*text.take(answer[:end]), text.flush()]
        return TextDelta(*map("".join, zip(*parts, strict=True)))

    def _text_stream(self, prompt: Sequence[int], settings: Settings) -> TextStream:
        """Return the stream that turns an answer's tokens into text."""
        tokenizer = self.loaded.tokenizer
        splits = None
        if settings.template is not None:
            tools = settings.template.arguments.get("tools", ()) if settings.calls else None
            splits = splitter(tokenizer, prompt, tools)
        return TextStream(tokenizer, prompt, self.stops(settings), splits, settings.calls)

    @property
    def has_template(self) -> bool:
        """True if the model has a chat template."""
        return bool(getattr(self.loaded.tokenizer, "chat_template", None))

    def stream(
        self,
        prompt: Sequence[int],
        settings: Settings,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        detailed: bool = False,
    ) -> Generator[TextEvent]:
        """Decode an answer as text events; closing the iterator stops within a step.

        With other ranks, an unfinished answer ends when the next one is requested.

        Args:
            prompt: token ids.
            settings: of the answer.
            cancelled: called after every step; True ends the answer as interrupted.
            detailed: True if events contain the candidates of each step.

        Raises:
            PromptError: the prompt is empty or too long.
            UsageError: the grammar does not work with this model's tokenizer.
            RankError: a rank is gone.
        """
        settings, followers = self._prepared(settings), self.followers
        sampling, processors = self.choosing(prompt, settings)
        text = self._text_stream(prompt, settings)
        grammar = self._answer_grammar(prompt, settings)
        ends = self._ends(settings, text, grammar)
        # Followers take part only in answers that use all ranks.
        together = followers is None or followers.takes_part(settings)
        events = self.decoder.generate(
            prompt,
            make_strategy(settings.strategy, settings.lookahead, self.drafts),
            sampling,
            Limits(self._most_tokens(prompt, settings), self.stop_ids(settings), ends),
            processors,
            detailed=detailed,
            executor=self.executor if together else None,
            logprobs=settings.logprobs,
            grammar=grammar,
        )
        # Estimates are for this machine, even if the user's profile is for another one.
        curve = settings.lookahead.step_cost.measured(self.step_seconds)
        if followers is None or not together:
            return text_events(events, text, curve, cancelled, contextlib.nullcontext())
        answering = followers.answering(prompt, settings, self.drafts)
        self._shared = text_events(events, text, curve, cancelled, answering)
        return self._shared

    def _ends(
        self, settings: Settings, text: TextStream, grammar: AnswerGrammar | None
    ) -> Callable[[int], bool] | None:
        """Return a function that takes each token and returns True if it ends the text; None if
        only stop ids and limits do."""
        # Without stop strings, tokens become text while the device computes the next step.
        checks = [text.feed] if any(self.stops(settings)) else []
        checks += [grammar.commit] if grammar is not None else []
        return (lambda token: max([ends(token) for ends in checks])) if checks else None

    def _answer_grammar(self, prompt: Sequence[int], settings: Settings) -> AnswerGrammar | None:
        """Return the grammar's state for an answer, if it has a grammar."""
        if settings.grammar is None:
            return None
        loaded, ends = self.loaded, self.stop_ids(replace(settings, ignore_eos=False))
        if ends not in self._grammar_tokenizers:
            self._grammar_tokenizers[ends] = grammar_tokenizer(
                loaded.tokenizer, self.decoder.facts.vocabulary, ends
            )
        tokenizer = None if settings.template is None else loaded.tokenizer
        vocabulary = self._grammar_tokenizers[ends]
        return AnswerGrammar(settings.grammar, vocabulary, tokenizer, prompt)

    def choosing(
        self, prompt: Sequence[int], settings: Settings
    ) -> tuple[SamplingConfig, list[LogitsProcessor]]:
        """Return the sampling of an answer: its settings, and the logits processors of the model's
        generation config, which may do everything but draw the token."""
        most, longest = self._most_tokens(prompt, settings), self.decoder.max_context
        return self.loaded.defaults.choose(
            self.loaded.model,
            settings.sampling,
            prompt,
            longest if most is None else min(longest, len(prompt) + most),
            self.stop_ids(settings),
            self.decoder.executor.device,
        )

    def _most_tokens(self, prompt: Sequence[int], settings: Settings) -> int | None:
        """Return the limit of new tokens, by default that of the model's generation config."""
        if settings.max_new_tokens is not None:
            return settings.max_new_tokens
        return self.loaded.defaults.length_limit(len(prompt))

    def stops(self, settings: Settings) -> tuple[str, ...]:
        """Return the stop strings of the settings and of the model's generation config."""
        marks = fill_in_stops(self.loaded.tokenizer) if settings.fills_in else ()
        return *settings.stop, *self.loaded.defaults.stop_strings, *marks

    def _prepared(self, settings: Settings) -> Settings:
        """Prepare for an answer, and return its settings for this model: without drafts if it
        cannot verify any, and with the captured step widths, which followers receive."""
        self._end_shared()
        with self.decoder.lock:
            if self.drafts.broken:
                self._forget_drafts()
        executor = self.decoder.executor
        if executor.model.drafts == "none":
            settings = replace(settings, strategy="autoregressive")
        follows = self.ranks > 1 and self.followers is None
        if follows or settings.lookahead.widths:
            return settings
        widths = tuple(executor.widths(settings.lookahead.step_limit))
        return replace(settings, lookahead=replace(settings.lookahead, widths=widths))
