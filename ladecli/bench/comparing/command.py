"""`lade bench compare`: two results side by side, for people and for programs."""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path

from ...errors import UsageError
from ...screen import line
from ...terminal import Terminal
from ..wording import clean, listed
from .report import show
from .schema import as_object


def run(a: str, b: str, color: str, json: bool, fail_on_slower: bool = False) -> int:
    """Compare two results of `lade bench --json`.

    Args:
        a: file of the result from before.
        b: file of the result to judge.
        color: auto, always or never.
        json: print an object in place of tables.
        fail_on_slower: make it the exit code whether a contender became slower.

    Returns:
        The exit code: 0, or 1 where a contender became slower, or is gone, and that is to fail.

    Raises:
        UsageError: a file is no result, or nothing is in both; or slower is to fail, and both did
            other work, so that it cannot be told (what can is printed before).
    """
    from .. import record
    from .compare import compare

    ours, theirs = record.read(Path(a)), record.read(Path(b))
    comparison = compare(ours, theirs)
    if json:
        # ASCII alone: names in the files must not reach a terminal as commands.
        print(jsons.dumps(as_object(comparison, a, b, ours, theirs), allow_nan=False))
    else:
        console = Terminal(color).console(sys.stdout)
        for name, path, result in (("A", a, ours), ("B", b, theirs)):
            measured = f"{result.model.name} on {result.machine.device}, {result.created}"
            line(console, clean(f"{name}: {path}, {measured}"))
        show(comparison, console)
    if fail_on_slower and comparison.other_work:
        what = listed(comparison.other_work)
        raise UsageError(
            f"--fail-on-slower cannot tell: A and B did other work ({what}); measure both alike"
        )
    return int(fail_on_slower and comparison.slower)
