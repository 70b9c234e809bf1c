"""`lade generate`: one completion for each prompt, streamed or as JSON."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import profiles
from .decoder.errors import PromptError
from .errors import INTERRUPTED, LadeError, UsageError
from .metrics import Tally
from .prompts import gather
from .settings import Request
from .visualize import ColourWriter, PlainWriter, statistics_line

if TYPE_CHECKING:
    from .decoder.draft_state import DraftState
    from .session import Session, Settings


def run(request: Request) -> int:
    """Answer every prompt of the request.

    Returns:
        The exit code: 0, or 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    request.check()
    if request.profile is not None:
        profiles.read(request.profile)
    prompts = gather(request.prompt, request.prompt_file or [])
    pool = Path(request.pool_file).expanduser() if request.pool_file else None
    if pool is not None:
        from . import pool_file

        pool_file.check(pool)
    session, settings, profile = _open(request)
    # All prompts are checked before the first is answered: no half of the work is lost.
    encoded = [_encode(session, request, prompt) for prompt in prompts]
    for number, ids in enumerate(encoded, start=1):
        _check(session, ids, f"prompt {number} of {len(encoded)}: " if len(encoded) > 1 else "")
    with _ctrl_c() as cancelled, _kept_drafts(session, pool):
        for number, ids in enumerate(encoded):
            if number and not request.json:
                print()
            if _answer(request, session, settings, profile, ids, cancelled):
                return INTERRUPTED
    return 0


@contextlib.contextmanager
def _kept_drafts(session: Session, path: Path | None) -> Iterator[None]:
    """Begin with the drafts of a file, and leave there what was learned, also after Ctrl-C."""
    if path is None:
        yield
        return
    from . import pool_file

    tokenizer = pool_file.fingerprint(session.loaded.tokenizer)
    session.drafts = pool_file.load(path, tokenizer, session.decoder.facts.vocabulary)
    try:
        yield
    except BaseException:
        # What went wrong counts; a failure to save comes second.
        with contextlib.suppress(LadeError):
            _save(path, session.drafts, tokenizer)
        raise
    _save(path, session.drafts, tokenizer)


def _save(path: Path, drafts: DraftState, tokenizer: str) -> None:
    """Write the file, unless Ctrl-C left the drafts half changed."""
    from . import pool_file

    if not drafts.spoiled:
        pool_file.save_drafts(path, drafts, tokenizer)


def _check(session: Session, ids: list[int], which: str) -> None:
    try:
        session.decoder.check_prompt(ids)
    except PromptError as error:
        raise UsageError(f"{which}{error}") from error


def _open(request: Request) -> tuple[Session, Settings, str]:
    """Load the model; returns it with the settings for it and the profile's name."""
    name = request.model or "demo"
    with _progress(request, f"starting {name}"):
        from . import models
        from .session import Session, Settings
    # A download shows bars of its own, which a spinner would spoil.
    watched = not request.quiet and sys.stderr.isatty()
    local = models.on_this_machine(name)
    with _progress(request, f"loading {name}") if local else contextlib.nullcontext():
        loaded = models.load(name, request.load_options(), progress=watched)
        session = Session(loaded, attention=request.attention, max_context=request.max_context)
    for notice in session.notices:
        _say(request, notice)
    choice = profiles.select(request.profile, loaded.device, loaded.model.num_parameters())
    settings = Settings(
        strategy=request.strategy,
        lookahead=request.lookahead(choice.lookahead),
        sampling=request.sampling(loaded.repetition_penalty),
        max_new_tokens=request.max_new_tokens,
        stop=tuple(request.stop or ()),
        ignore_eos=request.ignore_eos,
    )
    return session, settings, choice.profile


def _encode(session: Session, request: Request, prompt: str) -> list[int]:
    if not request.chat_template and request.system is None:
        return session.encode(prompt)
    messages = [{"role": "user", "content": prompt}]
    if request.system is not None:
        messages.insert(0, {"role": "system", "content": request.system})
    return session.encode_chat(messages)


