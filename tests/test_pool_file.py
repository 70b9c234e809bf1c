"""Drafts on disk: they come back whole, and nothing foreign or damaged is believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ladecli import pool_file
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import DraftStateError
from ladecli.decoder.events import Step
from ladecli.decoder.strategies import make_strategy
from ladecli.errors import LadeError, UsageError

from .families import model_of, prompt_for

VOCABULARY = 1000
TOKENIZER = "a" * 64


def steps_with(drafts: DraftState, config: LookaheadConfig) -> list[Step]:
    decoder, prompt = Decoder(model_of("llama")), prompt_for("llama", 12)
    strategy = make_strategy("lookahead", config, drafts)
    events = decoder.generate(prompt, strategy, None, Limits(60))
    return [event for event in events if isinstance(event, Step)]


def shape(steps: list[Step]) -> list[tuple[int, int, tuple[str | None, ...]]]:
    return [(s.width, s.proposed, tuple(t.source for t in s.tokens)) for s in steps]


@pytest.fixture
def learned() -> DraftState:
    """Drafts of a generation with every source, and of one with the paper's pool."""
    drafts = DraftState()
    steps_with(drafts, LookaheadConfig(4, 4, 4, 40))
    steps_with(drafts, LookaheadConfig(4, 4, 4, sources=("trajectory",)))
    assert len(drafts.pool)
    return drafts


@pytest.mark.parametrize("sources", [("trajectory",), ("trajectory", "context", "recycled")])
def test_read_drafts_propose_what_the_written_ones_would(
    learned: DraftState, tmp_path: Path, sources: tuple[str, ...]
) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    config = LookaheadConfig(4, 4, 4, 40, sources)
    read = steps_with(pool_file.load(path, TOKENIZER, VOCABULARY), config)
    assert shape(read) == shape(steps_with(learned, config))
    assert len(read) < len(steps_with(DraftState(), config)), "nothing was gained"


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    pool_file.check(path)
    assert len(pool_file.load(path, TOKENIZER, VOCABULARY).pool) == 0


def test_another_tokenizer_is_refused(learned: DraftState, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, learned, TOKENIZER)
    with pytest.raises(UsageError, match="another tokenizer"):
        pool_file.load(path, "b" * 64, VOCABULARY)


@pytest.mark.parametrize("place", [0, 3, 8, 60, 0.3, 0.6, 0.9, -1])
@pytest.mark.parametrize("how", ["flipped", "cut off"])
def test_damage_is_noticed_and_the_file_left_alone(
    learned: DraftState, tmp_path: Path, place: float, how: str
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


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", json.dumps({}).encode()])
def test_what_is_no_pool_is_refused_before_a_model_is_loaded(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "pool"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read"):
        pool_file.check(path)


def test_other_tensors_and_versions_are_refused(learned: DraftState, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(UsageError, match="not a pool"):
        pool_file.check(path)
    pool_file.save_drafts(path, learned, TOKENIZER)
    save_file(load_file(path), path, metadata={"format": "lade-pool", "version": "99"})
    with pytest.raises(UsageError, match="version 99"):
        pool_file.check(path)


def test_a_place_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        pool_file.check(tmp_path / "nowhere" / "pool")


def test_a_failed_write_leaves_the_old_file(
    learned: DraftState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool"
    pool_file.save_drafts(path, DraftState(), TOKENIZER)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LadeError, match="No space left"):
        pool_file.save_drafts(path, learned, TOKENIZER)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def changes(learned: DraftState) -> dict[str, dict[str, np.ndarray]]:
    """Arrays with one thing wrong each."""
    good = learned.to_arrays()
    return {
        "a token too large": {"corpus": np.array([VOCABULARY], dtype=np.int32)},
        "a negative token": {"pool.tokens": -good["pool.tokens"]},
        "a float for a token": {"recycled1.tokens": good["recycled1.tokens"].astype(float)},
        "too few tokens": {"counted2.tokens": good["counted2.tokens"][:-1]},
        "too few contexts": {"recycled3.contexts": good["recycled3.contexts"][:-1]},
        "a weight that is no number": {
            "recycled2.weights": np.full_like(good["recycled2.weights"], np.nan)
        },
        "an unknown source": {
            "counted1.sources": np.full_like(good["counted1.sources"], 9),
        },
        "too few sources": {"counted1.sources": good["counted1.sources"][:-1]},
        "another table of trust": {"trust": np.zeros((2, 3))},
        "n-grams of one token": {"pool.sizes": np.ones_like(good["pool.sizes"])},
    }


def test_arrays_are_looked_at_before_they_are_believed(learned: DraftState) -> None:
    good = learned.to_arrays()
    DraftState.from_arrays(good, VOCABULARY)
    for wrong in changes(learned).values():
        with pytest.raises(DraftStateError):
            DraftState.from_arrays({**good, **wrong}, VOCABULARY)
    for name in good:
        with pytest.raises(DraftStateError):
            DraftState.from_arrays({k: v for k, v in good.items() if k != name}, VOCABULARY)


def test_only_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch, learned: DraftState) -> None:
    monkeypatch.setattr("ladecli.decoder.draft_state.KEPT_CONTEXTS", 5)
    monkeypatch.setattr("ladecli.decoder.draft_state.KEPT_TOKENS", 7)
    small = DraftState.from_arrays(learned.to_arrays(), VOCABULARY)
    assert small.context.corpus.tokens == [*learned.context.corpus.tokens[-7:], -1]
    assert list(small.model.recycled[4]) == list(learned.model.recycled[4])[-5:]
    assert len(small.pool) == 5
