"""A session among ranks: who decodes what, and what becomes of an answer that nobody ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.load import load_decoder
from ladecli.events import Ended
from ladecli.models import LoadedModel, load, plan
from ladecli.session.session import Session, Settings

from .capturing import Again
from .decoding import text_ids

pytestmark = pytest.mark.slow


class Crew:
    """Followers that note what they are told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Sequence[int], Settings]] = []
        self.open = 0

    def drafts_changed(self) -> None:
        assert self.open == 0, "drafts change while followers decode with what they were"

    def takes_part(self, settings: Settings) -> bool:
        return settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, _drafts: DraftStore
    ) -> Iterator[None]:
        assert self.open == 0, "followers are told of an answer while they decode another one"
        self.open += 1
        self.tasks.append((prompt, settings))
        try:
            yield
        finally:
            self.open -= 1


PROMPT = [5, 6, 7]
SHARED = Settings(max_new_tokens=12, ignore_eos=True)
PLAIN = Settings("autoregressive", max_new_tokens=12, ignore_eos=True)


def answer(session: Session, prompt: Sequence[int], settings: Settings) -> list[int]:
    return text_ids(session.stream(prompt, settings))


@cache
def demo() -> LoadedModel:
    return load(plan("demo"))


@cache
def plain_answer() -> list[int]:
    return answer(Session(demo()), PROMPT, PLAIN)


def leading(crew: Crew) -> Session:
    session = Session(demo())
    session.followers = crew
    return session


def test_followers_are_told_of_what_takes_them() -> None:
    crew = Crew()
    session = leading(crew)
    assert answer(session, PROMPT, PLAIN) == answer(session, PROMPT, SHARED) == plain_answer()
    assert crew.tasks == [(PROMPT, SHARED)]
    assert crew.open == 0


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda session: answer(session, PROMPT, PLAIN),
        lambda session: session.add_draft_text("def area(width, height):"),
        Session.start_over,
    ],
    ids=["an answer of the leader's own", "a draft text", "another start"],
)
def test_an_answer_that_is_still_open_ends_before_anything_else(
    meanwhile: Callable[[Session], object],
) -> None:
    """Followers would wait in it for ever, or learn otherwise."""
    crew = Crew()
    session = leading(crew)
    first = session.stream([9, 9, 9], SHARED)
    next(first)
    meanwhile(session)
    assert crew.open == 0
    assert answer(session, PROMPT, SHARED) == plain_answer()
    assert not [*first]


def captured(patch: pytest.MonkeyPatch, capture: Again) -> Session:
    patch.setattr("ladecli.session.session.load_decoder", partial(load_decoder, capture=capture))
    return leading(Crew())


def test_what_goes_wrong_with_captured_steps_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Again()
    session = captured(monkeypatch, capture)
    assert session.notices == ()
    assert answer(session, PROMPT, SHARED) == plain_answer()
    assert session.decoder.runner.graphs_made
    assert session.new_notices() == []
    capture.fails = True
    session.decoder.forget()
    assert answer(session, PROMPT, PLAIN) == plain_answer()
    (line,) = session.new_notices()
    assert re.search("without CUDA graphs.*no way", line)
    assert session.new_notices() == []
    failed_at_once = captured(monkeypatch, capture)
    assert failed_at_once.notices == (line,)
    assert failed_at_once.new_notices() == []


def test_followers_are_told_the_widths_that_their_leader_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew, session = Crew(), captured(monkeypatch, Again())
    answer(leading(crew), PROMPT, SHARED)
    ((_, told),) = crew.tasks
    widths = session.decoder.runner.widths(SHARED.lookahead.step_limit)
    assert told.lookahead.widths == tuple(widths)
    assert widths[-1] == SHARED.lookahead.step_limit


def test_transformers_gets_the_model_as_it_was_loaded() -> None:
    """Our forward keeps weights in an order of its own, in which that of transformers is slower."""
    session = Session(demo())
    assert session.stock_model is session.stock_model
    own, prompt = session.stock_model, torch.tensor([PROMPT])
    assert all(each.is_contiguous() for each in own.parameters())
    ids = own.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert ids[0, 3:].tolist() == plain_answer()


def test_stop_strings_that_never_come_change_nothing() -> None:
    session = Session(demo())
    prompt = session.encode("def ")
    texts = []
    for stop in ((), ("",), ("nowhere to be found",)):
        events = [*session.stream(prompt, replace(PLAIN, stop=stop))]
        pieces = [piece.text for event in events for piece in getattr(event, "pieces", ())]
        texts.append("".join([*pieces, *(e.rest for e in events if isinstance(e, Ended))]))
        assert texts[-1] == session.text_of(text_ids(events), prompt, PLAIN).text
    assert texts[0]
    assert texts == [texts[0]] * 3


def test_a_window_without_trees_is_told() -> None:
    session = Session(demo())
    session.decoder.runner.model.drafts = "chains"
    text = answer(session, PROMPT, replace(SHARED, lookahead=LookaheadConfig(4, 3, 4)))
    assert session.new_notices() == []
    window = replace(SHARED, lookahead=LookaheadConfig(4, 3, 4, sources=("trajectory",)))
    for _ in range(2):
        assert answer(session, PROMPT, window) == text
    (line,) = session.new_notices()
    assert "leave out --sources trajectory" in line
