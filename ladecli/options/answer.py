"""Options about an answer: its prompt, its length, sampling and output."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from .. import files
from ..decoder.config import SamplingConfig
from ..errors import UsageError
from .declare import Options, option
from .drafting import DraftOptions, decode_option
from .model import ModelOptions, SessionOptions, model_option

prompt_option = partial(option, "Prompt")
length_option = partial(option, "Length")
output_option = partial(option, "Output")
_sample = partial(option, "Sampling")
KEEP_MEMORY = "2GiB"
"""Memory for the keys and values of earlier texts, in a chat and in a server."""


REPLY_TOKENS = 2048
"""The default limit of a chat's replies, since some models repeat themselves without end."""


def bytes_in(size: str) -> int:
    """Return the bytes of a size such as 500MB or 2GiB.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(i?)B?", size.strip(), re.I)
    if match is None:
        raise UsageError(f"keep-memory {size} is not a size; write it as 500MB or 2GiB")
    power = " KMG".index(match[2].upper() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """The choice of a chat template."""

    # the name of one of the model's templates, or of a file; None for the model's default
    name: str | None = None
    # the template's own variables, such as `enable_thinking`
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # the reasoning effort, see `EffortOptions`; None for the template's default
    effort: str | None = None


@dataclass(frozen=True, kw_only=True)
class EffortOptions(Options):
    """The reasoning effort of a model."""

    reasoning_effort: str | None = prompt_option(
        "How much a reasoning model thinks first, if its template knows reasoning_effort or"
        " enable_thinking: none, low, medium or high.",
        choices=("none", "low", "medium", "high"),
    )


@dataclass(frozen=True, kw_only=True)
class TemplateOptions(EffortOptions):
    """The chat template and its variables."""

    chat_template: str | None = prompt_option(
        "One of the model's named chat templates, or a file with one; default: the model's own.",
        metavar="NAME|FILE",
    )
    template_arg: list[str] | None = prompt_option(
        "A variable of the chat template, such as enable_thinking=false; values are JSON or text."
        " Can be repeated.",
        metavar="KEY=VALUE",
    )

    def _check(self) -> None:
        super()._check()
        self._template_arguments()

    def template(self, has_template: bool) -> TemplateChoice | None:
        """Return the chat template for prompts; None to continue them as raw text.

        With options about a template, a model without one gets a choice, too, and is refused later.
        """
        typed = self._typed("template_arg") or self._typed("reasoning_effort")
        if not (has_template or self.chat_template is not None or typed):
            return None
        return TemplateChoice(self.chat_template, self._template_arguments(), self.reasoning_effort)

    def _template_arguments(self) -> dict[str, Any]:
        """Return the values of --template-arg by name, parsed as JSON if possible."""
        arguments: dict[str, Any] = {}
        for text in self.template_arg or ():
            key, equals, value = text.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"template-arg is KEY=VALUE, not {text!r}")
            try:
                arguments[key] = json.loads(value)
            except ValueError:
                arguments[key] = value
        return arguments


@dataclass(frozen=True, kw_only=True)
class PromptOptions(TemplateOptions):
    """The system message and the template of a prompt."""

    _NOT_RAW: ClassVar[tuple[str, ...]] = ("chat_template", "template_arg", "reasoning_effort")
    """Options that contradict --raw."""

    system: str | None = prompt_option(
        "System message for the chat template; with lade chat --raw, the first line.", "-s"
    )
    raw: bool = prompt_option(
        "Do not apply the chat template; a chat is then a text with one message per line.",
        default=False,
    )

    def _check(self) -> None:
        super()._check()
        for name in self._NOT_RAW:
            if self.raw and self._typed(name):
                flag = name.replace("_", "-")
                raise UsageError(f"{flag} needs the chat template; leave raw or {flag} out")

    def template(self, has_template: bool) -> TemplateChoice | None:
        """See `TemplateOptions.template`; a system message needs a template, too."""
        return None if self.raw else super().template(has_template or self._typed("system"))

    @property
    def typed_system(self) -> str | None:
        """The system message of the command line; rows with their own ignore it."""
        return self.system if self._typed("system") else None


@dataclass(frozen=True, kw_only=True)
class LengthOptions(Options):
    """The limits of an answer."""

    max_new_tokens: int | None = length_option(
        "Maximum number of new tokens; default: until the context is full.", "-n", least=1
    )
    stop: list[str] | None = length_option("End before this text; can be repeated.", metavar="TEXT")
    ignore_eos: bool = length_option(
        "Ignore end-of-text tokens and keep generating.", default=False
    )

    def _check(self) -> None:
        super()._check()
        if not all(self.stop or ()):
            raise UsageError("stop needs a text; leave it out, and nothing ends the answer early")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """The sampling of tokens."""

    temperature: float | None = _sample(
        "Sampling temperature; 0 is greedy. Default: 0; in lade chat, the model's own.", "-t"
    )
    top_k: int | None = _sample("Keep the K most probable tokens; 0 keeps all.")
    top_p: float | None = _sample(
        "Nucleus sampling: keep the smallest set of tokens with total probability P."
    )
    min_p: float | None = _sample("Keep tokens at least P times as probable as the best one.")
    repetition_penalty: float | None = _sample(
        "Above 1 avoids repetition; default: the model's own."
    )
    seed: int | None = _sample("Random seed for sampling; the same seed gives the same text.")

    def _check(self) -> None:
        super()._check()
        self.sampling(SamplingConfig())

    def sampling(self, default: SamplingConfig) -> SamplingConfig:
        """Return `default` with the options that are set; a missing seed is drawn."""
        names = [setting.name for setting in fields(SamplingConfig)]
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        chosen = replace(default, **values)
        if self.seed is None and not chosen.greedy:
            chosen = replace(chosen, seed=secrets.randbits(32))
        return chosen


@dataclass(frozen=True, kw_only=True)
class QuietOptions(Options):
    """The switch for remarks on stderr."""

    quiet: bool = output_option("Print only errors on stderr.", "-q", default=False)


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(
    QuietOptions, SamplingOptions, DraftOptions, SessionOptions, LengthOptions, PromptOptions
):
    """The options of every command that answers prompts."""


@dataclass(frozen=True, kw_only=True)
class RankedOptions(AnswerOptions):
    """The options of commands that several processes can run together."""

    parallel: int | None = model_option(
        "Decode with K processes on this machine, one per GPU.", metavar="K", least=1
    )
    parallel_mode: str = model_option(
        "What processes share: the drafts of a step (lookahead), or the model (tensor).",
        default="lookahead",
        choices=("lookahead", "tensor"),
    )

    def _check(self) -> None:
        super()._check()
        if self.cuda_graphs and self.parallel_mode == "tensor":
            raise UsageError(
                "cuda-graphs do not go together with parallel-mode tensor, whose ranks wait for one"
                " another within every step; leave one of them out"
            )

    @property
    def split(self) -> int:
        """The number of ranks that the model is split over."""
        return (self.parallel or 1) if self.parallel_mode == "tensor" else 1


@dataclass(frozen=True, kw_only=True)
class DraftTextOptions(Options):
    """Texts that drafts are made from."""

    draft_text: list[str] | None = decode_option(
        "A text that answers may quote, such as a file to edit; can be repeated.",
        metavar="FILE",
        lasting=False,
    )

    def draft_texts(self) -> list[str]:
        """Read these texts.

        Raises:
            UsageError: a file cannot be read; the message names it.
        """
        return [files.read_text(name, "draft text") for name in self.draft_text or ()]


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(ModelOptions):
    """The switch for the memory of answers."""

    memory: bool = decode_option(
        "Remember the answers of this model, which makes similar ones faster in later runs.",
        default=True,
    )


@dataclass(frozen=True, kw_only=True)
class FileOptions(DraftTextOptions, QuietOptions):
    """The files written beside an answer."""

    stats: bool | None = output_option("Print a line of statistics on stderr; on unless --quiet.")
    trace: str | None = output_option(
        "Record every step in this file, for lade replay; a chat records the newest reply."
        " Several answers get one file each: NAME, NAME-2 and so on.",
        metavar="FILE",
        lasting=False,
    )

    @property
    def read_files(self) -> dict[str, str]:
        """The files that are read, and must not be overwritten, with their options."""
        return dict.fromkeys(self.draft_text or (), "--draft-text")


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(FileOptions, RankedOptions):
    """Complete one or more prompts; only the answers go to stdout."""

    _NOT_RAW = (*PromptOptions._NOT_RAW, "system")

    prompt: list[str] | None = prompt_option(
        "The prompt; standard input is then read only with -f -.",
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
    suffix_file: str | None = prompt_option(
        "File with the text after the answer: the model fills in the middle.",
        metavar="FILE",
        lasting=False,
    )
    json_schema: str | None = prompt_option(
        "The answer is JSON that fits this schema.", metavar="FILE|TEXT", lasting=False
    )
    grammar: str | None = prompt_option(
        "The answer fits this grammar, in Lark or GBNF.", metavar="FILE", lasting=False
    )
    max_new_tokens: int | None = length_option(
        "Maximum number of new tokens.", "-n", default=512, least=1
    )
    reasoning: bool = output_option(
        "Also print what a reasoning model thinks before its answer.",
        default=False,
        lasting=False,
    )
    json: bool = output_option("Print one JSON object per answer, on one line.", default=False)

    @property
    def read_files(self) -> dict[str, str]:
        """See `FileOptions.read_files`; with the files of prompts."""
        names = [name for name in self.prompt_file or () if name != "-"]
        single = {
            self.suffix_file: "--suffix-file",
            self.json_schema: "--json-schema",
            self.grammar: "--grammar",
        }
        read = super().read_files | dict.fromkeys(names, "--prompt-file")
        return read | {n: option for n, option in single.items() if n and not n.startswith("{")}

    def _check(self) -> None:
        super()._check()
        if self.prompt and len(self.prompt) > 1:
            raise UsageError(
                f"--prompt was given {len(self.prompt)} times; give it once, or a .jsonl by -f"
            )
        if self.suffix_file and self.system is not None:
            raise UsageError("--suffix-file continues a text as it is; leave --system out")
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError("json-schema and grammar both constrain the answer; leave one out")


@dataclass(frozen=True, kw_only=True)
class ChatRequest(FileOptions, MemoryOptions, RankedOptions):
    """Hold a conversation in the terminal; /help lists what you can type there.

    On a pipe, each line is a message, and lines between triple quotes are one message.
    Only the replies go to stdout then, and the first error ends the chat.
    """

    max_new_tokens: int | None = length_option(
        f"Maximum number of new tokens in a reply; default: {REPLY_TOKENS};"
        " /set max-new-tokens off removes the limit.",
        "-n",
        least=1,
    )
    message: str | None = prompt_option(
        "The first message.", metavar="MESSAGE", argument=True, lasting=False
    )
    resume: bool = prompt_option(
        "Continue the newest conversation, with its model unless MODEL is given.",
        "--continue",
        default=False,
        lasting=False,
    )
    load: str | None = prompt_option(
        "Continue another conversation: its number in --list, or a file that /save wrote.",
        metavar="NUMBER|FILE",
        lasting=False,
    )
    list_chats: bool = prompt_option(
        "List the conversations that are kept, the newest first, and exit.",
        "--list",
        default=False,
        lasting=False,
    )
    markdown: bool = output_option("Style Markdown.", default=True)
    token_colors: bool = output_option("Color tokens by where they came from.", default=True)
    reasoning: bool = output_option(
        "Show what a reasoning model thinks before its answer.", default=True
    )
    editing_mode: str = output_option(
        "Key bindings of the input line: emacs or vi.", default="emacs", choices=("emacs", "vi")
    )

    def template(self, has_template: bool) -> TemplateChoice | None:
        """See `PromptOptions.template`.

        Raises:
            UsageError: there is no template, and --raw was not given.
        """
        choice = super().template(has_template)
        if choice is None and not self.raw:
            raise UsageError(
                f"{self.name} has no chat template: it continues texts; use lade generate, or --raw"
                " to chat with it all the same"
            )
        return choice
