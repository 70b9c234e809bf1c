"""transformers' `generate` as a baseline: the same text, a mark for every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import CompileConfig

from ladecli import models, stock
from ladecli.decoder.config import SamplingConfig
from ladecli.errors import LadeError
from ladecli.session import Session, Settings
from ladecli.stock import CompiledSteps

from .compiling import Compiler

pytestmark = pytest.mark.slow

ON = Settings("autoregressive", max_new_tokens=30, ignore_eos=True)
CODE = "def f(x):\n    return f(x)\ndef f(x):\n"
TEXTS = ("Once upon a time", CODE, "a")


@pytest.fixture(scope="module")
def session(model_folder: str) -> Session:
    return Session(models.load(model_folder))


def own(session: Session, prompt: list[int], settings: Settings) -> list[int]:
    events = session.stream(prompt, settings)
    return [token for event in events for token in getattr(event, "token_ids", ())]


def compiled_for(session: Session, settings: Settings, room: int) -> CompiledSteps:
    """Steps that are compiled already."""
    steps = CompiledSteps(session.stock_model, room)
    steps.prepare(session, session.encode("def f"), settings, lambda: False)
    return steps


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        ON,
        replace(ON, ignore_eos=False),
        replace(ON, sampling=SamplingConfig(repetition_penalty=1.3)),
    ],
    ids=["on and on", "to the end", "penalty"],
)
def test_the_text_is_that_of_plain_decoding(
    session: Session, settings: Settings, lookup: bool
) -> None:
    for text in TEXTS[:2]:
        prompt = session.encode(text)
        ids, marks = stock.generate(session, prompt, settings, lookup=lookup)
        assert own(session, prompt, settings) == ids
        assert marks.seconds == sorted(marks.seconds)
        assert len(marks.seconds) == len(marks.lengths)
        # Every step adds something, with and without candidates.
        assert marks.lengths == sorted(set(marks.lengths))
        assert marks.lengths[-1] == len(prompt) + len(ids)
        assert lookup or len(marks.lengths) == len(ids)


def test_the_same_seed_gives_the_same_text(session: Session) -> None:
    settings = replace(ON, sampling=SamplingConfig(temperature=1.0, seed=3))
    prompt = session.encode("Once")
    first, again = (stock.generate(session, prompt, settings, lookup=False)[0] for _ in range(2))
    assert first == again
    assert len(first) == 30


@pytest.mark.parametrize("compile", [False, True])
def test_what_ends_a_text(session: Session, compiler: Compiler, compile: bool) -> None:
    steps = compiled_for(session, ON, 80) if compile else None
    prompt = session.encode(CODE)
    # A stop string,
    text = session.text_of(own(session, prompt, ON), prompt, ON)
    settings = replace(ON, stop=(text[8:11],))
    for lookup in (False,) if compile else (False, True):
        ids, marks = stock.generate(session, prompt, settings, lookup=lookup, compiled=steps)
        assert ids == own(session, prompt, settings)
        assert len(ids) < 30
        assert marks.stopped
        assert marks.lengths[-1] == len(prompt) + len(ids)
    # the caller,
    asked = iter([False, False, True])
    ids, marks = stock.generate(
        session, prompt, ON, lookup=False, compiled=steps, cancelled=lambda: next(asked)
    )
    assert len(ids) == len(marks.seconds) == 3
    # and the context.
    if not compile:
        longest = (session.encode("a ") * (most := session.decoder.max_context))[: most - 5]
        assert len(stock.generate(session, longest, ON, lookup=False)[0]) == 5


@pytest.fixture
def demanding(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The model with a generation config that asks for all kinds of things."""
    ids = own(session, session.encode(TEXTS[0]), replace(ON, max_new_tokens=9))
    asks = {
        "eos_token_id": ids[4], "num_beams": 4, "prompt_lookup_num_tokens": 3, "max_time": 0.0,
        "no_repeat_ngram_size": 1, "suppress_tokens": [ids[1]], "max_length": 3,
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
    demanding: Session, lookup: bool, ignore_eos: bool
) -> None:
    settings = Settings("autoregressive", max_new_tokens=20, ignore_eos=ignore_eos)
    prompt = demanding.encode(TEXTS[0])
    before = demanding.stock_model.generation_config
    ids, marks = stock.generate(demanding, prompt, settings, lookup=lookup)
    assert ids == own(demanding, prompt, settings)
    assert len(ids) == (20 if ignore_eos else 5)
    assert lookup or len(marks.seconds) == len(ids)
    assert demanding.stock_model.generation_config is before


def test_texts_to_compile_on_do_not_end_early(demanding: Session, compiler: Compiler) -> None:
    compiled_for(demanding, Settings(max_new_tokens=20, stop=("e",)), 80)
    assert compiler.steps == stock.WARM * (stock.TRIAL - 1), "prompts are read without"


def test_compiled_steps_give_the_same_text_and_are_compiled_once(
    session: Session, compiler: Compiler
) -> None:
    steps = compiled_for(session, ON, 80)
    assert steps.seconds > 0.0
    for text in TEXTS:
        prompt = session.encode(text)
        ids, marks = stock.generate(session, prompt, ON, lookup=False, compiled=steps)
        assert marks.lengths == [len(prompt) + n for n in range(1, 31)]
        # What others do in between is no reason to compile anew, and does not change their text.
        assert own(session, prompt, ON) == ids
        assert stock.generate(session, prompt, ON, lookup=True)[0] == ids
    assert compiler.count == 1


def test_torch_itself_compiles_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    monkeypatch.setattr(stock, "_compile_config", lambda: config)
    try:
        before, steps = stock.compilations(), compiled_for(session, ON, 80)
        for text in TEXTS:
            prompt = session.encode(text)
            ids, _ = stock.generate(session, prompt, ON, lookup=False, compiled=steps)
            assert own(session, prompt, ON) == ids
        assert stock.compilations() == before + 1
    finally:
        torch._dynamo.reset()
        del session.stock_model._compiled_call


def test_compiling_can_be_stopped(session: Session, compiler: Compiler) -> None:
    steps = CompiledSteps(session.stock_model, 80)
    steps.prepare(session, session.encode("Once"), ON, lambda: True)
    assert compiler.steps == 0


def test_a_text_that_is_longer_than_expected_gets_a_longer_cache(
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


def test_what_transformers_does_not_compile_is_an_error(
    session: Session, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "_compile_config", CompileConfig)  # by itself not on a CPU
    with pytest.raises(LadeError, match="transformers does not compile the steps of this model"):
        compiled_for(session, ON, 80)
