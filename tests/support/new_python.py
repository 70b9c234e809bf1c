"""The program in a new Python without imported modules; it is called several times, since a start
takes seconds.  Most programs of tests do not need this, see `processes`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.support.processes import Result

_CODE = """
import contextlib, io, json, os, sys
from ladecli.commands.cli import entry

for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = entry(arguments)
    imported = sorted(name for name, module in sys.modules.items() if module)
    print(json.dumps([code, out.getvalue(), err.getvalue(), imported]), flush=True)
os._exit(0)  # as `lade` ends: taken apart by Python, triton 3.9 writes of what it leaked
"""


class CallResult(Result):
    """The result of a call; `imported` are the modules that it imported."""

    def __init__(self, code: int, out: str, err: str, imported: Sequence[str]) -> None:
        super().__init__(code, out, err)
        self.imported = {*imported}


def calls(*commands: Sequence[str], **env: str) -> list[CallResult]:
    """Call the program with each of some arguments, and variables, in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, json.dumps(commands)],
        env=os.environ | {"TRITON_INTERPRET": "0"} | env,
        stdout=subprocess.PIPE,  # pytest captures what libraries write to stderr themselves
        text=True,
        check=True,
    )
    return [CallResult(*json.loads(line)) for line in done.stdout.splitlines()]
