"""What comes home of a step's logits in one copy: for each output, what its own row says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ladecli.decoder.config import SamplingConfig
from ladecli.decoder.readout import Readout, Rows, Wanted, pack
from ladecli.decoder.readout.choosing import choose_ahead
from ladecli.decoder.readout.ranking import ranked
from ladecli.decoder.successors import NONE

SAMPLING = SamplingConfig(0.8, top_k=3)


@pytest.mark.parametrize("vocabulary", [3, 50])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [1, 2, 5], [5, 5, 0]])
@pytest.mark.parametrize("successors", [0, 4])
@pytest.mark.parametrize("sampling", [None, SAMPLING])
def test_every_output_gets_what_its_row_says(
    vocabulary: int, rows: list[int], successors: int, sampling: SamplingConfig | None
) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(6, vocabulary, generator=generator)
    uniforms = torch.rand(6, dtype=torch.float64, generator=generator)
    wanted = Wanted(successors, sampling=sampling)
    words = pack(logits, successors, sampling, uniforms)
    assert words.dtype == torch.int32
    home = np.zeros(len(words), dtype=np.int32)
    readout, home[:] = Readout(home, Rows(logits, rows), 6, wanted), words.numpy()
    shown = readout.read()
    # The next step's results come to the same place.
    home[:] = 77
    assert shown.best == logits[rows].argmax(dim=-1).tolist()
    assert shown.ranked is NONE or successors
    if successors:
        tokens, probabilities = ranked(logits[rows], 4)
        assert shown.ranked.tokens.tolist() == tokens.tolist()
        assert shown.ranked.probabilities.tolist() == probabilities.tolist()
        for held, kind in ((shown.ranked.tokens, "i4"), (shown.ranked.probabilities, "f4")):
            assert (held.dtype, held.flags.c_contiguous) == (kind, True)
    assert all(torch.equal(shown.logits[i], logits[row]) for i, row in enumerate(rows))
    if sampling is None:
        assert shown.chosen is None
    else:
        assert shown.chosen == choose_ahead(logits, uniforms, sampling)[rows].tolist()


def test_logits_that_nobody_asked_for_are_not_there() -> None:
    with pytest.raises(RuntimeError, match="nobody asked for the logits"):
        Rows(None, [0])[0]
