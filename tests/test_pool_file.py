"""Drafts on disk: they come back whole, and nothing foreign or damaged is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladecli import pool_file
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.drafting.memory import DraftMemory
from ladecli.decoder.engine import Limits
from ladecli.decoder.events import Step
from ladecli.errors import LadeError, UsageError

from .decoding import decoder_of, run, steps_of
from .families import prompt_for

VOCABULARY = 1000
TOKENIZER = "a" * 64


def steps_with(drafts: DraftMemory, config: LookaheadConfig) -> list[Step]:
    decoder, prompt = decoder_of("llama"), prompt_for("llama", 12)
    return steps_of(run(decoder, prompt, "lookahead", config, limits=Limits(60), memory=drafts))


def shape(steps: list[Step]) -> list[tuple[int, int, tuple[str | None, ...]]]:
    return [(s.width, s.proposed, tuple(t.source for t in s.tokens)) for s in steps]


@pytest.fixture
def learned() -> DraftMemory:
    """Drafts of a generation with every source, and of one with the paper's pool."""
    drafts = DraftMemory()
    steps_with(drafts, LookaheadConfig(4, 4, 4, 40))
    steps_with(drafts, LookaheadConfig(4, 4, 4, sources=("trajectory",)))
    assert len(drafts.pool)
    return drafts


@pytest.mark.parametrize("sources", [("trajectory",), ("trajectory", "context", "recycled")])
def test_read_drafts_propose_what_the_written_ones_would(
    learned: DraftMemory, tmp_path: Path, sources: tuple[str, ...]
) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    config = LookaheadConfig(4, 4, 4, 40, sources)
    read = steps_with(pool_file.load(path, TOKENIZER, VOCABULARY), config)
    assert shape(read) == shape(steps_with(learned, config))
    assert len(read) < len(steps_with(DraftMemory(), config)), "nothing was gained"


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    pool_file.check(path)
    assert len(pool_file.load(path, TOKENIZER, VOCABULARY).pool) == 0


def test_another_tokenizer_is_refused(learned: DraftMemory, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    with pytest.raises(UsageError, match="another tokenizer"):
        pool_file.load(path, "b" * 64, VOCABULARY)


@pytest.mark.parametrize("place", [0, 3, 8, 60, 0.3, 0.6, 0.9, -1])
@pytest.mark.parametrize("how", ["flipped", "cut off"])
def test_damage_is_noticed_and_the_file_left_alone(
    learned: DraftMemory, tmp_path: Path, place: float, how: str
) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    data = bytearray(path.read_bytes())
    index = int(place * len(data)) if isinstance(place, float) else int(place)
    if how == "flipped":
        data[index] ^= 0x55
    else:
        del data[index:]
    path.write_bytes(data)
    with pytest.raises(UsageError, match="pool-file"):
        pool_file.load(path, TOKENIZER, VOCABULARY)
    assert path.read_bytes() == data


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"[" * 100_000])
def test_what_is_no_pool_is_refused_before_a_model_is_loaded(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "pool"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read"):
        pool_file.check(path)


@pytest.mark.parametrize("content", [{}, [], {"format": "lade-pool/1"}, {"format": "other"}])
def test_other_files_and_versions_are_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "pool"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="not a pool"):
        pool_file.check(path)


@pytest.mark.parametrize(
    "drafts", [None, [], {}, {"text": [VOCABULARY], "rows": [], "ngrams": []}, {"text": "words"}]
)
def test_drafts_are_looked_at_before_they_are_believed(tmp_path: Path, drafts: object) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, DraftMemory(), TOKENIZER)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"drafts": drafts}))
    with pytest.raises(UsageError, match="cannot be read"):
        pool_file.load(path, TOKENIZER, VOCABULARY)


def test_a_place_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        pool_file.check(tmp_path / "nowhere" / "pool")


def test_a_failed_write_leaves_the_old_file(
    learned: DraftMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, DraftMemory(), TOKENIZER)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LadeError, match="No space left"):
        pool_file.save_drafts(path, learned, TOKENIZER)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
