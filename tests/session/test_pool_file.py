"""Drafts on disk: they come back whole, and nothing foreign or damaged is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.drafting.store import DraftStore
from ladecli.errors import UsageError
from ladecli.options.answer import DraftFileOptions
from ladecli.session import pool_file

VOCABULARY = 1000
TOKENIZER = "a" * 64


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
        *(EMPTY | {"text": text} for text in ([VOCABULARY], "words")),
        *(EMPTY | {"rows": [row]} for row in ([4, [1, 2], [0.5]], [4, [1], [-0.5]], 7)),
        EMPTY | {"ngrams": [[VOCABULARY, 1]]},
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
