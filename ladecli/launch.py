"""From a request to a session that is ready to answer, for every command that decodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import profiles, records
from .errors import LadeError
from .terminal import Terminal

if TYPE_CHECKING:
    from .decoder.config import SamplingConfig
    from .session import Session, Settings
    from .settings import Request


def check(request: Request) -> None:
    """Refuse what can be refused before a model is loaded.

    Raises:
        UsageError, ConfigError: the message names the option and the fix.
    """
    request.check()
    if request.profile is not None:
        profiles.read(request.profile)
    records.check(request)
    if request.pool_file:
        from . import pool_file

        pool_file.check(Path(request.pool_file).expanduser())


def open_session(request: Request, terminal: Terminal) -> Session:
    """Load the model, and show on the way what a user wants to see.

    Raises:
        LadeError, DecoderError: it cannot be loaded or decoded; the message says why.
    """
    name = request.model or "demo"
    with terminal.progress(f"starting {name}"):
        from . import models
        from .session import Session
    # A download shows bars of its own, which a spinner would spoil.
    watched = not request.quiet and sys.stderr.isatty()
    local = models.on_this_machine(name)
    with terminal.progress(f"loading {name}") if local else contextlib.nullcontext():
        loaded = models.load(name, request.load_options(), progress=watched)
        session = Session(loaded, attention=request.attention, max_context=request.max_context)
    for notice in session.notices:
        terminal.say(notice)
    return session


def choose_profile(request: Request, session: Session) -> profiles.Choice:
    """What the profile of the request, or of the device, says for the model."""
    loaded = session.loaded
    return profiles.select(request.profile, loaded.device, loaded.model.num_parameters())


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
        lookahead=request.lookahead(choice.lookahead),
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
