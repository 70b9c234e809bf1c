"""The test of the distribution: quiet where sampling is right, loud where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ladecli.decoder import engine
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.rescoring import Rescorer
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.verify import Choose, Verdict, walk
from ladecli.errors import LadeError
from ladecli.session import Session, Settings
from ladecli.verifying import chi_square
from ladecli.verifying.answer import Answer, Watch, decode
from ladecli.verifying.chi_square import Sampling, against, between, corrected
from ladecli.verifying.outcome import LEVEL, Sampled, Trial

from .makers import RandomSession, settings

# The temperature leaves several tokens probable, and drafts that are often right.
DRAWN = SamplingConfig(temperature=0.8, top_k=20, seed=11)


def trials(samples: int = 250) -> tuple[Trial, ...]:
    session = RandomSession("llama")
    work = Sampling(session, settings(3, DRAWN), Rescorer(session.decoder))
    return corrected(work.trials("row", session.encode("x"), samples))


def test_right_sampling_passes() -> None:
    found = trials()
    assert {trial.against for trial in found} == {"model", "plain"}
    assert {trial.position for trial in found if trial.against == "plain"} == {1, 2, 3}
    assert any(trial.prefix for trial in found), "no prefix was shared often enough"
    assert Sampled(250, 250, 250, ("row",), found).passed


def too_willing(tree: TokenTree, choose: Choose) -> Verdict:
    """A walk that takes every draft of the first token for right."""

    def chosen(row: int, path: Sequence[int]) -> int:
        firsts = [t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]
        return firsts[0] if row == 0 and firsts else choose(row, path)

    return walk(tree, chosen)


def test_drafts_accepted_too_often_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "walk", too_willing)
    sampled = Sampled(250, 250, 250, ("row",), trials())
    assert not sampled.passed
    assert {trial.against for trial in sampled.different} == {"model", "plain"}


def test_broken_off_it_tests_what_was_drawn() -> None:
    done: list[int] = []
    session = RandomSession("llama")
    watch = Watch(lambda: len(done) >= 100, done.append)
    work = Sampling(session, settings(3, DRAWN), Rescorer(session.decoder), watch)
    found = work.trials("row", session.encode("x"), 80)
    assert (work.drawn, work.plain) == (80, 20)
    assert found
    assert all(trial.samples <= 80 for trial in found)
    assert work.trials("next", session.encode("xy"), 80) == []
    assert (work.drawn, work.plain) == (80, 20)


def test_every_draw_has_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    made_up = Answer((), (1, 2), ((1, 2),), "", "length")

    def answered(_session: Any, _prompt: Any, how: Settings, _watch: Watch) -> Answer:
        seeds.append(how.sampling.seed)
        return made_up

    monkeypatch.setattr(chi_square, "decode", answered)
    session = RandomSession("llama")
    work = Sampling(session, settings(3, DRAWN), Rescorer(session.decoder))
    for row in ("a", "b"):
        work.trials(row, session.encode(row), 5)
    assert seeds == list(range(11, 31))


def test_plain_decoding_has_no_keys_of_the_strategys(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def watched(session: Session, prompt: Any, how: Settings, watch: Watch) -> Answer:
        if how.strategy == "autoregressive":
            lengths.append(session.decoder.cache.length)
        return decode(session, prompt, how, watch)

    monkeypatch.setattr(chi_square, "decode", watched)
    session = RandomSession("llama")
    Sampling(session, settings(2, DRAWN), Rescorer(session.decoder)).trials(
        "a", session.encode("a"), 2
    )
    assert lengths[0] == 0


@pytest.mark.parametrize("reads", [False, True])
def test_without_memory_nothing_is_tested(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session = RandomSession("llama")
    work = Sampling(session, settings(1, DRAWN), Rescorer(session.decoder))
    if reads:
        monkeypatch.setattr(Rescorer, "probabilities", lambda *_: None)
        message = "memory did not suffice to read a text again; take a smaller model"
    else:
        starved = Answer((), (), (), "", "memory")
        monkeypatch.setattr(chi_square, "decode", lambda *_: starved)
        message = "memory did not suffice for an answer; take a smaller model"
    with pytest.raises(LadeError) as found:
        work.trials("row", session.encode("x"), 60)
    assert str(found.value) == message


def counts_of(numbers: Sequence[int]) -> Counter[int]:
    return Counter(dict(enumerate(numbers)))


@pytest.mark.parametrize(
    ("counts", "probabilities", "cells", "low"),
    [
        ([50, 30, 20], [0.5, 0.3, 0.2], 3, False),
        ([80, 10, 10], [0.5, 0.3, 0.2], 3, True),
        # The rare ones together make a cell, or join the rarest of the others.
        ([50, 30, 8, 8, 4], [0.5, 0.3, 0.1, 0.06, 0.04], 4, False),
        ([50, 46, 2, 1, 1], [0.5, 0.46, 0.02, 0.01, 0.01], 2, False),
        # What cannot be drawn counts too.
        ([50, 10, 0, 40], [0.5, 0.3, 0.2, 0.0], 3, True),
    ],
)
def test_counts_against_probabilities(
    counts: list[int], probabilities: list[float], cells: int, low: bool
) -> None:
    found = against(counts_of(counts), np.array(probabilities))
    assert found is not None
    assert found[0] == cells
    assert (found[2] < LEVEL) is low


def test_too_little_makes_no_test() -> None:
    assert against(counts_of([3, 2]), np.array([0.5, 0.5])) is None
    assert against(counts_of([100]), np.array([1.0, 0.0])) is None
    assert between(counts_of([3, 2]), counts_of([2, 3])) is None
    assert between(counts_of([50]), Counter()) is None


@pytest.mark.parametrize(("theirs", "low"), [([48, 33, 19], False), ([20, 30, 50], True)])
def test_counts_against_counts(theirs: list[int], low: bool) -> None:
    found = between(counts_of([50, 30, 20]), counts_of(theirs))
    assert found is not None
    assert found[0] == 3
    assert (found[2] < LEVEL) is low


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.001], [0.001]),
    ],
)
def test_correction_for_many_tests(given: list[float], expected: list[float]) -> None:
    made: Any = [Trial("plain", "row", 1, (), 100, 3, 1.0, p) for p in given]
    assert [trial.corrected for trial in corrected(made)] == pytest.approx(expected)
