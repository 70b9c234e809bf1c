"""The program `lade`: commands made from their requests, and every error as one line.

`lade --help` imports no torch: a command imports what it needs when it runs.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from . import __version__, config, options, placement
from .decoder.errors import ConfigError, DecoderError, PromptError
from .errors import INTERRUPTED, LadeError, UsageError, told
from .option_fields import ALIASES, PREFIX, Options, Setting, settings_of
from .parallel import place
from .view.terminal import Terminal
from .visualize import printable

Kind = TypeVar("Kind", bound=Options)

_ORDER = (
    *("chat", "generate", "replay", "bench", "bench compare", "verify", "tune", "plan"),
    *("profiles", "models", "doctor", "config"),
)
_ON_RANKS = ("chat", "generate", "bench")
"""Commands that several processes can run together."""


class _Commands(TyperGroup):
    """Commands in the order in which people meet them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, those that are used most first."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with; one of them has two words.

        `bench` takes a model's name, so it cannot be a group that holds `compare`.
        """
        if (two := " ".join(args[:2])) in self.commands:
            return two, self.commands[two], args[2:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lade",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Exact, fast answers from large language models, by lookahead decoding.",
)
profiles = typer.Typer(help="List the hardware profiles; show one: every value, and its origin.")
app.add_typer(profiles, name="profiles")
configuration = typer.Typer(
    no_args_is_help=True, help="The config file: write one, show what holds."
)
app.add_typer(configuration, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lade {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Settings of all commands."""
    try:
        # After flags and LADE_* variables, before profiles: where click looks for defaults.
        context.default_map = config.defaults()
    except UsageError:
        # A broken config file must not stop commands that say what is wrong with it.
        if context.invoked_subcommand not in ("config", "doctor"):
            raise


def _parameter(setting: Setting) -> inspect.Parameter:
    """An option as a parameter of a function, as Typer reads it."""
    option = setting.option
    described: dict[str, Any] = {
        "help": option.help,
        "metavar": option.metavar,
        "envvar": setting.variable,
        "show_envvar": False,
    }
    if option.argument:
        info = typer.Argument(**described)
    else:
        if setting.kind is bool:
            described["metavar"] = " "  # else the help shows a type, and switches have no value
        info = typer.Option(*setting.flags, rich_help_panel=option.panel, **described)
    return inspect.Parameter(
        setting.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if setting.default is MISSING else setting.default,
        annotation=Annotated[setting.annotation, info],
    )


