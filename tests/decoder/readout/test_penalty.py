"""The repetition penalty of all rows at once: that of each of them alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ladecli.decoder import layout
from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.layout import Draft
from ladecli.decoder.readout import pack, penalty
from ladecli.decoder.readout.choosing import choose_ahead
from ladecli.decoder.readout.penalty import (
    Penalized,
    SeenIds,
    SeenTokens,
    gather,
    log_totals,
    maxima,
    part,
    penalize,
    penalize_rows,
    present,
)
from ladecli.decoder.readout.ranking import leaders, ranked
from ladecli.decoder.static_step import StepInputs
from ladecli.decoder.tree import TokenTree

ROWS = 9
TEXT = [3, 3, 7, 12, 29]
CPU = torch.device("cpu")


def example(
    vocabulary: int, factor: float, dtype: torch.dtype = torch.float32
) -> tuple[Penalized, Tensor, Tensor]:
    """Rows with a text and paths before them, the paths, and what each row is alone."""
    generator = torch.Generator().manual_seed(vocabulary)
    # Rounded, so that many are equal.
    logits = (torch.randn(ROWS, vocabulary, generator=generator) * 3).round(decimals=1).to(dtype)
    logits[0, 3], logits[1, :2], logits[2, 7] = 40.0, -torch.inf, 0.0
    flags = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, torch.tensor(TEXT), True)
    paths = torch.randint(vocabulary, (ROWS, 4), generator=generator)
    alone = [
        penalize(row.float(), torch.tensor(sorted({*TEXT, *path.tolist()})), factor)
        for row, path in zip(logits, paths, strict=True)
    ]
    return Penalized(logits, present(flags, paths), factor), paths, torch.stack(alone)


@pytest.mark.parametrize("factor", [0.7, 1.1, 3.0])
@pytest.mark.parametrize("vocabulary", [50, 6001])
def test_rows_at_once_are_those_of_each_alone(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, factor: float
) -> None:
    # In many parts, of which the last is smaller.
    monkeypatch.setattr(penalty, "PART", 130 * ROWS)
    scores, paths, alone = example(vocabulary, factor)
    assert not torch.equal(alone, scores.logits)
    assert torch.equal(part(scores, slice(2, 40)), alone[:, 2:40])
    text = torch.tensor(TEXT)
    assert torch.equal(penalize_rows(scores.logits, text, paths, factor), alone)
    some = torch.tensor([[3, 0, 12]] * ROWS)
    assert torch.equal(gather(scores, some), alone.gather(1, some))
    torch.testing.assert_close(log_totals(scores), alone.logsumexp(dim=1, keepdim=True))
    assert torch.equal(maxima(scores, 16), maxima(alone, 16))
    for count, first in ((1, True), (4, True), (4, False)):
        for mine, other in zip(
            leaders(scores, count, first=first), leaders(alone, count, first=first), strict=True
        ):
            assert torch.equal(mine, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [300, 9000])
def test_tokens_are_those_of_penalized_rows(vocabulary: int, dtype: torch.dtype) -> None:
    scores, _, alone = example(vocabulary, 1.3, dtype)
    uniforms = torch.linspace(0.0, 0.999, ROWS, dtype=torch.float64)
    assert torch.equal(pack(scores, 0, None, None).long(), alone.argmax(dim=1))
    (tokens, shares), (others, expected) = ranked(scores, 4), ranked(alone, 4)
    # Of equal ones behind the first any may be taken.
    assert torch.equal(gather(scores, tokens), alone.gather(1, others))
    assert torch.equal(tokens[:, 0], others[:, 0])
    torch.testing.assert_close(shares, expected)
    for config in (
        SamplingConfig(0.8),
        SamplingConfig(0.8, top_p=0.9),
        SamplingConfig(0.8, top_k=20, top_p=0.8),
        SamplingConfig(1.4, min_p=0.05),
    ):
        mine = choose_ahead(scores, uniforms, config)
        assert torch.equal(mine, choose_ahead(alone, uniforms, config))


@pytest.mark.parametrize("vocabulary", [300, 9000])
def test_what_is_drawn_does_not_depend_on_what_else_is_wanted(vocabulary: int) -> None:
    scores, _, alone = example(vocabulary, 1.3)
    uniforms = torch.linspace(0.0, 0.999, ROWS, dtype=torch.float64)
    for config in (SamplingConfig(0.8), SamplingConfig(1e-3)):
        expected = choose_ahead(alone, uniforms, config)
        for given in (scores, alone):
            for successors in (0, 1, 4):
                words = pack(given, successors, config, uniforms)
                assert torch.equal(words[-ROWS:], expected)


def test_the_ids_of_a_text_are_those_that_it_has_now() -> None:
    seen, text = SeenIds(CPU), [5, 6, 5]
    assert {*seen.of(text).tolist()} == {5, 6}
    assert seen.of(text) is seen.of(text)
    text += [6, 9, 9, 2]
    assert sorted(seen.of(text).tolist()) == [2, 5, 6, 9]
    assert seen.of([7]).tolist() == [7], "another text"
    assert seen.of([]).tolist() == []


def told(seen: SeenTokens) -> list[int]:
    assert seen.flags is not None
    return [int(token) for token in seen.flags.nonzero()[:, 0]]


def test_what_joined_a_text_is_told_once() -> None:
    seen, text = SeenTokens(), [5, 6]
    assert [*seen.joined(text)] == [5, 6], "nobody has flags yet"
    seen.make(torch.zeros(1, 10))
    assert [*seen.joined(text)] == [5, 6], "no step has added them"
    seen.added()
    text += [7]
    assert [*seen.joined(text)] == [7]
    text += [8]
    assert [*seen.joined(text)] == [7, 8], "the step before was not run"
    assert told(seen) == [], "steps do it"
    assert [*seen.joined(text, most=1)] == []
    assert told(seen) == [7, 8]


def test_another_text_starts_from_nothing() -> None:
    seen = SeenTokens()
    seen.make(torch.zeros(1, 10))
    seen.joined([1, 2], most=0)
    # A text that is equal is another one, too: what was told of it was told of this one.
    assert [*seen.joined([1, 3])] == [1, 3]
    assert told(seen) == []
    assert seen.make(torch.zeros(1, 10)) is seen.flags


def test_a_path_is_what_an_output_sees_of_the_step() -> None:
    tree = TokenTree()
    tree.add([5, 6], "context", 9)
    tree.add([7], "context", 9)
    step = layout.build([1, 2], 40, Draft(tree, width=8))
    expected = [{1, 2}, {1, 2, 5}, {1, 2, 5, 6}, {1, 2, 7}]
    assert [{*path} for path in step.paths().tolist()] == expected
    inputs = StepInputs(8, CPU)
    inputs.fill(step, 40, None, (), [9, 8])
    with torch.inference_mode():
        inputs.send()
    paths = [{*path} for path in inputs.paths().tolist()]
    assert [paths[row] for row in step.outputs] == expected
    assert {*inputs.joined.tolist()} == {9, 8, 1}, "padded with what is there in any case"
    alone = layout.build([4], 40, Draft())
    assert alone.paths().tolist() == [[4]]
