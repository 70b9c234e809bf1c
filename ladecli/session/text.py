"""Turn a stream of token ids into text: whole characters only, without stop strings."""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ..decoder.events import Event, Finished, Started, Step
from ..decoder.step_cost import GRAIN, StepCost
from ..errors import LadeError, one_line
from ..events import Ended, Piece, TextEvent, TextStep
from .tokens import bytes_of, speller

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
HIDDEN = "\ufdd0"
"""A placeholder for each hidden character; Unicode has no character of this number."""


class Detokenizer:
    """Turns tokens into text one by one, and holds back incomplete characters.

    The text of a token depends on its neighbours: the bytes of a character may be spread over
    several tokens, and some tokenizers drop a leading space at the start of a text.  So each token
    is decoded together with the tokens of the last text, and the difference is its text.

    Args:
        tokenizer: decodes ids.
        context: tokens just before the stream, whose text is already known.
    """

    CONTEXT = 6
    """The number of tokens before the stream that are read; a character has at most four bytes."""
    BROKEN = 8
    """This many replacement characters at the end mean a broken text: an incomplete character has
    at most three."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._known = list(context[-self.CONTEXT :])
        # Half a character at the front would spoil the decoding of the bytes after it.
        while self._known and self._decode(self._known).startswith(REPLACEMENT):
            del self._known[0]
        self._new: list[int] = []
        self._passed = 0  # characters of the new tokens' text that were returned already

    def _decode(self, tokens: list[int]) -> str:
        try:
            text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        except Exception as error:  # some raise for unknown ids
            raise LadeError(
                f"the model's tokenizer cannot decode {tokens} ({one_line(str(error))}); copy the"
                " tokenizer that belongs to the model"
            ) from error
        return text

    def feed(self, token: int) -> str:
        """Return the text that is certain after one more token; it may be empty."""
        self._new.append(token)
        return self._take(whole=False)

    def flush(self) -> str:
        """Return the text that was held back, complete or not."""
        return self._take(whole=True)

    def _take(self, whole: bool) -> str:
        """Return the text of the new tokens; with `whole`, incomplete characters as well."""
        before = self._decode(self._known)
        text = self._decode(self._known + self._new)[len(before) :]
        broken = text.endswith(REPLACEMENT * self.BROKEN)
        start = self._passed
        if text.endswith(REPLACEMENT) and not (whole or broken):
            # Whole characters before an incomplete one are certain.
            self._passed = max(len(text.rstrip(REPLACEMENT)), start)
            return text[start : self._passed]
        if text:
            self._known = self._new
        elif not before:  # such as a blank at the start, which the tokenizer drops
            self._known = [*self._known, *self._new][-self.CONTEXT :]
        self._new, self._passed = [], 0
        return text[start:]


class Text(NamedTuple):
    """Text as the model wrote it, with special tokens, and as it is shown."""

    written: str = ""  # all of it; stop strings are looked for here
    shown: str = ""  # as long as `written`, with `HIDDEN` for every character of a special token

    @classmethod
    def plain(cls, text: str) -> Text:
        """Return text that is shown as written."""
        return cls(text, text)

    @classmethod
    def special(cls, text: str) -> Text:
        """Return the text of a special token."""
        return cls(text, HIDDEN * len(text))

    def joined(self, other: Text) -> Text:
        """Return this text with another one after it."""
        return Text(self.written + other.written, self.shown + other.shown)

    def cut(self, at: int) -> tuple[Text, Text]:
        """Return the text before a character, and the text from it on."""
        before = Text(self.written[:at], self.shown[:at])
        return before, Text(self.written[at:], self.shown[at:])

    @property
    def visible(self) -> str:
        """The text that is shown."""
        return self.shown.replace(HIDDEN, "")


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


class StopStrings:
    """Ends a text at a stop string, and never shows a part of it.

    As with transformers' `generate(stop_strings=...)`, a token ends the text if a stop string ends
    within it.  Tokens are compared byte by byte, since a stop string may begin or end inside a
    token, in the prompt, in a special token, or beside bytes that are no character.

    Args:
        tokenizer: of the text.
        prompt: the ids before it.
        stops: strings that end the text and do not belong to it.
    """

    BASE = "abcdef"
    """A token is decoded after this text, as in the middle of a text."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._bytes = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        base = tokenizer(self.BASE, add_special_tokens=False)["input_ids"]
        self._base = tokenizer.convert_ids_to_tokens(base)
        self._spell = speller(tokenizer)
        longest = max(map(len, self._bytes))
        self._last = deque(map(self._added, prompt[-longest:]), longest)
        before = tokenizer.decode(list(prompt[-longest:]), skip_special_tokens=False)
        self._held = Text.special(before[len(before) - self._open(before) :])
        self._cut = False

    def feed(self, text: Text, token: int) -> tuple[Text, bool]:
        """Add one token and its text; return the text that cannot belong to a stop string, and True
        if the token completes one."""
        added = self._added(token)
        self._last.append(added)
        ending = b"".join(self._last)
        start = len(ending) - len(added)
        ended = any(ending.find(stop, max(start - len(stop) + 1, 0)) >= 0 for stop in self._bytes)
        if self._cut:
            return Text(), ended
        start, held = len(self._held.written), self._held.joined(text)
        if ended:
            # A stop string that ends before this text belongs to the prompt.
            searched = ((stop, max(start - len(stop) + 1, 0)) for stop in self._stops)
            starts = [at for stop, first in searched if (at := held.written.find(stop, first)) >= 0]
            self._cut = bool(starts)  # the bytes may contain a stop string that the text does not
            self._held = Text()
            return held.cut(min(starts))[0] if starts else held, True
        certain, self._held = held.cut(len(held.written) - self._open(held.written))
        return certain, False

    def flush(self, text: Text) -> Text:
        """Return the text that was held back and the last text."""
        return Text() if self._cut else self._held.joined(text)

    def _open(self, text: str) -> int:
        """Return the number of characters at the end of a text that may begin a stop string."""
        return max(overlap(text, stop) for stop in self._stops)

    def _added(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text."""
        if (named := bytes_of(self._tokenizer, token)) is not None:
            return named
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:  # the model has more ids than the tokenizer
            return b""
        if not hasattr(self._tokenizer, "convert_tokens_to_string"):  # mistral-common's
            return self._spell(token).encode()
        text = str(self._tokenizer.convert_tokens_to_string([*self._base, name]))
        return text[text.find(self.BASE) + len(self.BASE) :].encode("utf-8", "surrogatepass")


class TextDelta(NamedTuple):
    """The part of an answer that became certain: reasoning, and text after it."""

    reasoning: str = ""
    text: str = ""


class Splitter(Protocol):
    """Separates the reasoning of an answer from the rest."""

    done: bool
    """True if all further text is the answer."""

    def feed(self, text: Text) -> TextDelta:
        """Add text, and return the parts that are certain."""

    def flush(self) -> TextDelta:
        """Return the text that was held back, at the end of the answer."""


class TextStream:
    """Turns tokens into text: a detokenizer, stop strings, and a splitter of reasoning.

    Args:
        tokenizer: decodes ids.
        prompt: the ids before the stream.
        stops: strings that end the text.
        splitter: separates reasoning from the answer; None if all of it is the answer.
        written: True if the texts of special tokens are shown, too, since they mark tool calls.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        splitter: Splitter | None = None,
        written: bool = False,
    ) -> None:
        self._tokenizer, self._written = tokenizer, written
        self._detokenizer = Detokenizer(tokenizer, prompt)
        stops = [stop for stop in stops if stop]
        self._stops = StopStrings(tokenizer, prompt, stops) if stops else None
        self._splitter = splitter
        self._deltas: list[TextDelta] = []

    def feed(self, token: int) -> bool:
        """Add one token, and return True if it completes a stop string."""
        new_text = self._detokenizer.feed(token)
        if self._stops is None and self._splitter is None and not self._written:
            self._deltas.append(TextDelta(text=new_text))
            return False
        # The text of a special token is usually not shown.
        text, ended = Text.plain(new_text), False
        if token in self._special and not self._tokenizer.decode([token], skip_special_tokens=True):
            special = self._tokenizer.decode([token], skip_special_tokens=False)
            text = text.joined((Text.plain if self._written else Text.special)(special))
        if self._stops is not None:
            text, ended = self._stops.feed(text, token)
        self._deltas.append(self._split(text))
        return ended

    def take(self, tokens: Sequence[int]) -> list[TextDelta]:
        """Return the text of each token; that of the last one may still be incomplete.

        Args:
            tokens: all tokens since the last call; those not fed yet are fed now.
        """
        for token in tokens[len(self._deltas) :]:
            self.feed(token)
        deltas, self._deltas = self._deltas, []
        return deltas

    def flush(self) -> TextDelta:
        """Return the text that was held back, at the end of the stream."""
        text = Text.plain(self._detokenizer.flush())
        if self._stops is not None:
            text = self._stops.flush(text)
        delta = self._split(text)
        if self._splitter is None:
            return delta
        return TextDelta(*map(operator.add, delta, self._splitter.flush()))

    @cached_property
    def _special(self) -> set[int]:
        """The ids whose text may be hidden."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        return {*added, *getattr(self._tokenizer, "all_special_ids", ())}

    def _split(self, text: Text) -> TextDelta:
        if self._splitter is None:
            return TextDelta(text=text.visible)
        delta = self._splitter.feed(text)
        if self._splitter.done:
            self._splitter = None
        return delta


def text_events(
    events: Generator[Event],
    text: TextStream,
    curve: StepCost,
    cancelled: Callable[[], bool],
    answering: contextlib.AbstractContextManager[None],
) -> Generator[TextEvent]:
    """Turn events with tokens into events with text.

    Args:
        events: of the decoder.
        text: turns the tokens into text.
        curve: the cost of steps.
        cancelled: called after every step; True ends the answer as interrupted.
        answering: a context around the whole answer.
    """
    context, costs = 0, dict[tuple[int, int], float | None]()
    with answering, contextlib.closing(events):
        for event in events:
            if isinstance(event, Step):
                shape = event.width, context // GRAIN
                if shape not in costs:
                    has_cost = event.width == 1 or len(curve.widths) > 1
                    costs[shape] = curve.at(event.width, context) if has_cost else None
                deltas = text.take([token.id for token in event.tokens])
                pairs = zip(deltas, event.tokens, strict=True)
                yield TextStep(
                    tuple([Piece(new.text, token.source, new.reasoning) for new, token in pairs]),
                    tuple([token.id for token in event.tokens]),
                    event.width,
                    event.proposed,
                    event.seconds,
                    event.detail,
                    event.times,
                    costs[shape],
                    tuple([token.logprobs for token in event.tokens if token.logprobs]),
                )
                context += len(event.tokens)
            elif not isinstance(event, Finished):
                context = event.total if isinstance(event, Started) else context
                yield event
            if isinstance(event, Finished) or cancelled():
                rest = text.flush()
                reason = event.reason if isinstance(event, Finished) else "interrupted"
                yield Ended(reason, rest.text, rest.reasoning)
                return
