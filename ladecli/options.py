"""The command line's shared options, each with its flag, variable and help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from .errors import UsageError


def group(panel: str) -> Callable[..., Any]:
    """A maker of options that stand together in the help.

    Each of them can also be set as `LADE_…`, after its long flag.
    """

    def option(*flags: str, **settings: Any) -> Any:
        long = next(flag for flag in flags if flag.startswith("--"))
        variable = "LADE_" + long.split("/")[0].lstrip("-").replace("-", "_").upper()
        settings = {"envvar": variable, "show_envvar": False, **settings}
        return typer.Option(*flags, rich_help_panel=panel, **settings)

    return option


decoding = group("Decoding")
sampling = group("Sampling")
length = group("Length")
loading = group("Model")
prompting = group("Prompt")
output = group("Output")
measuring = group("Measuring")
planning = group("Planning")


def once(flag: str, values: list[str] | None) -> str | None:
    """The value of an option that may be given once.

    Raises:
        UsageError: it was given again.
    """
    if values and len(values) > 1:
        raise UsageError(f"{flag} was given {len(values)} times; give it once, or a .jsonl by -f")
    return values[0] if values else None


ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        envvar="LADE_MODEL",
        show_envvar=False,
        help="Hugging Face id or local folder; without it the bundled demo model answers.",
    ),
]

ProfileName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        envvar="LADE_PROFILE",
        show_envvar=False,
        help="Of a profile; by default, the one that holds here.",
    ),
]
ForModel = Annotated[
    str | None,
    loading("--model", metavar="MODEL", envvar=None, help="Settings for this model, not by size."),
]

Strategy = Annotated[
    str,
    decoding(
        "--strategy",
        help="lookahead, autoregressive, jacobi or prompt-lookup.",
        show_default=True,
    ),
]
Profile = Annotated[
    str | None, decoding("--profile", help="Hardware profile; by default the detected one.")
]
Window = Annotated[int | None, decoding("-W", "--window", help="Columns of the window.")]
Ngram = Annotated[int | None, decoding("-N", "--ngram", help="Length of the n-grams.")]
Guesses = Annotated[int | None, decoding("-G", "--guesses", help="N-grams verified per step.")]
Budget = Annotated[int | None, decoding("--budget", help="The most tokens in one step.")]
Sources = Annotated[
    str | None,
    decoding(
        "--sources",
        help="Of trajectory,context,recycled; the paper's algorithm is trajectory alone.",
    ),
]
PoolFile = Annotated[
    str | None,
    decoding(
        "--pool-file",
        metavar="FILE",
        help="Keep what was learned about drafting here: the next call starts with it.",
    ),
]

Temperature = Annotated[
    float | None,
    sampling(
        "-t",
        "--temperature",
        help="0 takes the most probable token: the default, but in a chat that is the model's own.",
    ),
]
TopK = Annotated[
    int | None, sampling("--top-k", help="Sample from the k best tokens; 0: from all.")
]
TopP = Annotated[
    float | None, sampling("--top-p", help="Sample from the best with this probability.")
]
MinP = Annotated[
    float | None, sampling("--min-p", help="Drop tokens this much rarer than the best.")
]
Penalty = Annotated[
    float | None,
    sampling("--repetition-penalty", help="Above 1 avoids repetition; by default the model's."),
]
Seed = Annotated[
    int | None, sampling("--seed", help="Of sampling: the same seed gives the same text.")
]

MaxNewTokens = Annotated[
    int | None,
    length(
        "-n", "--max-new-tokens", help="At most so many new tokens; else until the context is full."
    ),
]
AnswerTokens = Annotated[
    int | None,
    length("-n", "--max-new-tokens", help="At most so many new tokens; 128 if nobody says."),
]
Stop = Annotated[
    list[str] | None,
    length(
        "--stop",
        help="End before this text; may be given again.",
        metavar="TEXT",
        envvar=None,  # a variable would be split at its spaces
    ),
]
IgnoreEos = Annotated[bool, length("--ignore-eos", help="Go on behind end tokens.")]
MaxContext = Annotated[
    int | None,
    length("--max-context", help="Most tokens of prompt and answer; by default the model's."),
]

Dtype = Annotated[str, loading("--dtype", help="auto, float32, float16 or bfloat16.")]
DeviceName = Annotated[str, loading("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Quantize = Annotated[str, loading("--quantize", help="none, 4bit or 8bit (bitsandbytes).")]
Attention = Annotated[
    str,
    loading(
        "--attention", help="auto takes the fastest here; or reference, sdpa, flash or triton."
    ),
]
CudaGraphs = Annotated[
    bool | None,
    loading(
        "--cuda-graphs/--no-cuda-graphs",
        help="Capture steps as CUDA graphs, or launch every kernel by itself; on with a CUDA GPU.",
    ),
]
Compile = Annotated[
    bool,
    loading(
        "--compile/--no-compile",
        help="Compile captured steps with torch, which can take minutes the first time.",
    ),
]
Kernels = Annotated[
    bool,
    loading(
        "--kernels/--no-kernels",
        help="Use lade's Triton kernels on a CUDA GPU, or torch's own operations.",
    ),
]
DeviceMap = Annotated[
    str | None,
    loading(
        "--device-map",
        help="Spread the model over devices: auto, balanced, balanced_low_0, sequential, or a"
        " .json file.",
    ),
]
Parallel = Annotated[
    int | None,
    loading(
        "--parallel",
        metavar="K",
        help="Decode with K processes on this machine, one per GPU.",
    ),
]
ParallelMode = Annotated[
    str,
    loading(
        "--parallel-mode",
        help="What they share: the drafts of a step (lookahead), or the model (tensor).",
    ),
]
Revision = Annotated[str | None, loading("--revision", help="Branch, tag or commit on the hub.")]
Offline = Annotated[bool, loading("--offline", help="Do not ask the hub.")]
TrustRemoteCode = Annotated[
    bool, loading("--trust-remote-code", help="Run code that comes with the model.")
]

PlannedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        envvar="LADE_MODEL",
        show_envvar=False,
        help="Hugging Face id or local folder: its configuration is read, and no weights; where no"
        " model and no size is named, Llama-2-7B stands for one.",
    ),
]
Gpus = Annotated[
    int | None,
    planning(
        "--gpus", metavar="N", envvar=None, help="Number of GPUs (default: a table of 1 to 8)."
    ),
]
GpuName = Annotated[
    str | None,
    planning(
        "--gpu",
        metavar="NAME",
        envvar=None,
        help="Kind of GPU, such as a100 (lade profiles lists them); default: the one here.",
    ),
]
ModelSize = Annotated[
    str | None,
    planning(
        "--model-size",
        metavar="SIZE",
        envvar=None,
        help="7b, 70b, llama-3-8b and the like, in place of MODEL.",
    ),
]
ContextTokens = Annotated[
    int | None,
    planning(
        "--context",
        metavar="TOKENS",
        envvar=None,
        help="Context length to assume (default 1024).",
    ),
]
Nodes = Annotated[
    int | None,
    planning("--nodes", metavar="M", envvar=None, help="Number of nodes."),
]
GpusPerNode = Annotated[
    int | None,
    planning("--gpus-per-node", metavar="K", envvar=None, help="GPUs in a node (default 8)."),
]
LinkName = Annotated[
    str | None,
    planning(
        "--link",
        metavar="KIND|GB/S",
        envvar=None,
        help="What joins GPUs: nvlink, pcie, ethernet, infiniband or GB/s; two with a comma:"
        " within a node, between nodes.",
    ),
]
TextName = Annotated[
    str | None,
    planning(
        "--text",
        metavar="NAME",
        envvar=None,
        help="The text on which tokens per step were measured: stories (default) or demo.",
    ),
]
PlannedBudget = Annotated[
    int | None, decoding("--budget", help="The most tokens in one step on each GPU.")
]

Prompt = Annotated[
    list[str] | None,  # so that a second one can be refused, and not take the first one's place
    prompting(
        "-p",
        "--prompt",
        metavar="TEXT",
        envvar=None,
        help="The prompt; standard input is not read then, unless by -f -.",
    ),
]
PromptFile = Annotated[
    list[str] | None,
    prompting(
        "-f",
        "--prompt-file",
        metavar="FILE",
        envvar=None,
        help="File with a prompt, or .jsonl with many; - is stdin. May be given again.",
    ),
]
System = Annotated[
    str | None,
    prompting("-s", "--system", help="System message; it needs a chat template."),
]
ChatTemplate = Annotated[
    bool | None,
    prompting(
        "--chat-template/--raw",
        help="Put the prompt through the model's chat template (the default where it has one), or"
        " complete it as it is.",
        show_default=False,
    ),
]

Raw = Annotated[
    bool, prompting("--raw", help="No chat template: messages as they are, one a line.")
]

Markdown = Annotated[
    bool,
    output(
        "--markdown/--no-markdown",
        help="Style Markdown; code is highlighted while token colors are off.",
    ),
]
TokenColors = Annotated[
    bool,
    output("--token-colors/--no-token-colors", help="Colour tokens by where they came from."),
]
EditingMode = Annotated[str, output("--editing-mode", help="Keys of the input: emacs or vi.")]
TraceFile = Annotated[
    str | None,
    output(
        "--trace",
        metavar="FILE",
        envvar=None,
        help="Record every step here, for lade replay; in a chat, those of the newest reply.",
    ),
]
SvgFile = Annotated[
    str | None,
    output(
        "--svg",
        metavar="FILE",
        envvar=None,
        help="Draw the coloured answer here; in a chat, the newest reply.",
    ),
]
HtmlFile = Annotated[
    str | None,
    output("--html", metavar="FILE", envvar=None, help="The same as a page for a browser."),
]
Color = Annotated[str, output("--color", help="auto, always or never.")]
Stats = Annotated[
    bool | None,
    output("--stats/--no-stats", help="A line of statistics on stderr; on unless --quiet."),
]
Json = Annotated[bool, output("--json", help="One JSON object per answer, on one line.")]
AsObject = Annotated[
    bool, output("--json", envvar=None, help="One JSON object in place of what people read.")
]
Quiet = Annotated[bool, output("-q", "--quiet", help="Nothing on stderr but errors.")]

Speed = Annotated[
    float, output("--speed", help="Playback speed: 2 is twice as fast, inf is instant.")
]
StepByStep = Annotated[
    bool, output("--step", envvar=None, help="Step by step: window, n-grams, candidates.")
]

Seconds = Annotated[float, measuring("--seconds", help="At most so long, after loading.")]
SamplePrompts = Annotated[
    str | None,
    measuring(
        "--prompts",
        metavar="SUITE|FILE",
        envvar=None,
        help="Prompts to try settings on: a suite, or a .jsonl; without it the builtin ones.",
    ),
]
DryRun = Annotated[
    bool, measuring("--dry-run", envvar=None, help="Measure and show; write no profile.")
]

Prompts = Annotated[
    str,
    measuring(
        "--prompts",
        metavar="SUITE|FILE",
        envvar=None,
        help="builtin, mt-bench, humaneval, gsm8k, spec-bench, or a .jsonl file.",
    ),
]
Limit = Annotated[
    int | None,
    measuring("--limit", envvar=None, help="At most so many prompts, of all categories."),
]
Contenders = Annotated[
    str | None,
    measuring(
        "--strategies",
        metavar="LIST",
        envvar=None,
        help="Some of autoregressive, jacobi, prompt-lookup, paper, lookahead, hf,"
        " hf-prompt-lookup, hf-compiled; without it, all but hf-compiled, which compiles first.",
    ),
]
Repeat = Annotated[
    int, measuring("--repeat", envvar=None, help="Times that every prompt is measured.")
]
Sweep = Annotated[
    list[str] | None,
    measuring(
        "--sweep",
        metavar="AXES",
        envvar=None,
        help="A grid, such as 'W=5,10,15 N=3,5 G=W'; axes: W, N, G, budget, sources, context.",
    ),
]
ChiSquare = Annotated[
    int | None,
    measuring(
        "--chi-square",
        metavar="SAMPLES",
        envvar=None,
        help="Draw so many answers, and test whether they are distributed as plain sampling's.",
    ),
]
RawPrompts = Annotated[
    bool, prompting("--raw", envvar=None, help="No chat template: prompts as they are.")
]
Report = Annotated[
    list[str] | None,
    output(
        "--report",
        metavar="FILE",
        envvar=None,
        help="Write a page (.html), text (.md) or figures (.json) there, too.",
    ),
]
FailOnSlower = Annotated[
    bool,
    measuring("--fail-on-slower", envvar=None, help="Exit code 1 where something became slower."),
]
