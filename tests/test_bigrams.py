"""Bigrams on disk: every load asks for some more, and nothing foreign or damaged is believed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from platformdirs import user_cache_path
from safetensors.torch import load_file, save_file

import ladecli
from ladecli.decoder.drafting.ngram_model import BIGRAMS
from ladecli.session.session import Session

from .hub_files import DEMO


def files() -> list[Path]:
    return sorted((user_cache_path("lade", appauthor=False) / "bigrams").glob("*"))


def opened(model: str = "demo", **options: object) -> Session:
    return ladecli.load(model, device="cpu", **options).session


def known(session: Session) -> int:
    return 0 if session.drafts.bigrams is None else len(session.drafts.bigrams.ids)


def test_loads_go_on_where_the_last_one_ended() -> None:
    numbers = [known(opened()) for _ in range(2)]
    assert 0 < numbers[0] < numbers[1] or numbers == [4096, 4096]
    (path,) = files()
    with np.load(path) as arrays:
        assert arrays["ids"].shape == arrays["shares"].shape == (numbers[1], BIGRAMS)


def test_they_outlive_a_fresh_start_and_are_the_same_in_every_precision() -> None:
    session = opened()
    before = known(session)
    session.start_over()
    assert known(session) == before > 0
    opened(quantize="8bit", dtype="bfloat16")
    assert len(files()) == 1


def test_another_model_has_another_file(tmp_path: Path) -> None:
    """Also one of the same shape, such as a finetune."""
    copy = tmp_path / "model"
    shutil.copytree(DEMO, copy)
    weights = load_file(copy / "model.safetensors")
    weights["model.embed_tokens.weight"] += 0.01
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    opened()
    opened(str(copy))
    assert len(files()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"no archive",
        {"ids": np.zeros((4, BIGRAMS), np.int32)},
        {"ids": np.full((4, BIGRAMS), 1 << 30), "shares": np.ones((4, BIGRAMS))},
        {"ids": np.zeros(4, np.int32), "shares": np.ones(4)},
        {"ids": np.array([{}]), "shares": np.ones(1)},
    ],
    ids=["empty", "text", "half", "ids", "shape", "pickled"],
)
def test_a_damaged_file_is_written_anew(damage: bytes | dict[str, np.ndarray]) -> None:
    opened()
    (path,) = files()
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        np.savez(path, **damage)
    session = opened()
    assert known(session) > 0
    with np.load(path) as arrays:
        assert len(arrays["ids"]) == known(session)


def test_a_folder_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert known(opened()) > 0


def test_plain_decoding_asks_nothing(lade: Any) -> None:
    for strategy, count in (("autoregressive", 0), ("lookahead", 1)):
        lade("generate", "demo", "--prompt", "Once", "-n", "4", "--strategy", strategy)
        assert len(files()) == count
