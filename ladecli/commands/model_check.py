"""What `lade doctor MODEL` checks: a model's files, what it is, and how it would be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..decoder.errors import Error
from ..errors import UsageError, counted
from ..options.commands import DoctorRequest
from ..profiles import summarise, user
from ..session import setup as decode_setup
from ..specs import adapters, hub, model_files
from ..specs.memory import format_bytes
from ..view.screen import NOTE, OK, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from ..models import PlannedModel
    from ..session.setup import Setup

_SETTLED = ("strategy", "window", "ngram", "guesses", "budget", "sources")
"""Options whose origin is named beside the profile's."""


def model(request: DoctorRequest) -> Iterator[Finding]:
    """Whether the model can be loaded and decoded, and with which settings."""
    if request.model is None:
        return
    name = "model"
    try:
        parts = adapters.find_adapters(
            request.model, request.adapters, request.revision, early=True
        )
        source = hub.resolve(parts.base)
        folder = hub.folder_of(source, parts.revision)
        # What lacks in the cache is downloaded.
        if Path(source).is_dir() and (wrong := model_files.missing(Path(source))):
            yield Finding("files", wrong, PROBLEM)
            return
        if folder and (wrong := model_files.damage(folder)):
            yield Finding("files", wrong, PROBLEM, "download or copy the model again")
            return
        from .. import models

        planned = models.plan(request.model, request, request, progress=False)
        name = "files"
        for notice in models.check_weights(planned):
            yield Finding("weights", notice, WARNING)
        name = "model"
        why = decode_setup.why_not_invariant(planned)
        yield from _facts(request, planned, why)
        name = "tokenizer"
        yield from _ends(request, planned)
        name = "settings"
        decode_setup.check_device(request, planned.device, planned.part, split=False)
        name = "memory"
        # What the option does here has been said.
        effective = replace(request, batch_invariant=request.batch_invariant and why is None)
        setup = decode_setup.decide(effective, request, planned)
    except Error as error:
        yield Finding(name, str(error), PROBLEM)
        return
    yield from _setup(request, setup)


def _facts(request: DoctorRequest, planned: PlannedModel, why: str | None) -> Iterator[Finding]:
    """What a model is, and whether what it needs is installed; `why` is as for `_exactness`."""
    facts, spec = planned.facts, planned.spec
    tested = "tested" if facts.tested else "not tested here: tried before the first answer"
    if facts.no_trees:
        tested = f"chains of drafts or none, but no trees: {facts.no_trees}"
    yield Finding("family", f"{facts.family}, {tested}")
    parameters = f"{user.short(spec.parameters)} parameters"
    yield Finding("weights", f"{parameters}, {format_bytes(spec.weight_bytes)} as {spec.weights}")
    yield from _exactness(request, planned, why)
    for notice in planned.notices:
        yield Finding("notice", notice, NOTE)
    if lacking := model_files.missing_packages(spec.weights):
        value = f"{spec.weights} needs {' and '.join(lacking)}"
        yield Finding("weights", value, PROBLEM, f"pip install {' '.join(lacking)}")
    made_for = "" if facts.max_positions else ", for its configuration does not say how many"
    yield Finding("context", f"{counted(facts.context, 'token')}{made_for}")


def _exactness(request: DoctorRequest, planned: PlannedModel, why: str | None) -> Iterator[Finding]:
    """What can be claimed of a model's texts, and what --batch-invariant does about it, or `why`
    it does nothing."""
    spec = planned.spec
    usual = spec.exactness()
    if request.batch_invariant and why is None:
        yield Finding("exactness", spec.exactness(invariant=True))
        yield Finding("batch-invariant", f"on; without it: {usual}")
    elif request.batch_invariant:
        yield Finding("exactness", usual)
        yield Finding("batch-invariant", f"no: {why}", WARNING, "leave --batch-invariant out")
    else:
        helps = why is None and spec.weights != "float32"
        with_it = f"--batch-invariant, slower: {spec.exactness(invariant=True)}"
        yield Finding("exactness", usual, fix=with_it if helps else None)


def _ends(request: DoctorRequest, planned: PlannedModel) -> Iterator[Finding]:
    """The tokens that end an answer: those of the configs, and the chat template's."""
    from .. import models
    from ..session.chat_template import GREETING, ChatTemplate

    if hub.folder_of(planned.source, planned.options.revision) is None:
        return  # it is still to be downloaded
    tokenizer, stated, ignored = models.tokenizer_and_ends(planned)
    if ignored:
        value = f"not applied: {', '.join(ignored)}"
        yield Finding("generation config", value, WARNING)
    choice, closing = request.template(bool(tokenizer.chat_template)), None
    try:
        if choice is not None:
            template = ChatTemplate(tokenizer, choice)
            closing = template.end_token
            for notice in template.notices:
                yield Finding("chat template", notice, NOTE)
            template.encode(GREETING)
    except UsageError as error:
        yield Finding("chat template", str(error), WARNING)
    ends = [(token, "by its configs") for token in sorted(stated)]
    if closing is not None and closing not in stated:
        ends.append((closing, "by its chat template"))
    spelt = [f"{tokenizer.convert_ids_to_tokens(token)} ({why})" for token, why in ends]
    yield Finding("end tokens", ", ".join(spelt) or "none: answers end at --max-new-tokens")


def _setup(request: DoctorRequest, setup: Setup) -> Iterator[Finding]:
    """How the model would be decoded, where each setting comes from, and whether it fits."""
    attention, choice = setup.attention, setup.choice
    assert choice is not None  # `decide` has asked a profile
    yield Finding("attention", f"{attention.name}: {attention.why}")
    used = request.lookahead(choice.base(request.wants_paper))
    given = {key: request.origins[key] for key in _SETTLED if key in request.origins}
    origin = choice.paper_origin if request.wants_paper else choice.origin
    others = (f"; {key} from {origin}" for key, origin in given.items())
    settings = f", {summarise(used)}" if request.strategy == "lookahead" else ""
    yield Finding("settings", f"{request.strategy}{settings}")
    yield Finding("origin", f"profile {choice.profile}, {origin}{''.join(others)}")
    for notice in (*choice.notices, *setup.effects):
        yield Finding("notice", notice, NOTE)
    level, value = OK, "the model and its whole context fit"
    if setup.memory_notice:
        level, value = WARNING, setup.memory_notice
    elif request.max_context is not None:
        value = f"the model and {setup.context} tokens of context fit"
    yield Finding("memory", value, level)
