"""From a request to a session that is ready to answer, for every command that decodes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from . import profiles, records, ways
from .errors import LadeError
from .parallel.agreement import compare_models, leaders_word, least_context
from .parallel.start import started
from .provision import provide
from .terminal import Terminal
from .uncollected import uncollected

if TYPE_CHECKING:
    from .decoder.config import SamplingConfig
    from .decoder.parallel.transport import DistributedTransport
    from .device import Device
    from .models import Plan
    from .options import Request
    from .session import Session, Settings
    from .shape import ModelShape

Kind = TypeVar("Kind", bound="Request")

_HEAVY = (".models", ".session")
"""Modules whose import brings torch and transformers."""


def check(request: Request) -> None:
    """Refuse what can be refused before a model is loaded.

    Raises:
        UsageError, ConfigError: the message names the option and the fix.
    """
    request.check()
    records.check(request)
    if request.pool_file:
        from . import pool_file

        pool_file.check(Path(request.pool_file).expanduser())


def on_ranks(request: Kind, lead: Callable[[Kind], int]) -> int:
    """Run a command; or, on a rank that is to follow, do what the leader's command takes.

    Args:
        request: what the user asked for.
        lead: the command.

    Returns:
        The exit code.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    from .parallel import follow, place

    if place.is_follower():
        return follow.run(request, open_follower)
    return lead(request)


@contextlib.contextmanager
def opened(request: Request, terminal: Terminal, *, stretch: int = 0) -> Iterator[Session]:
    """A session with as many ranks as were asked for, which end with it.

    Args:
        request: what the user asked for.
        terminal: where it is shown what a user wants to see on the way.
        stretch: tokens of context that there must be, whatever the model was made for.

    Raises:
        LadeError, DecoderError: the model cannot be loaded or decoded, or ranks do not find each
            other; the message says why.
    """
    with contextlib.ExitStack() as stack:
        with terminal.progress(f"starting {request.model or 'demo'}"):
            leader = stack.enter_context(started(request))
        # What is wrong with the request is told before anybody waits for other ranks.
        planned = _plan(leader.request, terminal)
        if leader.notice:
            terminal.say(leader.notice)
        joined = None
        if not leader.alone:
            with terminal.progress("starting the other ranks"):
                joined = leader.join()
        if joined is not None and joined.notice:
            terminal.say(joined.notice)
        processes = joined.processes if joined is not None else None
        yield _load(planned, leader.request, terminal, processes, stretch)


def open_follower(request: Request) -> Callable[[DistributedTransport], Session]:
    """Plan the session of a rank that does what the leader tells it; what is returned opens it."""
    terminal = Terminal(quiet=True)
    return partial(_load, _plan(request, terminal), request, terminal)


def open_session(request: Request, terminal: Terminal) -> Session:
    """Load the model for this process alone, and show on the way what a user wants to see.

    Args:
        request: what the user asked for.
        terminal: where it is shown.

    Raises:
        LadeError, DecoderError: it cannot be loaded or decoded; the message says why.
    """
    return _load(_plan(request, terminal), request, terminal)


def _plan(request: Request, terminal: Terminal) -> Plan:
    """Find out how to load the model; arguments as `opened` has them."""
    from . import model_files

    name = request.model or "demo"
    model_files.resolve(name)  # a wrong path is refused before seconds of imports
    with terminal.progress(f"starting {name}"):
        _import_all()
    from . import models

    with _loading(terminal, name), uncollected():
        planned = models.plan(name, request.load_options(), progress=_bars(request))
        ways.check(request, planned.device, planned.part)
        return planned


def _load(
    planned: Plan,
    request: Request,
    terminal: Terminal,
    processes: DistributedTransport | None = None,
    stretch: int = 0,
) -> Session:
    """Load a model that was planned.

    Args:
        planned: the model.
        request, terminal, stretch: as `opened` has them; of several ranks, the leader's stretch
            is that of all.
        processes: the ranks, where there are several, each of which calls this.
    """
    if processes is not None:
        stretch = int(leaders_word(processes, str(stretch)))
    if stretch:
        from .stretch import stretched

        planned = stretched(planned, stretch)
    with _loading(terminal, planned.name):
        from . import models
        from .session import Session

        attention = ways.attention_of(request, planned.device, planned.part).name
        if processes is not None:
            # Each rank may have found another one a little faster.
            attention = leaders_word(processes, attention)
        choice = choice_for(request, planned.device, planned.part)
        settings = request.lookahead(choice.base(request.wants_paper))
        captured = ways.no_graphs(request, planned.device) is None
        provided = provide(request, planned, settings, attention, captured)
        if processes is not None:
            least = least_context(processes, provided.context, planned.dtype_name)
            provided = provided.among(least)
        loaded = models.load(planned, beside=provided.beside, progress=_bars(request))
        make = partial(
            Session,
            loaded,
            attention=attention,
            max_context=provided.context,
            graphs=captured,
            compiled=request.compile,
            kernels=request.kernels,
            pack=provided.pack,
        )
        session = make() if processes is None else _among(processes, request, make)
    notices = (
        *session.notices,
        *choice.notices,
        provided.notice,
        ways.without_graphs(request, session),
    )
    for line in filter(None, notices):
        terminal.say(line)
    return session


