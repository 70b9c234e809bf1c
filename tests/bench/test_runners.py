"""Methods on a small real model, and the prompts that they are given."""

from __future__ import annotations

import pytest

from ladecli.bench.result import FOREIGN, Method
from ladecli.bench.runners import Answer, MethodRunner, OwnRunner
from ladecli.bench.stock import StockRunner
from ladecli.bench.tasks import make_passages
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.errors import PromptError
from ladecli.decoder.events import Started
from ladecli.session.session import Session, Settings

REPETITIVE = "def f(x):\n    return f(x)\n" * 4
SETTINGS = Settings(lookahead=LookaheadConfig(5, 3, 5, 24), max_new_tokens=24, ignore_eos=True)


def runner(session: Session, strategy: str) -> MethodRunner:
    kind = StockRunner if strategy in FOREIGN else OwnRunner
    return kind(Method(strategy, strategy), session, SETTINGS)


def answered(session: Session, strategy: str, prompt: list[int]) -> Answer:
    method = runner(session, strategy)
    method.begin()
    return method.answer(prompt, lambda: False)


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "hf"])
def test_every_conversation_starts_cold(session: Session, strategy: str) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    drafts = session.drafts
    runner(session, strategy).begin()
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(0, len(prompt))
    assert strategy == "hf" or session.drafts is not drafts


def test_passages_of_one_place_begin_alike(session: Session) -> None:
    found = make_passages(session, [20, 40], 2, 8)
    assert [each.id for each in found] == ["20/1", "20/2", "40/1", "40/2"]
    assert [len(each.first()) for each in found] == [20, 20, 40, 40]
    assert found[0].first() == found[2].first()[:20]
    assert found[0].first() != found[1].first()
    with pytest.raises(PromptError, match="more than the context's 256"):
        make_passages(session, [250], 1, 8)[0].first()