def _answer(
    request: Request,
    session: Session,
    settings: Settings,
    profile: str,
    ids: list[int],
    cancelled: Callable[[], bool],
) -> bool:
    """Answer one prompt; true if Ctrl-C ended it."""
    tally, text = Tally(), list[str]()
    token_ids: list[int] = []
    writer = None if request.json else _writer(request)
    try:
        for event in session.stream(ids, settings, cancelled):
            tally.add(event)
            if writer:
                writer.show(event)
            else:
                text.append(getattr(event, "rest", ""))
                text += [piece.text for piece in getattr(event, "pieces", ())]
                token_ids += getattr(event, "token_ids", ())
    finally:
        if writer:
            writer.finish()
    if not writer:
        answer = _as_json(session, settings, profile, ids, tally, "".join(text), token_ids)
        utf8 = "utf" in (sys.stdout.encoding or "").lower()
        print(json.dumps(answer, ensure_ascii=not utf8), flush=True)
    if tally.reason == "context":
        _say(request, f"the context of {session.decoder.max_context} tokens is full")
    if request.stats if request.stats is not None else not request.quiet:
        console = _console(request, sys.stderr)
        width = console.width if console.is_terminal else sys.maxsize
        console.print(statistics_line(tally, width), soft_wrap=True)
    return tally.reason == "interrupted"


def _as_json(
    session: Session,
    settings: Settings,
    profile: str,
    prompt: list[int],
    tally: Tally,
    text: str,
    token_ids: list[int],
) -> dict[str, Any]:
    """The object of CLI schema 1; its keys are part of the interface."""
    lookahead = settings.lookahead
    uses_window = settings.strategy == "lookahead"
    return {
        "model": session.loaded.name,
        "text": text,
        "token_ids": token_ids,
        "finish_reason": "length" if tally.reason == "context" else tally.reason,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": tally.tokens},
        "decode": {
            "strategy": settings.strategy,
            "window": lookahead.window if uses_window else None,
            "ngram": lookahead.ngram if uses_window else None,
            "guesses": lookahead.guesses if uses_window else None,
            "budget": lookahead.step_limit if uses_window else None,
            "sources": list(lookahead.sources) if uses_window else [],
            "profile": profile,
            "steps": tally.steps,
            "tokens_per_step": tally.tokens_per_step,
            "step_width": tally.step_width,
            "accepted": dict(sorted(tally.accepted.items())),
        },
        "seconds": {
            "load": session.loaded.seconds,
            "prefill": tally.prefill_seconds,
            "decode": tally.decode_seconds,
        },
        "tokens_per_second": tally.tokens_per_second,
        "seed": None if settings.sampling.greedy else settings.sampling.seed,
    }


def _console(request: Request, stream: Any) -> Any:
    from rich.console import Console

    forced = {"always": True, "never": False}.get(request.color)
    return Console(
        file=stream,
        force_terminal=forced,
        no_color={"always": False, "never": True}.get(request.color),
        highlight=False,
        markup=False,
        emoji=False,
    )


def _writer(request: Request) -> PlainWriter | ColourWriter:
    """The writer for what stdout is: a terminal with colours, one without, or no terminal."""
    terminal = sys.stdout.isatty()
    if request.color == "always" or (request.color == "auto" and terminal):
        console = _console(request, sys.stdout)
        if console.color_system is not None and not console.no_color:
            return ColourWriter(console)
    return PlainWriter(sys.stdout, safe=terminal)


def _say(request: Request, line: str) -> None:
    if not request.quiet:
        print(f"lade: {line}", file=sys.stderr)


@contextlib.contextmanager
def _progress(request: Request, what: str) -> Iterator[None]:
    """A spinner on stderr while something takes long, where somebody is watching."""
    if request.quiet or not sys.stderr.isatty():
        yield
        return
    with _console(request, sys.stderr).status(f"{what} …"):
        yield


@contextlib.contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag that is read between two steps; a second one ends at once.

    An exception inside a forward could land between two writes to the cache.
    """
    pressed = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
