"""Strategies replay a known text: what they draft, within which limits, and what that may cost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.drafting.store import (
    INITIAL_BALANCE,
    LOSS_PER_TOKEN,
    MAX_DEFICIT,
    DraftStore,
    SpeculationBudget,
)
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import Strategy, make_strategy
from ladecli.decoder.strategy import Draft, Room, State, StepResult
from tests.support.decoding import decoder_of, ids_of, run
from tests.support.models import prompt_for

ALL = ("trajectory", "context", "recycled")
PAPER = ("trajectory",)
DEAR = StepCost((1, 2), (0,), ((1.0, 3.0),))


def text_of(length: int, seed: int = 3) -> list[int]:
    """Random tokens and phrases that were there before."""
    rng = random.Random(seed)
    text = rng.choices(range(40), k=40)
    while len(text) < length:
        start = rng.randrange(len(text) - 9)
        text += rng.choice([text[start : start + 9], rng.choices(range(40), k=3)])
    return text


@dataclass
class Replay:
    """The text up to a step, and the step's draft."""

    state: State
    draft: Draft

    @property
    def fed(self) -> int:
        window = self.draft.window
        return 1 + len(self.draft.tree) + (len(window.tokens) if window else 0)


def replay(
    strategy: Strategy, text: list[int], depth: int = 30, reach: int = 30, widest: int = 4096
) -> list[Replay]:
    """Drafts along a text; the model's successors favour what follows the same token elsewhere."""
    state, steps = State(text[:40], 40), list[Replay]()
    strategy.begin(state)
    while (start := len(state.tokens)) < len(text) - 40:
        draft = strategy.propose(state, Room(min(depth, reach, widest - 1), reach, widest))
        steps.append(Replay(State([*state.tokens], 40), draft))
        nodes, new = draft.tree.walk(lambda _, path, start=start: text[start + len(path)])
        fed = [text[start - 1], *draft.tree.tokens]
        fed += draft.window.rows(text[start - 1])[-1] if draft.window else []
        best = [text[text.index(token) + 1] if token in text else token for token in fed]
        rows = [{token: 0.6, token + 1: 0.2} for token in best] if draft.successors else []
        state.tokens += [token.id for token in new]
        strategy.observe(state, draft, StepResult(nodes, new, best, rows))
    return steps


@pytest.mark.parametrize("family", ["phi3_long", "llama_dynamic", "gpt2"])
def test_the_papers_guesses_end_where_positions_do(family: str) -> None:
    """At the end of the context, and where rotary frequencies change."""
    decoder, config = decoder_of(family), LookaheadConfig(2, 4, 8, sources=PAPER)
    end = decoder.executor.facts.rope_boundary or decoder.max_context
    for before in range(2, 8):
        prompt = [*islice(cycle(prompt_for(family)), end - before)]
        expected = ids_of(run(decoder, prompt, limits=Limits(12)))
        store, text = DraftStore(), [*prompt, *expected]
        for start in range(len(prompt) - 1, len(text) - 3):
            store.pool.add(text[start : start + 4], 8)
        assert (
            ids_of(run(decoder, prompt, "lookahead", config, None, Limits(12), store)) == expected
        )


def test_the_papers_pool_proposes_ngrams_of_the_window() -> None:
    """At most G at once, which start with the current token."""
    config = LookaheadConfig(5, 4, 3, sources=PAPER, step_cost=DEAR)
    steps = replay(make_strategy("lookahead", config), text_of(600))
    assert all(step.draft.window for step in steps), "whatever a step costs"
    assert all(len(step.draft.tree) <= 3 * 3 for step in steps)
    assert max(step.fed for step in steps) <= (5 + 3) * 3
    assert {source for step in steps for source in step.draft.tree.sources} == {"trajectory"}


def test_a_window_pauses_where_it_does_not_pay() -> None:
    text = random.Random(0).choices(range(9000), k=200)
    config = LookaheadConfig(4, 3, 4, 24, step_cost=StepCost((1, 64), (0,), ((1.0, 4.0),)))
    steps = replay(make_strategy("lookahead", config), text)
    assert 0 < sum(step.draft.window is not None for step in steps) < len(steps) / 5


def test_ranks_share_the_places_of_a_step() -> None:
    config = LookaheadConfig(4, 3, 4, 24, ALL)
    strategy, text = make_strategy("lookahead", config), text_of(200)
    state = State(text, len(text))
    strategy.begin(state)
    draft = strategy.propose(state, Room(99, 99, loads=(1, 4)))
    assert draft.window is not None
    # Two tokens in any case, and three that the second rank must feed again.
    assert len(draft.tree) + len(draft.window.tokens) == 2 * 24 - 2 - 3
    assert draft.limit == 24


def test_where_drafts_do_not_pay_steps_are_plain_and_few_ask_for_successors() -> None:
    config = LookaheadConfig(4, 3, 4, 24, ("context", "recycled"), DEAR)
    steps = replay(make_strategy("lookahead", config), random.Random(0).choices(range(9000), k=300))
    assert sum(step.fed > 1 for step in steps) < 20
    plain = [step.draft.successors for step in steps if step.fed == 1]
    assert plain.count(0) == 3 * len(plain) // 4 + (len(plain) % 4 > 0)


STEPS = st.lists(st.tuples(st.integers(1, 12), st.floats(1.0, 12.0)), max_size=200)
"""Tokens and costs of steps with drafts."""


@given(STEPS)
def test_a_text_does_not_pay_for_what_others_lost(steps: list[tuple[int, float]]) -> None:
    budget = SpeculationBudget()
    for tokens, cost in steps:
        budget.update(tokens, cost)
    kept = budget.balance
    budget.begin()
    assert budget.may_draft
    assert budget.balance >= kept


@given(STEPS)
def test_drafts_lose_no_more_than_the_budget(steps: list[tuple[int, float]]) -> None:
    """Also what they are worth at least: drafts that bring what they cost never pause."""
    spent, fair = SpeculationBudget(), SpeculationBudget()
    lost = worst = 0.0
    written = 0
    for drafted in steps:
        tokens, cost = drafted if spent.may_draft else (1, 1.0)
        spent.update(tokens, cost)
        fair.update(tokens, float(tokens))
        assert fair.may_explore
        written += tokens
        lost, worst = lost + cost - tokens, max(worst, cost - tokens)
        allowed = INITIAL_BALANCE + MAX_DEFICIT + LOSS_PER_TOKEN * written
        assert lost <= allowed + worst + 1e-9
