"""What a result says of machine, model and call, and what of the user's it does not say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ladecli import models
from ladecli.bench import facts, record
from ladecli.bench.report import conditions
from ladecli.bench.report.summary import summarise
from ladecli.decoder.config import SamplingConfig
from ladecli.errors import UsageError
from ladecli.session import Session
from ladecli.settings import BenchRequest

from . import report_results
from .makers import result


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["bench", "meta-llama/Llama-2-7b-hf"], "lade bench meta-llama/Llama-2-7b-hf"),
        (["bench", "/home/alice/models/mine"], "lade bench mine"),
        (["bench", "./mine"], "lade bench mine"),
        (["--prompts", "/home/alice/k=v/x.jsonl"], "lade --prompts x.jsonl"),
        (["--prompts=/home/alice/k=v/x.jsonl"], "lade --prompts=x.jsonl"),
        (["--report", "~/secret/client.html"], "lade --report client.html"),
        (["--report", "client/r.svg"], "lade --report r.svg"),
        (["--stop", "/think", "-n", "5"], "lade --stop /think -n 5"),
        (["--sweep", "W=3,5 G=W"], "lade --sweep 'W=3,5 G=W'"),
        (["--sweep=sources=context+recycled"], "lade --sweep=sources=context+recycled"),
    ],
)
def test_paths_are_the_users_own(typed: list[str], told: str) -> None:
    assert facts.command_line(typed) == told


def test_a_model_in_a_folder_goes_by_the_folders_name(model_folder: str) -> None:
    session = Session(models.load(model_folder))
    model = facts.model_of(session, BenchRequest())
    assert model.name == "tiny-llama"
    assert (model.context, model.made_for, model.attention) == (256, 256, "sdpa")
    assert str(Path(model_folder).parent) not in record.text(result(model=model))


def test_models_of_one_name_are_told_apart(model_folder: str, tmp_path: Path) -> None:
    loaded = models.load(model_folder)
    before = facts.fingerprint(loaded)
    assert facts.fingerprint(models.load(model_folder)) == before
    weights = next(Path(model_folder).glob("*.safetensors"))
    status = weights.stat()
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert facts.fingerprint(loaded) != before


def test_sampling_is_told_as_far_as_it_is_none_of_the_defaults() -> None:
    assert facts.described_sampling(SamplingConfig(seed=7)) == {}
    assert facts.described_sampling(SamplingConfig(repetition_penalty=1.2)) == {
        "repetition_penalty": 1.2
    }
    assert facts.described_sampling(SamplingConfig(temperature=0.7, top_k=5)) == {
        "temperature": 0.7, "top_k": 5, "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [7, 20261107, 2**64 - 1])
def test_a_seed_is_kept_to_the_last_digit(seed: int, tmp_path: Path) -> None:
    sampling = facts.described_sampling(SamplingConfig(temperature=0.7, seed=seed))
    made = result(conditions=report_results.conditions(sampling={**sampling, "seed": seed}))
    assert f'"seed": {seed}}}' in record.text(made)
    path = tmp_path / "r.json"
    path.write_text(record.text(made), encoding="utf-8")
    assert record.read(path).conditions.sampling == {"temperature": 0.7, "seed": seed}
    *_, told, _settings = conditions.tables(summarise(made))
    assert dict(told.rows)["sampling"] == f"temperature 0.7, seed {seed}"


def test_a_seed_of_an_older_file_is_the_same_one(tmp_path: Path) -> None:
    made = result(conditions=report_results.conditions(sampling={"temperature": 1.0, "seed": 7}))
    path = tmp_path / "r.json"
    path.write_text(record.text(made).replace('"seed": 7', '"seed": 7.0'), encoding="utf-8")
    found = record.read(path)
    *_, told, _settings = conditions.tables(summarise(found))
    assert dict(told.rows)["sampling"] == "temperature 1, seed 7"


def test_a_mark_of_the_encoding_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(record.text(result()), encoding="utf-8-sig")
    assert record.read(path) == result()
    path.write_text(record.text(result()), encoding="utf-16")
    with pytest.raises(UsageError) as caught:
        record.read(path)
    assert str(caught.value) == (
        f"{path} is no UTF-8 (older PowerShells write UTF-16 behind >); let --report write it"
    )


def test_a_result_goes_to_json_and_back(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(record.text(result()), encoding="utf-8")
    assert record.read(path) == result()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no result of lade bench"),
        ("{", "is no result of lade bench"),
        ("[]", "has no schema, and this program reads lade-bench/1; measure again"),
        ('{"schema": "lade-bench/9"}', "has schema 'lade-bench/9', and this program reads"),
        ('{"schema": "lade-bench/1"}', "is damaged: created: Field required"),
    ],
)
def test_files_that_are_no_results(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        record.read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
