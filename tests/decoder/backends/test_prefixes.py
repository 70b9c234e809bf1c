"""Earlier texts of a cache, which are restored for prompts with the same beginning."""

from __future__ import annotations

import pytest

from ladecli.decoder.backends.prefixes import Prefixes
from ladecli.decoder.config import Limits
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.events import Started
from tests.support.decoding import decoder_of, ids_of, run
from tests.support.models import prompt_for

LONG = [*prompt_for("llama", 100), *prompt_for("llama", 120)]
TITLE = [7, *prompt_for("llama", 30)]
LIMITS = Limits(8)


def answer(decoder: Decoder, prompt: list[int]) -> tuple[int, list[int]]:
    """Return the cached tokens of a prompt, and the answer."""
    events = run(decoder, prompt, "lookahead", limits=LIMITS)
    (started,) = (event for event in events if isinstance(event, Started))
    return started.cached, ids_of(events)


@pytest.fixture
def decoder() -> Decoder:
    decoder = decoder_of("llama")
    decoder.kept_texts = Prefixes(1 << 30)
    return decoder


def test_a_title_request_between_two_turns_keeps_the_prompt_cached(decoder: Decoder) -> None:
    _, first = answer(decoder, LONG)
    assert answer(decoder, TITLE)[0] == 0
    second = [*LONG, *first, 5, 6]
    fresh = decoder_of("llama")
    cached, text = answer(decoder, second)
    assert cached >= len(LONG)
    assert text == answer(fresh, second)[1]
    # Both are restored, and a text with another end keeps its beginning.
    assert answer(decoder, [*TITLE, 3])[0] == 0, "too short to be kept"
    edited = [*LONG[:150], 9, 9, 9]
    cached, text = answer(decoder, edited)
    assert cached >= 150
    assert text == answer(fresh, edited)[1]


def test_memory_is_bounded_and_short_texts_do_not_evict_long_ones(decoder: Decoder) -> None:
    answer(decoder, LONG)
    size = sum(tensor.nbytes for tensor in decoder.cache.save())
    decoder.kept_texts = Prefixes(round(size * 1.2))
    texts = [[start, *prompt_for("llama", 80)] for start in (11, 12, 13)]
    for text in texts:
        answer(decoder, text)
    assert answer(decoder, [*LONG, 4])[0] >= len(LONG)
    assert answer(decoder, texts[0])[0] == 0, "no room for a second one"
    decoder.kept_texts = Prefixes(0)
    answer(decoder, LONG)
    answer(decoder, texts[1])
    assert answer(decoder, LONG)[0] == 0


def test_forgetting_drops_them(decoder: Decoder) -> None:
    answer(decoder, LONG)
    answer(decoder, TITLE)
    decoder.forget()
    assert answer(decoder, LONG)[0] == 0
