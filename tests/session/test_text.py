"""Streaming text: byte-correct in any language, and without stop strings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import StopStringCriteria

from ladecli.session.text import REPLACEMENT, Detokenizer, TextStream
from ladecli.session.tokens import bytes_of
from tests.support.tokenizers import byte_fallback, byte_level

TOKENIZERS = {"byte_level": byte_level, "byte_fallback": byte_fallback}
# Characters of one to four bytes, with spaces and joiners among them.
TEXT = st.text(st.sampled_from("ab  \n\tüñß你好世界😀👩‍👩‍👧🇫🇷é́ \u200d\u00a0"), max_size=40)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(before=TEXT, text=TEXT)
@example(before="", text="  ")
def test_pieces_add_up_to_the_text(kind: str, before: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    prompt, tokens = ids_of(tokenizer, before), ids_of(tokenizer, text)
    detokenizer = Detokenizer(tokenizer, prompt)
    pieces = [detokenizer.feed(token) for token in tokens]
    assert all(REPLACEMENT not in piece for piece in pieces)
    whole = "".join(pieces) + detokenizer.flush()
    alone = tokenizer.decode(prompt, skip_special_tokens=True)
    assert alone + whole == tokenizer.decode(prompt + tokens, skip_special_tokens=True)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.integers(0, 255), max_size=30))
def test_any_bytes_are_streamed_without_losing_valid_text(kind: str, tokens: list[int]) -> None:
    """Models can emit broken UTF-8; the text around it must survive."""
    tokenizer = TOKENIZERS[kind]()
    tail = ids_of(tokenizer, "the cat")
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(token) for token in [*tokens, *tail]]
    assert ("".join(pieces) + detokenizer.flush()).endswith("the cat")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_parts_of_a_character_have_its_bytes(kind: str) -> None:
    tokenizer, text = TOKENIZERS[kind](), "😀ñ"
    tokens = [t for t in ids_of(tokenizer, text) if REPLACEMENT in tokenizer.decode([t])]
    assert b"".join(bytes_of(tokenizer, token) or b"?" for token in tokens) == text.encode()


def test_tokens_that_straddle_characters() -> None:
    """Each token has the end of one character and the start of the next."""

    class StraddlingTokenizer:
        data = ("漢字" * 20 + " ok").encode()
        cuts = (0, *range(1, 120, 3), len(data))

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            parts = [self.data[self.cuts[i] : self.cuts[i + 1]] for i in token_ids]
            return b"".join(parts).decode("utf-8", "replace")

    detokenizer = Detokenizer(StraddlingTokenizer())
    pieces = [detokenizer.feed(token) for token in range(len(StraddlingTokenizer.cuts) - 1)]
    assert "".join(pieces) + detokenizer.flush() == "漢字" * 20 + " ok"


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=12),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_where_the_first_one_starts(pieces: list[str], stops: list[str]) -> None:
    tokenizer, seen = byte_level(), ""
    stream = TextStream(tokenizer, (), stops)
    for token in ids_of(tokenizer, "".join(pieces)):
        seen += tokenizer.decode([token])
        ended = stream.feed(token)
        assert ended == any(stop in seen for stop in stops)
        if ended:
            break
    shown = "".join(delta.text for delta in (*stream.take([]), stream.flush()))
    starts = [seen.find(stop) for stop in stops if stop in seen]
    assert shown == seen[: min(starts, default=len(seen))]


STOPS = ("t", "the", " the", "cat sat", "\n\n", "<|end|>", "</s>", "at<|end|>", "ü", "é", "|>a")
PARTS = ("the", " cat", "sat", "\n", "<|end|>", "</s>", "at", "ü", "a", "|>")
SOME_PARTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("".join)
IDS = st.lists(st.integers(0, 277), max_size=9)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(SOME_PARTS, SOME_PARTS, IDS, st.lists(st.sampled_from(STOPS), min_size=1))
@example(before="a", text="a", odd=[0xE4 + 2, 0x44 + 2], stops=["D"])  # half a character before it
def test_texts_stop_as_in_generate(kind: str, before: str, text: str, odd: Any, stops: Any) -> None:
    """Including special tokens, bytes that are not a character, and the end of the prompt."""
    tokenizer = TOKENIZERS[kind]()
    prompt, tokens = ids_of(tokenizer, before), [*odd, *ids_of(tokenizer, text)]
    stream = TextStream(tokenizer, prompt, stops)
    ours = [stream.feed(token) for token in tokens]
    criterion = StopStringCriteria(tokenizer, stops)
    lengths = range(1, len(tokens) + 1)
    theirs = [bool(criterion(torch.tensor([prompt + tokens[:n]]), None)) for n in lengths]
    assert ours == theirs
