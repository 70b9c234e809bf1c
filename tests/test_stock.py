"""transformers' `generate` as a contender: the same text, a mark for every step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import CompileConfig

from ladecli import models, stock
from ladecli.decoder.config import SamplingConfig
from ladecli.errors import LadeError
from ladecli.session import Session, Settings
from ladecli.stock import CompiledSteps

from .compiling import Compiler


@pytest.fixture(scope="module")
def session(model_folder: str) -> Session:
    return Session(models.load(model_folder))


def own(session: Session, prompt: list[int], settings: Settings) -> list[int]:
    return [
        token
        for event in session.stream(prompt, settings)
        for token in getattr(event, "token_ids", ())
    ]


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        Settings("autoregressive", max_new_tokens=30, ignore_eos=True),
        Settings("autoregressive", max_new_tokens=30),
        Settings(
            "autoregressive",
            sampling=SamplingConfig(repetition_penalty=1.3),
            max_new_tokens=30,
            ignore_eos=True,
        ),
    ],
    ids=["on and on", "to the end", "penalty"],
)
def test_it_says_what_plain_decoding_says(
    session: Session, settings: Settings, lookup: bool
) -> None:
    for text in ("Once upon a time", "def f(x):\n    return f(x)\ndef f(x):\n"):
        prompt = session.encode(text)
        ids, marks = stock.generate(session, prompt, settings, lookup=lookup)
        # The model has its step attention back afterwards.
        assert own(session, prompt, settings) == ids
        assert len(marks.seconds) == len(marks.lengths)
        assert marks.seconds == sorted(marks.seconds)
        assert marks.lengths[-1] == len(prompt) + len(ids)
        # Every step adds something, with and without candidates.
        assert marks.lengths == sorted(set(marks.lengths))
        if not lookup:
            assert marks.lengths == [len(prompt) + n for n in range(1, len(ids) + 1)]


def test_the_same_seed_gives_the_same_text(session: Session) -> None:
    settings = Settings(
        sampling=SamplingConfig(temperature=1.0, seed=3), max_new_tokens=12, ignore_eos=True
    )
    prompt = session.encode("Once")
    first, _ = stock.generate(session, prompt, settings, lookup=False)
    assert first == stock.generate(session, prompt, settings, lookup=False)[0]
    assert len(first) == 12


def test_it_can_be_stopped(session: Session) -> None:
    settings = Settings(max_new_tokens=50, ignore_eos=True)
    asked = iter([False, False, True])
    ids, marks = stock.generate(
        session, session.encode("Once"), settings, lookup=False, cancelled=lambda: next(asked)
    )
    assert len(ids) == len(marks.seconds) == 3


def test_an_answer_ends_with_the_context(session: Session, tmp_path: Path) -> None:
    room = session.decoder.max_context
    prompt = session.encode("a ") * room
    ids, _ = stock.generate(
        session, prompt[: room - 5], Settings(max_new_tokens=50, ignore_eos=True), lookup=False
    )
    assert len(ids) == 5


@pytest.fixture
def speaking(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The model with a generation config that asks for all kinds of things."""
    prompt = session.encode("Once upon a time")
    plain = Settings("autoregressive", max_new_tokens=9, ignore_eos=True)
    said = own(session, prompt, plain)
    asks = {
        "eos_token_id": said[4], "num_beams": 4, "prompt_lookup_num_tokens": 3, "max_time": 0.0,
        "no_repeat_ngram_size": 1, "suppress_tokens": [said[1]], "max_length": 3,
        "return_dict_in_generate": True, "stop_strings": ["e"], "cache_implementation": "static",
        "use_cache": False, "temperature": 0.1, "do_sample": True,
    }  # fmt: skip
    for model in (session.loaded.model, session.stock_model):
        for name, value in asks.items():
            monkeypatch.setattr(model.generation_config, name, value)
    return session


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_it_takes_no_more_of_the_generation_config_than_we_do(
    speaking: Session, lookup: bool, ignore_eos: bool
) -> None:
    settings = Settings("autoregressive", max_new_tokens=20, ignore_eos=ignore_eos)
    prompt = speaking.encode("Once upon a time")
    before = speaking.stock_model.generation_config
    ids, marks = stock.generate(speaking, prompt, settings, lookup=lookup)
    assert ids == own(speaking, prompt, settings)
    assert len(ids) == (20 if ignore_eos else 5)
    assert lookup or len(marks.seconds) == len(ids)
    assert speaking.stock_model.generation_config is before


@pytest.mark.parametrize("lookup", [False, True])
def test_a_stop_string_ends_it_where_it_ends_ours(session: Session, lookup: bool) -> None:
    prompt = session.encode("def f(x):\n    return f(x)\ndef f(x):\n")
    free = Settings("autoregressive", max_new_tokens=24, ignore_eos=True)
    text = session.text_of(own(session, prompt, free), prompt, free)
    settings = Settings("autoregressive", max_new_tokens=24, stop=(text[8:11],), ignore_eos=True)
    ids, marks = stock.generate(session, prompt, settings, lookup=lookup)
    assert ids == own(session, prompt, settings)
    assert len(ids) < 24
    assert marks.stopped
    assert marks.lengths[-1] == len(prompt) + len(ids)


