"""The program `lade`: builds its commands from requests, and prints every error in one line.

The options and the module of a command are imported when it is called.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import sys
from dataclasses import MISSING
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from .. import __version__
from ..decoder.backends.quiet import LOG, quiet
from ..decoder.errors import ConfigError, Error, PromptError
from ..errors import INTERRUPTED, LadeError, UsageError, describe_error
from ..options import COMMANDS, request_of
from ..options.declare import CONFIG_FILE, PREFIX, Option, Options, options_of
from ..session.rank_info import read_torchrun

_ON_RANKS = ("chat", "generate", "bench")
"""Commands that several processes can run together."""
_HERE = {
    "run": "lade chat MODEL, or lade generate MODEL for one answer",
    **dict.fromkeys(("list", "ls"), "lade models"),
    "show": "lade doctor MODEL",
    **dict.fromkeys(("pull", "download"), "nothing: a model is downloaded when it is first used"),
    **dict.fromkeys(("-m", "--model"), "MODEL without a flag, right after the command"),
    **dict.fromkeys(("-p", "--prompt"), "lade generate --prompt TEXT, or lade chat MODEL MESSAGE"),
    "--temp": "--temperature",
    **dict.fromkeys(("--max-tokens", "--n-predict", "--num-predict"), "--max-new-tokens"),
    **dict.fromkeys(("-c", "--ctx-size", "--num-ctx"), "--max-context"),
    "--repeat-penalty": "--repetition-penalty",
}
"""Our commands and options by their names in ollama, llm, mlx-lm and llama-cli."""


class _Commands(TyperGroup):
    """The commands; only the called one gets its options."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a command for the list of commands."""
        return TyperCommand(name, help=request_of(name).__doc__) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with; some have two words."""
        name, rest = args[0], args[1:]
        if (two := " ".join(args[:2])) in COMMANDS:
            name, rest = two, args[2:]
        if name in _HERE:
            raise UsageError(f"No such command {name!r}; here it is {_HERE[name]}")
        if name not in COMMANDS:
            return super().resolve_command(ctx, args)  # which refuses it
        from . import config

        try:
            # click uses these defaults after flags and LADE_* variables.
            ctx.default_map = {name: config.defaults(name)}
        except UsageError:
            if name != "config init":  # that one replaces a broken file
                raise
        return name, _command(name), rest


app = typer.Typer(
    name="lade",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Exact, fast answers from large language models, by lookahead decoding.",
)


def _version(flag: bool) -> None:
    if flag:
        typer.echo(f"lade {__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", metavar=" ", help="Show tracebacks of errors, and warnings of libraries."
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar=" ", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Settings of all commands."""


def _command(name: str) -> Any:
    """Return a command with the options of its request."""
    kind = request_of(name)

    def call(parser: typer.Context, **values: Any) -> int:
        return _perform(name, kind(**values, origins=_origins(parser)))

    first = inspect.Parameter("parser", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [first, *map(_parameter, options_of(kind).values())]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name, help=kind.__doc__)(call)
    return typer.main.get_command(alone)


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter of a function, for Typer."""
    described: dict[str, Any] = {
        "help": option.help,
        "metavar": option.metavar,
        "envvar": option.variable,
        "show_envvar": False,
    }
    if option.argument:
        info = typer.Argument(**described)
    else:
        if option.kind is bool:
            described["metavar"] = " "  # else the help shows a type, although a switch has no value
        info = typer.Option(*option.flags, rich_help_panel=option.panel, **described)
    return inspect.Parameter(
        option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.default is MISSING else option.default,
        annotation=Annotated[option.annotation, info],
    )


def _origins(context: Any) -> dict[str, str]:
    """Return the origins of a call's options by key, without options at their defaults."""
    origins = {}
    for parameter in context.command.params:
        key, source = parameter.name, context.get_parameter_source(parameter.name)
        if source is None or source.name == "DEFAULT":
            continue
        if source.name == "ENVIRONMENT":
            origins[key] = str(parameter.envvar)
        elif source.name == "DEFAULT_MAP":
            origins[key] = CONFIG_FILE
        elif parameter.param_type_name == "argument":
            origins[key] = "argument"
        else:
            off = parameter.secondary_opts and context.params.get(key) is False
            flags = parameter.secondary_opts if off else parameter.opts
            origins[key] = f"flag {max(flags, key=len)}"
    return origins


