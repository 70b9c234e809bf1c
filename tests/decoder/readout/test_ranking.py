"""The most probable tokens: the greedy choice first, ties and odd vocabularies included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ladecli.decoder.readout import ranking
from ladecli.decoder.readout.ranking import leaders, ranked

VOCABULARIES = (1, 3, 64, 512, 1024, 2048, 2051, 8191, 33_000)


def rows_of(rows: int, vocabulary: int, kind: str, seed: int = 0) -> Tensor:
    """Logits with ties wherever they may hurt."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    if kind == "quantised":
        # Several best ones in most rows, in all groups.
        return (logits / 4).round().bfloat16()
    if kind == "equal":
        return torch.zeros(rows, vocabulary)
    if kind == "zeros of both signs":
        return torch.where(logits > 0, 0.0, -0.0)
    if kind == "few possible":
        few = torch.rand(rows, vocabulary, generator=generator) < 2 / vocabulary
        return torch.where(few, logits.round(), -torch.inf)
    if kind == "none possible":
        return torch.full((rows, vocabulary), -torch.inf)
    return logits


KINDS = ("random", "quantised", "equal", "zeros of both signs", "few possible", "none possible")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_leaders_are_the_greatest_and_the_first_is_the_greedy_choice(
    vocabulary: int, kind: str
) -> None:
    logits = rows_of(9, vocabulary, kind)
    for count in (1, 4, 40):
        if count > vocabulary:
            continue
        values, tokens = leaders(logits, count, first=True)
        assert torch.equal(values, logits.topk(count, dim=-1).values)
        assert torch.equal(logits.gather(1, tokens), values)
        assert all(len({*row}) == count for row in tokens.tolist())
        assert torch.equal(tokens[:, 0], logits.argmax(dim=-1))


def test_the_first_of_equal_ones_is_found_at_every_border() -> None:
    """Best tokens in many groups, behind the last whole group, and at both ends of a group."""
    vocabulary = 16 * 16 * 4 + 5  # groups of 16, and five tokens that no group holds
    for first in (0, 15, 16, 500, vocabulary - 6, vocabulary - 5, vocabulary - 1):
        logits = torch.zeros(2, vocabulary)
        logits[0, first:] = 1.0
        logits[1, [first, vocabulary - 1]] = 1.0
        for count in (1, 4):
            tokens = ranked(logits, count)[0]
            assert tokens[:, 0].tolist() == [first, first]
            assert all(len({*row}) == count for row in tokens.tolist())


@pytest.mark.parametrize("vocabulary", [5, 700, 4099])
def test_probabilities_are_those_of_the_whole_vocabulary(
    vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = rows_of(7, vocabulary, "random")
    exact = torch.softmax(logits.double(), dim=-1)
    for part in (ranking.PART, 3 * vocabulary, 1):
        monkeypatch.setattr(ranking, "PART", part)
        tokens, probabilities = ranked(logits, 4)
        assert probabilities.dtype == torch.float32
        torch.testing.assert_close(
            probabilities.double(), exact.gather(1, tokens), rtol=2e-6, atol=1e-7
        )
    assert ranked(logits, 10**6)[0].shape == logits.shape


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_others(kind: str) -> None:
    logits = rows_of(64, 5000, kind, seed=1)
    best = ranked(logits, 4)[0][:, 0]
    for row in range(0, 64, 7):
        assert ranked(logits[row : row + 1], 4)[0][0, 0] == best[row]


def test_a_device_is_never_waited_for() -> None:
    """Tracing fails on whatever asks for a number, and a trace knows no other shapes."""
    example, other = rows_of(4, 3001, "random"), rows_of(4, 3001, "quantised", seed=2).float()
    traced = make_fx(lambda logits: ranked(logits, 4))(example)
    for mine, expected in zip(traced(other), ranked(other, 4), strict=True):
        assert torch.equal(mine, expected)