def compiled_for(session: Session, settings: Settings, room: int) -> CompiledSteps:
    """Steps that are compiled already."""
    steps = CompiledSteps(session.stock_model, room)
    steps.prepare(session, session.encode("def f"), settings, lambda: False)
    return steps


ON = Settings("autoregressive", max_new_tokens=30, ignore_eos=True)
TEXTS = ("Once upon a time", "def f(x):\n    return f(x)\ndef f(x):\n", "a")


def test_compiled_steps_say_the_same_and_are_compiled_once(
    session: Session, compiler: Compiler
) -> None:
    steps = compiled_for(session, ON, 80)
    assert steps.seconds > 0.0
    # The prompt is read without.
    assert (compiler.count, compiler.steps) == (1, stock.WARM * (stock.TRIAL - 1))
    for text in TEXTS:
        prompt = session.encode(text)
        ids, marks = stock.generate(session, prompt, ON, lookup=False, compiled=steps)
        assert marks.lengths == [len(prompt) + n for n in range(1, 31)]
        # What others do in between is no reason to compile anew, and does not change their text.
        assert own(session, prompt, ON) == ids
        for lookup in (False, True):
            assert stock.generate(session, prompt, ON, lookup=lookup)[0] == ids
    assert (compiler.count, compiler.steps) == (1, stock.WARM * (stock.TRIAL - 1) + 3 * 29)


def test_torch_itself_compiles_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    monkeypatch.setattr(stock, "_compile_config", lambda: config)
    try:
        before, steps = stock.compilations(), compiled_for(session, ON, 80)
        assert stock.compilations() == before + 1
        for text in TEXTS:
            prompt = session.encode(text)
            ids, _ = stock.generate(session, prompt, ON, lookup=False, compiled=steps)
            assert own(session, prompt, ON) == ids
        assert stock.compilations() == before + 1
    finally:
        torch._dynamo.reset()
        del session.stock_model._compiled_call


def test_what_ends_a_text_ends_a_compiled_one(session: Session, compiler: Compiler) -> None:
    prompt = session.encode(TEXTS[1])
    text = session.text_of(own(session, prompt, ON), prompt, ON)
    settings = Settings("autoregressive", max_new_tokens=24, stop=(text[8:11],), ignore_eos=True)
    steps = compiled_for(session, settings, 80)
    ids, marks = stock.generate(session, prompt, settings, lookup=False, compiled=steps)
    assert ids == own(session, prompt, settings)
    assert len(ids) < 24
    assert marks.stopped
    asked = iter([False, False, True])
    ids, _ = stock.generate(
        session, prompt, ON, lookup=False, compiled=steps, cancelled=lambda: next(asked)
    )
    assert len(ids) == 3
    # Nor does a compiled one take more of the generation config.
    ended = Settings("autoregressive", max_new_tokens=30)
    ids, _ = stock.generate(session, prompt, ended, lookup=False, compiled=steps)
    assert ids == own(session, prompt, ended)


@pytest.mark.parametrize("stop", [False, True])
def test_texts_to_compile_on_do_not_end_early(
    speaking: Session, compiler: Compiler, stop: bool
) -> None:
    prompt, settings = speaking.encode("Once upon a time"), Settings(max_new_tokens=20)
    said = own(speaking, prompt, settings)
    assert len(said) < stock.TRIAL
    if stop:
        text = speaking.text_of(said, prompt, settings)
        settings = Settings(max_new_tokens=20, stop=(text[:1],), ignore_eos=True)
        assert len(own(speaking, prompt, settings)) < len(said)
    steps = CompiledSteps(speaking.stock_model, 80)
    steps.prepare(speaking, prompt, settings, lambda: False)
    assert compiler.steps == stock.WARM * (stock.TRIAL - 1)


def test_compiling_can_be_stopped(session: Session, compiler: Compiler) -> None:
    steps = CompiledSteps(session.stock_model, 80)
    steps.prepare(session, session.encode("Once"), ON, lambda: True)
    assert compiler.steps == 0


def test_a_text_that_is_longer_than_foreseen_gets_a_longer_cache(
    session: Session, compiler: Compiler
) -> None:
    steps = compiled_for(session, ON, 40)
    prompt = session.encode("a " * 20)
    compilations = []
    # 10 tokens and 30 just fit; 50 are too many, and 52 are not any more.
    for length in (10, 20, 22, 10):
        ids, _ = stock.generate(session, prompt[:length], ON, lookup=False, compiled=steps)
        assert ids == own(session, prompt[:length], ON)
        compilations.append(compiler.count)
    assert compilations == [1, 2, 2, 2]


def test_what_transformers_does_not_compile_is_told(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By itself it does not on a CPU.
    monkeypatch.setattr(stock, "_compile_config", CompileConfig)
    with pytest.raises(LadeError, match="transformers does not compile the steps of this model"):
        compiled_for(session, ON, 80)
