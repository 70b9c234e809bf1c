"""The ledger: drafts lose no more than it lets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.ledger import ALLOWANCE, CREDIT, DEBT, Ledger
from ladecli.decoder.strategies import State
from ladecli.decoder.strategies.lookahead import Lookahead


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(1.0, 12.0)), max_size=200))
def test_drafts_lose_no_more_than_the_ledger_lets_them(steps: list[tuple[int, float]]) -> None:
    """At no time more than credit and debt, one step's loss, and the allowance of every token."""
    ledger = Ledger()
    lost = worst = 0.0
    written = 0
    for drafted in steps:
        tokens, cost = drafted if ledger.solvent else (1, 1.0)
        ledger.book(tokens, cost)
        written += tokens
        lost += cost - tokens
        worst = max(worst, cost - tokens)
        assert lost <= CREDIT + DEBT + worst + ALLOWANCE * written + 1e-9


@given(st.lists(st.integers(1, 12), max_size=100))
def test_drafts_that_bring_what_they_cost_never_pause(yields: list[int]) -> None:
    ledger = Ledger()
    for tokens in yields:
        ledger.book(tokens, float(tokens))
        assert ledger.solvent


def test_drafts_become_strict_and_then_pause() -> None:
    ledger = Ledger()
    assert ledger.thriving
    ledger.book(1, 1.0 + CREDIT + 3 * ALLOWANCE)
    assert ledger.solvent
    assert not ledger.thriving
    ledger.book(1, 1.0 + DEBT)
    ledger.book(1, 1.0 + 3 * ALLOWANCE)
    assert not ledger.solvent


def test_plain_steps_pay_a_debt_off() -> None:
    """A debt of ten allowances takes ten plain tokens."""
    ledger = Ledger()
    ledger.book(0, CREDIT + DEBT + 9.5 * ALLOWANCE)
    for _ in range(9):
        ledger.book(1, 1.0)
        assert not ledger.solvent
    ledger.book(1, 1.0)
    assert ledger.solvent


def test_what_drafts_gained_they_may_lose() -> None:
    ledger = Ledger()
    ledger.book(8, 2.0)
    ledger.book(1, 1.0 + CREDIT + 6.0)
    assert ledger.thriving
    ledger.book(1, 1.0 + CREDIT + DEBT)
    assert not ledger.solvent


@pytest.mark.parametrize(
    ("balance", "window", "candidates"),
    [(0.0, True, True), (-DEBT / 2, True, True), (-1.1, False, True), (-2.1, False, False)],
)
def test_a_window_stops_before_candidates_do(
    balance: float, *, window: bool, candidates: bool
) -> None:
    drafts = DraftState()
    strategy = Lookahead(LookaheadConfig(3, 3, 3, 30), drafts)
    text = [5, 6, 7, 8] * 6
    state = State(text, len(text), draft_depth=20, room=100)
    strategy.begin(state)
    drafts.ledger.balance = balance
    draft = strategy.propose(state)
    assert (draft.window is not None, len(draft.tree) > 0) == (window, candidates)
