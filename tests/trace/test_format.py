"""Traces: written ones are read again and agree with the algorithm; damage is reported."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ladecli.decoder.events import Started, StepNarrowed
from ladecli.errors import UsageError
from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.session.tokens import speller
from ladecli.trace.format import Header, Trace, read_trace
from tests.support.traces import PROMPT, SETTINGS, demo, events_of, record, write


@pytest.mark.parametrize("name", SETTINGS)
def test_a_written_trace_is_read_unchanged(name: str, tmp_path: Path) -> None:
    trace = read_trace(record(tmp_path / "x", name))
    # The times of a step's parts are not in a trace.
    events = [replace(e, times=None) if isinstance(e, TextStep) else e for e in events_of(name)]
    assert ([*trace.events], trace.cut) == (events, False)
    assert trace.header.prompt == PROMPT
    assert trace.header.settings["strategy"] == SETTINGS[name].strategy
    tokenizer = demo().session.loaded.tokenizer
    assert {token for step in trace.steps for token in step.token_ids} <= set(trace.spellings)
    assert all(text == tokenizer.decode([token]) for token, text in trace.spellings.items())


def test_every_event_and_odd_texts_survive(tmp_path: Path) -> None:
    odd = 'a\u2028b"\x1b[31m 你\r\n'
    step = TextStep((Piece(odd, None),), (7,), 1, 0, 0.5)
    events: tuple[TextEvent, ...] = (Started(1, 600), PromptRead(512, 600, 0.25))
    events += (StepNarrowed(8, 0.1), step, Ended("interrupted", odd))
    header = Header(model="m", prompt=odd, prompt_tokens=600)
    path = write(tmp_path / "x", Trace(header, events, {7: odd}))
    assert read_trace(path) == Trace(header, events, {7: odd})


HEAD = (
    '{"format":"lade-trace","version":3,"model":"m","prompt":"p","prompt_tokens":1,"settings":{}}\n'
)
DETAIL = (
    '"detail":{"current":1,"tree":[4],"parents":[-1],"sources":["x"],"accepted":[],'
    '"window":[[1]],"outputs":[2],"closed":false}'
)
STEP = (
    '{"event":"step","pieces":[{"text":"a","source":null}],"token_ids":[1],"width":1,'
    f'"proposed":0,"seconds":0.1,{DETAIL},"cost":2.5}}\n'
)
END = '{"event":"ended","reason":"eos","rest":""}\n'
VERSION_3 = (
    HEAD
    + '{"event":"started","cached":0,"total":9}\n'
    + '{"event":"prompt_read","done":8,"total":9,"seconds":0.25}\n'
    + '{"event":"step_narrowed","width":8,"seconds":0.1}\n'
    + '{"event":"spellings","texts":{"1":"a","4":"b","2":"c"}}\n'
    + STEP
    + END
)
"""Files of version 3 look like this; a change needs another version."""


def test_the_format_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(VERSION_3, encoding="utf-8")
    trace = read_trace(tmp_path / "x")
    kinds = [Started, PromptRead, StepNarrowed, TextStep, Ended]
    assert [type(event) for event in trace.events] == kinds
    assert trace.spell(4) == "b"
    # Spellings are written in the order in which ids appear.
    assert write(tmp_path / "y", trace).read_text("utf-8") == VERSION_3


def test_spaces_at_the_start_of_words_are_spelled() -> None:
    class Drops:
        """A tokenizer that drops the space at the start of a text."""

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            assert not skip_special_tokens
            return "".join([" the", "."][token] for token in token_ids).removeprefix(" ")

    spell = speller(Drops())
    assert (spell(0), spell(1)) == (" the", ".")


def test_a_killed_program_leaves_a_readable_trace(tmp_path: Path) -> None:
    path = tmp_path / "x"
    data = VERSION_3.encode()
    path.write_bytes(data)
    whole = read_trace(path).events
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for lines, (end, following) in enumerate(pairwise(ends)):
        kept = lines - (lines > 3)  # one of them has spellings
        for cut in (end, end + 1, (end + following) // 2, following - 2):
            path.write_bytes(data[:cut])
            trace = read_trace(path)
            assert (trace.cut, trace.events) == (True, whole[:kept])


DAMAGED = [
    ("", "is not a trace; lade generate --trace"),
    ('{"prompt":"x"}\n', "is not a trace"),
    (HEAD.replace(":3,", ":1,", 1), "line 1: version: "),
    (HEAD.replace('"prompt":"p",', ""), "line 1: prompt: "),
    (HEAD + END + '{"a\udcff"}\n' + END, "line 3: "),
    (HEAD + "[" * 100_000 + "\n" + END, "line 2: "),
    (HEAD + '{"event":"x"}\n', "line 2: "),
    (HEAD + STEP.replace('"width":1,', ""), "line 2: step width: "),
    (HEAD + END.replace("eos", "tired"), "line 2: ended reason: "),
    (HEAD + STEP.replace('"token_ids":[1]', '"token_ids":[1,2]'), "that no step has"),
    (HEAD + STEP.replace("[-1]", "[0]"), "that no step has"),
    (HEAD + STEP.replace('"accepted":[]', '"accepted":[1]'), "that no step has"),
    (HEAD + STEP.replace("[[1]]", "[[1,2]]"), "that no step has"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_damage_is_reported_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UsageError, match=message) as caught:
        read_trace(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)
    assert "\n" not in str(caught.value)