def _command(
    kind: type[Kind], name: str | None = None, group: typer.Typer = app
) -> Callable[[Callable[[Kind], int]], Callable[[Kind], int]]:
    """Make a function of a request, which returns the exit code, a command with its options.

    Args:
        kind: of the request.
        name: of the command, if not the function's; "" for what a group does without a command.
        group: that has the command.
    """

    def decorated(run: Callable[[Kind], int]) -> Callable[[Kind], int]:
        def call(parser: typer.Context, **given: Any) -> None:
            if parser.invoked_subcommand is None:
                raise typer.Exit(
                    _perform(parser, kind(**given, origins=config.origins(parser)), run)
                )
            _refuse_flags(parser)

        first = inspect.Parameter(
            "parser", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [first, *map(_parameter, settings_of(kind).values())]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__doc__ = run.__doc__
        if name == "":
            group.callback(invoke_without_command=True)(call)
        else:
            group.command(name or run.__name__)(call)
        return run

    return decorated


def _perform(context: typer.Context, request: Kind, run: Callable[[Kind], int]) -> int:
    """Run a command until it ends, or until nothing reads its output any more."""
    if place.launched() is not None and context.info_name not in _ON_RANKS:
        raise UsageError(f"lade {context.info_name} is one process; start it without torchrun")
    Options(color=request.color, origins=request.origins).check()
    if context.info_name != "doctor" and not place.is_follower():  # doctor lists them itself
        terminal = Terminal(quiet=bool(context.params.get("quiet")))
        for line in config.stray_variables(os.environ):
            terminal.say(line)
    try:
        return run(request)
    except BrokenPipeError:
        # Python flushes stdout at exit, and must not find the pipe closed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse_flags(group: typer.Context) -> None:
    """Refuse flags of a group that stand before one of its commands, which would not see them."""
    for origin in config.origins(group).values():
        if origin.startswith("flag "):
            flag, command = origin.removeprefix("flag "), group.invoked_subcommand
            raise UsageError(f"{flag} stands before {command}, and belongs after it")


@_command(options.GenerateRequest)
def generate(request: options.GenerateRequest) -> int:
    """Complete one or more prompts; the answer goes to stdout and nothing else does."""
    from .generate import run
    from .opening import on_ranks

    return on_ranks(request, run)


@_command(options.ChatRequest)
def chat(request: options.ChatRequest) -> int:
    """Hold a conversation in the terminal; /help lists what you can type there.

    On a pipe every line is a message, or all lines between triple quotes; the replies alone go
    to stdout, and the first mistake ends it.
    """
    from .chat import run
    from .opening import on_ranks

    return on_ranks(request, run)


@_command(options.ReplayRequest)
def replay(request: options.ReplayRequest) -> int:
    """Play a recorded generation again, or look into its steps."""
    from .trace.replay import run

    return run(request.trace, speed=request.speed, step=request.step, color=request.color)


@_command(options.BenchRequest)
def bench(request: options.BenchRequest) -> int:
    """Measure strategies side by side, and transformers' own generate beside them.

    lade bench compare A.json B.json says what changed between two of its results.
    """
    from .bench.command import run
    from .opening import on_ranks

    return on_ranks(request, run)


@_command(options.CompareRequest, "bench compare")
def compare(request: options.CompareRequest) -> int:
    """Say what changed between two results of lade bench, and whether it is more than noise."""
    from .bench.compare import run

    fail = request.fail_on_slower
    return run(request.a, request.b, request.color, request.json, fail_on_slower=fail)


@_command(options.VerifyRequest)
def verify(request: options.VerifyRequest) -> int:
    """Decode prompts a second time, token by token, and report the first difference.

    The exit code is 1 where a difference is larger than rounding explains.
    """
    from .bench.verify import run

    return run(request)


@_command(options.TuneRequest)
def tune(request: options.TuneRequest) -> int:
    """Measure what steps cost here, and write the profile that pays most for this model."""
    from .tune import run

    return run(request)


@_command(options.PlanRequest)
def plan(request: options.PlanRequest) -> int:
    """Estimate what more GPUs would bring, and say when they stop paying.

    By a cost model: nothing is measured or loaded, and the GPUs need not be here.
    """
    from .planner import run

    return run(request)


@_command(options.ListRequest, "", profiles)
def list_profiles(request: options.ListRequest) -> int:
    """List the hardware profiles, and mark the one that this machine uses."""
    from .profiles.show import run_list

    return run_list(request)


@_command(options.ProfileRequest, "show", profiles)
def show_profile(request: options.ProfileRequest) -> int:
    """Show a profile: how it is recognised, and every value with its origin."""
    from .profiles.show import run_show

    return run_show(request)


@_command(options.ModelsRequest)
def models(request: options.ModelsRequest) -> int:
    """List the models on this machine: size, type, whether they fit and are supported."""
    from .model_list import run

    return run(request.color, json=request.json)


@_command(options.DoctorRequest)
def doctor(request: options.DoctorRequest) -> int:
    """Look for what is wrong or missing here, and say how to mend it.

    With a model, or options as for chat and generate: how that would be decoded, and whether it
    fits.
    """
    from .doctor import run

    return run(request)


@_command(options.InitRequest, "init", configuration)
def init_config(request: options.InitRequest) -> int:
    """Write a config file with every setting in it, commented out."""
    return config.run_init(force=request.force)


@_command(options.PathRequest, "path", configuration)
def config_path(request: options.PathRequest) -> int:
    """Print where the config file is, or would be."""
    return config.run_path()


@_command(options.ConfigRequest, "show", configuration)
def show_config(request: options.ConfigRequest) -> int:
    """Show what holds without flags: every setting, its value, and where that is from."""
    return config.run_show(_without_flags(), request.color)


def _without_flags() -> dict[tuple[str, ...], dict[str, tuple[Any, str]]]:
    """Value and origin of what the file and variables set, by command, as the parser finds them."""
    defaults, found = config.defaults(), {}
    for words in options.COMMANDS:
        command, said = typer.main.get_command(app), defaults
        path = [" ".join(words)] if words == ("bench", "compare") else words
        for word in path:
            assert isinstance(command, TyperGroup)
            command, said = command.commands[word], said.get(word, {})
        required = ["-" for parameter in command.params if parameter.required]
        context = command.make_context(words[-1], required, default_map=said)
        given = config.origins(context)
        found[words] = {key: (context.params[key], origin) for key, origin in given.items()}
    return found


def run() -> int:
    """Run the program as it was called and return the exit code, all output being flushed."""
    code = LadeError.exit_code
    try:
        code = entry()
    except SystemExit as ended:  # by a signal
        code = ended.code if isinstance(ended.code, int) else code
    except OSError:
        if "--debug" in sys.argv:
            raise
        # A terminal that was closed takes no output: nothing can be said, and nobody waits.
    flushed = [_flushed(stream) for stream in (sys.stdout, sys.stderr)]
    if not all(flushed):
        code = code or LadeError.exit_code
    placement.remove_offloaded()
    return code


def entry(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: every error becomes one line here.

    Args:
        arguments: without the program's name; None for those of this process.
    """
    _mend_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    # People append it to the call that failed, so it counts wherever it stands.
    debug = "--debug" in arguments
    flags = {f"--{alias}": f"--{name}" for alias, name in ALIASES.items()}
    arguments = [flags.get(each, each) for each in arguments if each != "--debug"]
    try:
        result = typer.main.get_command(app).main(arguments, "lade", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TyperException as error:
        # What the parser itself refuses: unknown options, words in place of numbers.
        return _failed(_refused(error), UsageError.exit_code)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, LadeError | DecoderError):
            bad_input = isinstance(error, UsageError | ConfigError | PromptError)
            return _failed(str(error), UsageError.exit_code if bad_input else LadeError.exit_code)
        where = "" if isinstance(error, OSError) else "; --debug shows where"
        return _failed(told(error) + where, LadeError.exit_code)


def _mend_streams() -> None:
    """Give a closed stream somewhere to go, and text that it cannot encode a stand-in."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (lives as long as we do)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _refused(error: TyperException) -> str:
    """What the parser says, but of a variable by the variable's name."""
    if isinstance(error, typer.BadParameter) and error.ctx is not None and error.param is not None:
        key = str(error.param.name)
        origin = config.origins(error.ctx).get(key, "")
        if origin.startswith(PREFIX):
            what = config.described(config.lasting()[key][0])
            return f"{origin} must be {what}, not {os.environ[origin]!r}"
    return error.format_message()


def _failed(message: str, code: int) -> int:
    # Help that was asked for by saying nothing is shown.
    if not message:
        return code
    if not place.is_follower():  # one rank speaks for all
        # File names and templates occur in messages, and must not drive the terminal.
        print(f"lade: {printable(message)}", file=sys.stderr)
    return code


def _flushed(stream: TextIO) -> bool:
    """Whether what was written to a stream has arrived."""
    try:
        stream.flush()
    except (OSError, ValueError, KeyboardInterrupt):  # closed, or nobody reads it
        return False
    return True
