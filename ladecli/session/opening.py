"""From a request to a session that is ready to answer: for commands, ranks and programs alike."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..errors import UsageError
from ..options.drafting import DraftOptions
from ..specs import device
from ..view.terminal import Terminal
from .chat_template import check_template
from .place import assign_device, find_place
from .setup import check_device, check_options, decide

if TYPE_CHECKING:
    from ..decoder.config import SamplingConfig
    from ..decoder.ranks.transport import DistributedTransport
    from ..options.answer import AnswerOptions, RankedOptions, TemplateChoice, TemplateOptions
    from ..options.model import SessionOptions
    from ..profiles import Choice
    from .session import Session, Settings

Loader: TypeAlias = "Callable[[DistributedTransport | None], Session]"
"""Loads a planned model; each rank of several gives its way to the others."""
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
        options: which model, where it goes and how its steps are run; checked.
        terminal: where progress and notices are shown.
        drafts: how they are made; as the profile has it by default.
        template: of all prompts, if they have one: refused early where it is broken.
        bars: whether a download shows its progress where nothing else does.

    Raises:
        LadeError, DecoderError: the model cannot be loaded or decoded; the message says why.
    """
    began = time.perf_counter()
    with terminal.progress(f"starting {options.name}"):
        check(options, template)
        _import_libraries()
    session = _plan(options, drafts or DraftOptions(), terminal, bars=bars)(None)
    session.load_seconds = time.perf_counter() - began
    return session


@contextlib.contextmanager
def open_with_ranks(request: RankedOptions, terminal: Terminal) -> Iterator[Session]:
    """Open a session with as many ranks as were asked for, which end with it.

    Arguments and errors as for `open_session`; RankError if ranks do not find each other.
    """
    place = find_place(request)  # what ranks cannot do has nothing to do with this machine
    if place.size == 1:
        yield open_session(request, terminal, request, request)
        return
    from . import parallel

    with contextlib.ExitStack() as stack:
        began = time.perf_counter()
        with terminal.progress(f"starting {request.name}"):
            check(request, request)
            notices = parallel.check_number(request, place)
            ranks = stack.enter_context(parallel.start_ranks(request, place, plan_rank))
            own = assign_device(request, place)
            _import_libraries()
        # What is wrong with the request is reported before other ranks are waited for.
        load = plan_rank(own, place.local_size, terminal)
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
) -> Loader:
    """Plan the session of one of several ranks, of which `local_size` share this machine; what is
    returned loads it."""
    _import_libraries()
    return _plan(request, request, terminal, request.split, local_size)


def _plan(
    options: SessionOptions,
    drafts: DraftOptions,
    terminal: Terminal,
    split: int = 1,
    local_size: int | None = None,
    bars: bool = False,
) -> Loader:
    """Find a model, which is `split` over ranks, and read its configuration; what is returned
    loads it.  Without a `local_size` there are no ranks; else as for `open_session`."""
    from .. import models

    bars = sys.stderr.isatty() and (bars or not terminal.quiet)
    with _spinner(terminal, options.name):
        planned = models.plan(options.name, options, options, split=split, progress=bars)
        check_device(options, planned.device, planned.part, split > 1)
    if local_size and (why := planned.facts.no_trees):
        raise UsageError(
            f"{planned.name} verifies one continuation of a text at a time ({why}), which ranks"
            " cannot share; leave --parallel out"
        )

    def load(ranks: DistributedTransport | None) -> Session:
        from . import bigrams
        from .session import Session

        if ranks:
            from . import parallel
        began = time.perf_counter()
        with _spinner(terminal, planned.parts.base) as say:
            setup = decide(options, drafts, planned, ranks, local_size or 1)
            loaded = models.load(planned, need=setup.need, progress=bars)
            if ranks:
                parallel.compare_loaded(loaded, ranks)
            say("preparing the weights")

            def on_layer(done: int, layers: int) -> None:
                share = f"{100 * done // layers} %" if done < layers else "the head, and a trial"
                say(f"preparing the weights: {share}")

            session = Session(loaded, setup, on_layer)
            if drafts.strategy == "lookahead":
                seconds = time.perf_counter() - began
                if not ranks or (ranks.rank == 0 and split == 1):  # others take the leader's
                    say("measuring steps")
                    session.measure(seconds)
                longer = min(bigrams.SHARE * seconds, bigrams.MOST)
                say("preparing drafts")
                # Several ranks would all have to ask the same.
                session.know(bigrams.bigrams_of(session, 0.0 if ranks else longer))
        terminal.say(*session.notices)
        if ranks:
            parallel.join(session, ranks, split=split > 1)
        return session

    return load


def check(options: SessionOptions, template: TemplateOptions | None = None) -> None:
    """Refuse what shows without torch, before that is imported, which takes seconds.

    Raises:
        LadeError, ConfigError: with a line for the user.
    """
    from ..specs import adapters, model_files

    folder = adapters.check(
        options.name,
        options.adapters,
        options.gguf_file,
        options.revision,
        offline=options.offline,
    )
    if (here := device.predict_device(options.device)) is not None:
        check_options(options, here)
    if folder is not None and template is not None:
        with model_files.naming(options.name):
            known = model_files.chat_templates(folder)
        # Only of a GGUF file it is clear that nothing else brings a template.
        if (choice := template.template(bool(known) or folder.is_dir())) is not None:
            check_template(known, choice)


def _import_libraries() -> None:
    """Import torch, transformers and what stands on them, which takes seconds."""
    device.set_variables()
    first = "torch" not in sys.modules
    for name in ("..models", ".session", ".bigrams"):
        import_module(name, __package__)
    if first:
        gc.freeze()  # modules stay: the garbage collector need not look at them again


def _spinner(
    terminal: Terminal, name: str
) -> contextlib.AbstractContextManager[Callable[[str], None]]:
    """A spinner; but a download shows bars of its own, which that would spoil."""
    from ..specs import hub

    source = hub.resolve(name)
    local = Path(source).exists() or hub.folder_of(source) is not None
    if not local:
        return contextlib.nullcontext(lambda _stage: None)
    return terminal.progress(f"loading {name}")


def limited(
    request: AnswerOptions, settings: Settings, session: Session, prompt: Sequence[int]
) -> Settings:
    """Return how to answer a prompt: unless the user set a limit of new tokens, the model's own
    holds if it is lower than the default."""
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
    """How to decode one answer; where sampling needs a seed and has none, it draws one.

    Args:
        request: of the user.
        choice: the profile's settings.
        sampling: what holds where the request has none.
        template: of the conversation; None where texts are continued as they are.
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
