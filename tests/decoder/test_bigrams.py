"""Bigrams: what a model expects after single tokens, asked of the model itself."""

from __future__ import annotations

import pytest
import torch

from ladecli.decoder.backends.bigrams import find_bigrams, nothing
from ladecli.decoder.config import LookaheadConfig
from ladecli.decoder.drafting.ngram_model import BIGRAMS, Bigrams, NgramModel, pack
from ladecli.decoder.drafting.store import DraftStore

from ..decoding import decoder_of, ids_of, run, steps_of
from ..families import VOCABULARY, model_of, prompt_for
from ..oracle import run_out

START = [5, 9, 11]
CONFIG = LookaheadConfig(budget=16, sources=("context", "recycled"))


@torch.inference_mode()
def shares_after(token: int) -> torch.Tensor:
    """Probabilities of what follows the start and a token, by transformers."""
    return model_of("llama")(torch.tensor([[*START, token]])).logits[0, -1].softmax(-1)


def test_they_are_the_models_own_successors() -> None:
    found = find_bigrams(decoder_of("llama"), START, nothing(), 60.0)
    assert found.ids.shape == found.shares.shape == (VOCABULARY, BIGRAMS)
    for token in (0, 7, 8, 72, VOCABULARY - 1):
        best = shares_after(token).topk(BIGRAMS)
        row = found.after(token)
        assert [*row] == best.indices.tolist()
        assert [*row.values()] == pytest.approx(best.values.tolist(), rel=1e-2)
    assert found.after(VOCABULARY) == {}


def test_what_is_known_is_not_asked_again() -> None:
    decoder = decoder_of("llama")
    everything = find_bigrams(decoder, START, nothing(), 60.0)
    some = Bigrams(everything.ids[:20] + 1, everything.shares[:20])
    rest = find_bigrams(decoder, START, some, 60.0)
    assert len(rest.ids) == VOCABULARY
    assert rest.after(19) == some.after(19)
    assert [rest.after(token) for token in (20, 60)] == [everything.after(t) for t in (20, 60)]
    assert find_bigrams(decoder, START, rest, 60.0) is rest
    assert find_bigrams(decoder, START, some, 0.0) is some


def test_the_first_draft_has_them() -> None:
    """Before the model has said anything of this text."""
    prompt = [*range(20, 32)]  # no token twice
    store = DraftStore()
    without = steps_of(run(decoder_of("llama"), prompt, "lookahead", CONFIG, store=DraftStore()))
    store.bigrams = find_bigrams(decoder_of("llama"), START, nothing(), 60.0)
    steps = steps_of(run(decoder_of("llama"), prompt, "lookahead", CONFIG, store=store))
    assert without[0].proposed == 0 < steps[0].proposed
    other = DraftStore()
    other.bigrams, plain = store.bigrams, LookaheadConfig(budget=16, sources=("context",))
    steps = steps_of(run(decoder_of("llama"), prompt, "lookahead", plain, store=other))
    assert steps[0].proposed == 0, "they belong to the model's own successors"


def test_evidence_and_the_prior_go_before_them() -> None:
    model, found = NgramModel(), find_bigrams(decoder_of("llama"), START, nothing(), 60.0)
    model.bigrams = found
    looked_up = {token: share for share, token, _ in model.look_up(pack([1, 2, 3]))}
    assert looked_up.keys() == found.after(3).keys()
    model.prior = {77: 0.9}
    looked_up = {token: share for share, token, _ in model.look_up(pack([1, 2, 3]))}
    assert next(iter(looked_up)) == 77, "what the prior is sure of stands beside them"
    assert looked_up.keys() == {77, *found.after(3)}
    model.learn([[1, 2, 3, 4]], 1)
    assert {token for _, token, _ in model.look_up(pack([1, 2, 3]))} == {4}


def test_nothing_is_asked_where_steps_hold_chains() -> None:
    decoder = decoder_of("llama")
    decoder.executor.model.drafts = "chains"
    assert len(find_bigrams(decoder, START, nothing(), 60.0).ids) == 0


def test_nothing_is_asked_where_memory_does_not_suffice() -> None:
    decoder, prompt = decoder_of("llama"), prompt_for("llama", 12)
    run_out(decoder, lambda step: len(step.tokens) > 16)
    found = find_bigrams(decoder, START, nothing(), 60.0)
    assert 0 < len(found.ids) < VOCABULARY, "what was asked before stays"
    assert ids_of(run(decoder, prompt)) == ids_of(run(decoder_of("llama"), prompt))
