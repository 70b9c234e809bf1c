"""The commands: parse, import what is needed, wire.  `lade --help` imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from . import __version__
from . import options as opt
from .errors import UsageError

if TYPE_CHECKING:
    from .option_table import OptionTable
    from .settings import Request

_Kind = TypeVar("_Kind", bound="Request")
_ORDER = (
    *("chat", "generate", "replay", "bench", "bench compare", "verify", "tune", "plan"),
    *("profiles", "models", "doctor", "config"),
)

_ON_RANKS = ("chat", "generate", "bench")
"""Commands that several processes can run together."""


class _Sorted(TyperGroup):
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
    cls=_Sorted,
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
    from .config_file import defaults

    try:
        # Below flags and LADE_* variables, above profiles: where click looks for defaults.
        context.default_map = defaults(_table())
    except UsageError:
        # A broken config file must not stop those who say what is wrong with it.
        if context.invoked_subcommand not in ("config", "doctor"):
            raise


@app.command()
def generate(
    context: typer.Context,
    model: opt.ModelName = None,
    prompt: opt.Prompt = None,
    prompt_file: opt.PromptFile = None,
    system: opt.System = None,
    chat_template: opt.ChatTemplate = None,
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
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    parallel: opt.Parallel = None,
    parallel_mode: opt.ParallelMode = "lookahead",
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
    from .launch import on_ranks
    from .settings import GenerateRequest

    given["prompt"] = opt.once("--prompt", prompt)
    request = _request(GenerateRequest, given)
    _perform(context, lambda: on_ranks(request, run))


@app.command()
def chat(
    context: typer.Context,
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
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    parallel: opt.Parallel = None,
    parallel_mode: opt.ParallelMode = "lookahead",
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
    from .launch import on_ranks
    from .settings import ChatRequest

    request = _request(ChatRequest, given)
    _perform(context, lambda: on_ranks(request, run))


@app.command()
def replay(
    context: typer.Context,
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A file that --trace wrote.")],
    speed: opt.Speed = 1.0,
    step: opt.StepByStep = False,
    color: opt.Color = "auto",
) -> None:
    """Play a recorded generation again, or look into its steps."""
    from .replay import run

    _perform(context, lambda: run(trace, speed=speed, step=step, color=color))


@app.command()
def bench(
    context: typer.Context,
    model: opt.ModelName = None,
    prompts: opt.Prompts = "builtin",
    strategies: opt.Contenders = None,
    repeat: opt.Repeat = 3,
    limit: opt.Limit = None,
    sweep: opt.Sweep = None,
    system: opt.System = None,
    raw: opt.RawPrompts = False,
    max_new_tokens: opt.AnswerTokens = None,
    stop: opt.Stop = None,
    ignore_eos: opt.IgnoreEos = False,
    max_context: opt.MaxContext = None,
    profile: opt.Profile = None,
    window: opt.Window = None,
    ngram: opt.Ngram = None,
    guesses: opt.Guesses = None,
    budget: opt.Budget = None,
    sources: opt.Sources = None,
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
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    parallel: opt.Parallel = None,
    parallel_mode: opt.ParallelMode = "lookahead",
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    report: opt.Report = None,
    json: opt.AsObject = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure strategies side by side, and transformers' own generate beside them.

    lade bench compare A.json B.json says what changed between two of its results.
    """
    given = dict(locals())
    from .bench.command import run
    from .launch import on_ranks
    from .settings import BenchRequest

    request = _request(BenchRequest, given)
    _perform(context, lambda: on_ranks(request, run))


@app.command("bench compare")
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A.json", help="What lade bench --json wrote.")],
    b: Annotated[str, typer.Argument(metavar="B.json", help="The same, later.")],
    fail_on_slower: opt.FailOnSlower = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
) -> None:
    """Say what changed between two results of lade bench, and whether it is more than noise."""
    from .bench.compare import run

    _perform(context, lambda: run(a, b, color, json, fail_on_slower=fail_on_slower))


