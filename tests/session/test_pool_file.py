"""Drafts on disk: they come back whole, and nothing foreign or damaged is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.errors import UsageError
from ladecli.options.answer import DraftFileOptions
from ladecli.session import pool_file
from tests.support.decoding import decoder_of, run, steps_of
from tests.support.models import prompt_for

VOCABULARY = 1000
TOKENIZER = "a" * 64


def steps_with(drafts: DraftStore, config: LookaheadConfig) -> list[Step]:
    decoder, prompt = decoder_of("llama"), prompt_for("llama", 12)
    return steps_of(run(decoder, prompt, "lookahead", config, limits=Limits(60), store=drafts))


def shape(steps: list[Step]) -> list[tuple[int, int, tuple[str | None, ...]]]:
    return [(s.width, s.proposed, tuple(t.source for t in s.tokens)) for s in steps]


@pytest.fixture
def learned() -> DraftStore:
    """Drafts of a generation with every source, and of one with the paper's pool."""
    drafts = DraftStore()
    steps_with(drafts, LookaheadConfig(4, 4, 4, 40))
    steps_with(drafts, LookaheadConfig(4, 4, 4, sources=("trajectory",)))
    assert [*drafts.pool]
    return drafts


@pytest.mark.parametrize("sources", [("trajectory",), ("trajectory", "context", "recycled")])
def test_read_drafts_propose_the_same(learned: DraftStore, tmp_path: Path, sources: Any) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    config = LookaheadConfig(4, 4, 4, 40, sources)
    read = steps_with(pool_file.load(path, TOKENIZER, VOCABULARY), config)
    written = steps_with(learned, config)
    if sources == ("trajectory",):
        assert shape(read) == shape(written)
    # How far each kind of evidence is trusted, and the prior, are learned anew.
    assert len(read) <= len(written) + 1
    assert len(read) < len(steps_with(DraftStore(), config)), "nothing was gained"


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    pool_file.check(DraftFileOptions(pool_file=str(tmp_path / "pool")))
    assert not [*pool_file.load(tmp_path / "pool", TOKENIZER, VOCABULARY).pool]
    with pytest.raises(UsageError, match="does not exist"):
        pool_file.check(DraftFileOptions(pool_file=str(tmp_path / "nowhere" / "pool")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((data, "cannot be read") for data in (b"", b"hello", b"\x80\x04K\x01.", b"[" * 100_000)),
        *((data, "not a pool") for data in (b"[]", b'{"format": "lade-pool/1"}')),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "pool").write_bytes(content)
    with pytest.raises(UsageError, match=f"^--pool-file .*pool .*{message}"):
        pool_file.check(DraftFileOptions(pool_file=str(tmp_path / "pool")))


EMPTY: dict[str, Any] = {"text": [], "rows": [], "ngrams": []}


@pytest.mark.parametrize(
    "drafts",
    [
        *(None, [], {}),
        *(EMPTY | {"text": text} for text in ([VOCABULARY], [-2], "words", [1.5])),
        *(EMPTY | {"rows": [row]} for row in ([4, [1, 2], [0.5]], [4, [-1], [0.5]], 7)),
        *(EMPTY | {"rows": [[4, [1], [number]]]} for number in (-0.5, 10**400)),
        *(EMPTY | {"ngrams": ngrams} for ngrams in ([[1]], [[VOCABULARY, 1]], None)),
    ],
)
def test_drafts_are_checked_before_they_are_used(tmp_path: Path, drafts: object) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, DraftStore(), TOKENIZER)
    with pytest.raises(UsageError, match="another tokenizer"):
        pool_file.load(path, "b" * 64, VOCABULARY)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"drafts": drafts}))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="cannot be read"):
        pool_file.load(path, TOKENIZER, VOCABULARY)
    assert path.read_bytes() == before
