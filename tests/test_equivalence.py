"""Exactness: every strategy on every family yields, token for token, what transformers yields."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
)

import ladecli
from ladecli.decoder.backends.transformers_forward import StockModel
from ladecli.decoder.config import SOURCES, STRATEGIES, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.model.transformer import Transformer
from tests.support.decoding import PAPER, decoder_of, ids_of, run, text_ids, transformers_ids, use
from tests.support.models import FAMILIES, LONG_ROPE, OWN, model_of, prompt_for, saved
from tests.support.tokenizers import byte_level

ALL = LookaheadConfig(5, 4, 5)
GREEDY = SamplingConfig()
SAMPLED = SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5)
PENALIZED = SamplingConfig(repetition_penalty=1.3)
MIXED = dataclasses.replace(SAMPLED, repetition_penalty=1.2)
LLAMA = prompt_for("llama")


shared_decoder = functools.cache(decoder_of)


def fresh(family: str) -> Decoder:
    """Return a shared decoder, after it has forgotten earlier texts."""
    decoder = shared_decoder(family)
    decoder.forget()
    return decoder


@functools.cache
def theirs(family: str) -> list[int]:
    """Return the greedy text of transformers, across every boundary that `families` has."""
    prompt = prompt_for(family)
    room = model_of(family).config.max_position_embeddings - len(prompt)
    return transformers_ids(model_of(family), prompt, min(32, room))


@functools.cache
def plain(prompt: tuple[int, ...], sampling: SamplingConfig = GREEDY) -> list[int]:
    """Return the text of plain decoding with Llama."""
    return ids_of(run(fresh("llama"), prompt, sampling=sampling))


FAST = ("llama", "mistral", "gemma2", "qwen3", "phi3_long", "gpt2")
"""Families whose texts are checked even without the tests marked slow."""


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in FAMILIES]
)
def test_texts_are_those_of_transformers(family: str) -> None:
    expected = theirs(family)
    assert len(set(expected)) > 5, "a text that repeats itself proves little"
    decoder, limits = decoder_of(family), Limits(len(expected))
    assert type(decoder.executor.model) is (Transformer if family in OWN else StockModel)
    assert not decoder.executor.notices
    # Strategies that draft chains alternate, since they differ only in the source of chains.
    chains = ("jacobi", "prompt-lookup")[[*FAMILIES].index(family) % 2]
    for attention, strategy, config in (
        ("sdpa", "autoregressive", PAPER),
        ("sdpa", "lookahead", PAPER),
        ("sdpa", chains, PAPER),
        ("reference", "lookahead", ALL),
    ):
        use(decoder, attention)
        decoder.forget()
        events = run(decoder, prompt_for(family), strategy, config, limits=limits)
        assert ids_of(events) == expected, (attention, strategy)


CHANGES: dict[str, tuple[SamplingConfig, list[LogitsProcessor]]] = {
    "penalty": (PENALIZED, []),
    "reward": (SamplingConfig(repetition_penalty=0.8), []),
    "ngrams": (GREEDY, [NoRepeatNGramLogitsProcessor(2)]),
    "tokens": (GREEDY, [SuppressTokensLogitsProcessor([3, 77]), NoRepeatNGramLogitsProcessor(3)]),
    "end": (GREEDY, [MinNewTokensLengthLogitsProcessor(len(LLAMA), 20, 91)]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_penalties_and_processors_equal_transformers(name: str) -> None:
    """Processors see the path to each node as part of the text."""
    (sampling, processors), decoder = CHANGES[name], fresh("llama")
    changes = {
        "repetition_penalty": sampling.repetition_penalty,
        "logits_processor": LogitsProcessorList(processors),
    }
    expected, drawn = transformers_ids(model_of("llama"), LLAMA, 32, **changes), []
    assert expected != theirs("llama"), "nothing was changed"
    for strategy in STRATEGIES:
        answer = functools.partial(run, decoder, LLAMA, strategy, limits=Limits(32))
        assert ids_of(answer(sampling=sampling, processors=processors)) == expected
        drawn.append(ids_of(answer(sampling=MIXED, processors=processors)))
    assert drawn == [drawn[0]] * len(STRATEGIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "phi3_long", "llama_dynamic"])
def test_long_prompts_in_chunks(family: str) -> None:
    prompt = prompt_for(family, min(60, fresh(family).max_context - 20))
    expected = transformers_ids(model_of(family), prompt, 15)
    for chunk in (1, 7, 23):
        decoder = decoder_of(family, prefill_chunk=chunk)
        assert ids_of(run(decoder, prompt, "lookahead", limits=Limits(15))) == expected
        decoder.forget()
        assert ids_of(run(decoder, prompt, limits=Limits(15))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("length", [36, 39, 40, 41, 42])
@pytest.mark.parametrize("family", ["phi3_long", "mistral_long", "llama_dynamic"])
def test_prompts_on_both_sides_of_a_rope_boundary(family: str, length: int) -> None:
    prompt = prompt_for(family, length)
    expected = transformers_ids(model_of(family), prompt, 20)
    decoder = fresh(family)
    # After a longer and after a shorter text, whose keys have the other frequencies.
    others = itertools.cycle(([], [*prompt[:20], *range(3, 43)], prompt[:20]))
    for strategy, other in zip(STRATEGIES, others, strict=False):
        decoder.forget()
        if other:
            run(decoder, other, limits=Limits(2))
        assert ids_of(run(decoder, prompt, strategy, limits=Limits(20))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sources", "sampling"), [(PAPER.sources, GREEDY), (SOURCES, SAMPLED)], ids=["paper", "all"]
)
def test_drafts_of_earlier_texts_change_no_token(
    sources: tuple[str, ...], sampling: SamplingConfig
) -> None:
    store, decoder = DraftStore(), decoder_of("llama")
    config = LookaheadConfig(4, 4, 4, 40, sources)
    texts = [prompt_for("llama", length) for length in (30, 12, 30, 31)]
    # Forks of an earlier text: its end is known, and something else follows.
    texts += [[*texts[0][:25], 7, 7], texts[0][:25], texts[0]]
    for prompt in texts:
        events = run(decoder, prompt, "lookahead", config, sampling, store=store)
        assert ids_of(events) == plain(tuple(prompt), sampling)


# Every entry point, as in `benchmarks/differential.py`.


@pytest.mark.slow
@pytest.mark.parametrize("family", ["olmo2", "gpt_oss"])
def test_every_entry_point_gives_the_text_of_generate(
    family: str, lade: Any, tmp_path: Path
) -> None:
    """Across the length at which rotary frequencies change, up to a stop string, and after an
    interrupted text; `benchmarks/differential.py` tests random models more."""
    tokenizer = byte_level()
    changes = {"vocab_size": len(tokenizer), "eos_token_id": 0, "max_position_embeddings": 160}
    folder = saved(tmp_path, family, rope_parameters=LONG_ROPE, **changes)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    loaded, text = ladecli.load(folder), "a cat sat on the mat"
    for penalty in (1.0, 1.2):
        model.generation_config.repetition_penalty = penalty
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        settings = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
        whole = model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
        stop = tokenizer.decode(whole[20:22])
        settings["stopping_criteria"] = [StopStringCriteria(tokenizer, [stop])]
        expected, own = (
            model.generate(ids, custom_generate=function, **settings)[0, ids.shape[1] :].tolist()
            for function in (None, ladecli.lookahead)
        )
        assert own == expected
        options = {"max_new_tokens": 40, "stop": stop, "repetition_penalty": penalty}
        events = loaded.stream(text, **options)
        next(events)
        events.close()
        assert text_ids(loaded.stream(text, **options)) == expected
        flags = ("-n", "40", "--raw", "--json", "-q", "--stop", stop, "--repetition-penalty")
        answer = lade("generate", folder, "-p", text, *flags, str(penalty))
        assert answer.json()["token_ids"] == expected
        text += tokenizer.decode(expected)
