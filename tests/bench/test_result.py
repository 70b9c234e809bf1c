"""Results as JSON and back, and what they record of model, command and sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladecli.bench.result import SCHEMA, command_line, read, sampling_shown, to_json
from ladecli.decoder.config import SamplingConfig

from .makers import result


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_result_goes_to_json_and_back(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(to_json(result()), encoding=encoding)
    assert read(path) == result()


def test_keys_are_those_of_the_schema() -> None:
    found = json.loads(to_json(result()))
    assert found["schema"] == SCHEMA
    assert found.keys() == {
        *("schema", "created", "seconds", "interrupted", "reference", "machine"),
        *("model", "attention_why", "conditions", "contenders", "runs", "skipped", "failures"),
        *("time_spent", "bandwidth", "compile_seconds"),
    }
    assert found["runs"][0].keys() == {
        *("contender", "row", "category", "turn", "repeat", "prompt_tokens"),
        *("prompt_digest", "tokens", "first_tokens", "steps", "fed", "first_seconds"),
        *("step_seconds", "accepted", "peak_memory", "reason", "digest"),
    }
    assert found["contenders"][0].keys() == {"name", "strategy", "settings", "cell"}


def test_the_command_hides_folders() -> None:
    typed = ["bench", "/home/me/mine", "--prompts=/a/b/c.jsonl", "--sweep"]
    assert (
        command_line([*typed, "W=3,5 G=W", "org/model"])
        == "lade bench mine --prompts=c.jsonl --sweep 'W=3,5 G=W' org/model"
    )


def test_sampling_is_what_differs_from_the_default() -> None:
    assert sampling_shown(SamplingConfig(seed=7)) == {}
    sampled = {"temperature": 0.7, "seed": 2**64 - 1}
    assert sampling_shown(SamplingConfig(**sampled)) == sampled
