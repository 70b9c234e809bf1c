"""Traces: what is written is read again, agrees with the algorithm, and damage is named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.events import Started, StepNarrowed
from ladecli.errors import LadeError, UsageError
from ladecli.events import Ended, Piece, PromptRead, TextEvent, TextStep
from ladecli.trace import Header, Trace, TraceWriter, read_trace, speller

from .recording import PROMPT, SETTINGS, demo, events_of, record

HEADER = Header(model="m", prompt="p", prompt_tokens=1)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    found = read_trace(record(tmp_path / "x", name, 0.004))
    # The times of a step's parts are not in a trace.
    happened = [replace(e, times=None) if isinstance(e, TextStep) else e for e in events_of(name)]
    assert [*found.events] == happened
    assert not found.cut
    assert found.header.prompt == PROMPT
    assert found.header.plain_step == 0.004
    assert found.header.settings["strategy"] == SETTINGS[name].strategy
    tokenizer = demo().session.loaded.tokenizer
    assert found.spellings
    for token, text in found.spellings.items():
        assert text == tokenizer.decode([token])


def written(path: Path, *events: TextEvent, header: Header = HEADER, text: str = "a") -> Path:
    """A trace of these events, in which every token is spelled `text`."""
    writer = TraceWriter(path, header, lambda _: text)
    for event in events:
        writer.show(event)
    writer.finish()
    return path


def test_every_event_and_odd_texts_survive(tmp_path: Path) -> None:
    odd = 'a\u2028b"\x1b[31m 你\r\n'
    step = TextStep((Piece(odd, None),), (7,), 1, 0, 0.5)
    events = (Started(1, 600), PromptRead(512, 600, 0.25), StepNarrowed(8, 0.1), step)
    events = (*events, Ended("interrupted", odd))
    header = Header(model="m", prompt=odd, prompt_tokens=600)
    path = written(tmp_path / "x", *events, header=header, text=odd)
    assert read_trace(path) == Trace(header, events, {7: odd})


def test_the_format_of_a_trace(tmp_path: Path) -> None:
    """Files of version 1 look like this; a change needs another version."""
    begun = [Started(0, 9), PromptRead(8, 9, 0.25)]
    path = written(tmp_path / "x", *begun, StepNarrowed(8, 0.1), Ended("eos"))
    assert path.read_text("utf-8").splitlines() == [
        '{"format":"lade-trace","version":1,"model":"m","prompt":"p","prompt_tokens":1,'
        '"settings":{},"plain_step":null}',
        '{"event":"started","cached":0,"total":9}',
        '{"event":"prompt_read","done":8,"total":9,"seconds":0.25}',
        '{"event":"squeezed","width":8,"seconds":0.1}',
        '{"event":"ended","reason":"eos","rest":""}',
    ]
    path = record(tmp_path / "y", "all sources")
    step = next(row for row in rows_of(path) if row.get("event") == "step")
    assert [*step] == [
        *("event", "pieces", "sources", "ids", "width", "proposed", "seconds", "detail", "spelled")
    ]
    assert [*step["detail"]] == [
        *("current", "tree", "parents", "sources", "accepted", "window", "outputs", "closed")
    ]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file's lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_id_is_spelled_once_where_it_first_appears(tmp_path: Path) -> None:
    known: set[str] = set()
    for row in rows_of(record(tmp_path / "x", "all sources")):
        assert row.get("spelled") != {}
        new = set(row.get("spelled", {}))
        assert not new & known
        known |= new
        if detail := row.get("detail"):
            met = {*detail["tree"], *detail["outputs"], detail["current"], *row["ids"]}
            met |= {token for cells in detail["window"] for token in cells}
            assert {str(token) for token in met} <= known
    assert known


def test_spaces_at_the_start_of_words_are_spelled() -> None:
    class Drops:
        """A tokenizer that drops the space in front of a text."""

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            assert not skip_special_tokens
            return "".join([" the", "."][token] for token in token_ids).removeprefix(" ")

    spell = speller(Drops())
    assert (spell(0), spell(1)) == (" the", ".")


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
        assert [detail.parents[node] for node in detail.accepted] == [-1, *detail.accepted][:-1]
        for node, token, piece in zip(detail.accepted, step.token_ids, step.pieces, strict=False):
            assert (detail.tree[node], detail.sources[node]) == (token, piece.source)
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
        rows = (*before.window, before.outputs)
        rows = rows[1:] if before.closed else tuple(row[1:] for row in rows)
        assert after.window[0][0] == after.current
        assert (after.window[0][1:], *after.window[1:]) == (rows[0][1:], *rows[1:])
        assert after.closed == (len(after.window) == look.ngram - 1)
        if after.closed:
            full += 1
            assert after.ngrams == tuple(zip(*after.window, after.outputs, strict=True))
        else:
            assert after.ngrams == ()
    assert full > 10


def test_a_killed_program_leaves_a_trace_up_to_there(tmp_path: Path) -> None:
    path = record(tmp_path / "x", "paper")
    data = path.read_bytes()
    whole = read_trace(path).events
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for kept, (end, following) in enumerate(pairwise(ends)):
        for cut in (end, end + 1, (end + following) // 2, following - 2):
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
TREE = '[4],"parents":[{}],"sources":["x"]'
DAMAGED = {
    "empty": ("", "is not a trace; lade generate --trace"),
    "some text": ("hello\n", "is not a trace"),
    "binary": ("\x7fELF\0\x01", "is not a trace"),
    "other json": ('{"prompt":"x"}\n', "is not a trace"),
    "list": ("[]\n", "is not a trace"),
    "header cut": (HEAD[:50], "is not a trace"),
    "version": (HEAD.replace(":1,", ":2,", 1), "has version 2 and this program reads 1"),
    "no version": (HEAD.replace('"version":1,', ""), "has version None"),
    "header lacks": (HEAD.replace('"prompt":"p",', ""), "line 1: prompt: "),
    "plain step": (HEAD.replace("{}", '{},"plain_step":0'), "line 1: plain_step: "),
    "no json": (HEAD + "{1:2}\n" + END, "line 2: Invalid JSON"),
    "last line": (HEAD + "}\n", "line 2: Invalid JSON"),
    "not UTF-8": (HEAD + '{"a\udcff"}\n' + END, "line 2: Invalid JSON"),
    "no object": (HEAD + "3\n" + END, "line 2: not an event"),
    "deep": (HEAD + "[" * 100_000 + "\n" + END, "line 2: Invalid JSON"),
    "unknown event": (HEAD + '{"event":"x"}\n', "line 2: not an event"),
    "no event": (HEAD + "{}\n", "line 2: not an event"),
    "lacks": (HEAD + STEP.replace('"width":1,', ""), "line 2: step.width: "),
    "kind": (HEAD + STEP.replace('"width":1', '"width":true'), "line 2: step.width: "),
    "nan": (HEAD + STEP.replace("0.1", "NaN"), "line 2: seconds must be"),
    "negative": (HEAD + STEP.replace("0.1", "-1"), "line 2: seconds must be"),
    "huge": (HEAD + STEP.replace('"ids":[1]', f'"ids":[{"9" * 5000}]'), "line 2: "),
    "lengths": (HEAD + STEP.replace('"ids":[1]', '"ids":[1,2]'), "ids differ in length"),
    "reason": (HEAD + END.replace("eos", "tired"), "line 2: ended.reason: "),
    "detail": (HEAD + STEP.replace('"detail":{', '"detail":3,"x":{'), "line 2: step.detail: "),
    "tree": (HEAD + STEP.replace('"tree":[]', '"tree":[4]'), "line 2: step.detail: tree, parents"),
    "parents": (
        HEAD + STEP.replace('[],"parents":[],"sources":[]', TREE.format(0)),
        "a node of the tree comes before its parent",
    ),
    "negative parent": (
        HEAD + STEP.replace('[],"parents":[],"sources":[]', TREE.format(-2)),
        "a node of the tree comes before its parent",
    ),
    "accepted": (HEAD + STEP.replace('"accepted":[]', '"accepted":[0]'), "accepted names a node"),
    "window": (HEAD + STEP.replace('"window":[]', '"window":[[1,2]]'), "rows and outputs differ"),
    "no columns": (HEAD + STEP.replace('"window":[]', '"window":[[]]'), "no columns"),
    "spelled": (HEAD + STEP.replace("{", '{"spelled":{"1":2},', 1), "line 2: step.spelled.1: "),
    "goes on": (HEAD + END + END, "line 3: the trace goes on after its end"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    text, message = DAMAGED[case]
    (tmp_path / "x").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UsageError, match=message) as caught:
        read_trace(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sound_step_is_not_refused(tmp_path: Path) -> None:
    """What the damaged lines are made of."""
    (tmp_path / "x").write_text(HEAD + STEP + END, encoding="utf-8")
    assert len(read_trace(tmp_path / "x").steps) == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases = {tmp_path / "none": "there is no trace", tmp_path: "is a folder", Path("a\0b"): "read"}
    if Path("/dev/zero").exists():
        cases[Path("/dev/zero")] = "is not a trace"
    for path, message in cases.items():
        with pytest.raises(UsageError, match=message):
            read_trace(path)


def test_names_of_sources_cannot_drive_the_terminal(tmp_path: Path) -> None:
    step = STEP.replace("[null]", '["\\u001b[2Ja"]')
    step = step.replace('[],"parents":[],"sources":[]', TREE.format(-1).replace("x", "\\u001b[2Jb"))
    (tmp_path / "x").write_text(HEAD + step + END, encoding="utf-8")
    (found,) = read_trace(tmp_path / "x").steps
    assert found.pieces[0].source == "[2Ja"
    assert found.detail is not None
    assert found.detail.sources == ("[2Jb",)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_said() -> None:
    with pytest.raises(LadeError, match=r"^--trace /dev/full cannot be written: No space left"):
        TraceWriter(Path("/dev/full"), HEADER, str)


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_answer(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = TraceWriter(tmp_path / "x", HEADER, str)
    writer.show(Started(0, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "x").stat().st_size, hard))
    try:
        writer.show(Ended("length"))
        writer.show(Ended("length"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(LadeError, match=r"x cannot be written: "):
        writer.finish()
    trace = read_trace(tmp_path / "x")
    assert trace.events == (Started(0, 1),)
    assert trace.cut
