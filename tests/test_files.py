"""Files that the user names: valid paths, and atomic writes."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ladecli import files
from ladecli.errors import LadeError, UsageError
from ladecli.options.answer import GenerateRequest
from ladecli.trace import record


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--trace .* is a folder; name a file in it$"):
        files.check(tmp_path, "--trace")
    with pytest.raises(UsageError, match=r"^--trace .*: the folder .*no does not exist$"):
        files.check(tmp_path / "no" / "x", "--trace")
    with pytest.raises(UsageError, match="~nosuch does not exist"):  # a user that does not exist
        files.check(files.expanded("~nosuch/x"), "--trace")
    files.check(tmp_path / "x", "--trace")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "loop").symlink_to("loop")
    names = [tmp_path / (300 * "n"), tmp_path / "a\0b"]
    if sys.version_info < (
        3,
        13,
    ):  # in later versions, such a link counts as a file that does not exist yet
        names.append(tmp_path / "loop")
    if sys.platform == "linux":  # whose /proc accepts no files, even from root
        names.append(Path("/proc/x"))
    for path in names:
        with pytest.raises(UsageError, match=r"^--json .* cannot be written \(.*\); choose "):
            files.check(path, "--json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "one", "prompt_file": ["two"]}, None),
        (
            {"trace": "one", "draft_text": ["folder/../one"]},
            "--draft-text and --trace are the same",
        ),
        ({"trace": "link", "prompt_file": ["prompt"]}, "--prompt-file and --trace are the same"),
        ({"trace": "x.a", "draft_text": ["x-2.a"]}, "--draft-text and --trace are the same.*x-2.a"),
        ({"trace": "/dev/null", "draft_text": ["/dev/null"]}, None),
    ],
)
def test_two_outputs_cannot_share_a_file(
    options: dict[str, Any], message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("prompt").write_text("a prompt")
    Path("link").symlink_to("prompt")
    refusal = pytest.raises(UsageError, match=f"^{message}") if message else nullcontext()
    with refusal:
        record.check(GenerateRequest(**options), answers=3)


def test_a_file_is_replaced_through_links_and_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "x", tmp_path / "link"
    files.write(path, "old", "--trace")
    path.chmod(0o600)
    link.symlink_to(path)
    files.write(link, "new", "--trace")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(LadeError, match=r"^--trace .*x cannot be written: No space left"):
        files.write(path, "newer", "--trace")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """The name of the temporary file cannot be guessed."""
    target, folder = tmp_path / "precious", tmp_path / "shared"
    target.write_text("precious")
    folder.mkdir()
    for name in (".x", f".x.{os.getpid()}", ".x.tmp", "x.tmp"):
        (folder / name).symlink_to(target)
    files.write(folder / "x", "new", "--trace")
    assert ((folder / "x").read_text(), target.read_text()) == ("new", "precious")


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_new_files_have_the_right_mode(tmp_path: Path, private: bool, mode: int) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "x", "new", "--trace", private=private)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode


def test_stdout_is_for_the_answer(lade: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert lade("generate", "-p", "a", "--trace", "-").refused().startswith("--trace -: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless device")
def test_an_endless_device_is_refused() -> None:
    with pytest.raises(OSError, match="it holds more than 100 MB"):
        files.read(Path("/dev/zero"), pipes=True)
    with pytest.raises(OSError, match="not a regular file"):
        files.read(Path("/dev/zero"))


def test_pipes_in_place_of_our_own_files_are_refused(tmp_path: Path, lade: Any) -> None:
    """A pipe without a writer would block forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "pipe")
    assert "not a regular file" in lade("replay", str(tmp_path / "pipe")).refused()
