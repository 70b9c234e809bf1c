"""Requests: options, their origins, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.errors import ConfigError
from ladecli.errors import UsageError
from ladecli.options.answer import ChatRequest, GenerateRequest
from ladecli.options.declare import CONFIG_FILE
from ladecli.options.drafting import DraftOptions


def test_an_error_names_the_variables_that_cause_it() -> None:
    origins = {"window": "LADE_WINDOW", "ngram": "flag --ngram", "top_p": "LADE_TOP_P"}
    request = ChatRequest(window=9, ngram=9, budget=3, top_p=0.5, origins=origins)
    with pytest.raises(ConfigError, match=r"^budget 3 is smaller than .* \(LADE_WINDOW\)$"):
        request.check()


def test_a_variable_does_not_go_with_a_flag_either() -> None:
    raw = GenerateRequest(raw=True, system="Be brief.", origins={"raw": "LADE_RAW"})
    assert raw.template(True) is None
    raw.check()
    with pytest.raises(UsageError, match=r"leave raw or system out \(LADE_RAW\)$"):
        replace(raw, origins={"raw": "LADE_RAW", "system": "flag --system"}).check()


@pytest.mark.parametrize("budget", range(1, 12))
def test_any_budget_goes_with_any_profile(budget: int) -> None:
    profile = LookaheadConfig(5, 3, 5, 128)
    chosen = DraftOptions(budget=budget).lookahead(profile)
    assert chosen.step_limit == budget
    roomy = budget >= profile.window_cells
    assert ("trajectory" in chosen.sources) == roomy
    with pytest.raises(ConfigError, match="smaller than the 10 tokens of a window"):
        DraftOptions(budget=4, window=5, ngram=3).lookahead(profile)


TUNED = LookaheadConfig(3, 3, 4, budget=24, sources=("context",), widths=(1, 4, 24))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, ""),
        ({"budget": 12}, ""),
        ({"sources": "context,recycled"}, ""),
        ({"window": 5}, ""),
        ({"window": 5, "sources": "trajectory,context", "budget": 30}, ""),
        ({"window": 5, "strategy": "jacobi"}, ""),
        ({"guesses": 9}, "guesses does nothing with sources context;"),
        ({"window": 5, "sources": "recycled"}, "nothing with sources recycled; --sources traj"),
        (
            {"budget": 4, "guesses": 2, "strategy": "jacobi"},
            "strategy jacobi does not use guesses and budget",
        ),
    ],
)
def test_options_without_effect(options: Any, line: str) -> None:
    request = DraftOptions(**options, origins={key: f"flag --{key}" for key in options})
    notices = request.without_effect(TUNED)
    assert [line in notice for notice in notices] == [True] * bool(line)
    if options == {} or "does nothing" in line:
        chosen = request.lookahead(TUNED)
        assert (chosen.budget, chosen.widths) == (TUNED.budget, TUNED.widths)
    # Options of a config file are meant for lookahead.
    kept = DraftOptions(**options, origins=dict.fromkeys(options, CONFIG_FILE))
    assert kept.strategy == "lookahead" or kept.without_effect(TUNED) == []
