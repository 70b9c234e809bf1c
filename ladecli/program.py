"""The program `lade`: runs the command line, and turns every error into one line."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

import typer
from typer.exceptions import TyperException

from . import offload
from .cli import app
from .decoder.errors import ConfigError, DecoderError, PromptError
from .errors import INTERRUPTED, LadeError, UsageError, told
from .parallel.place import is_follower
from .visualize import printable


def _mend_streams() -> None:
    """Give a closed stream somewhere to go, and text that it cannot encode a stand-in."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (lives as long as we do)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def entry(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: every error becomes one line here."""
    _mend_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    # People append it to the call that failed, so it counts wherever it stands.
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = typer.main.get_command(app).main(arguments, "lade", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TyperException as error:
        # What the parser itself refuses: unknown options, words in place of numbers.
        return _failed(_refused(error), UsageError.exit_code)
    except (LadeError, DecoderError) as error:
        if debug:
            raise
        bad_input = isinstance(error, UsageError | ConfigError | PromptError)
        return _failed(str(error), UsageError.exit_code if bad_input else LadeError.exit_code)
    except OSError as error:
        if debug:
            raise
        return _failed(told(error), 1)
    except Exception as error:
        if debug:
            raise
        return _failed(f"{told(error)}; --debug shows where", 1)


def _refused(error: TyperException) -> str:
    """What the parser says, but of a variable by the variable's name."""
    if isinstance(error, typer.BadParameter) and error.ctx is not None and error.param is not None:
        from .config_file import origins
        from .option_table import table_of
        from .places import PREFIX

        origin = origins(error.ctx).get(error.param.name, "")
        if origin.startswith(PREFIX):
            option = table_of(app).options[error.param.name]
            return f"{origin} must be {option.what}, not {os.environ[origin]!r}"
    return error.format_message()


def _failed(message: str, code: int) -> int:
    # Help that was asked for by saying nothing is shown.
    if not message:
        return code
    if is_follower():  # one rank speaks for all
        return code
    # File names and templates have their say in messages, and must not drive the terminal.
    print(f"lade: {printable(message)}", file=sys.stderr)
    return code


def _is_said(stream: TextIO) -> bool:
    """Whether what was written to a stream is where it belongs."""
    try:
        stream.flush()
    except (OSError, ValueError, KeyboardInterrupt):  # closed, or nobody reads it
        return False
    return True


def run() -> int:
    """Run the program as it was called and return the exit code, all that was said being out."""
    code = LadeError.exit_code
    try:
        code = entry()
    except SystemExit as ended:  # by a signal
        code = ended.code if isinstance(ended.code, int) else code
    except OSError:
        if "--debug" in sys.argv:
            raise
        # A terminal that was closed takes no words: nothing can be said, and nobody waits.
    said = [_is_said(stream) for stream in (sys.stdout, sys.stderr)]
    if not all(said):
        code = code or LadeError.exit_code
    offload.remove_all()
    return code
