"""What `lade doctor` looks at in a model: whether it can be decoded here, and how it would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import device_map, launch, ways
from ..decoder.errors import DecoderError
from ..errors import LadeError
from ..memory import told
from ..profiles import user
from ..provision import provide
from . import parts
from .findings import NOTE, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from ..models import Plan
    from ..profiles import Choice
    from ..settings import Request
    from ..ways import Attention

_SETTLED = ("strategy", "window", "ngram", "guesses", "budget", "sources")
"""Options that come before what a profile says."""


def model(request: Request) -> Iterator[Finding]:
    """Whether the model of a request can be loaded and decoded, and with which settings."""
    from .. import models

    try:
        planned = models.plan(request.model or "demo", request.load_options(), progress=False)
    except (LadeError, DecoderError) as error:
        yield Finding("model", str(error), PROBLEM)
        return
    if damaged := models.damage(planned):
        yield Finding("files", damaged, PROBLEM)
        return
    facts, shape = planned.facts, planned.shape
    tested = "tested" if facts.tested else "not tested here: tried before the first answer"
    yield Finding("family", f"{facts.family}, {tested}", data={"tested": facts.tested})
    size = f"{user.short(shape.parameters)} parameters"
    yield Finding("weights", f"{size}, {told(shape.weight_bytes)} as {shape.weights}")
    yield Finding("exactness", shape.exactness)
    for notice in planned.notices:
        yield Finding("notice", notice, NOTE)
    if lacking := parts.missing_for(shape.weights):
        value = f"{shape.weights} needs {' and '.join(lacking)}"
        yield Finding("weights", value, PROBLEM, f"pip install {' '.join(lacking)}")
    yield Finding("context", f"{facts.context} tokens", data={"context": facts.context})
    try:
        attention = ways.attention_of(request, planned.device, planned.part)
        ways.check(request, planned.device, planned.part)
        yield _attention(attention)
        choice = launch.choice_for(request, planned.device, planned.part)
        yield from _settings(request, choice)
    except (LadeError, DecoderError) as error:
        yield Finding("settings", str(error), PROBLEM)
        return
    yield from _room(request, planned, choice, attention.name)


def _attention(chosen: Attention) -> Finding:
    """The attention backend, and what speaks for it."""
    data = {"name": chosen.name, "why": chosen.why}
    return Finding("attention", f"{chosen.name}: {chosen.why}", data=data)


def _settings(request: Request, choice: Choice) -> Iterator[Finding]:
    """How the model would be decoded, and who says so."""
    used = request.lookahead(choice.base(request.wants_paper))
    window = f"W={used.window} N={used.ngram} G={used.guesses}, "
    steps = (
        f"{window if 'trajectory' in used.sources else ''}steps of up to {used.step_limit} tokens,"
        f" drafts from {', '.join(used.sources)}"
    )
    given = {key: request.origins[key] for key in _SETTLED if key in request.origins}
    yield Finding(
        "settings",
        steps if request.strategy == "lookahead" else f"strategy {request.strategy}",
        data={"profile": choice.profile, "origins": {**choice.origins, **given}},
    )
    origin = choice.paper_origin if request.wants_paper else choice.origin
    others = [f"{key} from {origin}" for key, origin in given.items()]
    yield Finding("origin", "; ".join([f"profile {choice.profile}, {origin}", *others]))
    for notice in choice.notices:
        yield Finding("notice", notice, NOTE)


def _room(request: Request, planned: Plan, choice: Choice, attention: str) -> Iterator[Finding]:
    """How long texts may be."""
    if request.device_map not in (None, *device_map.WORDS):
        yield Finding("memory", "placed by a map of your own, so it is not estimated", NOTE)
        return
    settings = request.lookahead(choice.base(request.wants_paper))
    captured = ways.no_graphs(request, planned.device) is None
    try:
        provided = provide(request, planned, settings, attention, captured)
    except (LadeError, DecoderError) as error:
        yield Finding("memory", str(error), PROBLEM)
        return
    data = {"context": provided.context}
    if provided.notice:
        yield Finding("memory", provided.notice, WARNING, data=data)
        return
    whole = "its whole context"
    if request.max_context is not None:
        whole = f"{provided.context} tokens of context"
    yield Finding("memory", f"the model and {whole} fit", data=data)
