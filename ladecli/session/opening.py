"""From a request to a session that is ready to answer: for commands, ranks and programs alike."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .. import profiles
from ..errors import UsageError
from ..view.terminal import Terminal
from . import parallel
from .chat_template import check_template
from .place import place_of
from .setup import check_device, check_options, choice_for, decide

if TYPE_CHECKING:
    from ..decoder.config import SamplingConfig
    from ..decoder.run.ranks.transport import DistributedTransport
    from ..models import Plan
    from ..options import Request
    from .chat_template import TemplateChoice
    from .session import Session, Settings


def follow(request: Request) -> int:
    """Decode what the leader decodes, in a rank that torchrun started; returns the exit code."""
    return parallel.follow(request, open_follower)


@contextlib.contextmanager
def opened(request: Request, terminal: Terminal, *, stretch: int = 0) -> Iterator[Session]:
    """A session with as many ranks as were asked for, which end with it.

    Args:
        request: of the user, checked.
        terminal: where progress and notices are shown.
        stretch: tokens of context that there must be, whatever the model was made for.

    Raises:
        LadeError, DecoderError: the model cannot be loaded or decoded, or ranks do not find each
            other; the message says why.
    """
    with contextlib.ExitStack() as stack:
        with terminal.progress(f"starting {request.model or 'demo'}"):
            place_of(request)  # what ranks cannot do has nothing to do with this machine
            check(request)
            leader = stack.enter_context(parallel.started(request, open_follower))
        # What is wrong with the request is reported before other ranks are waited for.
        planned = _plan(leader.request, terminal)
        if leader.notice:
            terminal.say(leader.notice)
        if leader.ranks is not None:
            with terminal.progress("starting the other ranks"):
                parallel.connect(leader.ranks, leader.request)
        yield _load(planned, leader.request, terminal, leader.ranks, stretch)


def open_session(request: Request, terminal: Terminal, *, templated: bool = True) -> Session:
    """A session of this process alone; arguments and errors as for `opened`.

    A chat template that is broken is refused where all prompts are to be put through it, that is
    `templated`.
    """
    check(request, templated=templated)
    return _load(_plan(request, terminal), request, terminal)


def open_follower(request: Request) -> Callable[[DistributedTransport], Session]:
    """Plan the session of a rank that follows; what is returned loads it."""
    terminal = Terminal(quiet=True)
    return partial(_load, _plan(request, terminal), request, terminal)


def check(request: Request, *, templated: bool = True) -> None:
    """Refuse what shows without torch, before that is imported, which takes seconds.

    Args:
        request: of the user.
        templated: whether prompts go through the chat template, if the request has it so.

    Raises:
        LadeError, ConfigError: with a line for the user.
    """
    from ..specs import adapters, device, model_files

    folder = adapters.check(
        request.model or "demo",
        request.adapters,
        request.gguf_file,
        request.revision,
        offline=request.offline,
    )
    if (here := device.foreseen(request.device)) is not None:
        check_options(request, here)
    if folder is not None and templated:
        known = model_files.chat_templates(folder)
        if (choice := request.template(bool(known))) is not None:
            check_template(known, choice)


def _plan(request: Request, terminal: Terminal) -> Plan:
    """Find the model and read its configuration; arguments as for `opened`."""
    name = request.model or "demo"
    with terminal.progress(f"starting {name}"):
        _import_all()
    from .. import models

    with _loading(terminal, name):
        planned = models.plan(name, request, progress=_bars(request))
        check_device(request, planned.device, planned.part)
        if (request.parallel or 1) > 1 and (why := planned.facts.no_trees):
            raise UsageError(
                f"{name} verifies one continuation of a text at a time ({why}), which ranks cannot"
                " share; leave --parallel out"
            )
        return planned


def _load(
    planned: Plan,
    request: Request,
    terminal: Terminal,
    ranks: DistributedTransport | None = None,
    stretch: int = 0,
) -> Session:
    """Load a planned model; of several ranks, each calls this, and the leader's stretch holds."""
    from .. import models
    from .session import Session

    if ranks is not None:
        stretch = ranks.broadcast(stretch)
    if stretch:
        planned = models.stretched(planned, stretch)
    with _loading(terminal, planned.held):
        setup = decide(request, planned, ranks)
        loaded = models.load(planned, beside=setup.beside, progress=_bars(request))
        session = Session(loaded, setup)
        if ranks is not None:
            parallel.join(session, ranks, split=request.parallel_mode == "tensor")
    terminal.say(*session.notices)
    return session


def _import_all() -> None:
    """Import torch, transformers and what stands on them, which takes seconds."""
    if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Weights are joined after loading; without this the parts would leave holes in memory
        # that nothing fits into.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    first = "torch" not in sys.modules
    for name in ("..models", ".session"):
        import_module(name, __package__)
    if first:
        gc.freeze()  # modules stay: the garbage collector need not look at them again


def _loading(terminal: Terminal, name: str) -> contextlib.AbstractContextManager[object]:
    """A spinner; but a download shows bars of its own, which that would spoil."""
    from ..specs import hub

    source = hub.resolve(name)
    local = Path(source).exists() or hub.folder_of(source) is not None
    return terminal.progress(f"loading {name}") if local else contextlib.nullcontext()


def _bars(request: Request) -> bool:
    """Whether a download shows progress bars."""
    return not request.quiet and sys.stderr.isatty()


def choose_profile(request: Request, session: Session) -> profiles.Choice:
    """The profile of a request for the model of a session; see `choice_for`."""
    return choice_for(request, session.loaded.device, session.loaded.part)


def settings_of(
    request: Request,
    choice: profiles.Choice,
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
