"""Token ids to text, as a stream: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..decoder.events import Event, Finished, PromptRead, Started, Step, StepNarrowed
from ..errors import LadeError, UsageError, one_line
from ..events import Ended, Piece, Reason, TextEvent, TextStep

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNSEEN = [*range(33), *range(127, 161), 173]
_LETTERS = [chr(256 + _UNSEEN.index(n) if n in _UNSEEN else n) for n in range(256)]
"""How byte-level tokenizers write each byte: those that would not be seen have other letters
(Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)."""
HIDDEN = "\ufdd0"
"""Stands for a character that is not shown; Unicode has none of this number."""


def speller(tokenizer: Any) -> Callable[[int], str]:
    """A function from a token id to its text, the space that starts a word included.

    Some tokenizers drop the space at the start of a text, so a token is decoded after itself.
    """

    def spell(token: int) -> str:
        once: str = tokenizer.decode([token], skip_special_tokens=False)
        twice: str = tokenizer.decode([token, token], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    return spell


def bytes_of(tokenizer: Any, token: int) -> bytes | None:
    """The bytes that a token adds to a text, of which it may hold a part of a character; None where
    its name does not tell."""
    name = str(tokenizer.convert_ids_to_tokens(token))
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = b"" if decoder is None else bytes(decoder.__getstate__())
    if b"ByteFallback" in state:
        found = re.fullmatch("<0x([0-9A-Fa-f]{2})>", name)
        return bytes.fromhex(found[1]) if found else None
    if b"ByteLevel" in state and {*name} <= {*_LETTERS}:
        return bytes(map(_LETTERS.index, name))
    return None


def token_ids(tokenizer: Any, text: str, *, special: bool = True) -> list[int]:
    """The ids of a text; `special` is whether with the special tokens that the tokenizer adds.

    Raises:
        UsageError: the tokenizer is damaged, or cannot encode this text.
    """
    # The limit of the context is checked elsewhere.
    call = partial(tokenizer, text, add_special_tokens=special, verbose=False)
    ids: list[int] = []
    errors: list[BaseException] = []

    def encode() -> None:
        try:
            ids.extend(map(int, call()["input_ids"]))
        except BaseException as error:  # a panic of Rust is no Exception
            errors.append(error)

    if threading.current_thread() is threading.main_thread():
        with _without_rust_messages():
            # In a thread, since Ctrl-C does not end a call of tokenizers.
            thread = threading.Thread(target=encode, daemon=True)
            thread.start()
            thread.join()
    else:
        encode()
    if errors:
        reason = one_line(str(errors[0]) or type(errors[0]).__name__)
        raise UsageError(f"the model's tokenizer cannot encode this text ({reason})") from errors[0]
    return ids


@contextlib.contextmanager
def _without_rust_messages() -> Iterator[None]:
    """Keep what Rust prints of a panic off stderr: the error says it."""
    try:
        kept = os.dup(2)
    except OSError:  # stderr is closed
        yield
        return
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def shortened(tokenizer: Any, text: str, most: int) -> str:
    """Return a text, or of one with more than 2 * `most` tokens a beginning that has as many.

    To encode four megabytes takes many seconds, only to know that they do not fit.
    """
    size = 16 * most
    while size < len(text):
        if len(token_ids(tokenizer, text[:size], special=False)) > 2 * most:
            return text[:size]
        size *= 4
    return text


class Detokenizer:
    """Turns tokens into text one by one, and holds back incomplete characters.

    What a token adds depends on its neighbours: bytes of one character are spread over
    tokens, and some tokenizers drop a leading space at the start of a text.  So each token is
    decoded together with those of the last text, and what it adds to that is new.

    Args:
        tokenizer: decodes ids.
        context: tokens just before the stream, of which the text is known already.
    """

    CONTEXT = 6
    """Tokens before the stream that are looked at; a character has at most four bytes."""
    BROKEN = 8
    """Replacement characters at the end of a text that is broken: half a character has three."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._known = list(context[-self.CONTEXT :])
        # Half a character at the front would spoil the decoding of the bytes after it.
        while self._known and self._decode(self._known).startswith(REPLACEMENT):
            del self._known[0]
        self._new: list[int] = []
        self._given = 0  # characters of the new tokens' text that were given already

    def _decode(self, tokens: list[int]) -> str:
        try:
            text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        except Exception as error:  # some have no text for ids that they do not know
            raise LadeError(
                f"the model's tokenizer cannot decode {tokens} ({one_line(str(error))}); copy the"
                " tokenizer that belongs to the model"
            ) from error
        return text

    def feed(self, token: int) -> str:
        """The text that is certain after one more token; may be empty."""
        self._new.append(token)
        return self._take(whole=False)

    def flush(self) -> str:
        """The text of what was held back, complete or not."""
        return self._take(whole=True)

    def _take(self, whole: bool) -> str:
        """What the new tokens add to the text; with `whole` also half a character."""
        before = self._decode(self._known)
        text = self._decode(self._known + self._new)[len(before) :]
        broken = text.endswith(REPLACEMENT * self.BROKEN)
        start = self._given
        if text.endswith(REPLACEMENT) and not (whole or broken):
            # Whole characters before half a one are certain.
            self._given = max(len(text.rstrip(REPLACEMENT)), start)
            return text[start : self._given]
        if text:
            self._known = self._new
        elif not before:  # such as a blank at the start, which is not shown
            self._known = [*self._known, *self._new][-self.CONTEXT :]
        self._new, self._given = [], 0
        return text[start:]


