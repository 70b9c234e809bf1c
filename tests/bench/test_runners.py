"""Methods on a small real model, and the prompts that they are given."""

from __future__ import annotations

import pytest

from ladecli import models, suites
from ladecli.bench.measure import Spent
from ladecli.bench.methods import DEFAULT
from ladecli.bench.result import Method
from ladecli.bench.runners import Answer, StockRunner, runner
from ladecli.bench.tasks import Dialogue, passages
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.errors import PromptError
from ladecli.decoder.events import Started
from ladecli.session import Session, Settings

from ..compiling import Compiler

REPETITIVE = "def f(x):\n    return f(x)\n" * 4
SETTINGS = Settings(lookahead=LookaheadConfig(5, 3, 5, 24), max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def session(model_folder: str) -> Session:
    return Session(models.load(model_folder))


def answered(session: Session, strategy: str, prompt: list[int]) -> Answer:
    method = runner(Method(strategy, strategy), session, SETTINGS, 200)
    method.begin()
    return method.answer(prompt, lambda: False)


def test_methods_give_the_same_text_each_in_its_own_steps(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    answers = {name: answered(session, name, prompt) for name in DEFAULT}
    plain = answers["autoregressive"]
    for answer in answers.values():
        assert (answer.ids, answer.text, answer.reason) == (plain.ids, plain.text, "length")
        assert answer.lengths[-1] == 24
        assert answer.marks == sorted(answer.marks)
    assert len(plain.marks) == len(answers["hf"].marks) == 24
    assert (plain.widths[1:], answers["hf"].widths) == ([1] * 23, [])
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
        spent.add(answer, len(prompt))
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


def test_compiled_steps_give_the_same_answer(session: Session, compiler: Compiler) -> None:
    method = runner(Method("hf-compiled", "hf-compiled"), session, SETTINGS, 200)
    assert isinstance(method, StockRunner)
    method.compile(session.encode("Once"), lambda: False)
    built, prompt = method.built, session.encode(REPETITIVE)
    answer, plain = method.answer(prompt, lambda: False), answered(session, "hf", prompt)
    assert (answer.ids, answer.text, answer.lengths) == (plain.ids, plain.text, plain.lengths)
    assert method.built == built == compiler.count == 1


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "hf"])
def test_every_conversation_starts_cold(session: Session, strategy: str) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    drafts = session.drafts
    runner(Method(strategy, strategy), session, SETTINGS, 200).begin()
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(0, len(prompt))
    assert strategy == "hf" or session.drafts is not drafts


def test_passages_of_one_place_begin_alike(session: Session) -> None:
    found = passages(session, [20, 40], 2, 8)
    assert [each.id for each in found] == ["20/1", "20/2", "40/1", "40/2"]
    assert [len(each.first()) for each in found] == [20, 20, 40, 40]
    assert [each.room for each in found] == [28, 28, 48, 48]
    assert found[0].first() == found[2].first()[:20]
    assert found[0].first() != found[1].first()
    with pytest.raises(PromptError, match="the context has room for 248 tokens"):
        passages(session, [250], 1, 8)[0].first()


def test_a_conversation_goes_on_from_the_answers(session: Session) -> None:
    asked: list[tuple[int, str]] = []

    def answer(turn: int, prompt: list[int]) -> str:
        asked.append((turn, session.loaded.tokenizer.decode(prompt)))
        return "It."

    row = suites.Row("talk", "prose", ("Say it.", "Again.", "a " * 300))
    talk = Dialogue(session, row, False, "Be kind.", 24)
    talk.hold(answer)
    assert asked == [(1, "Be kind.\nSay it."), (2, "Be kind.\nSay it.\nIt.\nAgain.")]
    assert (talk.cut or "").startswith("turn 3: the prompt has ")
    assert talk.room == session.decoder.max_context
