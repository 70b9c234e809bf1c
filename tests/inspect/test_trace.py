"""Traces: what is written is read again, says what the algorithm says, and damage is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ladecli import reading
from ladecli.decoder.events import Started, StepNarrowed
from ladecli.errors import LadeError, UsageError
from ladecli.events import Ended, Piece, PromptRead, TextStep
from ladecli.inspect.trace import Header, Trace, TraceWriter, read_trace, speller
from ladecli.inspect.window_lines import moved_on, origins

from ..recording import PROMPT, SETTINGS, demo, events_of, record, small_trace


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    found = read_trace(record(tmp_path / "x.jsonl", name, 0.004))
    # How long its parts took is not in a trace.
    happened = [replace(e, times=None) if isinstance(e, TextStep) else e for e in events_of(name)]
    assert [*found.events] == happened
    assert not found.cut
    assert found.header.prompt == PROMPT
    assert found.header.plain_step == 0.004
    assert found.header.settings["strategy"] == SETTINGS[name].strategy
    tokenizer = demo().session.loaded.tokenizer
    for token, text in found.spellings.items():
        assert text == tokenizer.decode([token])


def test_every_event_and_odd_texts_survive(tmp_path: Path) -> None:
    odd = 'a\u2028b"\x1b[31m\ud800 你\r\n'
    step = TextStep((Piece(odd, None),), (7,), 1, 0, 0.5)
    begun = [Started(1, 600), PromptRead(512, 600, 0.25), StepNarrowed(8, 0.1)]
    events = [*begun, step, Ended("interrupted", odd)]
    writer = TraceWriter(tmp_path / "x", Header("m", odd, 600), lambda _: odd)
    for event in events:
        writer.show(event)
    writer.finish()
    assert read_trace(tmp_path / "x") == Trace(Header("m", odd, 600), tuple(events), {7: odd})


def test_every_id_is_spelled_once_where_it_first_appears(tmp_path: Path) -> None:
    lines = record(tmp_path / "x.jsonl", "all sources").read_text("utf-8").splitlines()
    known: set[str] = set()
    for values in map(json.loads, lines):
        new = set(values.get("spelled", {}))
        assert not new & known
        known |= new
        if detail := values.get("detail"):
            met = {*detail["tree"], *detail["outputs"], detail["current"], *values["ids"]}
            met |= {token for row in detail["window"] for token in row}
            assert {str(token) for token in met} <= known


def test_spaces_at_the_start_of_words_are_spelled() -> None:
    class Drops:
        """A tokenizer that drops the space in front of a text."""

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            assert not skip_special_tokens
            return "".join([" the", "."][token] for token in token_ids).removeprefix(" ")

    spell = speller(Drops())
    assert (spell(0), spell(1)) == (" the", ".")


# The trace against the algorithm.


@pytest.mark.parametrize("name", SETTINGS)
def test_accepted_nodes_spell_the_tokens_of_the_step(name: str) -> None:
    current = None
    accepted = 0
    for step in (event for event in events_of(name) if isinstance(event, TextStep)):
        detail = step.detail
        assert detail is not None
        assert current in (None, detail.current)
        current = step.token_ids[-1]
        assert len(detail.accepted) == len(step.token_ids) - 1
        parent = -1
        for place, node in enumerate(detail.accepted):
            assert detail.parents[node] == parent
            assert detail.tree[node] == step.token_ids[place]
            assert detail.sources[node] == step.pieces[place].source
            parent = node
        assert step.proposed == len(detail.tree)
        accepted += len(detail.accepted)
    assert accepted or name in ("plain", "jacobi")


@pytest.mark.parametrize("name", ["all sources", "paper"])
def test_the_window_moves_as_the_algorithm_says(name: str) -> None:
    details = [event.detail for event in events_of(name) if isinstance(event, TextStep)]
    look = SETTINGS[name].lookahead
    full = 0
    for before, after in pairwise(details):
        assert before is not None
        assert after is not None
        rows = moved_on(before, look.window + look.ngram)
        assert after.window[0][0] == after.current
        assert after.window[0][1:] == rows[0][1:]
        assert after.window[1:] == rows[1:]
        assert after.closed == (len(after.window) == look.ngram - 1)
        if after.closed:
            full += 1
            columns = range(look.window)
            expected = [(*(row[j] for row in after.window), after.outputs[j]) for j in columns]
            assert list(after.ngrams) == expected
        else:
            assert after.ngrams == ()
    assert full > 10


def test_rows_know_which_step_put_them_out(tmp_path: Path) -> None:
    found = read_trace(record(tmp_path / "x.jsonl", "paper"))  # N = 4: three rows
    assert origins(found, 1) == [None]
    assert origins(found, 2) == [None, 1]
    assert origins(found, 3) == [None, 1, 2]
    assert origins(found, 4) == [1, 2, 3]
    assert origins(found, 9) == [6, 7, 8]


def test_a_window_that_starts_again_has_rows_of_no_step() -> None:
    found = small_trace()
    steps = list(found.steps)
    assert steps[1].detail is not None
    again = replace(steps[1].detail, window=((2, 7), (8, 9)))
    steps[1] = replace(steps[1], detail=again)
    changed = replace(found, events=tuple(steps))
    assert origins(found, 2) == [None, 1]
    assert origins(changed, 2) == [None, None]
    # Made narrower, it is still the same one.
    narrow = replace(again, window=((2,), (5,)), outputs=(9,))
    steps[1] = replace(steps[1], detail=narrow)
    assert origins(replace(found, events=tuple(steps)), 2) == [None, 1]


# Files that end early, or are something else.


def test_a_killed_program_leaves_a_trace_up_to_there(tmp_path: Path) -> None:
    path = record(tmp_path / "x.jsonl", "paper")
    data = path.read_bytes()
    whole = read_trace(path).events
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for kept, end in enumerate(ends[:-1]):
        for cut in (end, end + 1, (end + ends[kept + 1]) // 2, ends[kept + 1] - 2):
            path.write_bytes(data[:cut])
            found = read_trace(path)
            assert found.cut
            assert found.events == whole[:kept]
    path.write_bytes(data[:-1])  # only the last line break is missing
    assert not read_trace(path).cut


HEAD = (
    '{"format":"lade-trace","version":1,"model":"m","prompt":"p","prompt_tokens":1,"settings":{}}\n'
)
STEP = (
    '{"event":"step","pieces":["a"],"sources":[null],"ids":[1],"width":1,"proposed":0,'
    '"seconds":0.1,"detail":{"current":1,"tree":[],"parents":[],"sources":[],"accepted":[],'
    '"window":[],"outputs":[],"closed":false}}\n'
)
END = '{"event":"ended","reason":"eos","rest":""}\n'
FOREIGN = "x is no trace; lade generate --trace FILE records one"
LINE_2 = "the trace x, line 2: {}; record it again with --trace"
DAMAGED = {
    "empty": ("", FOREIGN),
    "some text": ("hello\n", FOREIGN),
    "binary": ("\x7fELF\0\x01", FOREIGN),
    "other json": ('{"prompt":"x"}\n', FOREIGN),
    "list": ("[]\n", FOREIGN),
    "header cut": (HEAD[:50], FOREIGN),
    "version": (
        HEAD.replace(":1,", ":2,", 1),
        "the trace x has version 2 and this program reads 1; record it again",
    ),
    "header lacks": (
        HEAD.replace('"prompt":"p",', ""),
        "the trace x, line 1: the header lacks a value, or has one of a wrong kind;"
        " record it again with --trace",
    ),
    "plain step": (
        HEAD.replace("{}", '{},"plain_step":0'),
        "the trace x, line 1: the header lacks a value, or has one of a wrong kind;"
        " record it again with --trace",
    ),
    "no json": (
        HEAD + "{1:2}\n" + END,
        LINE_2.format("no JSON (Expecting property name enclosed in double quotes)"),
    ),
    "last line": (HEAD + "}\n", LINE_2.format("no JSON (Expecting value)")),
    "no object": (HEAD + "3\n" + END, LINE_2.format("no JSON object")),
    "deep": (HEAD + "[" * 100_000 + "\n" + END, LINE_2.format("no JSON that can be read")),
    "unknown event": (HEAD + '{"event":"x"}\n', LINE_2.format("unknown event 'x'")),
    "no event": (HEAD + "{}\n", LINE_2.format("unknown event None")),
    "lacks": (HEAD + STEP.replace('"width":1,', ""), LINE_2.format("lacks 'width'")),
    "kind": (
        HEAD + STEP.replace('"width":1', '"width":true'),
        LINE_2.format("'width' has a value of a wrong kind"),
    ),
    "nan": (
        HEAD + STEP.replace("0.1", "NaN"),
        LINE_2.format("'seconds' has a value of a wrong kind"),
    ),
    "negative": (
        HEAD + STEP.replace("0.1", "-1"),
        LINE_2.format("'seconds' has a value of a wrong kind"),
    ),
    "lengths": (
        HEAD + STEP.replace('"ids":[1]', '"ids":[1,2]'),
        LINE_2.format("'pieces', 'sources' and 'ids' differ in length"),
    ),
    "reason": (
        HEAD + END.replace("eos", "tired"),
        LINE_2.format("'reason' has a value of a wrong kind"),
    ),
    "detail": (
        HEAD + STEP.replace('"detail":{', '"detail":3,"x":{'),
        LINE_2.format("'detail' must be an object or null"),
    ),
    "tree": (
        HEAD + STEP.replace('"tree":[]', '"tree":[4]'),
        LINE_2.format("'tree', 'parents' and 'sources' differ in length"),
    ),
    "parents": (
        HEAD + STEP.replace('[],"parents":[],"sources":[]', '[4],"parents":[0],"sources":["x"]'),
        LINE_2.format("a node of the tree stands before its parent"),
    ),
    "accepted": (
        HEAD + STEP.replace('"accepted":[]', '"accepted":[0]'),
        LINE_2.format("'accepted' names a node that the tree does not have"),
    ),
    "window": (
        HEAD + STEP.replace('"window":[]', '"window":[[1,2]]'),
        LINE_2.format("rows of the window differ in length"),
    ),
    "spelled": (
        HEAD + STEP.replace('{"event"', '{"spelled":{"1":2},"event"'),
        LINE_2.format("'spelled' must hold texts by token id"),
    ),
    "goes on": (
        HEAD + END + END,
        "the trace x, line 3: the trace goes on behind its end; record it again with --trace",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_with_its_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, message = DAMAGED[case]
    Path("x").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_trace(Path("x"))
    assert str(caught.value) == message


def test_lines_that_are_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(HEAD.encode() + b'{"a\xff"}\n' + END.encode())
    with pytest.raises(UsageError, match=r"the trace x, line 2: not UTF-8 \(byte 3\); record"):
        read_trace(Path("x"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no trace .*none; check the path"):
        read_trace(tmp_path / "none")
    with pytest.raises(UsageError, match=r"is a folder; name a file in it"):
        read_trace(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be read: "):
        read_trace(Path("a\0b"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_trace_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIMIT", 1000)
    path, refused = tmp_path / "pipe", threading.Event()
    os.mkfifo(path)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), path.open("wb") as pipe:
            pipe.write(b"\0" * 2000)
            pipe.flush()
            in_time.append(refused.wait(10))

    in_time: list[bool] = []
    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(UsageError, match=r"pipe is no trace; lade generate --trace FILE"):
        read_trace(path)
    refused.set()
    writer.join()
    assert in_time == [True]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_disk_that_fills_up_ends_the_recording_and_not_the_answer(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "x", Header("m", "p", 1), str)
    writer.show(Started(0, 1))
    writer._file.close()
    with Path("/dev/full").open("w") as writer._file:
        for _ in range(2):
            writer.show(Ended("length"))
    message = re.escape(f"--trace {tmp_path / 'x'} cannot be written: No space left")
    with pytest.raises(LadeError, match=message):
        writer.finish()
    trace = read_trace(tmp_path / "x")
    assert trace.events == (Started(0, 1),)
    assert trace.cut


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_said() -> None:
    with pytest.raises(LadeError, match=r"^--trace /dev/full cannot be written: No space left"):
        TraceWriter(Path("/dev/full"), Header("m", "p", 1), str)