def _perform(name: str, request: Options) -> int:
    """Run a command until it ends, or until its output pipe is closed."""
    info = read_torchrun()
    if info is not None and name not in _ON_RANKS:
        raise UsageError(f"lade {name} is one process; start it without torchrun")
    request.check()
    if info is not None and info.rank > 0:
        from ..options.answer import RankedOptions
        from ..session import opening, parallel

        assert isinstance(request, RankedOptions)
        return parallel.follow(request, opening.plan_rank)
    from ..view.terminal import Terminal, tidying_up
    from .config import stray_variables

    for line in stray_variables(os.environ):
        Terminal(quiet=getattr(request, "quiet", False)).say(line)
    module, _, function = COMMANDS[name][1].rpartition(".")
    try:
        with tidying_up():
            code: int = getattr(import_module(f"ladecli.{module}"), function)(request)
        return code
    except BrokenPipeError:
        # Python flushes stdout at exit, which would fail again on the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def standing() -> dict[str, Options]:
    """Return the requests of calls without flags, by command.

    Raises:
        UsageError: a variable has a wrong type; or as for `config.read`.
    """
    from . import config

    requests = {}
    for name in COMMANDS:
        kind, command = request_of(name), _command(name)
        required = ["-" for parameter in command.params if parameter.required]
        try:
            context = command.make_context(name, required, default_map=config.defaults(name))
        except TyperException as error:
            raise UsageError(_parser_message(error)) from error
        values = {key: context.params[key] for key in options_of(kind)}
        requests[name] = kind(**values, origins=_origins(context))
    return requests


def show_config(request: Options) -> int:
    """Print the settings of calls without flags."""
    from . import config

    return config.show(standing(), request.color)


def run() -> int:
    """Run the command line of this process, flush all output, and return the exit code."""
    code = LadeError.exit_code
    try:
        code = entry()
    except SystemExit as error:  # by a signal, or by the parser if the pipe of its help is closed
        code = error.code if isinstance(error.code, int) else code
        code = 0 if isinstance(error.__context__, BrokenPipeError) else code
    except OSError:
        if "--debug" in sys.argv:
            raise
        # The terminal was closed, so the error cannot be shown.
    flushed = [_flush(stream) for stream in (sys.stdout, sys.stderr)]
    if flushed == [False, True] and code == 0:
        print("lade: not all of the output could be written", file=sys.stderr, flush=True)
    if "ladecli.models.placement" in sys.modules:
        sys.modules["ladecli.models.placement"].remove_offloaded()
    return code if all(flushed) else code or LadeError.exit_code


def entry(arguments: list[str] | None = None) -> int:
    """Run a command line (this process's by default) and return the exit code.

    Every error becomes one line here.
    """
    # A closed stdout becomes a stream that cannot be written, so that the lost answer is an error.
    # Characters that cannot be encoded are replaced.
    sys.stdout = sys.stdout or open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  (both live as long as we do)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    # --debug is valid at any position, since people append it to the failed command.
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    if debug:
        logging.basicConfig(format="%(name)s: %(message)s")
        LOG.setLevel(logging.INFO)
    try:
        with quiet():
            result = typer.main.get_command(app).main(arguments, "lade", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TyperException as error:
        # Errors of the parser: unknown options, words in place of numbers.
        return _failed(_parser_message(error), UsageError.exit_code)
    except BaseException as error:  # a panic in a Rust library is not an Exception
        if debug or isinstance(error, SystemExit):
            raise
        if isinstance(error, Error):
            bad_input = isinstance(error, UsageError | ConfigError | PromptError)
            return _failed(str(error), UsageError.exit_code if bad_input else LadeError.exit_code)
        where = "" if isinstance(error, OSError) else "; --debug shows where"
        return _failed(f"{describe_error(error)}{where}", LadeError.exit_code)


def _parser_message(error: Any) -> str:
    """Return the message of an error of the parser, with the fix."""
    from pydantic import ValidationError

    wrong, where = error.__cause__, getattr(error, "ctx", None)
    parameter, flag = getattr(error, "param", None), getattr(error, "option_name", None)
    if hasattr(error, "possibilities") and flag in _HERE:
        return f"No such option: {flag}; here it is {_HERE[flag]}"
    if isinstance(wrong, ValidationError) and where is not None and parameter is not None:
        option = options_of(request_of(where.info_name))[parameter.name]
        origin = _origins(where).get(option.key, "")
        name = origin if origin.startswith(PREFIX) else option.name
        return f"{name} must be {option.described}, not {wrong.errors()[0]['input']!r}"
    message = error.format_message().rstrip(".")
    if not message:
        return ""  # the help was printed for a call without arguments
    # For a flag without its value, the parser does not name the command.
    return f"{message} (see {where.command_path if where else 'lade'} --help)"


def _failed(message: str, code: int) -> int:
    # Only rank 0 reports; a call without arguments has no message.
    info = read_torchrun()
    if message and (info is None or info.rank == 0):
        from ..view.terminal import tell

        tell(message)
    return code


def _flush(stream: TextIO) -> bool:
    """Flush a stream; return False if output was lost, except by a closed pipe."""
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    except (OSError, ValueError, KeyboardInterrupt):  # such as a full disk
        return False
    return True
