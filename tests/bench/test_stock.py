"""transformers' `generate` as a baseline: the same text, a mark for every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CompileConfig

from ladecli.bench import stock
from ladecli.bench.result import STOCK, STOCK_COMPILED, STOCK_LOOKUP, Method
from ladecli.bench.runners import Answer
from ladecli.bench.stock import StockRunner
from ladecli.decoder.config import SamplingConfig
from ladecli.session.session import Session, Settings
from ladecli.session.text import REPLACEMENT
from tests.support.compiler import Compiler
from tests.support.decoding import text_ids

pytestmark = pytest.mark.slow

ON = Settings("autoregressive", max_new_tokens=30, ignore_eos=True)
CODE = "def f(x):\n    return f(x)\ndef f(x):\n"
TEXTS = ("Once upon a time", CODE, "a")


def own(session: Session, prompt: list[int], settings: Settings) -> list[int]:
    return text_ids(session.stream(prompt, settings))


def runner(
    session: Session, settings: Settings = ON, strategy: str = STOCK, room: int = 80
) -> StockRunner:
    """Return a runner, after compiling its steps if it needs that."""
    method = StockRunner(Method(strategy, strategy), session, settings, room)
    if strategy == STOCK_COMPILED:
        method.answer(session.encode("def f"), lambda: False)
    return method


def answered(method: StockRunner, prompt: list[int], cancelled: Any = lambda: False) -> Answer:
    answer = method.answer(prompt, cancelled)
    assert answer.marks == sorted(answer.marks)
    # Every step adds something, with and without candidates.
    assert answer.lengths == sorted(set(answer.lengths))
    assert len(answer.marks) == len(answer.lengths)
    assert answer.lengths[-1] == len(answer.ids)
    return answer


PENALTY = SamplingConfig(repetition_penalty=1.3)


@pytest.mark.parametrize("strategy", [STOCK, STOCK_LOOKUP])
@pytest.mark.parametrize(
    "settings", [ON, replace(ON, ignore_eos=False), replace(ON, sampling=PENALTY)]
)
def test_the_text_of_plain_decoding(session: Session, settings: Settings, strategy: str) -> None:
    for text in TEXTS:
        prompt = session.encode(text)
        answer = answered(runner(session, settings, strategy), prompt)
        assert answer.ids == own(session, prompt, settings)
        assert strategy == STOCK_LOOKUP or len(answer.marks) == len(answer.ids)


@pytest.mark.parametrize("strategy", [STOCK, STOCK_LOOKUP, STOCK_COMPILED])
def test_ends_of_a_text(session: Session, compiler: Compiler, strategy: str) -> None:
    prompt = session.encode(CODE)
    text = session.text_of(own(session, prompt, ON), prompt, ON).text
    whole = [at for at in range(len(text) - 1) if REPLACEMENT not in text[at : at + 2]]
    for start in (whole[0], whole[-1]):
        settings = replace(ON, stop=(text[start : start + 2],))
        stopped = answered(runner(session, settings, strategy), prompt)
        assert (stopped.ids, stopped.reason) == (own(session, prompt, settings), "stop")
        assert len(stopped.ids) < 30
    asked = iter([False, False, True])
    cancelled = answered(runner(session, strategy=strategy), prompt, lambda: next(asked))
    assert (len(cancelled.marks), cancelled.reason) == (3, "interrupted")
    if strategy != STOCK_COMPILED:
        longest = (session.encode("a ") * (most := session.decoder.max_context))[: most - 5]
        full = answered(runner(session, strategy=strategy), longest)
        assert (len(full.ids), full.reason) == (5, "length")


@pytest.fixture
def demanding(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return the model with a generation config that sets many fields."""
    ids = own(session, session.encode(TEXTS[0]), replace(ON, max_new_tokens=9))
    asks = {
        "eos_token_id": ids[4], "num_beams": 4, "prompt_lookup_num_tokens": 3, "max_time": 60.0,
        "no_repeat_ngram_size": 3, "suppress_tokens": [0], "max_length": 3, "use_cache": False,
        "return_dict_in_generate": True, "stop_strings": ["@@@"], "cache_implementation": "static",
        "temperature": 0.1, "do_sample": True,
    }  # fmt: skip
    for model in (session.loaded.model, session.stock_model):
        for name, value in asks.items():
            monkeypatch.setattr(model.generation_config, name, value)
    return session


@pytest.mark.parametrize("strategy", [STOCK, STOCK_LOOKUP])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_generation_config_is_used(demanding: Session, strategy: str, ignore_eos: bool) -> None:
    settings = Settings("autoregressive", max_new_tokens=20, ignore_eos=ignore_eos)
    prompt = demanding.encode(TEXTS[0])
    before = demanding.stock_model.generation_config
    answer = answered(runner(demanding, settings, strategy), prompt)
    assert answer.ids == own(demanding, prompt, settings)
    assert len(answer.ids) == (20 if ignore_eos else 5)
    assert demanding.stock_model.generation_config is before


def test_steps_are_compiled_once_and_give_the_same_text(session: Session, monkeypatch: Any) -> None:
    config = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    monkeypatch.setattr(stock, "compile_config", lambda: config)
    try:
        before, compiled = stock.compilations(), runner(session, strategy=STOCK_COMPILED)
        lookup = runner(session, strategy=STOCK_LOOKUP)
        for text in TEXTS:
            prompt = session.encode(text)
            answer = answered(compiled, prompt)
            assert answer.lengths == list(range(1, 31))
            # Other methods in between cause no new compilation.
            assert own(session, prompt, ON) == answered(lookup, prompt).ids == answer.ids
        assert compiled.built == before + 1
    finally:
        torch._dynamo.reset()
        del session.stock_model._compiled_call
