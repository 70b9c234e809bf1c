"""What is asked of a model: the options that commands share, and those of generate and chat."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

from ..decoder.config import SOURCES, STRATEGIES, LookaheadConfig, SamplingConfig
from ..errors import UsageError
from ..session.chat_template import TemplateChoice
from .declare import Options, option

prompt_option = partial(option, "Prompt")
length_option = partial(option, "Length")
decode_option = partial(option, "Decoding")
sample_option = partial(option, "Sampling")
model_option = partial(option, "Model")
output_option = partial(option, "Output")
model_name = partial(model_option, metavar="MODEL", argument=True)
_OF_WINDOW = ("window", "ngram", "guesses")
LEAST_CONTEXT = 16
"""Tokens of prompt and answer; in fewer, no chat template has room for a question."""
_file = partial(output_option, metavar="FILE", lasting=False)


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """The options that commands with a model share; each command offers those that it needs."""

    _NOT_RAW: ClassVar[tuple[str, ...]] = ("chat_template", "template_arg")
    """Options that do not go together with --raw."""

    model: str | None = model_name(
        "Hugging Face id or local folder; default: the bundled demo model."
    )
    system: str | None = prompt_option("System message; needs a chat template.", "-s")
    chat_template: str | None = prompt_option(
        "One of the model's named chat templates, or a file with one; default: the model's own.",
        metavar="NAME|FILE",
    )
    template_arg: list[str] | None = prompt_option(
        "A variable of the chat template, such as enable_thinking=false; values are JSON or text."
        " Can be repeated.",
        metavar="KEY=VALUE",
        has_variable=False,
    )
    raw: bool = prompt_option(
        "No chat template: prompts as they are; in a chat all messages, one a line.", default=False
    )
    max_new_tokens: int | None = length_option(
        "Maximum number of new tokens; default: until the context is full.", "-n", least=1
    )
    stop: list[str] | None = length_option(
        "End before this text; can be repeated.", metavar="TEXT", has_variable=False
    )
    ignore_eos: bool = length_option(
        "Ignore end-of-text tokens and keep generating.", default=False
    )
    max_context: int | None = length_option(
        "Maximum number of tokens of prompt and answer; default: the model's own.",
        least=LEAST_CONTEXT,
    )
    strategy: str = decode_option(
        "lookahead, autoregressive, jacobi or prompt-lookup.",
        default="lookahead",
        choices=STRATEGIES,
    )
    profile: str | None = decode_option("Hardware profile; default: the detected device's.")
    window: int | None = decode_option("Columns of the lookahead window (W).", "-W")
    ngram: int | None = decode_option("Length of the n-grams (N).", "-N")
    guesses: int | None = decode_option("N-grams verified in a step (G).", "-G")
    budget: int | None = decode_option("Maximum number of tokens in a step.")
    sources: str | None = decode_option(
        "Where drafts come from, comma-separated: trajectory, context, recycled."
        " trajectory alone is the paper's algorithm."
    )
    pool_file: str | None = decode_option(
        "Keep what was learned about drafting in this file: the next call starts with it.",
        metavar="FILE",
    )
    draft_text: list[str] | None = decode_option(
        "A text that answers may repeat, such as a file to be edited; can be repeated.",
        metavar="FILE",
        lasting=False,
    )
    temperature: float | None = sample_option(
        "Sampling temperature; 0 is greedy. Default: 0, and in a chat the model's own.", "-t"
    )
    top_k: int | None = sample_option("Keep the K most probable tokens; 0 keeps all.")
    top_p: float | None = sample_option(
        "Nucleus sampling: keep the smallest set of tokens with total probability P."
    )
    min_p: float | None = sample_option("Keep tokens at least P times as probable as the best one.")
    repetition_penalty: float | None = sample_option(
        "Above 1 avoids repetition; default: the model's own."
    )
    seed: int | None = sample_option("Random seed for sampling; the same seed gives the same text.")
    dtype: str = model_option(
        "auto, float32, float16 or bfloat16.",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    device: str = model_option("auto, cpu, cuda, cuda:N or mps.", default="auto")
    quantize: str = model_option(
        "none, 4bit or 8bit (bitsandbytes).", default="none", choices=("none", "4bit", "8bit")
    )
    adapter: list[str] | None = model_option(
        "LoRA adapter to merge into MODEL, a folder or a hub id; can be repeated.",
        metavar="NAME",
        lasting=False,
    )
    attention: str = model_option(
        "auto (the fastest here), reference, sdpa, flash or triton.",
        default="auto",
        choices=("auto", "reference", "sdpa", "flash", "triton"),
    )
    cuda_graphs: bool | None = model_option(
        "Capture steps as CUDA graphs, or launch kernels one by one; on with a CUDA GPU.", pair=True
    )
    kernels: bool = model_option(
        "Use lade's Triton kernels on a CUDA GPU, or torch's own operations.",
        default=True,
        pair=True,
    )
    device_map: str | None = model_option(
        "Spread the model over devices: auto, balanced, balanced_low_0 or sequential.",
        choices=("auto", "balanced", "balanced_low_0", "sequential"),
    )
    parallel: int | None = model_option(
        "Decode with K processes on this machine, one per GPU.", metavar="K", least=1
    )
    parallel_mode: str = model_option(
        "What processes share: the drafts of a step (lookahead), or the model (tensor).",
        default="lookahead",
        choices=("lookahead", "tensor"),
    )
    gguf_file: str | None = model_option(
        "Name of the GGUF file to load, where MODEL holds several.", metavar="NAME"
    )
    revision: str | None = model_option("Branch, tag or commit on the hub.")
    offline: bool = model_option("Do not ask the hub.", default=False)
    trust_remote_code: bool = model_option("Run code that comes with the model.", default=False)
    stats: bool | None = output_option(
        "A line of statistics on stderr; on unless --quiet.", pair=True
    )
    trace: str | None = _file(
        "Record every step in this file, for lade replay; in a chat, of the newest reply."
    )
    svg: str | None = _file("Draw the colored answer in this file; in a chat, the newest reply.")
    html: str | None = _file("The same as a page for a browser.")
    quiet: bool = output_option("Nothing on stderr but errors.", "-q", default=False)

    def _check(self) -> None:
        Options._check(self)
        if self.model == "":
            raise UsageError("MODEL is empty; name a model, or leave it out for the demo")
        if self.cuda_graphs and self.parallel_mode == "tensor":
            raise UsageError(
                "cuda-graphs do not go together with parallel-mode tensor, whose ranks wait for one"
                " another within every step; leave one of them out"
            )
        if self.cuda_graphs and re.match(r"cpu|mps", self.device):
            raise UsageError(f"cuda-graphs need a CUDA GPU, and device is {self.device}")
        if self.attention == "triton" and not self.kernels:
            raise UsageError("attention triton is a Triton kernel; leave it or no-kernels out")
        if not all(self.stop or ()):
            raise UsageError("stop needs a text; leave it out, and nothing ends the answer early")
        for name in self._NOT_RAW:
            if self._typed(name) and self._typed("raw"):
                flag = name.replace("_", "-")
                raise UsageError(f"{flag} needs the chat template; leave raw or {flag} out")
        self._template_arguments()
        if self.profile is not None:
            from .. import profiles

            profiles.read(self.profile)
        # The profile's values are not known yet; the user's must be right by themselves.
        self.lookahead(LookaheadConfig(window=1, ngram=2))
        self.sampling(SamplingConfig())
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UsageError(f"unknown device {self.device!r}; use auto, cpu, cuda, cuda:N or mps")

    @property
    def read_files(self) -> dict[str, str]:
        """Files of the user's that are read, and must not be overwritten, with their options."""
        prompts = [name for name in getattr(self, "prompt_file", None) or [] if name != "-"]
        texts = dict.fromkeys(self.draft_text or (), "--draft-text")
        return texts | dict.fromkeys(prompts, "--prompt-file")

    @property
    def adapters(self) -> list[str]:
        """The adapters that were named; a program may name one without a list."""
        return [self.adapter] if isinstance(self.adapter, str) else [*(self.adapter or ())]

    @property
    def tensor_parallel(self) -> int:
        """Ranks that the model is split over."""
        return (self.parallel or 1) if self.parallel_mode == "tensor" else 1

    @property
    def wants_paper(self) -> bool:
        """Whether the paper's algorithm was asked for: the trajectory as the only source."""
        return self.sources is not None and _listed(self.sources) == ("trajectory",)

    def template(self, has_template: bool) -> TemplateChoice | None:
        """The chat template that prompts are put through; None where they are taken as they are.

        What the command line says about one needs one, which a model may not have.
        """
        asked = self.chat_template is not None or any(map(self._typed, ("system", "template_arg")))
        wanted = has_template or asked
        if self.raw or not wanted:
            return None
        return TemplateChoice(self.chat_template, self._template_arguments())

    def _template_arguments(self) -> dict[str, Any]:
        """The values of --template-arg by name: JSON, or text where they are none."""
        found: dict[str, Any] = {}
        for text in self.template_arg or ():
            key, equals, value = text.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"template-arg is KEY=VALUE, not {text!r}")
            try:
                found[key] = json.loads(value)
            except ValueError:
                found[key] = value
        return found

    @property
    def typed_system(self) -> str | None:
        """The system message of the command line, which some rows may not take."""
        return self.system if self._typed("system") else None

    def _typed(self, key: str) -> bool:
        """Whether an option is from the command line."""
        return self.origins.get(key, "").startswith("flag")

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """The profile's settings, with the options that were given in their place."""
        numbers = self._given(*_OF_WINDOW, "budget")
        given: dict[str, Any] = dict(numbers)
        if self.sources is not None:
            given["sources"] = _listed(self.sources)
        elif numbers.keys() & {"window", "ngram"}:
            given["sources"] = SOURCES  # also where the profile leaves the window out
        elif (self.budget or profile.window_cells) < profile.window_cells:
            # A budget without room for the profile's window is a wish to go without it.
            sources = tuple(name for name in profile.sources if name != "trajectory")
            given["sources"] = sources or ("context",)
        if "trajectory" not in given.get("sources", profile.sources):
            numbers = self._given("budget")  # the others are of the window, which does not run
        elif numbers:
            given.setdefault("budget", None)  # the profile's was meant for the profile's window
        if numbers:
            given["widths"] = ()  # so were the widths that steps are rounded to
        return replace(profile, **given)

    def _given(self, *names: str) -> dict[str, int]:
        """The options among these that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def without_effect(self, profile: LookaheadConfig) -> list[str]:
        """A line about options of the window where none runs."""
        sources, named = self.lookahead(profile).sources, [*self._given(*_OF_WINDOW)]
        if self.strategy != "lookahead" or not named or "trajectory" in sources:
            return []
        does = f"{' and '.join(named)} {'does' if len(named) == 1 else 'do'}"
        wanted = ",".join(["trajectory", *sources])
        return [f"{does} nothing with sources {','.join(sources)}; --sources {wanted} has a window"]

    def side_effects(self, profile: LookaheadConfig) -> list[str]:
        """Lines about options that do nothing, or that change others of the profile."""
        chosen, named, changed = self.lookahead(profile), [*self._given(*_OF_WINDOW)], []
        if self.strategy != "lookahead":
            return []
        if self.sources is None and chosen.sources != profile.sources:
            before = ",".join(profile.sources)
            changed.append(f"sources {','.join(chosen.sources)} for the profile's {before}")
        if self.budget is None and chosen.step_limit != profile.step_limit:
            changed.append(f"budget {chosen.step_limit} for the profile's {profile.step_limit}")
        if not changed:
            return self.without_effect(profile)
        cause = f"{' and '.join(named) or 'budget'} {'set' if len(named) > 1 else 'sets'}"
        return [f"{cause} {' and '.join(changed)} too; --sources and --budget hold where given"]

    def sampling(self, default: SamplingConfig) -> SamplingConfig:
        """How tokens are chosen, over `default`; sampling without a seed draws one, to be shown."""
        names = [each.name for each in fields(SamplingConfig)]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        chosen = replace(default, **given)
        if self.seed is None and not chosen.greedy:
            chosen = replace(chosen, seed=secrets.randbits(32))
        return chosen


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Request):
    """The options of `lade generate`."""

    _NOT_RAW = (*Request._NOT_RAW, "system")

    prompt: list[str] | None = prompt_option(
        "The prompt; standard input is not read then, unless by -f -.",
        "-p",
        metavar="TEXT",
        lasting=False,
    )
    prompt_file: list[str] | None = prompt_option(
        "File with a prompt, or .jsonl with many; - is stdin. Can be repeated.",
        "-f",
        metavar="FILE",
        lasting=False,
    )
    max_new_tokens: int | None = length_option(
        "Maximum number of new tokens.", "-n", default=512, least=1
    )
    reasoning: bool = output_option(
        "Print what a reasoning model thinks before its answer, too.",
        default=False,
        lasting=False,
    )
    json: bool = output_option("Print one JSON object per answer, on one line.", default=False)

    def _check(self) -> None:
        Request._check(self)
        if self.prompt and len(self.prompt) > 1:
            raise UsageError(
                f"--prompt was given {len(self.prompt)} times; give it once, or a .jsonl by -f"
            )


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Request):
    """The options of `lade chat`."""

    message: str | None = prompt_option(
        "The first message.", metavar="MESSAGE", argument=True, lasting=False
    )
    resume: bool = prompt_option(
        "Go on with the newest conversation.", "--continue", default=False, lasting=False
    )
    markdown: bool = output_option(
        "Style Markdown; code is highlighted while token colors are off.", default=True, pair=True
    )
    token_colors: bool = output_option(
        "Color tokens by where they came from.", default=True, pair=True
    )
    reasoning: bool = output_option(
        "Show what a reasoning model thinks before its answer.", default=True, pair=True
    )
    editing_mode: str = output_option(
        "Keys of the input: emacs or vi.", default="emacs", choices=("emacs", "vi")
    )


def _listed(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list."""
    return tuple(item.strip() for item in text.split(",") if item.strip())
