"""Files that a user asked for: where they may go, and that they are written whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ladecli import outputs
from ladecli.errors import LadeError, UsageError


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^--trace .* is a folder; name a file in it$"):
        outputs.check(tmp_path, "--trace")
    with pytest.raises(UsageError, match=r"^--svg .*: the folder .*no does not exist$"):
        outputs.check(tmp_path / "no" / "x", "--svg")
    outputs.check(tmp_path / "x", "--html")
    assert not (tmp_path / "x").exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=r"nothing can be written to .*; choose another$"):
        outputs.check(tmp_path / "x", "--html")


def test_two_things_do_not_go_to_one_file(tmp_path: Path) -> None:
    one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
    outputs.check_apart([("--svg", one), ("--html", two)], [("--prompt-file", link)])
    with pytest.raises(UsageError, match=r"^--svg and --html are the same file, .*one; name"):
        outputs.check_apart([("--svg", one), ("--html", tmp_path / "x" / ".." / "one")])
    two.write_text("a prompt")
    link.symlink_to(two)
    with pytest.raises(UsageError, match=r"^--prompt-file and --trace are the same file"):
        outputs.check_apart([("--trace", link)], [("--prompt-file", two)])
    (tmp_path / "hard").hardlink_to(two)
    with pytest.raises(UsageError, match=r"^--prompt-file and --trace are the same file"):
        outputs.check_apart([("--trace", tmp_path / "hard")], [("--prompt-file", two)])
    # What is read twice is nobody's loss, and devices hold nothing.
    outputs.check_apart([("--svg", one)], [("--prompt-file", two), ("--prompt-file", two)])
    outputs.check_apart([("--svg", Path("/dev/null")), ("--html", Path("/dev/null"))])


def test_a_file_keeps_its_mode_and_its_old_text_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    outputs.write_whole(path, "old", "--html")
    path.chmod(0o600)
    outputs.write_whole(path, "new", "--html")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LadeError, match=r"^--html .*x cannot be written: No space left on device$"):
        outputs.write_whole(path, "newer", "--html")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["x"]


def test_devices_are_written_to_and_not_replaced() -> None:
    outputs.write_whole(Path("/dev/null"), "text", "--svg")
    assert Path("/dev/null").is_char_device()


def test_files_of_several_answers_are_numbered() -> None:
    names = [outputs.numbered(Path("a/x.b.svg"), number).name for number in (1, 2, 10)]
    assert names == ["x.b.svg", "x.b-2.svg", "x.b-10.svg"]
