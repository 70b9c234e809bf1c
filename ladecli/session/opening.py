"""Open the session that a request asks for, in one process or with ranks."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ..errors import UsageError
from ..models import device
from ..models.find import ModelFiles, find
from ..options.drafting import DraftOptions
from ..view.terminal import Terminal
from .chat_template import check_template
from .rank_info import assign_device, find_rank
from .setup import check_device, check_options, decide

if TYPE_CHECKING:
    from ..decoder.config import SamplingConfig
    from ..decoder.ranks.transport import DistributedTransport
    from ..models.fit import PlannedModel
    from ..options.answer import AnswerOptions, RankedOptions, TemplateChoice, TemplateOptions
    from ..options.model import SessionOptions
    from ..profiles import Choice
    from .session import Session, Settings

Loader: TypeAlias = "Callable[[DistributedTransport | None], Session]"
"""Loads a planned model; each of several ranks passes its connection to the others."""
_SILENT = Terminal(quiet=True)


def open_session(
    options: SessionOptions,
    terminal: Terminal,
    drafts: DraftOptions | None = None,
    template: TemplateOptions | None = None,
    *,
    bars: bool = False,
) -> Session:
    """Open a session of one process.

    Args:
        options: checked options for the model, its device and its steps.
        terminal: shows progress and notices.
        drafts: options for drafts; the profile's by default.
        template: the prompts' chat template, if any; a broken one is refused early.
        bars: True if a download shows its progress although the terminal is quiet.

    Raises:
        LadeError, DecoderError: the model cannot be loaded or decoded; the message says why.
    """
    began = time.perf_counter()
    with terminal.progress(f"starting {options.name}"):
        files = check(options, template)
        _import_libraries()
    session = _plan(options, drafts or DraftOptions(), terminal, files, bars=bars).load()
    session.load_seconds = time.perf_counter() - began
    return session


@contextlib.contextmanager
def open_with_ranks(request: RankedOptions, terminal: Terminal) -> Iterator[Session]:
    """Open a session with as many ranks as the request asks for, which end with it.

    Arguments and errors are as for `open_session`; RankError if ranks cannot connect.
    """
    info = find_rank(request)  # first, since its checks do not depend on this machine
    if info.size == 1:
        yield open_session(request, terminal, request, request)
        return
    from . import parallel

    with contextlib.ExitStack() as stack:
        began = time.perf_counter()
        with terminal.progress(f"starting {request.name}"):
            files = check(request, request)
            notices = parallel.check_number(request, info)
            ranks = stack.enter_context(parallel.start_ranks(request, info, plan_rank))
            own = assign_device(request, info)
        # Errors in the request are reported before waiting for the other ranks.
        load = plan_rank(own, info.local_size, terminal, files)
        terminal.say(*notices)
        with terminal.progress("starting the other ranks"):
            parallel.connect(ranks, own)
        session = load(ranks)
        session.load_seconds = time.perf_counter() - began
        yield session


def plan_rank(
    request: RankedOptions,
    local_size: int,
    terminal: Terminal = _SILENT,
    files: ModelFiles | None = None,
) -> Loader:
    """Return a function that loads the session of one of several ranks, of which `local_size` share
    this machine; `files` come from `check`."""
    with terminal.progress(f"starting {request.name}"):
        files = files or find(request)
        _import_libraries()
    return _plan(request, request, terminal, files, request.split, local_size).load


def _plan(
    options: SessionOptions,
    drafts: DraftOptions,
    terminal: Terminal,
    files: ModelFiles,
    split: int = 1,
    local_size: int | None = None,
    bars: bool = False,
) -> _Plan:
    """Read the configuration of a model, and plan its load.

    The model is `split` over ranks; a `local_size` of None means one process.  Other arguments are
    as for `open_session`.
    """
    from ..models.describe import describe
    from ..models.fit import fit

    bars = sys.stderr.isatty() and (bars or not terminal.quiet)
    # A spinner would overwrite the bars of a download.
    line = f"loading {files.base}" if files.folder is not None else None
    with terminal.progress(line):
        planned = fit(describe(files, progress=bars), options, split)
        check_device(options, planned.device, planned.part, split > 1)
    if local_size and (why := planned.facts.no_trees):
        raise UsageError(
            f"{planned.name} verifies only one continuation at a time ({why}), which ranks"
            " cannot share; leave --parallel out"
        )
    return _Plan(options, drafts, terminal, planned, line, local_size or 1, bars)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model that is ready to load; of several ranks, `local_size` share this machine."""

    options: SessionOptions
    drafts: DraftOptions
    terminal: Terminal
    planned: PlannedModel
    line: str | None  # names what is loaded; None if a download shows it
    local_size: int
    bars: bool  # a download shows its progress

    def load(self, ranks: DistributedTransport | None = None) -> Session:
        """Load the model; each of several ranks calls this."""
        from ..models import load as models
        from .session import Session

        if ranks:
            from . import parallel

        split = self.planned.placement.split > 1
        began = time.perf_counter()
        with self.terminal.progress(self.line) as say:
            setup = decide(self.options, self.drafts, self.planned, ranks, self.local_size)
            loaded = models.load(
                self.planned,
                need=setup.need,
                progress=self.bars,
                on_share=lambda share: say(f"unpacking the weights: {100 * share:.0f} %"),
                in_file=not ranks,  # which compare their weights
            )
            if ranks:
                parallel.compare_loaded(loaded, ranks)
            say("preparing the weights")

            def on_layer(done: int, layers: int) -> None:
                share = f"{100 * done // layers} %" if done < layers else "the head, and a trial"
                say(f"preparing the weights: {share}")

            session = Session(loaded, setup, on_layer)
            # Other ranks use the leader's measurement, and no rank can run a split model alone.
            measures = not ranks or (ranks.rank == 0 and not split)
            if self.drafts.strategy == "lookahead" and measures:
                say("measuring steps")
                session.measure(time.perf_counter() - began)
        self.terminal.say(*session.notices)
        if ranks:
            parallel.join(session, ranks, split=split)
        return session