@app.command()
def verify(
    context: typer.Context,
    model: opt.ModelName = None,
    prompts: opt.Prompts = "builtin",
    limit: opt.Limit = None,
    chi_square: opt.ChiSquare = None,
    system: opt.System = None,
    raw: opt.RawPrompts = False,
    max_new_tokens: opt.AnswerTokens = None,
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
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decode prompts a second time, token by token, and report the first difference.

    The exit code is 1 where a difference is larger than rounding explains.
    """
    given = dict(locals())
    from .settings import VerifyRequest
    from .verify import run

    request = _request(VerifyRequest, given)
    _perform(context, lambda: run(request))


@app.command()
def tune(
    context: typer.Context,
    model: opt.ModelName = None,
    seconds: opt.Seconds = 30.0,
    prompts: opt.SamplePrompts = None,
    dry_run: opt.DryRun = False,
    max_context: opt.MaxContext = None,
    dtype: opt.Dtype = "auto",
    device: opt.DeviceName = "auto",
    quantize: opt.Quantize = "none",
    attention: opt.Attention = "auto",
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure what steps cost here, and write the profile that pays most for this model."""
    given = dict(locals())
    from .settings import TuneRequest
    from .tune import run

    request = _request(TuneRequest, given)
    _perform(context, lambda: run(request))


@app.command()
def plan(
    context: typer.Context,
    model: opt.PlannedModel = None,
    gpus: opt.Gpus = None,
    gpu: opt.GpuName = None,
    model_size: opt.ModelSize = None,
    context_tokens: opt.ContextTokens = None,
    nodes: opt.Nodes = None,
    gpus_per_node: opt.GpusPerNode = None,
    link: opt.LinkName = None,
    text: opt.TextName = None,
    budget: opt.PlannedBudget = None,
    dtype: opt.Dtype = "auto",
    quantize: opt.Quantize = "none",
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
) -> None:
    """Estimate what more GPUs would bring, and say when they stop paying.

    By a cost model: nothing is measured or loaded, and the GPUs need not be here.
    """
    given = dict(locals())
    from .planner import PlanRequest, run

    request = _request(PlanRequest, given)
    _perform(context, lambda: run(request))


profiles = typer.Typer(help="List the hardware profiles; show one: every value, and its origin.")
app.add_typer(profiles, name="profiles")


@profiles.callback(invoke_without_command=True)
def list_profiles(
    context: typer.Context,
    device: opt.DeviceName = "auto",
    color: opt.Color = "auto",
    json: opt.AsObject = False,
) -> None:
    """List the hardware profiles, and mark the one that this machine uses."""
    given = dict(locals())
    if context.invoked_subcommand is not None:
        _refuse_flags(context)
        return
    from .profiles.listing import run_list
    from .settings import ReportRequest

    request = _request(ReportRequest, given)
    _perform(context, lambda: run_list(request))


@profiles.command("show")
def show_profile(
    context: typer.Context,
    profile: opt.ProfileName = None,
    model: opt.ForModel = None,
    dtype: opt.Dtype = "auto",
    device: opt.DeviceName = "auto",
    quantize: opt.Quantize = "none",
    attention: opt.Attention = "auto",
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
) -> None:
    """Show a profile: how it is recognised, and every value with its origin."""
    given = dict(locals())
    from .profiles.listing import run_show
    from .settings import ReportRequest

    request = _request(ReportRequest, given)
    _perform(context, lambda: run_show(request))


@app.command()
def models(context: typer.Context, color: opt.Color = "auto", json: opt.AsObject = False) -> None:
    """List the models on this machine: size, type, whether they fit and are supported."""
    from .model_list import run

    _perform(context, lambda: run(color, json=json))


@app.command()
def doctor(
    context: typer.Context,
    model: opt.ModelName = None,
    max_context: opt.MaxContext = None,
    strategy: opt.Strategy = "lookahead",
    profile: opt.Profile = None,
    window: opt.Window = None,
    ngram: opt.Ngram = None,
    guesses: opt.Guesses = None,
    budget: opt.Budget = None,
    sources: opt.Sources = None,
    dtype: opt.Dtype = "auto",
    device: opt.DeviceName = "auto",
    quantize: opt.Quantize = "none",
    attention: opt.Attention = "auto",
    cuda_graphs: opt.CudaGraphs = None,
    compile: opt.Compile = False,
    kernels: opt.Kernels = True,
    device_map: opt.DeviceMap = None,
    revision: opt.Revision = None,
    offline: opt.Offline = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    color: opt.Color = "auto",
    json: opt.AsObject = False,
) -> None:
    """Look for what is wrong or missing here, and say how to mend it.

    With a model, or options as for chat and generate: how that would be decoded, and whether it
    fits.
    """
    given = dict(locals())
    from .doctor import run
    from .settings import ReportRequest

    request = _request(ReportRequest, given)
    _perform(context, lambda: run(request, _table()))


config = typer.Typer(no_args_is_help=True, help="The config file: write one, show what holds.")
app.add_typer(config, name="config")


@config.command("init")
def init_config(
    context: typer.Context,
    force: Annotated[
        bool, typer.Option("--force", help="Write a new one; the old one is kept beside it.")
    ] = False,
) -> None:
    """Write a config file with every setting in it, commented out."""
    from .config_commands import init

    _perform(context, lambda: init(_table(), force=force))


@config.command("show")
def show_config(context: typer.Context, color: opt.Color = "auto") -> None:
    """Show what holds without flags: every setting, its value, and where that is from."""
    from .config_commands import show

    _perform(context, lambda: show(app, color))


@config.command("path")
def config_path(context: typer.Context) -> None:
    """Print where the config file is, or would be."""
    from .config_commands import path

    _perform(context, path)


def _table() -> OptionTable:
    """All options of the commands above."""
    from .option_table import table_of

    return table_of(app)


def _request(kind: type[_Kind], given: dict[str, Any]) -> _Kind:
    """The options of a call as a request, which knows where each of them is from."""
    from .config_file import origins

    context = given.pop("context")
    return kind(**given, origins=origins(context))


def _refuse_flags(group: typer.Context) -> None:
    """Refuse flags of a group that stand before one of its commands, which would not see them."""
    from .config_file import origins

    for origin in origins(group).values():
        if origin.startswith("flag "):
            flag, command = origin.removeprefix("flag "), group.invoked_subcommand
            raise UsageError(f"{flag} stands before {command}, and belongs behind it")


def _perform(context: typer.Context, run: Callable[[], int]) -> NoReturn:
    """Run a command until it ends, or until whoever reads its output has seen enough."""
    from .config_file import origins, stray_variables
    from .parallel import place
    from .settings import Request
    from .terminal import Terminal

    if place.launched() is not None and context.info_name not in _ON_RANKS:
        raise UsageError(f"lade {context.info_name} is one process; start it without torchrun")
    color = context.params.get("color", "auto")
    Request(color=color, origins={"color": origins(context).get("color", "")}).check()
    if context.info_name != "doctor" and not place.is_follower():  # who has another place for them
        terminal = Terminal(quiet=bool(context.params.get("quiet")))
        for line in stray_variables(_table(), os.environ):
            terminal.say(line)
    try:
        code = run()
    except BrokenPipeError:
        # Python flushes stdout at exit, and must not find the pipe closed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)
