"""Answers beside plain decoding's: equal where they must be, and every fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ladecli.bench.result import Skipped
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.rescoring import Rescorer
from ladecli.session import Session, Settings
from ladecli.suites import Row
from ladecli.verifying import comparison
from ladecli.verifying.answer import Answer, Watch, decode
from ladecli.verifying.comparison import Comparison, Interrupted
from ladecli.verifying.outcome import Compared

from .makers import ROWS, RandomSession, plant, settings

FAMILIES = ("llama", "mistral", "qwen2", "gemma2", "phi3_long", "gpt2")
DRAWN = SamplingConfig(temperature=0.9, top_p=0.95, seed=4)


def compared(
    session: Session, how: Settings, watch: Watch | None = None, rows: tuple[Row, ...] = ROWS
) -> list[Compared | Skipped]:
    work = Comparison(session, how, Rescorer(session.decoder), template=False, watch=watch)
    return [each for row in rows for each in work.row(row)]


@pytest.mark.parametrize("sampling", [SamplingConfig(), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_equal_in_float32(family: str, sampling: SamplingConfig) -> None:
    found = compared(RandomSession(family), settings(30, sampling))
    assert [(each.row, each.turn, each.tokens, each.divergence) for each in found] == [
        ("one", 1, 30, None),
        ("two", 1, 30, None),
        ("two", 2, 30, None),
    ]


@pytest.mark.parametrize("strategy", ["jacobi", "prompt-lookup", "autoregressive"])
def test_other_strategies(strategy: str) -> None:
    found = compared(RandomSession("llama"), settings(strategy=strategy))
    assert all(each.divergence is None for each in found)


@pytest.mark.parametrize("sampling", [SamplingConfig(), DRAWN], ids=["greedy", "drawn"])
def test_a_fault_of_wide_steps_is_found(
    monkeypatch: pytest.MonkeyPatch, sampling: SamplingConfig
) -> None:
    plant(monkeypatch, by=0.5)
    session = RandomSession("llama")
    found = compared(session, settings(60, sampling))
    faults = [each.divergence for each in found if each.divergence is not None]
    assert faults
    for fault in faults:
        assert not fault.explained
        assert fault.width > 4
        assert fault.gap is not None
        assert fault.distance is not None
        # Two logits are moved against each other by twice as much at most.
        assert 1e-3 < fault.distance <= 1.0 + 1e-3
        assert fault.allowed is not None
        assert fault.allowed < 1e-2
    # What plain decoding, free of the fault, says there.
    fault = faults[0]
    monkeypatch.undo()
    row = next(row for row in ROWS if row.id == fault.row)
    plain = decode(
        session,
        session.encode(row.turns[0]),
        settings(60, sampling, strategy="autoregressive"),
        Watch(),
    )
    assert fault.turn == 1
    assert fault.plain is not None
    assert fault.other is not None
    assert plain.ids[fault.position - 1] == fault.plain.id != fault.other.id


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_half_precision_is_explained(family: str, dtype: torch.dtype) -> None:
    found = compared(RandomSession(family, dtype), settings(60))
    for each in found:
        assert each.divergence is None or each.divergence.explained, each


def test_half_precision_does_not_hide_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, by=1.0)
    rows = tuple(Row(str(n), "a", ("x" * n,)) for n in range(8))
    found = compared(RandomSession("llama", torch.bfloat16), settings(60), rows=rows)
    assert any(each.divergence is not None and not each.divergence.explained for each in found)


def answer(ids: tuple[int, ...], reason: Any = "length") -> Answer:
    return Answer((5, 6), ids, tuple((3, 1) for _ in ids), "text", reason)


def answering(
    monkeypatch: pytest.MonkeyPatch, other: Answer, plain: Answer
) -> Callable[[], list[Compared | Skipped]]:
    """Comparisons of answers that were made up."""

    def made_up(_session: Session, _prompt: Any, how: Settings, _watch: Watch) -> Answer:
        return plain if how.strategy == "autoregressive" else other

    monkeypatch.setattr(comparison, "decode", made_up)
    return lambda: compared(RandomSession("llama"), settings())


@pytest.mark.parametrize(
    ("other", "plain", "tokens"),
    [
        (answer((7, 8, 9)), answer((7, 8)), 3),
        (answer((7,), "eos"), answer((7, 8)), 2),
        (answer(()), answer((7,)), 1),
    ],
)
def test_another_end_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, other: Answer, plain: Answer, tokens: int
) -> None:
    first, second = answering(monkeypatch, other, plain)()
    assert (first.row, second.row) == ("one", "two"), "turn 2 has another prompt then"
    assert isinstance(first, Compared)
    assert first.tokens == tokens
    fault = first.divergence
    assert fault is not None
    assert (fault.position, fault.explained, fault.gap) == (tokens, False, None)
    assert (fault.plain is None) is (len(plain.ids) < tokens)
    assert (fault.other is None) is (len(other.ids) < tokens)


def test_what_memory_cut_short_is_compared_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answering(monkeypatch, answer((7,), "memory"), answer((7, 8)))()
    assert [type(each).__name__ for each in found] == ["Compared", "Skipped"] * 2
    assert found[0].tokens == 1
    assert found[0].divergence is None
    assert found[1] == Skipped("one", "memory did not suffice for an answer")
    assert found[3] == Skipped("two", "turn 1: memory did not suffice for an answer")


def test_prompts_that_are_too_long_are_left_out() -> None:
    session = RandomSession("llama", max_context=28)
    long = Row("long", "a", ("x" * 10,))
    later = Row("later", "a", ("x", "x"))
    found = compared(session, settings(6), rows=(long, later))
    assert [type(each).__name__ for each in found] == ["Skipped", "Compared", "Skipped"]
    assert [found[0].row, found[2].row] == ["long", "later"]
    assert "30 tokens" in found[0].reason
    assert found[2].reason.startswith("turn 2: ")


def test_what_is_broken_off_is_not_compared() -> None:
    session, steps = RandomSession("llama"), 0

    def cancelled() -> bool:
        nonlocal steps
        steps += 1
        return steps > 100

    work = Comparison(
        session,
        settings(30, strategy="autoregressive"),
        Rescorer(session.decoder),
        template=False,
        watch=Watch(cancelled),
    )
    assert len(list(work.row(ROWS[0]))) == 1
    with pytest.raises(Interrupted):
        list(work.row(ROWS[1]))


def test_plain_decoding_has_no_keys_of_the_strategys(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def watched(session: Session, prompt: Any, how: Settings, watch: Watch) -> Answer:
        if how.strategy == "autoregressive":
            lengths.append(session.decoder.cache.length)
        return decode(session, prompt, how, watch)

    monkeypatch.setattr(comparison, "decode", watched)
    compared(RandomSession("llama"), settings(4))
    assert lengths == [0, 0, 0]


@pytest.mark.parametrize(("index", "steps"), [(0, 1), (1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_step_that_yielded_a_token(index: int, steps: int) -> None:
    made = Answer((), (1, 2, 3, 4, 5, 6), ((9, 2), (4, 1), (5, 3)), "", "length")
    assert made.steps_to(index) == made.steps[:steps]