class Text(NamedTuple):
    """Text as the model wrote it, with special tokens, and what of it is shown."""

    written: str = ""  # all of it; stop strings are looked for here
    shown: str = ""  # as long as `written`, with `HIDDEN` for every character of a special token

    @classmethod
    def plain(cls, text: str) -> Text:
        """Text of which all is shown."""
        return cls(text, text)

    @classmethod
    def special(cls, text: str) -> Text:
        """The text of a special token."""
        return cls(text, HIDDEN * len(text))

    def joined(self, other: Text) -> Text:
        """This text with another one after it."""
        return Text(self.written + other.written, self.shown + other.shown)

    def cut(self, at: int) -> tuple[Text, Text]:
        """The text before a character, and that from it on."""
        before = Text(self.written[:at], self.shown[:at])
        return before, Text(self.written[at:], self.shown[at:])

    @property
    def visible(self) -> str:
        """What is shown."""
        return self.shown.replace(HIDDEN, "")


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a true start of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


class EndStrings:
    """Tells whether a token ends a text: as with transformers' `generate(stop_strings=...)`, if a
    stop string ends within it.

    What tokens add is compared byte by byte, since a stop string may begin or end inside a token,
    in the prompt, in a special token, or beside bytes that are no character.

    Args:
        tokenizer: of the text.
        prompt: the ids before it.
        stops: stop strings.
    """

    BASE = "abcdef"
    """A token is read after this, as in the middle of a text."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        base = tokenizer(self.BASE, add_special_tokens=False)["input_ids"] if stops else []
        self._base = tokenizer.convert_ids_to_tokens(base)
        self._spell = speller(tokenizer)
        longest = max(map(len, self._stops), default=0)
        self._last = deque(map(self._added, prompt[-longest:] if stops else ()), longest)

    def feed(self, token: int) -> bool:
        """Take one token; true if it ends the text."""
        if not self._stops:
            return False
        added = self._added(token)
        self._last.append(added)
        text = b"".join(self._last)
        known = len(text) - len(added)
        return any(text.find(stop, max(known - len(stop) + 1, 0)) >= 0 for stop in self._stops)

    def _added(self, token: int) -> bytes:
        """The bytes that a token adds to a text."""
        if (named := bytes_of(self._tokenizer, token)) is not None:
            return named
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:  # the model has more ids than the tokenizer
            return b""
        if not hasattr(self._tokenizer, "convert_tokens_to_string"):  # mistral-common's
            return self._spell(token).encode()
        text = str(self._tokenizer.convert_tokens_to_string([*self._base, name]))
        return text[text.find(self.BASE) + len(self.BASE) :].encode("utf-8", "surrogatepass")


class StopStrings:
    """Passes text through, and never shows a part of the stop string that ends it.

    Args:
        stops: strings that end the text and are no part of it.
        before: the end of the prompt, with its special tokens.
    """

    def __init__(self, stops: Sequence[str], before: str = "") -> None:
        self._stops = stops
        self._held = Text.special(before[len(before) - self._open(before) :])
        self._cut = False

    def feed(self, text: Text, ended: bool) -> Text:
        """The text that is certain not to belong to a stop string; may be empty.

        Args:
            text: that is new.
            ended: whether a stop string ends in it.
        """
        if self._cut:
            return Text()
        known, held = len(self._held.written), self._held.joined(text)
        if ended:
            # What ends before this text is the prompt's own.
            searched = ((stop, max(known - len(stop) + 1, 0)) for stop in self._stops)
            starts = [at for stop, first in searched if (at := held.written.find(stop, first)) >= 0]
            self._cut = bool(starts)  # tokens may spell a stop string that no text of them has
            self._held = Text()
            return held.cut(min(starts))[0] if starts else held
        certain, self._held = held.cut(len(held.written) - self._open(held.written))
        return certain

    def flush(self) -> Text:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, Text()
        return held

    def _open(self, text: str) -> int:
        """The number of characters at the end of a text in which a stop string may have begun."""
        return max((overlap(text, stop) for stop in self._stops), default=0)


class Part(NamedTuple):
    """What became certain of an answer: reasoning, and text after it."""

    reasoning: str = ""
    text: str = ""


class Splitter(Protocol):
    """Tells the reasoning of an answer from the rest."""

    def feed(self, text: Text) -> Part:
        """What is certain after more text."""

    def flush(self) -> Part:
        """What was held back, now that no more text comes."""


class TextStream:
    """Tokens in, the certain text of each out: detokenizer and stop strings together.

    Args:
        tokenizer: decodes ids.
        prompt: the ids before the stream.
        stops: stop strings.
        splitter: tells reasoning from the answer; None where all of it is the answer.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        splitter: Splitter | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        # Ids that may be special: they have a text that is not shown.
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._added = {*added, *getattr(tokenizer, "all_special_ids", ())}
        self._detokenizer = Detokenizer(tokenizer, prompt)
        stops = [stop for stop in stops if stop]
        self._ends = EndStrings(tokenizer, prompt, stops)
        longest = max(map(len, stops), default=0)
        end = list(prompt[-longest:]) if longest else []
        before = tokenizer.decode(end, skip_special_tokens=False)
        self._stops = StopStrings(stops, before)
        self._splitter = splitter
        self._pieces: list[Part] = []

    def feed(self, token: int) -> bool:
        """Take one token; true when a stop string is complete."""
        ended = self._ends.feed(token)
        self._pieces.append(self._split(self._stops.feed(self._text_of(token), ended)))
        return ended

    def take(self, tokens: Sequence[int]) -> list[Part]:
        """The text of each of some tokens; that of the last one may still be missing.

        Args:
            tokens: those fed since the last call, and others, which are fed now.
        """
        for token in tokens[len(self._pieces) :]:
            self.feed(token)
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> Part:
        """The text that was held back, at the end of the stream."""
        rest = self._stops.feed(Text.plain(self._detokenizer.flush()), False)
        part = self._split(rest.joined(self._stops.flush()))
        if self._splitter is None:
            return part
        held = self._splitter.flush()
        return Part(part.reasoning + held.reasoning, part.text + held.text)

    def _split(self, text: Text) -> Part:
        return self._splitter.feed(text) if self._splitter else Part("", text.visible)

    def _text_of(self, token: int) -> Text:
        """What is certain after one more token."""
        text = Text.plain(self._detokenizer.feed(token))
        if token not in self._added or self._tokenizer.decode([token], skip_special_tokens=True):
            return text
        special = self._tokenizer.decode([token], skip_special_tokens=False)
        return text.joined(Text.special(special))