def check(options: SessionOptions, template: TemplateOptions | None = None) -> ModelFiles:
    """Find a model and check the options that need no torch, whose import takes seconds.

    Raises:
        LadeError, ConfigError: with a line for the user.
    """
    files = find(options)
    if (here := device.predict_device(options.device)) is not None:
        check_options(options, here)
    if template is not None and (templates := files.chat_templates()) is not None:
        # Only for a GGUF file is it certain that no other file brings a template.
        unsure = files.header is None or files.tokenizer is not None
        if (choice := template.template(bool(templates) or unsure)) is not None:
            check_template(templates, choice)
    return files


def _import_libraries() -> None:
    """Import torch, transformers and our modules that use them, which takes seconds."""
    device.set_variables()
    first, collects = "torch" not in sys.modules, gc.isenabled()
    gc.disable()  # looking for garbage takes a seventh of the time of thousands of imports
    for name in ("..models.load", ".session"):
        import_module(name, __package__)
    if collects:
        gc.enable()
    if first:
        gc.freeze()  # modules stay, so the garbage collector need not scan them again


def with_length_limit(
    request: AnswerOptions, settings: Settings, session: Session, prompt: Sequence[int]
) -> Settings:
    """Return the settings for a prompt: without a limit of new tokens by the user, the model's own
    limit applies if it is lower than the default."""
    own = session.loaded.defaults.length_limit(len(prompt))
    if own is None or "max_new_tokens" in request.origins:
        return settings
    limits = (limit for limit in (settings.max_new_tokens, own) if limit is not None)
    return replace(settings, max_new_tokens=min(limits))


def settings_of(
    request: AnswerOptions,
    choice: Choice,
    sampling: SamplingConfig,
    template: TemplateChoice | None = None,
) -> Settings:
    """Return the settings of one answer; a missing seed for sampling is drawn.

    Args:
        request: of the user.
        choice: the profile's settings.
        sampling: defaults for settings that the request leaves open.
        template: of the conversation; None for texts to continue.
    """
    from .session import Settings

    return Settings(
        strategy=request.strategy,
        lookahead=request.lookahead(choice.base(request.wants_paper)),
        sampling=request.sampling(sampling),
        max_new_tokens=request.max_new_tokens,
        stop=tuple(request.stop or ()),
        ignore_eos=request.ignore_eos,
        template=template,
    )
