"""What ranks settle: one context and one type for all, and the leader's word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ladecli.decoder.errors import RankError
from ladecli.parallel.agreement import leaders_word, least_context


class Others:
    """Ranks that say this, the asking one's words first.

    Attributes:
        said: by the others.
    """

    def __init__(self, *said: str) -> None:
        self.said = said
        self.meeting = SimpleNamespace(losing=RankError)

    def collect(self, text: str) -> list[str]:
        return [text, *self.said]


def room(*said: Sequence[Any]) -> Any:
    return Others(*(json.dumps(each) for each in said))


@pytest.mark.parametrize(
    ("mine", "others", "least"),
    [(2048, [2048], 2048), (2048, [900, 1000], 900), (900, [2048], 900), (None, [7, None], 7)],
)
def test_texts_end_where_the_least_roomy_rank_has_no_room(
    mine: int | None, others: list[int | None], least: int
) -> None:
    said = [(other, "float32") for other in others]
    assert least_context(room(*said), mine, "float32") == least


def test_ranks_that_would_compute_in_other_types_are_refused() -> None:
    line = "rank 1 would compute in bfloat16 and rank 0 in float32; give all ranks the same --dtype"
    with pytest.raises(RankError, match=line):
        least_context(room((5, "bfloat16")), 5, "float32")


def test_the_leaders_word_counts() -> None:
    others: Any = Others("0", "0")
    assert leaders_word(others, "8192") == "8192"
