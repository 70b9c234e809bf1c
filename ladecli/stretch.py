"""Room for longer texts than a model was made for: to see what they cost."""

from __future__ import annotations

import copy
from dataclasses import replace

from .decoder.families import examine
from .errors import UsageError
from .models import Plan

_UNBOUNDED = ("default", "linear", "llama3")
"""Rotary frequencies that are the same at every position and for every length of text."""


def stretched(planned: Plan, context: int) -> Plan:
    """The same model with room for longer texts than it was made for: to see what those cost.

    Args:
        planned: the model.
        context: tokens that it shall have room for.

    Raises:
        UsageError: it cannot: its positions are a table, or change their meaning on the way.
    """
    facts = planned.facts
    if context <= facts.context:
        return planned
    config = copy.deepcopy(planned.config)
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer.
    ropes = [each for each in parameters.values() if isinstance(each, dict)] or [parameters]
    unbounded = all(rope.get("rope_type") in _UNBOUNDED for rope in ropes)
    if facts.rope_boundary is not None or not unbounded:
        raise UsageError(
            f"{planned.name} has positions for {facts.context:,} tokens, and {context:,} are"
            " wanted; give shorter lengths"
        )
    text.max_position_embeddings = context
    notice = (
        f"{planned.name} was made for {facts.context:,} tokens: behind them figures show what steps"
        " cost, and the text means nothing"
    )
    return replace(
        planned,
        config=config,
        facts=examine(config),
        notices=(*planned.notices, notice),
        made_for=facts.context,
    )
