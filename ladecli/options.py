"""The command line's shared options, each with its flag, variable and help."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(*flags: str, help: str, **settings: Any) -> Any:
    """An option that can also be set as `LADE_…`, after its long flag."""
    long = next(flag for flag in flags if flag.startswith("--"))
    variable = "LADE_" + long.split("/")[0].lstrip("-").replace("-", "_").upper()
    return typer.Option(*flags, help=help, envvar=variable, show_envvar=False, **settings)


ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        envvar="LADE_MODEL",
        show_envvar=False,
        help="Hugging Face id or local folder; without it the bundled demo model answers.",
    ),
]

Strategy = Annotated[
    str,
    option(
        "--strategy",
        help="lookahead, autoregressive, jacobi or prompt-lookup.",
        show_default=True,
    ),
]
Profile = Annotated[
    str | None, option("--profile", help="Hardware profile; detected if not given.")
]
Window = Annotated[int | None, option("-W", "--window", help="Columns of the window.")]
Ngram = Annotated[int | None, option("-N", "--ngram", help="Length of the n-grams.")]
Guesses = Annotated[int | None, option("-G", "--guesses", help="N-grams verified per step.")]
Budget = Annotated[int | None, option("--budget", help="The most tokens in one step.")]
Sources = Annotated[
    str | None,
    option(
        "--sources",
        help="Of trajectory,context,recycled; the paper's algorithm is trajectory alone.",
    ),
]

Temperature = Annotated[
    float, option("-t", "--temperature", help="0 takes the most probable token.")
]
TopK = Annotated[int, option("--top-k", help="Sample from the k best tokens; 0: from all.")]
TopP = Annotated[float, option("--top-p", help="Sample from the best with this probability.")]
MinP = Annotated[float, option("--min-p", help="Drop tokens this much rarer than the best.")]
Penalty = Annotated[
    float | None,
    option("--repetition-penalty", help="Above 1 avoids repetition; the model's own if not given."),
]
Seed = Annotated[
    int | None, option("--seed", help="Of sampling: the same seed gives the same text.")
]

MaxNewTokens = Annotated[
    int | None,
    option("-n", "--max-new-tokens", help="At most so many tokens; until the context is full."),
]
Stop = Annotated[
    list[str] | None,
    option("--stop", help="End before this text; may be given again.", metavar="TEXT"),
]
IgnoreEos = Annotated[bool, option("--ignore-eos", help="Go on behind end tokens.")]
MaxContext = Annotated[
    int | None, option("--max-context", help="Tokens of prompt and answer; the model's own.")
]

Dtype = Annotated[str, option("--dtype", help="auto, float32, float16 or bfloat16.")]
DeviceName = Annotated[str, option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Quantize = Annotated[str, option("--quantize", help="none, 4bit or 8bit (bitsandbytes).")]
Attention = Annotated[str, option("--attention", help="auto, reference or sdpa.")]
DeviceMap = Annotated[
    str | None, option("--device-map", help="Spread over devices, as in transformers: auto.")
]
Revision = Annotated[str | None, option("--revision", help="Branch, tag or commit on the hub.")]
Offline = Annotated[bool, option("--offline", help="Do not ask the hub.")]
TrustRemoteCode = Annotated[
    bool, option("--trust-remote-code", help="Run code that comes with the model.")
]

System = Annotated[
    str | None, option("-s", "--system", help="System message; implies --chat-template.")
]
ChatTemplate = Annotated[
    bool,
    option(
        "--chat-template/--raw",
        help="Put the prompt through the model's chat template, or leave it as it is.",
    ),
]

Color = Annotated[str, option("--color", help="auto, always or never.")]
Stats = Annotated[
    bool | None,
    option("--stats/--no-stats", help="A line of statistics on stderr; on unless --quiet."),
]
Json = Annotated[bool, option("--json", help="One JSON object per answer, on one line.")]
Quiet = Annotated[bool, option("-q", "--quiet", help="Nothing on stderr but errors.")]
