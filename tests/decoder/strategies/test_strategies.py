"""Strategies along a known text: their drafts, the limits and the costs."""

from __future__ import annotations

import random
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.drafting.constants import CONSTANTS
from ladecli.decoder.drafting.store import DraftStore, SpeculationBudget
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import Strategy, make_strategy
from ladecli.decoder.strategy import Draft, Room, State, StepResult
from tests.support.decoding import decoder_of, ids_of, run
from tests.support.models import prompt_for

ALL = ("trajectory", "context", "recycled")
PAPER = ("trajectory",)
DEAR = StepCost((1, 2), (0,), ((1.0, 3.0),))


def text_of(length: int, seed: int = 3) -> list[int]:
    """Return random tokens and phrases that were there before."""
    rng = random.Random(seed)
    text = rng.choices(range(40), k=40)
    while len(text) < length:
        start = rng.randrange(len(text) - 9)
        text += rng.choice([text[start : start + 9], rng.choices(range(40), k=3)])
    return text


def width_of(draft: Draft) -> int:
    """Return the tokens that a step with a draft feeds."""
    return 1 + len(draft.tree) + (len(draft.window.tokens) if draft.window else 0)


def replay(strategy: Strategy, text: list[int]) -> list[Draft]:
    """Return drafts along a text; the model expects what follows the same token elsewhere."""
    state, drafts = State(text[:40], 40), list[Draft]()
    strategy.begin(state)
    while (start := len(state.tokens)) < len(text) - 40:
        drafts.append(draft := strategy.propose(state, Room(30, 30, 4096)))
        nodes, new = draft.tree.walk(lambda _, path, start=start: text[start + len(path)])
        tokens = [text[start - 1], *draft.tree.tokens]
        tokens += draft.window.rows(text[start - 1])[-1] if draft.window else []
        best = [text[text.index(token) + 1] if token in text else token for token in tokens]
        rows = [{token: 0.6, token + 1: 0.2} for token in best] if draft.successors else []
        state.tokens += [token.id for token in new]
        strategy.observe(state, draft, StepResult(nodes, new, best, rows))
    return drafts


@pytest.mark.parametrize("family", ["phi3_long", "llama_dynamic", "gpt2"])
def test_the_papers_guesses_end_at_the_limits_of_positions(family: str) -> None:
    """Limits are the end of the context, and the rotary boundary."""
    decoder, config = decoder_of(family), LookaheadConfig(2, 4, 8, sources=PAPER)
    end = decoder.executor.facts.rope_boundary or decoder.max_context
    for before in range(2, 8):
        prompt = [*islice(cycle(prompt_for(family)), end - before)]
        expected = ids_of(run(decoder, prompt, limits=Limits(12)))
        store, text = DraftStore(), [*prompt, *expected]
        for start in range(len(prompt) - 1, len(text) - 3):
            store.pool.add(text[start : start + 4], 8)
        events = run(decoder, prompt, "lookahead", config, None, Limits(12), store)
        assert ids_of(events) == expected


def test_the_papers_pool_proposes_ngrams_of_the_window() -> None:
    """The tree has at most G n-grams, which start with the current token."""
    config = LookaheadConfig(5, 4, 3, sources=PAPER, step_cost=DEAR)
    drafts = replay(make_strategy("lookahead", config), text_of(600))
    assert all(draft.window for draft in drafts), "whatever a step costs"
    assert max(len(draft.tree) for draft in drafts) <= 3 * 3
    assert max(map(width_of, drafts)) <= (5 + 3) * 3
    assert {source for draft in drafts for source in draft.tree.sources} == {"trajectory"}


def test_a_window_pauses_if_it_does_not_pay() -> None:
    text = random.Random(0).choices(range(9000), k=200)
    config = LookaheadConfig(4, 3, 4, 24, step_cost=StepCost((1, 64), (0,), ((1.0, 4.0),)))
    drafts = replay(make_strategy("lookahead", config), text)
    assert 0 < sum(draft.window is not None for draft in drafts) < len(drafts) / 5


def test_ranks_share_the_places_of_a_step() -> None:
    config = LookaheadConfig(4, 3, 4, 24, ALL)
    strategy, text = make_strategy("lookahead", config), text_of(200)
    state = State(text, len(text))
    strategy.begin(state)
    draft = strategy.propose(state, Room(99, 99, loads=(1, 4)))
    assert draft.window is not None
    # Two current tokens, and three tokens that the second rank must feed again.
    assert len(draft.tree) + len(draft.window.tokens) == 2 * 24 - 2 - 3
    assert draft.limit == 24


def test_without_gain_steps_are_plain_and_few_ask_for_successors() -> None:
    config = LookaheadConfig(4, 3, 4, 24, ("context", "recycled"), DEAR)
    drafts = replay(
        make_strategy("lookahead", config), random.Random(0).choices(range(9000), k=300)
    )
    assert sum(width_of(draft) > 1 for draft in drafts) < 20
    plain = [draft.successors for draft in drafts if width_of(draft) == 1]
    assert plain.count(0) == 3 * len(plain) // 4 + (len(plain) % 4 > 0)


STEPS = st.lists(st.tuples(st.integers(1, 12), st.floats(1.0, 12.0)), max_size=200)
"""Tokens and costs of steps with drafts."""


@given(STEPS)
def test_losses_do_not_carry_over_to_other_texts(steps: list[tuple[int, float]]) -> None:
    budget = SpeculationBudget()
    for tokens, cost in steps:
        budget.update(tokens, cost)
    kept = budget.balance
    budget.begin()
    assert budget.may_draft
    assert budget.balance >= kept


@given(STEPS)
def test_drafts_lose_no_more_than_the_budget(steps: list[tuple[int, float]]) -> None:
    """Drafts that gain as much as they cost never pause."""
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
        allowed = CONSTANTS.initial_balance + CONSTANTS.max_deficit
        allowed += CONSTANTS.loss_per_token * written
        assert lost <= allowed + worst + 1e-9
