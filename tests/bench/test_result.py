"""Results as JSON, and the command in them."""

from __future__ import annotations

import json

from ladecli.bench.result import SCHEMA, command_line, to_json
from tests.support.results import result


def test_keys_are_those_of_the_schema() -> None:
    written = json.loads(to_json(result()))
    assert written["schema"] == SCHEMA
    keys = "schema created seconds interrupted reference machine model conditions contenders runs"
    assert written.keys() == {*keys.split(), "skipped", "failures", "time_spent"}
    keys = "contender row category turn repeat prompt_tokens prompt_digest tokens first_tokens"
    keys += " steps fed first_seconds step_seconds accepted peak_memory reason digest"
    assert written["runs"][0].keys() == {*keys.split()}
    assert written["contenders"][0].keys() == {"name", "strategy", "settings"}


def test_the_command_hides_folders() -> None:
    typed = ["bench", "/home/me/mine", "--prompts=/a/b/c.jsonl", "W=3,5 G=W", "org/model"]
    assert command_line(typed) == "lade bench mine --prompts=c.jsonl 'W=3,5 G=W' org/model"
