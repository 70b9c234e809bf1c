"""Methods on a small real model, and the prompts that they are given."""

from __future__ import annotations

import pytest

from ladecli.bench.result import FOREIGN, Method
from ladecli.bench.runners import OwnRunner
from ladecli.bench.stock import StockRunner
from ladecli.bench.tasks import make_passages
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.errors import PromptError
from ladecli.decoder.events import Started
from ladecli.session.session import Session, Settings

pytestmark = pytest.mark.slow

REPETITIVE = "def f(x):\n    return f(x)\n" * 4
SETTINGS = Settings(lookahead=LookaheadConfig(5, 3, 5, 24), max_new_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "hf"])
def test_every_conversation_starts_cold(session: Session, strategy: str) -> None:
    prompt, lookahead = session.encode(REPETITIVE), Method("lookahead", "lookahead")
    OwnRunner(lookahead, session, SETTINGS).answer(prompt, lambda: False)
    drafts = session.drafts
    kind = StockRunner if strategy in FOREIGN else OwnRunner
    kind(Method(strategy, strategy), session, SETTINGS).begin()
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(0, len(prompt))
    assert strategy == "hf" or session.drafts is not drafts


def test_passages_of_one_place_begin_alike(session: Session) -> None:
    passages = make_passages(session, [20, 40], 2, 8)
    assert [passage.id for passage in passages] == ["20/1", "20/2", "40/1", "40/2"]
    one, other, longer, more = (passage.first() for passage in passages)
    assert [*map(len, (one, other, longer, more))] == [20, 20, 40, 40]
    assert one == longer[:20] != other
    with pytest.raises(PromptError, match="more than the context's 256"):
        make_passages(session, [250], 1, 8)[0].first()
