"""The choice of methods: named strategies, or the cells of a sweep."""

from __future__ import annotations

from typing import Any

from ladecli import suites
from ladecli.bench import methods
from ladecli.bench.methods import DEFAULT as USUAL
from ladecli.bench.methods import STRATEGIES
from ladecli.bench.result import FOREIGN
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.options.commands import BenchRequest
from ladecli.options.declare import options_of
from ladecli.profiles import Choice

DEFAULT = LookaheadConfig(5, 3, 5, 24, ("context",), widths=(1, 8, 24))
CHOICE = Choice("test", DEFAULT, LookaheadConfig(7, 5, 7, sources=("trajectory",)))


def chosen(**asked: Any) -> list[methods.Chosen]:
    request = BenchRequest(**asked)
    return methods.choose(request, CHOICE, SamplingConfig(), methods.check(request))


def test_all_methods_draw_the_same_random_numbers() -> None:
    for asked in ({}, {"sweep": ["budget=8,16"]}):
        made = chosen(temperature=0.7, **asked)
        assert {settings.sampling.seed for _, settings in made} == {0}
    assert {s.sampling.seed for _, s in chosen(temperature=0.7, seed=9)} == {9}


def test_transformers_generate_does_not_run_on_a_model_that_ranks_share() -> None:
    """Its generate would run on only one rank, and wait for the others forever."""
    made = chosen(parallel=2, parallel_mode="tensor")
    assert [c.name for c, _ in made] == [name for name in USUAL if name not in FOREIGN]
    assert chosen(parallel=2, strategies="hf")


def test_the_help_names_all_values() -> None:
    helps = {key: option.help for key, option in options_of(BenchRequest).items()}
    assert ", ".join(STRATEGIES) in helps["strategies"]
    assert f"default: {','.join(USUAL)}." in helps["strategies"]
    assert ", ".join(suites.NAMES) in helps["prompts"]
    assert ", ".join(methods.AXES) in helps["sweep"]
