"""The lookahead strategy: ranks that are told the same draft the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.observation import Observation
from ladecli.decoder.strategies import State
from ladecli.decoder.strategies.lookahead import Lookahead
from ladecli.decoder.successors import Successors
from ladecli.decoder.verify import walk

Drafts = list[tuple[list[int], list[int], list[str]]]


def drafted(config: LookaheadConfig, text: list[int]) -> tuple[Drafts, int]:
    """What is drafted along a text, and a number that stands for what was learned."""
    strategy = Lookahead(config)
    state = State(text[:40], 40)
    strategy.begin(state)
    drafts: Drafts = []
    while len(state.tokens) < len(text) - 40:
        state.room = state.draft_depth = 30
        draft = strategy.propose(state)
        tree, at = draft.tree, len(state.tokens)
        drafts.append((tree.tokens, tree.parents, tree.sources))
        verdict = walk(tree, lambda _row, path, at=at: text[at + len(path)])
        best = [text[(at + row) % len(text)] for row in range(draft.outputs)]
        rows = [{token: 0.6, token + 1: 0.2} for token in best] if draft.successors else []
        state.tokens += [token.id for token in verdict.tokens]
        strategy.observe(
            state, Observation(draft, state.tokens, verdict, best, Successors.of(rows))
        )
    return drafts, strategy.checksum()


@pytest.mark.parametrize("sources", [("trajectory",), ("trajectory", "context", "recycled")])
def test_the_same_text_is_drafted_alike(sources: tuple[str, ...]) -> None:
    rng = random.Random(3)
    text = [rng.choice((rng.randrange(40), 7, 8)) for _ in range(300)]
    config = replace(LookaheadConfig(4, 3, 4, 30), sources=sources)
    drafts, learned = drafted(config, text)
    assert any(tokens for tokens, _, _ in drafts)
    assert drafted(config, text) == (drafts, learned)
    assert drafted(config, [*text[:200], *text[:100]])[1] != learned
