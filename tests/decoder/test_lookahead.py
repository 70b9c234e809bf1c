"""The lookahead strategy: what it settles while the device is at work changes no draft."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.observation import Observation
from ladecli.decoder.strategies import State
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.decoder.verify import walk

Drafts = list[tuple[list[int], list[int], list[str]]]


def drafted(config: LookaheadConfig, settled: int, text: list[int]) -> tuple[Drafts, int]:
    """What is drafted along a text, settled so often in every step, and what was learned."""
    strategy = Lookahead(config)
    state = State(text[:40], 40)
    strategy.begin(state)
    drafts: Drafts = []
    while len(state.tokens) < len(text) - 40:
        state.room = state.draft_depth = 30
        draft = strategy.propose(state)
        for _ in range(settled):
            strategy.settle()
        tree, at = draft.tree, len(state.tokens)
        drafts.append((tree.tokens, tree.parents, tree.sources))
        verdict = walk(tree, lambda _row, path, at=at: text[at + len(path)])
        best = [text[(at + row) % len(text)] for row in range(draft.outputs)]
        rows = [{token: 0.6, token + 1: 0.2} for token in best] if draft.successors else []
        state.tokens += [token.id for token in verdict.tokens]
        strategy.observe(state, Observation(draft, state.tokens, verdict, best, rows))
    strategy.settle()
    return drafts, strategy.checksum()


@pytest.mark.parametrize("sources", [("trajectory",), ("trajectory", "context", "recycled")])
def test_drafts_do_not_depend_on_how_often_they_are_settled(sources: tuple[str, ...]) -> None:
    rng = random.Random(3)
    text = [rng.choice((rng.randrange(40), 7, 8)) for _ in range(300)]
    config = replace(LookaheadConfig(4, 3, 4, 30), sources=sources)
    drafts, learned = drafted(config, 1, text)
    assert any(tokens for tokens, _, _ in drafts)
    assert drafted(config, 0, text)[0] == drafts
    assert drafted(config, 2, text) == (drafts, learned)