def text_events(
    events: Generator[Event],
    text: TextStream,
    cost: Callable[[int, int], float | None],
    cancelled: Callable[[], bool],
    answering: contextlib.AbstractContextManager[None],
) -> Generator[TextEvent]:
    """Make events of text of those of tokens.

    Args:
        events: of the decoder.
        text: takes the tokens.
        cost: of a step of a width after a context; see `TextStep`.
        cancelled: asked after every step; true ends the answer as interrupted.
        answering: a block around all of it.
    """
    length = 0
    with answering, contextlib.closing(events):
        for event in events:
            match event:
                case Started():
                    length = event.total
                    yield event
                case StepNarrowed() | PromptRead():
                    yield event
                case Step():
                    yield _text_step(event, text, cost(event.width, length))
                    length += len(event.tokens)
                case Finished():
                    yield _ended(event.reason, text)
                    return
            if cancelled():
                yield _ended("interrupted", text)
                return


def _text_step(step: Step, text: TextStream, cost: float | None) -> TextStep:
    parts = text.take([token.id for token in step.tokens])
    pairs = zip(parts, step.tokens, strict=True)
    return TextStep(
        pieces=tuple([Piece(part.text, each.source, part.reasoning) for part, each in pairs]),
        token_ids=tuple([token.id for token in step.tokens]),
        width=step.width,
        proposed=step.proposed,
        seconds=step.seconds,
        detail=step.detail,
        times=step.times,
        cost=cost,
        logprobs=tuple([each.logprobs for each in step.tokens if each.logprobs is not None]),
    )


def _ended(reason: Reason, text: TextStream) -> Ended:
    rest = text.flush()
    return Ended(reason, rest.text, rest.reasoning)