def _import_all() -> None:
    """Import torch, transformers and what stands on them, which takes seconds."""
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Weights are joined after loading; without this the parts would leave holes in memory
        # that nothing fits into.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with uncollected(for_good="torch" not in sys.modules):
        for name in _HEAVY:
            import_module(name, __package__)


@contextlib.contextmanager
def _loading(terminal: Terminal, name: str) -> Iterator[None]:
    """A spinner; but a download shows bars of its own, which that would spoil."""
    from . import model_files

    local = model_files.on_this_machine(name)
    with terminal.progress(f"loading {name}") if local else contextlib.nullcontext():
        yield


def _bars(request: Request) -> bool:
    """Whether somebody watches a download."""
    return not request.quiet and sys.stderr.isatty()


def _among(
    processes: DistributedTransport, request: Request, make: Callable[..., Session]
) -> Session:
    """A session that decodes with other ranks, which have loaded the same."""
    from .decoder.parallel.groups import LookaheadParallel, TensorParallel
    from .parallel.follow import Followers

    split = request.parallel_mode == "tensor"
    group = TensorParallel(processes) if split else LookaheadParallel(processes)
    followers = Followers(processes, group, split=split) if processes.rank == 0 else None
    session = make(group=group, followers=followers)
    compare_models(processes, session, split=split)
    return session


def choose_profile(request: Request, session: Session) -> profiles.Choice:
    """What the profile of the request, or of the device, says for the model.

    Raises:
        UsageError: there is no profile of this name.
    """
    return choice_for(request, session.loaded.device, session.loaded.part)


def choice_for(request: Request, device: Device, shape: ModelShape) -> profiles.Choice:
    """What the profile of the request, or of a device, says for a model of some shape."""
    from .decoder.memory import attempt
    from .rates import measure_rates

    select = partial(
        profiles.select,
        request.profile,
        device,
        shape,
        attention=ways.attention_of(request, device, shape).name,
        captured=ways.no_graphs(request, device) is None,
    )
    measure = partial(measure_rates, device, shape.compute)
    # A device that is too full to be measured gets cautious settings.
    return attempt(select, measure=measure) or select()


def settings_of(request: Request, choice: profiles.Choice, sampling: SamplingConfig) -> Settings:
    """How to decode one answer; where sampling needs a seed and has none, it draws one.

    Args:
        request: what the user asked for.
        choice: the profile's settings.
        sampling: what holds where the user asked for nothing.
    """
    from .session import Settings

    return Settings(
        strategy=request.strategy,
        lookahead=request.lookahead(choice.base(request.wants_paper)),
        sampling=request.sampling(sampling),
        max_new_tokens=request.max_new_tokens,
        stop=tuple(request.stop or ()),
        ignore_eos=request.ignore_eos,
    )


@contextlib.contextmanager
def kept_drafts(session: Session, request: Request) -> Iterator[None]:
    """Begin with the drafts of --pool-file, and leave there what was learned, also after Ctrl-C."""
    if not request.pool_file:
        yield
        return
    from . import pool_file

    path = Path(request.pool_file).expanduser()
    tokenizer = pool_file.fingerprint(session.loaded.tokenizer)
    drafts = pool_file.load(path, tokenizer, session.decoder.facts.vocabulary)
    session.drafts = drafts

    def save() -> None:
        # Ctrl-C can leave drafts half changed; the session starts new ones then, which know
        # less than the file does.
        if session.drafts is drafts and not drafts.broken:
            pool_file.save_drafts(path, drafts, tokenizer)

    try:
        yield
    except BaseException:
        # What went wrong counts; a failure to save comes second.
        with contextlib.suppress(LadeError):
            save()
        raise
    save()
