"""A session among ranks: who decodes what, and what becomes of an answer that nobody ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.lean import fused
from ladecli.decoder.limits import Limits
from ladecli.events import Ended
from ladecli.models import LoadedModel, load
from ladecli.session import Session, Settings

from .decoder.tracing import Again


class Crew:
    """Followers that note what they are told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Sequence[int], Settings]] = []
        self.open = 0

    def takes_part(self, settings: Settings) -> bool:
        return settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, _drafts: DraftState
    ) -> Iterator[None]:
        assert self.open == 0, "followers are told of an answer while they decode another one"
        self.open += 1
        self.tasks.append((prompt, settings))
        try:
            yield
        finally:
            self.open -= 1


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load("demo")


SHARED = Settings(max_new_tokens=12, ignore_eos=True)
PLAIN = Settings("autoregressive", max_new_tokens=12, ignore_eos=True)


def answer(session: Session, prompt: Sequence[int], settings: Settings) -> list[int]:
    events = session.stream(prompt, settings)
    return [token for event in events for token in getattr(event, "token_ids", ())]


def test_followers_are_told_of_what_takes_them(loaded: LoadedModel) -> None:
    crew = Crew()
    session = Session(loaded, followers=crew)
    expected = answer(Session(loaded), [5, 6, 7], PLAIN)
    assert answer(session, [5, 6, 7], PLAIN) == answer(session, [5, 6, 7], SHARED) == expected
    assert crew.tasks == [([5, 6, 7], SHARED)]
    assert crew.open == 0


def test_followers_are_told_when_the_first_event_is_asked_for(loaded: LoadedModel) -> None:
    crew = Crew()
    events = Session(loaded, followers=crew).stream([5, 6, 7], SHARED)
    assert not crew.tasks
    next(events)
    assert len(crew.tasks) == 1


def test_an_answer_that_is_still_open_ends_when_another_is_asked_for(loaded: LoadedModel) -> None:
    """Followers would wait in it for ever."""
    session = Session(loaded, followers=Crew())
    first = session.stream([9, 9, 9], SHARED)
    next(first)
    # An answer of the leader's own changes nothing for them: they still wait.
    alone = answer(session, [5, 6, 7], PLAIN)
    assert answer(session, [5, 6, 7], SHARED) == alone
    assert not [*first]


def test_what_goes_wrong_with_captured_steps_is_told_once(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Again(RuntimeError("no way"))
    monkeypatch.setattr(fused, "available", lambda _: True)
    monkeypatch.setattr("ladecli.session.capture_for", lambda model: capture)
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)
    session = Session(loaded)
    assert session.notices == ()
    assert answer(session, [5, 6, 7], SHARED) == answer(
        Session(loaded, graphs=False), [5, 6, 7], PLAIN
    )
    assert session.news() == ["steps run without lade's small kernels: no way"]
    assert session.news() == []
    capture.fails = [RuntimeError("none at all")] * 9
    session.decoder.forget()
    answer(session, [5, 6, 7], PLAIN)
    assert session.news() == ["steps run without CUDA graphs, and slower: none at all"]


def test_a_model_that_cannot_be_captured_is_told_of_at_once(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Again(*[RuntimeError("no way")] * 9)
    monkeypatch.setattr("ladecli.session.capture_for", lambda model: capture)
    session = Session(loaded)
    assert session.notices == ("steps run without CUDA graphs, and slower: no way",)
    assert session.news() == []


def test_followers_are_told_the_widths_that_their_leader_has(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ladecli.session.capture_for", lambda model: Again())
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)
    crew = Crew()
    answer(Session(loaded, followers=crew), [5, 6, 7], SHARED)
    ((_, told),) = crew.tasks
    limit = SHARED.lookahead.step_limit
    assert told.lookahead.widths == (*(w for w in (1, 2, 4, 8, 16, 24, 32, 48) if w < limit), limit)


def test_text_is_made_of_tokens_behind_the_step_where_no_string_can_end_it(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(loaded)
    asked: list[Limits] = []
    generate = session.decoder.generate

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args[3])
        return generate(*args, **kwargs)

    monkeypatch.setattr(session.decoder, "generate", noted)
    prompt = session.encode("def ")
    texts = []
    for stop in ((), ("",), ("nowhere to be found",)):
        events = [*session.stream(prompt, replace(PLAIN, stop=stop))]
        texts.append("".join(p.text for e in events for p in getattr(e, "pieces", ())))
        texts[-1] += next(event.rest for event in events if isinstance(event, Ended))
        assert texts[-1] == session.text_of(
            [token for e in events for token in getattr(e, "token_ids", ())], prompt, PLAIN
        )
    assert texts[0]
    assert texts == [texts[0]] * 3
    assert [limits.should_stop is None for limits in asked] == [True, True, False]
