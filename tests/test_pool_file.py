"""Drafts on disk: they come back whole, and nothing foreign or damaged is believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ladecli import pool_file
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.draft_arrays import HEAVIEST
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import DraftStateError
from ladecli.decoder.events import Step
from ladecli.decoder.ngrams import SOURCE_OF_KIND
from ladecli.decoder.ngrams.kernels import ASKED, BITS, GUESSED
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import TokenTree
from ladecli.errors import LadeError, UsageError

from .decoder.ngrams.contents import contents
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
        "a context of what is no token": {
            "recycled1.contexts": np.full_like(good["recycled1.contexts"], 1 << BITS)
        },
        "a context of what is less than a token": {
            "counted1.contexts": np.full_like(good["counted1.contexts"], -1)
        },
        "a weight that float32 cannot hold": {
            "recycled2.weights": np.full(good["recycled2.weights"].shape, 1e39)
        },
        "a weight that is too large": {
            "counted2.weights": np.full(good["counted2.weights"].shape, HEAVIEST + 1)
        },
        "a trust that float32 cannot hold": {"trust": np.full(good["trust"].shape, 1e39)},
        "a trust that is too large": {"trust": np.full(good["trust"].shape, HEAVIEST + 1)},
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


def test_the_largest_tokens_and_weights_are_believed() -> None:
    drafts = DraftState()
    recycle(drafts, {7: 0.5})
    drafts.model.learn([[2, 7]], 1, 1.0, "context")
    arrays = drafts.to_arrays()
    arrays["recycled1.contexts"][:] = (1 << BITS) - 1
    for name in ("recycled1.weights", "counted1.weights", "trust"):
        arrays[name] = np.full(arrays[name].shape, HEAVIEST)
    read = DraftState.from_arrays(arrays, VOCABULARY).model
    assert contents(read.ranked, 1) == {((1 << BITS) - 1,): {7: HEAVIEST}}
    assert contents(read.counted, 1) == {(2,): {7: HEAVIEST}}
    assert set(read.hits) == {HEAVIEST}


def recycle(drafts: DraftState, row: dict[int, float]) -> None:
    """Let this be what the model said behind token 2."""
    drafts.model.recycle([2], TokenTree(), Successors.of([row]))


def test_of_a_guess_and_an_answer_the_answer_counts() -> None:
    guessed, asked = DraftState(), DraftState()
    guessed.model.guess([(1, 2)], Successors.of([{8: 0.9}]))
    recycle(asked, {5: 0.5})
    arrays, others = guessed.to_arrays(), asked.to_arrays()
    arrays |= {name: others[name] for name in others if name.startswith("recycled")}
    model = DraftState.from_arrays(arrays, VOCABULARY).model
    assert contents(model.ranked, 1, GUESSED) == {(2,): {8: np.float32(0.9)}}
    (found,) = model.successors([2])
    assert (found[1], SOURCE_OF_KIND[found[2]]) == (5, "recycled")
    # Behind a pair there is the guess alone.
    assert SOURCE_OF_KIND[model.successors([1, 2])[0][2]] == "trajectory"


def test_guesses_are_kept_under_short_contexts_alone(learned: DraftState) -> None:
    """Longer ones have no guesses, so that files have no arrays for them."""
    arrays = learned.to_arrays()
    guesses = {name.split(".")[0] for name in arrays if name.startswith("guessed")}
    assert guesses == {"guessed1", "guessed2"}
    read = DraftState.from_arrays(arrays, VOCABULARY).model
    for order in (1, 2):
        known = contents(learned.model.ranked, order, GUESSED)
        assert known
        assert contents(read.ranked, order, GUESSED) == known


def test_only_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch, learned: DraftState) -> None:
    monkeypatch.setattr("ladecli.decoder.draft_state.KEPT_CONTEXTS", 5)
    monkeypatch.setattr("ladecli.decoder.draft_state.KEPT_TOKENS", 7)
    small = DraftState.from_arrays(learned.to_arrays(), VOCABULARY)
    assert small.context.corpus.tokens == [*learned.context.corpus.tokens[-7:], -1]
    known = list(contents(learned.model.ranked, 4, ASKED).items())
    assert list(contents(small.model.ranked, 4, ASKED).items()) == known[-5:]
    assert len(small.pool) == 5
