"""Who takes part: the strategies that are named, or the cells of a sweep, each as it is called."""

from __future__ import annotations

from typing import Any

import pytest
from typer.models import OptionInfo

from ladecli import options, suites
from ladecli.bench import lineup
from ladecli.bench.contenders import DEFAULT as USUAL
from ladecli.bench.contenders import STRATEGIES
from ladecli.bench.result import FOREIGN
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.errors import UsageError
from ladecli.profiles import Choice
from ladecli.settings import ANSWER, BenchRequest

DEFAULT = LookaheadConfig(5, 3, 5, 24, ("context",), widths=(1, 8, 24))
PAPER = LookaheadConfig(7, 5, 7, sources=("trajectory",))
CHOICE = Choice("test", DEFAULT, {"window": "here"}, PAPER, "published")


def lined_up(**asked: Any) -> lineup.Lineup:
    request = BenchRequest(**asked)
    return lineup.line_up(request, CHOICE, SamplingConfig(), lineup.check(request))


def test_the_usual_strategies_take_part_with_settings_of_their_own() -> None:
    found = {contender.name: settings for contender, settings in lined_up().contenders}
    assert tuple(found) == USUAL
    assert found["lookahead"].lookahead == DEFAULT
    assert found["paper"].lookahead == PAPER
    shown = {contender.name: contender.settings for contender, _ in lined_up().contenders}
    assert shown["lookahead"] == {"budget": 24, "sources": "context"}
    assert shown["paper"] == {
        "window": 7, "ngram": 5, "guesses": 7, "budget": 56, "sources": "trajectory",
    }  # fmt: skip
    assert [c.name for c, _ in lined_up().contenders if c.foreign] == ["hf", "hf-prompt-lookup"]


def test_what_has_to_be_compiled_takes_part_if_it_is_named() -> None:
    assert {*STRATEGIES} - {*USUAL} == {"hf-compiled"}
    ((contender, settings),) = lined_up(strategies="hf-compiled").contenders
    assert contender.foreign
    assert settings == lined_up(strategies="hf").contenders[0][1]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"device_map": "auto"},
            "hf-compiled runs on one device; leave it out of --strategies, or leave --device-map",
        ),
        (
            {"sweep": ["context=1k,2k"]},
            "hf-compiled attends to as many tokens as the longest text has; sweep one length at a",
        ),
    ],
)
def test_what_compiled_steps_cannot_be_measured_with_is_refused(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        lined_up(strategies="autoregressive,hf-compiled", **asked)
    assert str(caught.value).startswith(message)
    assert lined_up(strategies="autoregressive,hf", **asked).contenders


def test_one_length_can_be_swept_with_compiled_steps() -> None:
    made = lined_up(strategies="hf-compiled", sweep=["context=1k,1024"])
    assert [c.name for c, _ in made.contenders] == ["hf-compiled"]


def test_all_draw_the_same_random_numbers() -> None:
    for asked in ({}, {"sweep": ["budget=8,16"]}):
        made = lined_up(temperature=0.7, **asked)
        assert {settings.sampling.seed for _, settings in made.contenders} == {0}
    assert {s.sampling.seed for _, s in lined_up(temperature=0.7, seed=9).contenders} == {9}


def test_a_window_that_was_asked_for_is_the_papers_too() -> None:
    made = {c.name: s.lookahead for c, s in lined_up(window=15, guesses=15).contenders}
    assert (made["paper"].window, made["paper"].ngram, made["paper"].guesses) == (15, 5, 15)
    assert made["lookahead"].window == 15
    assert lined_up(budget=16).contenders[3][1].lookahead == PAPER


def test_one_value_in_two_spellings_is_one_cell() -> None:
    assert lineup.check(BenchRequest(sweep=["context=4k,4096,04096,100"])) == {
        "context": ("4096", "100"),
    }  # fmt: skip
    assert lineup.check(BenchRequest(sweep=["W=5,05 N=3"])) == {"W": ("5",), "N": ("3",)}


def test_an_axis_can_follow_another_one() -> None:
    made = lined_up(sweep=["W=3,5 G=W"], sources="trajectory").contenders[1:]
    assert [(s.lookahead.window, s.lookahead.guesses) for _, s in made] == [(3, 3), (5, 5)]
    assert [c.cell for c, _ in made] == [{"W": "3", "G": "W"}, {"W": "5", "G": "W"}]


def test_a_cell_that_would_not_be_what_it_is_called_is_refused() -> None:
    made = lined_up(sweep=["W=3 sources=context,all"])
    assert [c.name for c, _ in made.contenders] == ["autoregressive", "lookahead W=3 sources=all"]
    (refused,) = made.refused
    assert (refused.contender, refused.row) == ("lookahead W=3 sources=context", "")
    assert refused.error == "W changes nothing without the source trajectory"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sweep": [""]}, "--sweep is empty; give axes, such as 'W=5,10 N=3', or leave it out"),
        ({"sweep": ["W=0"]}, "--sweep W=0: needs a number from 1 on, or the name of another axis"),
        ({"sweep": ["N=1"]}, "--sweep N=1: needs a number from 2 on, or the name of another axis"),
        ({"sweep": ["W=N N=W"]}, "--sweep W=N: N must have numbers then"),
        (
            {"sweep": ["W=3"], "window": 5, "origins": {"window": "flag -W"}},
            "--sweep has values of W; leave the option for one value out",
        ),
        ({"sweep": ["budget=4 W=15"]}, "no cell of the sweep can run: budget 4 is smaller than"),
    ],
)
def test_what_contradicts_itself_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        lined_up(**asked)
    assert str(caught.value).startswith(message)


def test_a_model_that_ranks_share_leaves_transformers_own_out() -> None:
    """Its generate would run on one rank alone, and wait for the others for ever."""
    made = lined_up(parallel=2, parallel_mode="tensor").contenders
    assert [c.name for c, _ in made] == [name for name in STRATEGIES if name not in FOREIGN]
    for name in FOREIGN:
        with pytest.raises(UsageError, match=f"leave {', '.join(FOREIGN)} out of --strategies"):
            lined_up(parallel=2, parallel_mode="tensor", strategies=f"lookahead,{name}")
        assert lined_up(parallel=2, strategies=name).contenders


def test_lengths_are_measured_with_few_contenders() -> None:
    made = lined_up(sweep=["context=1k"])
    assert [c.name for c, _ in made.contenders] == ["autoregressive", "paper", "lookahead"]
    made = lined_up(sweep=["context=1k"], strategies="autoregressive,hf")
    assert [c.name for c, _ in made.contenders] == ["autoregressive", "hf"]


def help_of(annotated: Any) -> str:
    info = annotated.__metadata__[0]
    assert isinstance(info, OptionInfo)
    return str(info.help)


def test_the_help_names_what_there_is() -> None:
    assert ", ".join(STRATEGIES) in help_of(options.Contenders)
    (unusual,) = {*STRATEGIES} - {*USUAL}
    assert f"; without it, all but {unusual}, which compiles" in help_of(options.Contenders)
    assert ", ".join(suites.NAMES) in help_of(options.Prompts)
    assert ", ".join(lineup.AXES) in help_of(options.Sweep)
    assert f"; {ANSWER} if nobody says" in help_of(options.AnswerTokens)
