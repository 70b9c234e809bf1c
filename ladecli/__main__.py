"""The entry point `lade`: nothing but what must be there while the program is imported."""

from __future__ import annotations

import os


def run_and_exit() -> None:
    """Run the program, and end the process with its exit code."""
    # A Python that this one starts (multiprocessing does) must not run files of the current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        # After a typing error Ctrl-C comes at once, and must not show a traceback of an import.
        from .commands.cli import run

        code = run()
    except KeyboardInterrupt:
        from .errors import INTERRUPTED

        code = INTERRUPTED
    # Python's own exit takes torch apart.  That takes a second or two, in which an impatient Ctrl-C
    # would end in a traceback; and where other ranks are gone, it waits for them.
    os._exit(code)


if __name__ == "__main__":
    run_and_exit()
