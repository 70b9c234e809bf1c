"""The entry point `lade`, which imports the program."""

from __future__ import annotations

import os


def run_and_exit() -> None:
    """Run the program, and end the process with its exit code."""
    # A Python that this one starts, as multiprocessing does, must not run files of the current
    # folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        # Within the `try`, since Ctrl-C during the import must not show a traceback.
        from .commands.cli import run

        code = run()
    except KeyboardInterrupt:
        from .errors import INTERRUPTED

        code = INTERRUPTED
    # Python's own exit would unload torch for a second or two, in which Ctrl-C causes a traceback,
    # and would wait for other ranks that are gone.
    os._exit(code)


if __name__ == "__main__":
    run_and_exit()
