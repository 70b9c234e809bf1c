"""Token ids to text, as a stream: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import UsageError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that the stream needs."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some tokens."""


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

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._known = list(context[-self.CONTEXT :])
        # Half a character at the front would spoil the decoding of the bytes after it.
        while self._known and self._decode(self._known).startswith(REPLACEMENT):
            del self._known[0]
        self._new: list[int] = []

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def feed(self, token: int) -> str:
        """The text that is certain after one more token; may be empty."""
        self._new.append(token)
        return self._take(whole=False)

    def flush(self) -> str:
        """The text of what was held back, complete or not."""
        return self._take(whole=True)

    def _take(self, whole: bool) -> str:
        """What the new tokens add to the text; with `whole` also half a character."""
        text = self._decode(self._known + self._new)[len(self._decode(self._known)) :]
        broken = text.endswith(REPLACEMENT * self.BROKEN)
        if text.endswith(REPLACEMENT) and not (whole or broken):
            return ""
        if text:
            self._known = self._new
        self._new = []
        return text


class StopStrings:
    """Passes text through until a stop string appears, and never shows a part of one.

    Args:
        stops: strings that end the text and are no part of it; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is certain not to belong to a stop string; may be empty.

        After a stop string it is always empty.
        """
        if self.found:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        starts = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if starts:
            self.found = True
            self._held = ""
            return held[: min(starts)]
        kept = max(self._overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """The length of the longest end of `text` that is a true start of `stop`."""
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0


class TextStream:
    """Tokens in, the certain text of each out: detokenizer and stop strings together.

    Args:
        tokenizer: decodes ids.
        prompt: the ids before the stream.
        stops: stop strings.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops = StopStrings(stops)
        self._pieces: list[str] = []

    def feed(self, token: int) -> bool:
        """Take one token; true when a stop string is complete."""
        self._pieces.append(self._stops.feed(self._detokenizer.feed(token)))
        return self._stops.found

    def take(self, tokens: Sequence[int]) -> list[str]:
        """The text of each of some tokens; that of the last one may still be missing.

        Args:
            tokens: those fed since the last call, and others, which are fed now.
        """
        for token in tokens[len(self._pieces) :]:
            self.feed(token)
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        if self._stops.found:
            return ""
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()


def apply_chat_template(
    tokenizer: object, messages: Sequence[dict[str, str]], *, reply: bool = True
) -> list[int]:
    """The ids of a conversation.

    Args:
        tokenizer: of transformers.
        messages: with `role` and `content`.
        reply: whether the conversation waits for the assistant's answer.

    Raises:
        UsageError: the model has no template, or its template is broken or refuses the messages.
    """
    from jinja2 import TemplateSyntaxError

    if not getattr(tokenizer, "chat_template", None):
        system = any(message["role"] == "system" for message in messages)
        fix = "use --raw, without a system message" if system else "use --raw"
        raise UsageError(f"this model has no chat template; {fix}")
    try:
        encoded = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
            list(messages),
            add_generation_prompt=reply,
            return_dict=True,
            # The limit of the context is checked elsewhere.
            tokenizer_kwargs={"verbose": False},
        )
    except TemplateSyntaxError as error:
        raise UsageError(f"the model's chat template is broken: {error}; use --raw") from error
    except Exception as error:  # templates raise whatever they like
        raise UsageError(f"the model's chat template refuses this: {error}") from error
    return [int(i) for i in encoded["input_ids"]]
