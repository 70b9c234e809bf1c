"""From a request to a session that is ready to answer, for every command that decodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import profiles, records
from .errors import LadeError
from .terminal import Terminal

if TYPE_CHECKING:
    from .decoder.config import SamplingConfig
    from .device import Device
    from .models import Plan
    from .session import Session, Settings
    from .settings import Request
    from .shape import ModelShape


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


def open_session(request: Request, terminal: Terminal, *, stretch: int = 0) -> Session:
    """Load the model, and show on the way what a user wants to see.

    Args:
        request: what the user asked for.
        terminal: where it is shown.
        stretch: tokens of context that there must be, whatever the model was made for.

    Raises:
        LadeError, DecoderError: it cannot be loaded or decoded; the message says why.
    """
    name = request.model or "demo"
    with terminal.progress(f"starting {name}"):
        from . import models
        from .library import hub
        from .session import Session
    # A download shows bars of its own, which a spinner would spoil.
    watched = not request.quiet and sys.stderr.isatty()
    local = hub.on_this_machine(name)
    with terminal.progress(f"loading {name}") if local else contextlib.nullcontext():
        planned = models.plan(name, request.load_options(), progress=watched)
        if stretch:
            from .stretch import stretched

            planned = stretched(planned, stretch)
        choice = choice_for(request, planned.device, planned.shape)
        context, notice = room_for(request, planned, choice)
        loaded = models.load(planned, progress=watched)
        session = Session(loaded, attention=request.attention, max_context=context)
    for line in (*session.notices, *choice.notices, *([notice] if notice else [])):
        terminal.say(line)
    return session


def choose_profile(request: Request, session: Session) -> profiles.Choice:
    """What the profile of the request, or of the device, says for the model.

    Raises:
        UsageError: there is no profile of this name.
    """
    return choice_for(request, session.loaded.device, session.loaded.shape)


def attention_of(request: Request) -> str:
    """The attention backend that a request comes to."""
    from .decoder.attention import AUTO

    return AUTO if request.attention == "auto" else request.attention


def choice_for(request: Request, device: Device, shape: ModelShape) -> profiles.Choice:
    """What the profile of the request, or of a device, says for a model of some shape."""
    from .decoder.memory import attempt
    from .rates import measure_rates

    select = partial(
        profiles.select, request.profile, device, shape, attention=attention_of(request)
    )
    measure = partial(measure_rates, device, shape.compute)
    # A device that is too full to be measured gets cautious settings.
    return attempt(select, measure=measure) or select()


def room_for(
    request: Request, planned: Plan, choice: profiles.Choice
) -> tuple[int | None, str | None]:
    """The most tokens of context that memory has room for, and what to tell the user of it.

    Raises:
        LoadError: the model does not fit.
        UsageError: a context or steps that were asked for do not; the message says what does.
    """
    from . import memory
    from .device import free_memory

    if request.device_map is not None:
        return request.max_context, None  # spread over devices, some of them perhaps a disk
    plain = request.strategy == "autoregressive"
    lookahead = request.lookahead(choice.base(request.wants_paper))
    return memory.room(
        planned.name,
        planned.shape,
        free_memory(planned.device),
        longest=planned.facts.context,
        wanted=request.max_context,
        width=1 if plain else lookahead.step_limit,
        window=1 if plain else lookahead.window_cells,
        attention=request.attention,
        where=planned.device.label,
        kind=planned.device.kind,
    )


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
        if session.drafts is drafts and not drafts.spoiled:
            pool_file.save_drafts(path, drafts, tokenizer)

    try:
        yield
    except BaseException:
        # What went wrong counts; a failure to save comes second.
        with contextlib.suppress(LadeError):
            save()
        raise
    save()
