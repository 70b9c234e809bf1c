"""One model at work: prompt to ids, ids through the decoder, tokens to text events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..decoder.backends.load import load_decoder
from ..decoder.backends.prefixes import Prefixes
from ..decoder.config import Limits, LookaheadConfig, SamplingConfig
from ..decoder.drafting.sources import MAX_CORPUS
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
"""The chat template that a model has by itself."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decode one answer."""

    strategy: str = "lookahead"  # a name of `decoder.config.STRATEGIES`
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_new_tokens: int | None = None  # None for as many as the context holds
    stop: tuple[str, ...] = ()  # strings that end the text
    ignore_eos: bool = False  # whether decoding goes on after end-of-text tokens
    template: TemplateChoice | None = None  # None where a text is continued as it is
    fills_in: bool = False  # whether the prompt is one of `fill_in`
    calls: bool = False  # whether the text has what marks calls of tools, see `CallReader`
    logprobs: int | None = None  # see `Decoder.generate`
    grammar: Grammar | None = None  # which the answer fits


class Session:
    """A loaded model and its decoder.

    From answer to answer it keeps the cache, and what it learned about drafting.

    Args:
        loaded: model and tokenizer.
        setup: how it is decoded.
        on_layer: called with the number of layers whose weights are prepared, and that of all.

    Attributes:
        load_seconds: the time from the start of opening until it was ready; 0 if nobody took it.

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
        self.decoder = load_decoder(
            loaded.model,
            attention=setup.attention.name,
            max_context=setup.context,
            cuda_graphs=setup.no_graphs_reason is None,
            kernels=setup.kernels,
            pack=setup.store_twice,
            on_layer=on_layer,
        )
        self.step_seconds: Mapping[int, float] = {}  # as measured here, by width
        self.drafts = DraftStore()  # what lookahead learned so far
        self._draft_texts: list[list[int]] = []
        # What runs the steps, where other ranks take part in them.
        self.executor: Executor | None = None
        self.ranks = 1  # how many processes decode together
        self.followers: Any = None  # `parallel.Followers`, where this leads other ranks
        self._shared: Generator[TextEvent] | None = None  # the last answer of all ranks
        self._notices_shown = {*self.decoder.executor.notices}
        self._template: tuple[str, ChatTemplate] | None = None  # the last one asked for
        self._grammar_tokenizers: dict[frozenset[int], Any] = {}  # by the ids that end an answer

    @cached_property
    def choice(self) -> Choice:
        """What the profile says, if the session was opened with one."""
        assert self.setup.choice is not None
        return self.setup.choice.priced(self.step_seconds)

    def measure(self, load_seconds: float) -> None:
        """Find out what steps take here, after a load that took so long."""
        loaded = self.loaded
        self.step_seconds = measured.after_load(
            self.decoder, loaded.device, loaded.spec, load_seconds
        )

    @property
    def attention(self) -> str:
        """Name of the attention backend of its steps: that of the setup, unless it failed here."""
        return self.decoder.executor.model.operations.name

    @cached_property
    def stock_model(self) -> Any:
        """The model as transformers loads it; loaded once more where our forward keeps weights in
        an order of its own, in which transformers' would run at another speed."""
        kept = self.decoder.keeps_weights
        return self.loaded.model if kept else self.loaded.again()

    def keep_texts(self, limit: int) -> None:
        """Keep earlier texts in host memory, as many bytes of them as `limit` says."""
        self.decoder.kept_texts = Prefixes(limit) if limit else None

    def start_over(self) -> None:
        """Begin as a new session would: nothing that was decoded or learned helps any more."""
        self._end_shared()
        self.decoder.forget(keep_memory=True)
        self._forget_drafts()

    def _end_shared(self) -> None:
        """End an answer of all ranks that was left open: followers do one thing at a time."""
        if self._shared is not None:
            self._shared.close()

    def add_draft_text(self, text: str, *, lasting: bool = True) -> int:
        """Let drafts know a text that answers may repeat, whole or in parts; its tokens.

        It costs no forward, since the model does not read it.

        Args:
            text: of which an answer can repeat no more than the context holds.
            lasting: whether it outlives `start_over`.
        """
        if not lasting:
            text = shortened(self.loaded.tokenizer, text, self.decoder.max_context)
        encoded = token_ids(self.loaded.tokenizer, text, special=False)
        ids = [i for i in encoded if i < self.decoder.facts.vocabulary]
        if lasting and ids not in self._draft_texts:
            self._draft_texts.append(ids)
            # Drafts know the newest texts alone; an editor hands over hundreds of versions.
            while sum(map(len, self._draft_texts[1:])) > MAX_CORPUS:
                del self._draft_texts[0]
        self.add_draft_ids(ids if lasting else ids[: self.decoder.max_context])
        return len(ids)

    def add_draft_ids(self, ids: Sequence[int], *, expected: bool = True) -> None:
        """Let drafts know the ids of a text that answers may repeat, if they do not already.

        Args:
            ids: the text.
            expected: whether the next answer may begin like it.
        """
        self._end_shared()
        with self.decoder.lock:
            if ids not in self.drafts.context.corpus:
                self.drafts.learn_text(ids, expected=expected)
                if self.followers is not None:
                    self.followers.drafts_changed()

    def _forget_drafts(self) -> None:
        """Forget what was learned, but not the texts that the user gave."""
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
        """Lines about how steps run, and about chat templates, that came up since the last call."""
        notices = list(self.decoder.executor.notices)
        if self._template is not None:
            notices += self._template[1].notices
        new = [line for line in notices if line not in self._notices_shown]
        self._notices_shown.update(new)
        return new

    def encode(
        self, prompt: str | list[int], most: int | None = None, suffix: str | None = None
    ) -> list[int]:
        """The ids of a raw prompt, with the special tokens that the tokenizer adds.

        Args:
            prompt: a text, or ids, which are checked.
            most: of a prompt with more than twice as many ids, those of a beginning will do.
            suffix: a text that comes after the answer, if the model is to fill in the middle.

        Raises:
            UsageError: the model does not fill in.
            NoEmbeddingError: the checkpoint has no embedding for one.
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
        """The ids of a conversation, which waits for an answer.

        Args:
            messages: see `ChatTemplate.encode`.
            choice: of the chat template; None for the messages alone, one a line.
            most: see `encode`.

        Raises:
            UsageError: there is no such template, or it refuses the messages.
            NoEmbeddingError: the checkpoint has no embedding for one of the ids.
        """
        if choice is None:
            return self.encode("\n".join(map(text_of, messages)), most)
        template = self.template(choice)
        _ = template.end_token  # while Ctrl-C still ends a template that does not come to an end
        return self._embedded(template.encode(messages, most))

    def _embedded(self, ids: list[int]) -> list[int]:
        """The ids of a prompt, which all have an embedding."""
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
        """The chat template that was chosen, looked at once.

        Raises:
            UsageError: there is none of this name, or it cannot have such arguments.
        """
        # As text: templates tell 0 from false, and a caller may change arguments that it gave.
        if self._template is None or self._template[0] != repr(choice):
            self._template = repr(choice), ChatTemplate(self.loaded.tokenizer, choice)
        return self._template[1]

    def stop_ids(self, settings: Settings) -> frozenset[int]:
        """Every id that ends an answer.

        Those of the model's configs, and the one that its template puts after an assistant's
        words: configs of chat models often have the base model's end token alone.
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
        """The text of an answer's tokens, as `stream` would have made it in one go."""
        text = self._text_stream(prompt, settings)
        ends = (number for number, token in enumerate(answer, start=1) if text.feed(token))
        end = next(ends, len(answer))
        parts = [*text.take(answer[:end]), text.flush()]
        return TextDelta(*("".join(each) for each in zip(*parts, strict=True)))

    def _text_stream(self, prompt: Sequence[int], settings: Settings) -> TextStream:
        """What makes text of an answer's tokens."""
        tokenizer = self.loaded.tokenizer
        splits = None
        if settings.template is not None:
            tools = settings.template.arguments.get("tools", ()) if settings.calls else None
            splits = splitter(tokenizer, prompt, tools)
        return TextStream(tokenizer, prompt, self.stops(settings), splits, settings.calls)

    @property
    def has_template(self) -> bool:
        """Whether the model knows how to hold a conversation."""
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

        With other ranks, an answer that is still under way ends when another one is asked for.

        Args:
            prompt: token ids.
            settings: how to decode.
            cancelled: asked after every step; true ends the answer as interrupted.
            detailed: whether steps say what they tried.

        Raises:
            PromptError: the prompt is empty or too long.
            UsageError: the grammar is none for this model's tokenizer.
            RankError: a rank is gone.
        """
        settings, followers = self._prepared(settings), self.followers
        sampling, processors = self.choosing(prompt, settings)
        text = self._text_stream(prompt, settings)
        grammar = self._answer_grammar(prompt, settings)
        ends = self._ends(settings, text, grammar)
        # Followers are only told about answers that use all ranks.
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
        # Estimates are of this machine, also if the user's profile is one of another.
        curve = settings.lookahead.step_cost.measured(self.step_seconds)
        if followers is None or not together:
            return text_events(events, text, curve, cancelled, contextlib.nullcontext())
        answering = followers.answering(prompt, settings, self.drafts)
        self._shared = text_events(events, text, curve, cancelled, answering)
        return self._shared

    def _ends(
        self, settings: Settings, text: TextStream, grammar: AnswerGrammar | None
    ) -> Callable[[int], bool] | None:
        """Return what takes each token, and says whether it ends the text; None if nothing does."""
        # If no string ends the text, it is made while the device is at work on the next step.
        takers = [text.feed] if any(self.stops(settings)) else []
        takers += [grammar.commit] if grammar is not None else []
        return (lambda token: max([ends(token) for ends in takers])) if takers else None

    def _answer_grammar(self, prompt: Sequence[int], settings: Settings) -> AnswerGrammar | None:
        """Return what constrains an answer, if anything does."""
        if settings.grammar is None:
            return None
        loaded, ends = self.loaded, self.stop_ids(replace(settings, ignore_eos=False))
        if ends not in self._grammar_tokenizers:
            self._grammar_tokenizers[ends] = grammar_tokenizer(
                loaded.tokenizer, self.decoder.facts.vocabulary, ends
            )
        tokenizer = None if settings.template is None else loaded.tokenizer
        known = self._grammar_tokenizers[ends]
        return AnswerGrammar(settings.grammar, known, tokenizer, prompt)

    def choosing(
        self, prompt: Sequence[int], settings: Settings
    ) -> tuple[SamplingConfig, list[LogitsProcessor]]:
        """How the decoder chooses the tokens of an answer: as the settings say, and with the logits
        processors of the model's generation config, which may do all but the drawing."""
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
        """Of an answer; the model's generation config says where the settings do not."""
        if settings.max_new_tokens is not None:
            return settings.max_new_tokens
        return self.loaded.defaults.length_limit(len(prompt))

    def stops(self, settings: Settings) -> tuple[str, ...]:
        """The strings that end an answer: of the settings, and of the model's generation config."""
        marks = fill_in_stops(self.loaded.tokenizer) if settings.fills_in else ()
        return *settings.stop, *self.loaded.defaults.stop_strings, *marks

    def _prepared(self, settings: Settings) -> Settings:
        """Prepare for an answer, and return settings as this model can have them: without drafts
        that it cannot verify, and with the widths that steps are captured for, which followers
        are told."""
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
