"""What a generation asks of its steps."""

from __future__ import annotations

import pytest

from ladecli.decoder import layout
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.job import Job
from ladecli.decoder.layout import Draft
from ladecli.decoder.limits import Limits
from ladecli.decoder.parallel.group import ALONE
from ladecli.decoder.sampling import Sampler, uniform
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.tree import TokenTree


def job(sampling: SamplingConfig, limits: Limits | None = None) -> Job:
    strategy = make_strategy("autoregressive", LookaheadConfig())
    return Job(strategy, Sampler(sampling), limits or Limits(), False, None, ALONE)


def test_tokens_behind_a_path_are_drawn_with_the_number_of_their_position() -> None:
    tree = TokenTree()
    tree.add([5, 6], "context", 9)
    tree.add([7], "context", 9)
    draft = Draft(tree, width=8, successors=4)
    # Two of the three pending tokens stand before the current one: nobody asks what follows them.
    step = layout.build([1, 2, 3], 40, draft)
    wanted = job(SamplingConfig(0.8, seed=6)).wanted(step, draft, 43, chooses=True)
    expected = [uniform(6, 43 + depth) for depth in (0, 1, 2, 1)]
    assert wanted.uniforms[2:] == expected
    assert wanted.sampling == SamplingConfig(0.8), "one kind of step for all seeds"
    assert (wanted.successors, wanted.logits) == (4, True)


@pytest.mark.parametrize(
    ("sampling", "chooses", "logits"),
    [
        (SamplingConfig(), True, False),
        (SamplingConfig(0.8), False, True),
        (SamplingConfig(0.8, repetition_penalty=1.1), False, True),
        (SamplingConfig(repetition_penalty=1.1), True, False),
    ],
)
def test_nothing_is_drawn_where_there_is_no_need(
    sampling: SamplingConfig, chooses: bool, logits: bool
) -> None:
    draft = Draft()
    wanted = job(sampling).wanted(layout.build([1], 4, draft), draft, 5, chooses=chooses)
    assert (wanted.sampling, [*wanted.uniforms], wanted.logits) == (None, [], logits)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_penalty_is_for_the_text_as_it_is_when_the_step_runs(temperature: float) -> None:
    penalized = job(SamplingConfig(temperature, repetition_penalty=1.1))
    draft = Draft()
    wanted = penalized.wanted(layout.build([1], 4, draft), draft, 5, chooses=True)
    assert (wanted.sampling is not None, wanted.logits) == (temperature > 0, temperature > 0)
    penalized.sampler.commit([3, 4])
    assert (wanted.penalty, wanted.text) == (1.1, [3, 4])


def test_a_penalty_is_left_to_processors_that_come_before_it() -> None:
    sampler = Sampler(SamplingConfig(repetition_penalty=1.1), [lambda ids, scores: scores])
    asked = Job(job(SamplingConfig()).strategy, sampler, Limits(), False, None, ALONE)
    draft = Draft()
    wanted = asked.wanted(layout.build([1], 4, draft), draft, 5, chooses=True)
    assert (wanted.penalty, wanted.sampling, wanted.logits) == (1.0, None, True)


@pytest.mark.parametrize(("most", "end"), [(None, 100), (7, 17), (200, 100)])
def test_a_text_ends_where_it_has_to(most: int | None, end: int) -> None:
    assert job(SamplingConfig(), Limits(most)).end(10, 100) == end
