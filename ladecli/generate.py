"""`lade generate`: one completion for each prompt, streamed or as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import opening
from .decoder.config import SamplingConfig
from .decoder.errors import PromptError, RankError
from .errors import INTERRUPTED, LadeError, UsageError
from .events import Reason
from .metrics import Tally
from .options import GenerateRequest
from .prompts import Prompt, gather
from .trace import export
from .view.terminal import Terminal, ctrl_c
from .visualize import Together, View, memory_line

if TYPE_CHECKING:
    from .session import Session, Settings


def run(request: GenerateRequest) -> int:
    """Answer every prompt of the request.

    Returns:
        The exit code: 0, 1 if memory did not suffice for an answer, or 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    opening.check(request)
    prompts = gather(request.prompt or [], request.prompt_file or [])
    export.check(request, len(prompts))
    terminal = Terminal(request.color, request.quiet)
    with opening.opened(request, terminal) as session:
        return _answer_all(request, session, prompts)


def _answer_all(request: GenerateRequest, session: Session, prompts: Sequence[Prompt]) -> int:
    """Answer the prompts one after the other; returns the exit code."""
    choice = opening.choose_profile(request, session)
    greedy = SamplingConfig(repetition_penalty=session.loaded.repetition_penalty)
    settings = opening.settings_of(request, choice, greedy)
    # All prompts are checked before the first is answered: no half of the work is lost.
    encoded = [_encode(session, request, prompt.text) for prompt in prompts]
    for number, ids in enumerate(encoded, start=1):
        _check(session, ids, f"prompt {number} of {len(encoded)}: " if len(encoded) > 1 else "")
    code = 0
    unwritten: list[LadeError] = []
    with ctrl_c() as cancelled, opening.kept_drafts(session, request):
        for number, ids in enumerate(encoded):
            if number and not request.json:
                print()
            files = export.views(request, session, settings, ids, None, number + 1)
            name = prompts[number].id
            reason = _answer(
                request, session, settings, choice.profile, name, ids, cancelled, files, unwritten
            )
            if reason == "interrupted":
                return INTERRUPTED
            if reason == "memory":  # a shorter prompt may still be answered
                code = LadeError.exit_code
    if unwritten:
        raise unwritten[0]
    return code


def _check(session: Session, ids: list[int], which: str) -> None:
    try:
        session.decoder.check_prompt(ids)
    except PromptError as error:
        raise UsageError(f"{which}{error}") from error


def _encode(session: Session, request: GenerateRequest, prompt: str) -> list[int]:
    if not request.uses_template(session.has_template):
        return session.encode(prompt)
    messages = [{"role": "user", "content": prompt}]
    if request.system is not None:
        messages.insert(0, {"role": "system", "content": request.system})
    return session.encode_chat(messages)


def _answer(
    request: GenerateRequest,
    session: Session,
    settings: Settings,
    profile: str,
    name: str,
    ids: list[int],
    cancelled: Callable[[], bool],
    files: Sequence[View],
    unwritten: list[LadeError],
) -> Reason | None:
    """Answer one prompt; returns why the answer ended.

    What could not be written beside it goes to `unwritten`: it must cost no answer.
    """
    terminal = Terminal(request.color, request.quiet)
    tally, text = Tally(), list[str]()
    token_ids: list[int] = []
    view = Together(*([] if request.json else [terminal.writer()]), *files)
    detailed = request.trace is not None
    lost: RankError | None = None
    try:
        for event in session.stream(ids, settings, cancelled, detailed=detailed):
            tally.add(event)
            view.show(event)
            text.append(getattr(event, "rest", ""))
            text += [piece.text for piece in getattr(event, "pieces", ())]
            token_ids += getattr(event, "token_ids", ())
    except RankError as error:
        lost = error  # what was said until then counts
    finally:
        try:
            view.finish()
        except LadeError as error:
            unwritten.append(error)
    if request.json:
        said = "".join(text)
        answer = {"id": name} | _as_json(
            request, session, settings, profile, ids, tally, said, token_ids
        )
        if lost is not None:
            answer["finish_reason"] = "lost"
        utf8 = "utf" in (sys.stdout.encoding or "").lower()
        print(json.dumps(answer, ensure_ascii=not utf8), flush=True)
    for news in session.news():
        terminal.say(news)
    if tally.reason == "context":
        terminal.say(f"the context of {session.decoder.max_context} tokens is full")
    if not "".join(text).strip() and tally.reason == "eos":
        terminal.say("the answer is empty: the model ended it at once; --ignore-eos goes on")
    if tally.reason == "length" and "max_new_tokens" not in request.origins:
        terminal.say(f"stopped at {request.max_new_tokens} tokens; -n sets another limit")
    if line := memory_line(tally):
        # An answer that is cut short is an error, which is told in any case.
        quiet = request.quiet and tally.reason != "memory"
        Terminal(request.color, quiet).say(line)
    if request.stats if request.stats is not None else not request.quiet:
        terminal.statistics(tally)
    if lost is not None:
        raise lost
    return tally.reason


def _as_json(
    request: GenerateRequest,
    session: Session,
    settings: Settings,
    profile: str,
    prompt: list[int],
    tally: Tally,
    text: str,
    token_ids: list[int],
) -> dict[str, Any]:
    """The object of CLI schema 1; its keys are part of the interface."""
    lookahead, runner = settings.lookahead, session.decoder.runner
    sampling = dataclasses.asdict(settings.sampling)
    seed = sampling.pop("seed")
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
            "attention": session.attention,
            "cuda_graphs": runner.captures,
            "compiled": runner.compiles,
            "ranks": session.ranks,
            "parallel_mode": request.parallel_mode if session.ranks > 1 else None,
            "steps": tally.steps,
            "tokens_per_step": tally.tokens_per_step,
            "step_width": tally.step_width,
            "accepted": dict(sorted(tally.accepted.items())),
        },
        "sampling": sampling,
        "seconds": {
            "load": session.loaded.seconds,
            "prefill": tally.prefill_seconds,
            "decode": tally.decode_seconds,
        },
        "tokens_per_second": tally.tokens_per_second,
        "seed": None if settings.sampling.greedy else seed,
    }
