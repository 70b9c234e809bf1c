"""Methods on a small real model, and the prompts that they are given."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ladecli import models, stock, suites
from ladecli.bench.dialogue import Dialogue, passages
from ladecli.bench.measure import Spent
from ladecli.bench.methods import DEFAULT
from ladecli.bench.result import Method
from ladecli.bench.runners import (
    TRIES,
    Answer,
    CompiledStockRunner,
    OwnRunner,
    StockRunner,
    runner,
)
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.errors import PromptError
from ladecli.decoder.events import Started
from ladecli.decoder.load import load_decoder
from ladecli.errors import LadeError, UsageError
from ladecli.session import Session, Settings

from ..capturing import Again
from ..compiling import Compiler

REPETITIVE = "def f(x):\n    return f(x)\n" * 4
SETTINGS = Settings(lookahead=LookaheadConfig(5, 3, 5, 24), max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def session(model_folder: str) -> Session:
    return Session(models.load(model_folder))


def made(session: Session, strategy: str) -> OwnRunner | StockRunner:
    found = runner(Method(strategy, strategy), session, SETTINGS, lambda: 200)
    assert isinstance(found, OwnRunner | StockRunner)
    return found


def answered(session: Session, strategy: str, prompt: list[int]) -> Answer:
    method = made(session, strategy)
    method.begin(keep=False)
    return method.answer(prompt, lambda: False)


def test_methods_give_the_same_text_each_in_its_own_steps(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    answers = {name: answered(session, name, prompt) for name in DEFAULT}
    plain = answers["autoregressive"]
    for answer in answers.values():
        assert (answer.ids, answer.text, answer.reason) == (plain.ids, plain.text, "length")
        assert answer.lengths[-1] == 24
        assert len(answer.step_seconds) == len(answer.marks) - 1
        assert answer.marks == sorted(answer.marks)
    assert len(plain.marks) == len(answers["hf"].marks) == 24
    assert (plain.fed, answers["hf"].fed) == (23, None)
    assert not plain.accepted
    for name, source in (("jacobi", "jacobi"), ("prompt-lookup", "context")):
        assert set(answers[name].accepted) <= {source}
    for name in ("paper", "lookahead"):
        assert sum(answers[name].accepted.values()) == 24 - len(answers[name].marks)


def test_time_is_accounted_for_by_part(session: Session) -> None:
    prompt = session.encode("Once upon a time")
    found = {}
    for name in ("autoregressive", "lookahead"):
        spent, answer = Spent(), answered(session, name, prompt)
        spent.add(answer)
        found[name] = spent.summary(name, session.loaded.part)
        assert found[name].seconds.keys() == {"draft", "forward", "verify", "learn", "text"}
        total = sum(found[name].seconds.values()) * found[name].steps
        assert total == pytest.approx(sum(answer.step_seconds), rel=0.05)
    plain, lookahead = found["autoregressive"], found["lookahead"]
    assert (plain.steps, plain.width) == (23, 1.0)
    assert plain.context == pytest.approx(len(prompt) + 12)
    assert plain.read_bytes >= session.loaded.spec.weight_bytes
    assert lookahead.width > 1.0
    assert lookahead.operations > plain.operations
    assert not answered(session, "hf", prompt).loads


def prepared(session: Session) -> CompiledStockRunner:
    method = made(session, "hf-compiled")
    assert isinstance(method, CompiledStockRunner)
    method.prepare(session.encode("Once"), lambda: False)
    return method


def test_compiled_steps_give_the_same_answer(session: Session, compiler: Compiler) -> None:
    method, prompt = prepared(session), session.encode(REPETITIVE)
    answer, plain = method.answer(prompt, lambda: False), answered(session, "hf", prompt)
    assert (answer.ids, answer.text, answer.lengths) == (plain.ids, plain.text, plain.lengths)
    assert compiler.count == 1


def test_an_answer_during_which_something_was_compiled_does_not_count(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, prompt = prepared(session), session.encode(REPETITIVE)
    before, whole, asked = method.steps.seconds, stock.generate, list[int]()

    def generate(*given: Any, **options: Any) -> Any:
        asked.append(len(asked))
        compiler.count += asked[-1] < compiling
        return whole(*given, **options)

    monkeypatch.setattr(stock, "generate", generate)
    compiling = 2
    assert len(method.answer(prompt, lambda: False).ids) == 24
    assert len(asked) == 3
    assert method.steps.seconds > before
    compiling = 99
    with pytest.raises(LadeError, match="compiles something anew in every answer"):
        method.answer(prompt, lambda: False)
    assert len(asked) == 3 + TRIES
    # After Ctrl-C there is no other try.
    assert method.answer(prompt, lambda: True).reason == "interrupted"
    assert len(asked) == 4 + TRIES


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "hf"])
def test_every_conversation_starts_cold(session: Session, strategy: str) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    drafts = session.drafts
    made(session, strategy).begin(keep=False)
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(0, len(prompt))
    assert strategy == "hf" or session.drafts is not drafts


def test_a_shared_prompt_stays(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    made(session, "autoregressive").begin(keep=True)
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(len(prompt) - 1, len(prompt))


def test_captured_steps_stay_while_transformers_decodes(
    model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = partial(load_decoder, capture=Again())
    monkeypatch.setattr("ladecli.session.load_decoder", load)
    session = Session(models.load(model_folder))
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    captured = made(session, "lookahead").captured
    assert captured > 0
    answered(session, "hf", prompt)
    answered(session, "lookahead", prompt)
    assert made(session, "lookahead").captured == captured


def test_passages_of_one_place_begin_alike(session: Session) -> None:
    found = passages(session, [20, 40], 2, 8)
    assert [each.id for each in found] == ["20/1", "20/2", "40/1", "40/2"]
    assert [len(each.first()) for each in found] == [20, 20, 40, 40]
    assert [each.room for each in found] == [28, 28, 48, 48]
    assert found[0].first() == found[2].first()[:20]
    assert found[0].first() != found[1].first()
    with pytest.raises(PromptError, match="the context has room for 248 tokens"):
        passages(session, [250], 1, 8)[0].first()


def dialogue(session: Session, *turns: str, template: bool = False) -> Dialogue:
    return Dialogue(session, suites.Row("talk", "prose", turns), template, "Be kind.", 24)


def test_a_conversation_goes_on_from_the_answers(session: Session) -> None:
    asked: list[tuple[int, str]] = []

    def answer(turn: int, prompt: list[int]) -> str:
        asked.append((turn, session.loaded.tokenizer.decode(prompt)))
        return "It."

    talk = dialogue(session, "Say it.", "Again.")
    talk.hold(answer)
    assert asked == [(1, "Be kind.\nSay it."), (2, "Be kind.\nSay it.\nIt.\nAgain.")]
    assert talk.cut is None
    assert len(session.encode(asked[1][1])) + 24 <= talk.room <= session.decoder.max_context


def test_a_turn_that_cannot_be_asked_ends_the_conversation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(self: Session, messages: list[dict[str, str]], *, reply: bool = True) -> list[int]:
        if len(messages) > 2:
            raise UsageError("the template wants no second turn")
        return [5, 6]

    monkeypatch.setattr(Session, "encode_chat", refusing)
    talk, turns = dialogue(session, "One.", "Two.", "Three.", template=True), list[int]()
    talk.hold(lambda turn, _prompt: turns.append(turn) or "x")
    assert turns == [1]
    assert talk.cut == "turn 2: the template wants no second turn"
    assert talk.room == session.decoder.max_context
    with pytest.raises(PromptError, match="with an answer of 24 is more than the context's 256"):
        dialogue(session, "a " * 300).first()
