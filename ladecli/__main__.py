"""The command line: parse, import what is needed, wire.  `lade --help` imports no torch."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.exceptions import TyperException

from . import __version__
from . import options as opt
from .decoder.errors import ConfigError, DecoderError, PromptError
from .errors import INTERRUPTED, LadeError, UsageError, told
from .visualize import printable

app = typer.Typer(
    name="lade",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Exact, fast answers from large language models, by lookahead decoding.",
)


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
    from .settings import read_config

    # Below flags and LADE_* variables, above profiles: where click looks for defaults.
    context.default_map = {context.invoked_subcommand or "": read_config()}


@app.command()
def generate(
    model: opt.ModelName = None,
    prompt: Annotated[
        str | None, opt.prompting("-p", "--prompt", metavar="TEXT", help="The prompt.")
    ] = None,
    prompt_file: Annotated[
        list[str] | None,
        opt.prompting(
            "-f",
            "--prompt-file",
            metavar="FILE",
            help="File with a prompt, or .jsonl with many; - is stdin. May be given again.",
        ),
    ] = None,
    system: opt.System = None,
    chat_template: opt.ChatTemplate = False,
    max_new_tokens: opt.MaxNewTokens = None,
    stop: opt.Stop = None,
    ignore_eos: opt.IgnoreEos = False,
    max_context: opt.MaxContext = None,
    strategy: opt.Strategy = "lookahead",
    profile: opt.Profile = None,
    window: opt.Window = None,
    ngram: opt.Ngram = None,
    guesses: opt.Guesses = None,
    budget: opt.Budget = None,
    sources: opt.Sources = None,
    pool_file: opt.PoolFile = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.Penalty = None,
    seed: opt.Seed = None,
    dtype: opt.Dtype = "auto",
    device: opt.DeviceName = "auto",
    quantize: opt.Quantize = "none",
    attention: opt.Attention = "auto",
    device_map: opt.DeviceMap = None,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    stats: opt.Stats = None,
    trace: opt.TraceFile = None,
    svg: opt.SvgFile = None,
    html: opt.HtmlFile = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Complete one or more prompts; the answer goes to stdout and nothing else does."""
    given = dict(locals())
    from .generate import run
    from .settings import GenerateRequest

    request = GenerateRequest(**given)
    raise typer.Exit(_until_closed(lambda: run(request)))


@app.command()
def chat(
    model: opt.ModelName = None,
    system: opt.System = None,
    raw: opt.Raw = False,
    max_new_tokens: opt.MaxNewTokens = None,
    stop: opt.Stop = None,
    ignore_eos: opt.IgnoreEos = False,
    max_context: opt.MaxContext = None,
    strategy: opt.Strategy = "lookahead",
    profile: opt.Profile = None,
    window: opt.Window = None,
    ngram: opt.Ngram = None,
    guesses: opt.Guesses = None,
    budget: opt.Budget = None,
    sources: opt.Sources = None,
    pool_file: opt.PoolFile = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.Penalty = None,
    seed: opt.Seed = None,
    dtype: opt.Dtype = "auto",
    device: opt.DeviceName = "auto",
    quantize: opt.Quantize = "none",
    attention: opt.Attention = "auto",
    device_map: opt.DeviceMap = None,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    markdown: opt.Markdown = True,
    token_colors: opt.TokenColors = True,
    editing_mode: opt.EditingMode = "emacs",
    color: opt.Color = "auto",
    stats: opt.Stats = None,
    trace: opt.TraceFile = None,
    svg: opt.SvgFile = None,
    html: opt.HtmlFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Hold a conversation in the terminal; /help lists what you can type there.

    On a pipe every line is a message, or all lines between triple quotes; the replies alone go
    to stdout, and the first mistake ends it.
    """
    given = dict(locals())
    from .chat import run
    from .settings import ChatRequest

    request = ChatRequest(**given)
    raise typer.Exit(_until_closed(lambda: run(request)))


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A file that --trace wrote.")],
    speed: Annotated[
        float, typer.Option("--speed", help="So many times as fast; inf does not wait.")
    ] = 1.0,
    step: Annotated[
        bool, typer.Option("--step", help="Step by step: window, n-grams, candidates.")
    ] = False,
    color: opt.Color = "auto",
) -> None:
    """Play a recorded generation again, or look into its steps."""
    from .replay import run

    raise typer.Exit(_until_closed(lambda: run(trace, speed=speed, step=step, color=color)))


def _until_closed(run: Callable[[], int]) -> int:
    """Run a command until it ends, or until whoever reads its output has seen enough."""
    try:
        return run()
    except BrokenPipeError:
        # Python flushes stdout at exit, and must not find the pipe closed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


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
        return _failed(error.format_message(), UsageError.exit_code)
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


def _failed(message: str, code: int) -> int:
    if not message:  # help was asked for by saying nothing, and is shown
        return code
    # File names and templates have their say in messages, and must not drive the terminal.
    print(f"lade: {printable(message)}", file=sys.stderr)
    return code


def run_and_exit() -> None:
    """The entry point `lade`."""
    code = entry()
    if code == INTERRUPTED:
        # Taking torch apart takes a second, in which an impatient Ctrl-C would end in a traceback.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run_and_exit()
