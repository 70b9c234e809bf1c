"""transformers' `generate` as a contender: the same text, a mark for every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladecli import models, stock
from ladecli.decoder.config import SamplingConfig
from ladecli.session import Session, Settings


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
    config = session.loaded.model.generation_config
    for name, value in asks.items():
        monkeypatch.setattr(config, name, value)
    return session


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_it_takes_no_more_of_the_generation_config_than_we_do(
    speaking: Session, lookup: bool, ignore_eos: bool
) -> None:
    settings = Settings("autoregressive", max_new_tokens=20, ignore_eos=ignore_eos)
    prompt = speaking.encode("Once upon a time")
    before = speaking.loaded.model.generation_config
    ids, marks = stock.generate(speaking, prompt, settings, lookup=lookup)
    assert ids == own(speaking, prompt, settings)
    assert len(ids) == (20 if ignore_eos else 5)
    assert lookup or len(marks.seconds) == len(ids)
    assert speaking.loaded.model.generation_config is before


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
