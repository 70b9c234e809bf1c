"""Reasoning separated from the answer, for any split of the text into tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladecli.session.reasoning import ByChannels, ByTags
from ladecli.session.text import Splitter, Text, TextDelta

TAGGED = [
    ("", "<think>\nHm, 2.\n</think>\n\nParis.\n", ("Hm, 2.", "Paris.\n")),
    ("<think>\n", "Hm\n\nso\n</think>\n\nParis", ("Hm\n\nso", "Paris")),
    ("<think>\n", "Hm, 2 < 3", ("Hm, 2 < 3", "")),
    ("<think>\n\n</think>\n\n", "Paris", ("", "Paris")),
    ("", "<think>\n\n</think>\n\nParis", ("", "Paris")),
    ("", "\n[THINK]a[/THINK]b", ("a", "b")),
    ("", "<seed:think>a</think>b</seed:think>c", ("a</think>b", "c")),
    ("", "<think>a</think>\n<think>b</think>c", ("a\n\nb", "c")),
    ("", "  The tag <think> opens, </think>.", ("", "  The tag <think> opens, </think>.")),
    ("", " <thin", ("", " <thin")),
    ("", "\n\n", ("", "\n\n")),
]
BEGIN, ANALYSIS = "<|start|>assistant", "<|channel|>analysis<|message|>"
FINAL, CALL = "<|channel|>final<|message|>", "commentary to=f <|constrain|>json<|message|>b<|call|>"
CHANNELED = [
    (BEGIN, f"{ANALYSIS}So.<|end|>{BEGIN}{FINAL}Paris<|return|>", ("So.", "Paris")),
    (BEGIN + FINAL, "Paris", ("", "Paris")),
    (BEGIN, f"{ANALYSIS}So", ("So", "")),
    (
        BEGIN + ANALYSIS,
        f"a<|end|>{BEGIN}<|channel|>{CALL}{BEGIN}<|message|>c",
        ("a\n\nb", "c"),
    ),
]


def split(splitter: Splitter, pieces: list[Text]) -> tuple[str, str]:
    parts: list[TextDelta] = [*map(splitter.feed, pieces), splitter.flush()]
    return "".join(p.reasoning for p in parts), "".join(p.text for p in parts)


@pytest.mark.parametrize(("before", "text", "expected"), TAGGED)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_tags_before_an_answer(before: str, text: str, expected: Any, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [Text.plain(text[a:b]) for a, b in pairwise(cuts)]
    assert split(ByTags(before), pieces) == expected


@pytest.mark.parametrize(("before", "text", "expected"), CHANNELED)
def test_channels(before: str, text: str, expected: tuple[str, str]) -> None:
    special = ("start", "channel", "message", "end", "return", "call", "constrain")
    pieces = tokens(text, [f"<|{name}|>" for name in special])
    assert split(ByChannels(before), pieces) == expected


def tokens(text: str, special: Any) -> list[Text]:
    """Return one piece for every special token and every other character."""
    pieces = []
    while text:
        mark = next((token for token in special if text.startswith(token)), "")
        pieces.append(Text.special(mark) if mark else Text.plain(text[0]))
        text = text[len(mark) or 1 :]
    return pieces
