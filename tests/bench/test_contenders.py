"""Contenders on a small real model: cold starts, marks, accounts, long texts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ladecli import models, stock, suites
from ladecli.bench import where
from ladecli.bench.contenders import DEFAULT, TRIES, Answer, Own, Stock, StockCompiled, player
from ladecli.bench.dialogue import Dialogue
from ladecli.bench.passages import Passage, passages
from ladecli.bench.result import Contender
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


def made(session: Session, strategy: str, settings: Settings = SETTINGS) -> Own | Stock:
    found = player(Contender(strategy, strategy), session, settings, lambda: 200)
    assert isinstance(found, Own | Stock)
    return found


def answered(session: Session, strategy: str, prompt: list[int]) -> Answer:
    contender = made(session, strategy)
    contender.begin(keep=False)
    return contender.answer(prompt, lambda: False)


def test_marks_say_when_every_step_ended(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    for strategy in DEFAULT:
        answer = answered(session, strategy, prompt)
        assert len(answer.ids) == answer.lengths[-1] == 24
        assert answer.marks == sorted(answer.marks)
        assert len(answer.step_seconds) == len(answer.marks) - 1
        assert sum(answer.step_seconds) == pytest.approx(
            answer.marks[-1] - answer.marks[0], abs=1e-6 * len(answer.marks)
        )
        assert answer.reason == "length"


def test_each_is_what_it_is_called(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    answers = {name: answered(session, name, prompt) for name in DEFAULT}
    plain = answers["autoregressive"]
    assert all(answer.ids == plain.ids for answer in answers.values())
    assert all(answer.text == plain.text for answer in answers.values())
    assert len(plain.marks) == len(answers["hf"].marks) == 24
    assert plain.fed == 23
    assert sum(plain.accepted.values()) == 0
    accepted = {name: set(answer.accepted) for name, answer in answers.items()}
    assert accepted["jacobi"] <= {"jacobi"}
    assert answers["jacobi"].fed > 23
    assert accepted["prompt-lookup"] <= {"context"}
    for name in ("paper", "lookahead"):
        steps = len(answers[name].marks)
        assert sum(answers[name].accepted.values()) == 24 - steps
    assert answers["hf"].fed is None


def test_transformers_prompt_lookup_takes_fewer_steps_where_a_text_repeats_itself(
    session: Session,
) -> None:
    prompt = session.encode("abc")
    again = prompt + answered(session, "hf", prompt).ids + prompt
    plain, lookup = answered(session, "hf", again), answered(session, "hf-prompt-lookup", again)
    assert lookup.ids == plain.ids
    assert len(lookup.marks) <= len(plain.marks)
    assert isinstance(made(session, "hf-prompt-lookup"), Stock)


def prepared(session: Session) -> StockCompiled:
    contender = made(session, "hf-compiled")
    assert isinstance(contender, StockCompiled)
    contender.begin(keep=False)
    contender.prepare(session.encode("Once"), lambda: False)
    return contender


def test_a_compiled_answer_is_no_other_one(session: Session, compiler: Compiler) -> None:
    contender, prompt = prepared(session), session.encode(REPETITIVE)
    assert not session.decoder.cache.tensors
    seconds, steps = contender.steps.seconds, compiler.steps
    answer, plain = contender.answer(prompt, lambda: False), answered(session, "hf", prompt)
    assert (answer.ids, answer.text, answer.reason) == (plain.ids, plain.text, plain.reason)
    assert answer.lengths == plain.lengths
    assert answer.fed is None
    # Once is enough where nothing is compiled.
    assert (compiler.count, compiler.steps) == (1, steps + 23)
    assert contender.steps.seconds == seconds


def compiling_in(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, answers: Callable[[int], bool]
) -> list[int]:
    """Let something be compiled in some answers, told by their numbers; lists what was asked."""
    whole, asked = stock.generate, list[int]()

    def generate(*given: Any, **options: Any) -> Any:
        asked.append(len(asked))
        compiler.count += answers(asked[-1])
        return whole(*given, **options)

    monkeypatch.setattr(stock, "generate", generate)
    return asked


def test_an_answer_in_which_something_was_compiled_does_not_count(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender, prompt = prepared(session), session.encode(REPETITIVE)
    before = contender.steps.seconds
    asked = compiling_in(compiler, monkeypatch, lambda number: number < 2)
    answer = contender.answer(prompt, lambda: False)
    assert len(asked) == 3
    assert len(answer.ids) == 24
    assert contender.steps.seconds > before
    # Who has pressed Ctrl-C does not wait for another one.
    asked = compiling_in(compiler, monkeypatch, lambda _number: True)
    assert contender.answer(prompt, lambda: True).reason == "interrupted"
    assert len(asked) == 1
    with pytest.raises(LadeError, match="compiles something anew in every answer"):
        contender.answer(prompt, lambda: False)
    assert len(asked) == 1 + TRIES


def test_what_cannot_be_compiled_is_told_in_one_line(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nand more")

    monkeypatch.setattr(stock, "generate", broken)
    contender = made(session, "hf-compiled")
    assert isinstance(contender, StockCompiled)
    with pytest.raises(LadeError) as caught:
        contender.prepare([5, 6], lambda: False)
    assert str(caught.value) == (
        "hf-compiled cannot be measured: RuntimeError: No working C++ compiler found; leave it out"
        " of --strategies"
    )
    # Ctrl-C ends compilers, which is no fault of theirs.
    contender.prepare([5, 6], lambda: True)


def test_what_transformers_logs_of_steps_that_it_does_not_compile_is_no_line_of_ours(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, heard = logging.getLogger("transformers.generation.utils"), list[bool]()
    # It compiles nothing for weights in 8 bits, and logs that.
    monkeypatch.setattr(
        stock, "generate", lambda *_, **__: heard.append(logger.isEnabledFor(logging.WARNING))
    )
    contender = made(session, "hf-compiled")
    assert isinstance(contender, StockCompiled)
    with pytest.raises(LadeError, match="transformers does not compile the steps of this model"):
        contender.prepare([5, 6], lambda: False)
    assert heard == [False]
    assert logger.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "hf"])
def test_every_conversation_starts_cold(session: Session, strategy: str) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    drafts = session.drafts
    contender = made(session, strategy)
    contender.begin(keep=False)
    assert session.decoder.cache.length == 0
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(0, len(prompt))
    if strategy != "hf":
        assert session.drafts is not drafts


def test_a_prompt_that_is_shared_stays(session: Session) -> None:
    prompt = session.encode(REPETITIVE)
    answered(session, "lookahead", prompt)
    made(session, "autoregressive").begin(keep=True)
    assert next(iter(session.stream(prompt, SETTINGS))) == Started(len(prompt) - 1, len(prompt))
    # transformers has a cache of its own.
    made(session, "hf").begin(keep=True)
    assert not session.decoder.cache.tensors


def test_steps_that_were_captured_stay_while_transformers_decodes(
    model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = partial(load_decoder, capture=Again())
    monkeypatch.setattr("ladecli.session.load_decoder", load)
    session = Session(models.load(model_folder))
    prompt = session.encode(REPETITIVE)
    before = made(session, "lookahead").captured
    answered(session, "lookahead", prompt)
    captured = made(session, "lookahead").captured
    assert captured > before
    answered(session, "hf", prompt)
    answered(session, "lookahead", prompt)
    assert made(session, "lookahead").captured == captured
    assert made(session, "hf").captured == 0


def test_an_account_of_the_time(session: Session) -> None:
    row = suites.Row("one", "prose", ("Once upon a time",))
    tasks = [Dialogue(session, row, False, None, 24)]
    plain, lookahead = (made(session, name) for name in ("autoregressive", "lookahead"))
    assert isinstance(plain, Own)
    assert isinstance(lookahead, Own)
    found, failures = where.time_spent(session, [plain, lookahead], tasks, lambda: False)
    assert failures == []
    assert [each.contender for each in found] == ["autoregressive", "lookahead"]
    assert found[0].steps == 23, "the first step reads the prompt's end"
    assert found[0].width == 1.0
    prompt = len(tasks[0].first())
    # Behind the prompt and 1, 2, ... 23 tokens.
    assert found[0].context == pytest.approx(prompt + 12)
    assert all(each.seconds["view"] > 0.0 for each in found)
    assert found[1].operations > found[0].operations
    # A token more behind the same text is as much work as that token: widths are not rounded.
    assert found[1].width > 1.0
    each = found[1].operations / found[1].width
    assert each == pytest.approx(found[0].operations, rel=0.02)
    shape = session.loaded.shape
    assert found[0].read_bytes >= shape.weight_bytes


def test_an_account_that_fails_costs_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Session.stream

    def broken(self: Session, prompt: list[int], settings: Settings, *rest: object, **how: object):
        if settings.strategy == "jacobi":
            raise RuntimeError("no clock")
        return whole(self, prompt, settings, *rest, **how)

    monkeypatch.setattr(Session, "stream", broken)
    tasks = [Dialogue(session, suites.Row("one", "prose", ("Once",)), False, None, 24)]
    players = [made(session, name) for name in ("jacobi", "lookahead")]
    found, failures = where.time_spent(session, players, tasks, lambda: False)
    assert [each.contender for each in found] == ["lookahead"]
    assert [(f.contender, f.row, f.error) for f in failures] == [
        ("jacobi", "", "where its time goes: RuntimeError: no clock")
    ]
    stopped, _ = where.time_spent(session, players[1:], tasks, lambda: True)
    assert stopped == []


def test_passages_of_one_place_begin_alike_whatever_their_length(session: Session) -> None:
    found = passages(session, [20, 40], 2, 8)
    assert [each.id for each in found] == ["20/1", "20/2", "40/1", "40/2"]
    assert [len(each.first()) for each in found] == [20, 20, 40, 40]
    assert found[0].first() == found[2].first()[:20]
    assert found[0].first() != found[1].first()
    assert passages(session, [20], 2, 8)[1].first() == found[1].first()


def test_a_passage_without_room_for_an_answer_is_refused(session: Session) -> None:
    (passage,) = passages(session, [250], 1, 8)
    with pytest.raises(PromptError, match="the context has room for 248 tokens of a prompt"):
        passage.first()
    assert Passage(1, [1, 2], 2).first() == [1, 2]


def test_a_cache_has_room_for_every_prompt_and_its_answer(session: Session) -> None:
    one = Dialogue(session, suites.Row("one", "prose", ("Once upon a time",)), False, None, 24)
    assert one.room == len(one.first()) + 24
    row = suites.Row("talk", "prose", ("Once.", "Again.", "And again."))
    talk, most = Dialogue(session, row, False, "Be kind.", 24), 0

    def answer(_turn: int, prompt: list[int]) -> str:
        nonlocal most
        most = max(most, len(prompt) + 24)
        return session.loaded.tokenizer.decode([7] * 24)

    talk.hold(answer)
    assert talk.cut is None
    assert most <= talk.room <= session.decoder.max_context
    # Longer ones are refused, however long their answers may be.
    full = Dialogue(session, row, False, None, 200)
    assert full.room == session.decoder.max_context
    assert [each.room for each in passages(session, [20, 40], 1, 8)] == [28, 48]


def test_a_template_that_wants_answers_has_room_for_any(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object, **__: object) -> list[int]:
        raise UsageError("an answer is empty")

    monkeypatch.setattr(Session, "encode_chat", refusing)
    talk = Dialogue(session, suites.Row("talk", "prose", ("One.", "Two.")), True, None, 8)
    assert talk.room == session.decoder.max_context


def test_a_conversation_goes_on_from_what_was_answered(session: Session) -> None:
    row = suites.Row("talk", "prose", ("Say it.", "Again."))
    dialogue = Dialogue(session, row, False, "Be kind.", 8)
    asked: list[tuple[int, str]] = []

    def answer(turn: int, prompt: list[int]) -> str:
        asked.append((turn, session.loaded.tokenizer.decode(prompt)))
        return "It."

    dialogue.hold(answer)
    assert asked == [(1, "Be kind.\nSay it."), (2, "Be kind.\nSay it.\nIt.\nAgain.")]
    assert dialogue.cut is None


def test_a_turn_that_cannot_be_had_ends_the_conversation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(self: Session, messages: list[dict[str, str]], *, reply: bool = True) -> list[int]:
        if len(messages) > 1:
            raise UsageError("the template wants no second turn")
        return [5, 6]

    monkeypatch.setattr(Session, "encode_chat", refusing)
    row = suites.Row("talk", "prose", ("One.", "Two.", "Three."))
    dialogue = Dialogue(session, row, True, None, 8)
    turns: list[int] = []
    dialogue.hold(lambda turn, _prompt: turns.append(turn) or "x")
    assert turns == [1]
    assert dialogue.cut == "turn 2: the template wants no second turn"
    full = replace(row, turns=("a " * 300,))
    with pytest.raises(PromptError, match="with an answer of 8 is more than the context's 256"):
        Dialogue(session, full, False, None, 8).first()
