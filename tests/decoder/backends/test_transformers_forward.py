"""Families on transformers' forward: unknown ones, those without drafts, refused ones; facts."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

import ladecli
from ladecli.decoder.backends import facts
from ladecli.decoder.backends.compat import CACHE_NAMES
from ladecli.decoder.backends.facts import known_families, model_facts, refusal
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.backends.transformers_forward import StockModel
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.errors import ConfigError, UnsupportedModelError
from ladecli.decoder.events import Event
from ladecli.decoder.model.families import FAMILIES
from ladecli.decoder.model.forward import Drafts
from ladecli.decoder.ranks.executors import LookaheadParallel
from ladecli.decoder.ranks.transport import DistributedTransport
from ladecli.decoder.step_cost import StepCost
from tests.support import every, models
from tests.support.decoding import PAPER, ids_of, reason_of, run, steps_of, transformers_ids
from tests.support.models import LONG_ROPE, SLIDING, VOCABULARY, model_of, new_model, prompt_for

NO_TREES: dict[str, tuple[Drafts, str, dict[str, Any]]] = {
    "mamba": ("none", "recurrent state", {"state_size": 8}),
    "rwkv": ("none", "recurrent state", {"attention_hidden_size": 32}),
    "recurrent_gemma": ("none", "recurrent state", {"num_hidden_layers": 3, "head_dim": 8}),
    "jamba": ("none", "recurrent state", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "llama4_text": ("chains", "chunks", {"head_dim": 8, "attention_chunk_size": SLIDING}),
    "stablelm": ("chains", "does not pass keywords", {}),
    "bloom": ("chains", "attention interface", {}),
    "openai-gpt": ("none", "attention interface", {"n_positions": 128}),
    "doge": ("none", "by their content", {}),
}
"""The drafts that can be verified, the reason against trees, and settings of a small model."""


@pytest.mark.parametrize(
    ("family", "why"), [("t5", "encoder-decoder"), ("moshi", "does not continue a text")]
)
def test_refused_by_name_before_any_weights_are_read(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{family}' are not supported.*{why}"):
        model_facts(CONFIG_MAPPING[family]())


FREE = StepCost()


def decode(
    decoder: Decoder, prompt: list[int], new: int, cost: StepCost = FREE, **options: Any
) -> list[Event]:
    """Decode with as many drafts as fit into a step of 12 tokens, by default at no cost."""
    config = LookaheadConfig(budget=12, sources=WITHOUT_WINDOW, step_cost=cost)
    return run(decoder, prompt, "lookahead", config, limits=Limits(new), **options)


@pytest.mark.parametrize("family", NO_TREES)
def test_families_without_trees_give_the_text_of_generate(family: str) -> None:
    """Also for prompts that are read in chunks, continue an earlier one, or fork from it.  Without
    drafts, no token is read twice."""
    drafts, why, settings = NO_TREES[family]
    model, prompt = new_model(family, **settings), prompt_for(family)
    decoder, widths = load_decoder(model, prefill_chunk=9), list[int]()
    assert decoder.executor.model.drafts == drafts
    (notice,) = decoder.executor.notices
    how = "with chains" if drafts == "chains" else "one token"
    assert re.search(f"decoded {how}.*{why}", notice)
    text = transformers_ids(model, prompt, 20)
    fork = transformers_ids(model, prompt[:-1], 20)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    for ids, expected in ((prompt, text), (prompt + text[:9], text[9:]), (prompt[:-1], fork)):
        events = decode(decoder, ids, len(expected))
        assert ids_of(events) == expected
        assert any(step.proposed for step in steps_of(events)) == (drafts == "chains")
        if ids == prompt and why == "recurrent state" and drafts == "none":
            assert sum(widths) == len(prompt) + len(expected) - 1


CHAINS = [family for family, (drafts, _, _) in NO_TREES.items() if drafts == "chains"]


@cache
def shared_decoder(family: str) -> Decoder:
    return load_decoder(new_model(family, **NO_TREES[family][2]))


def chained(family: str) -> Decoder:
    """Return a shared decoder, after it has forgotten earlier texts."""
    decoder = shared_decoder(family)
    decoder.forget()
    return decoder


@pytest.mark.parametrize("family", CHAINS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chains_of_drafts_change_nothing(family: str, temperature: float) -> None:
    decoder, sampling = chained(family), SamplingConfig(temperature=temperature, seed=3)
    config = LookaheadConfig(4, 3, 4, 20)
    settings = [("lookahead", config), ("lookahead", PAPER)]
    if not temperature:  # tokens are drawn after the first difference of strategies
        settings += [("jacobi", config), ("prompt-lookup", config)]
    for prompt, limits in ((prompt_for(family), Limits(16)), (prompt_for(family, 1), Limits(9))):
        plain = ids_of(run(decoder, prompt, sampling=sampling, limits=limits))
        for strategy, chosen in settings:
            decoder.forget()
            assert ids_of(run(decoder, prompt, strategy, chosen, sampling, limits)) == plain


@pytest.mark.parametrize("family", CHAINS)
def test_a_known_answer_takes_few_steps_with_chains(family: str) -> None:
    """One draft is wrong, so the cache is restored, and the text goes on from there.  The prompt
    tokens in the first step do not count against the drafts."""
    decoder, prompt = chained(family), prompt_for(family, 120)
    expected = ids_of(run(decoder, prompt, limits=Limits(40)))
    store, answer = DraftStore(), list(expected)
    answer[20] = (answer[20] + 1) % VOCABULARY
    store.learn_text(prompt + answer)
    costs = StepCost((1, 12, 120), costs=((1.0, 2.0, 20.0),))
    events = decode(decoder, prompt, 40, costs, store=store)
    assert ids_of(events) == expected
    assert len(steps_of(events)) < 40 / 3


def test_texts_end_at_the_limits_of_a_forward_without_trees() -> None:
    model, prompt = new_model("mpt", max_seq_len=40), prompt_for("mpt")
    decoder, store = load_decoder(model, join=False), DraftStore()
    assert decoder.max_context == 40
    expected = transformers_ids(model, prompt, 40 - len(prompt))
    store.learn_text([*prompt, *expected, *prompt])  # the continuation that drafts would propose
    for events in (run(decoder, prompt), decode(decoder, prompt, 99, store=store)):
        assert (ids_of(events), reason_of(events)) == (expected, "context")


HALF = {"partial_rotary_factor": 1.0, "original_max_position_embeddings": 140}
LONG = {"rope_parameters": LONG_ROPE | HALF}
GROWING = {
    "max_position_embeddings": 140,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0} | HALF,
}


@pytest.mark.parametrize("settings", [LONG, GROWING], ids=["longrope", "dynamic"])
@pytest.mark.parametrize("family", ["nemotron", "mixtral"])
def test_rotary_frequencies_that_change_inside_transformers(
    family: str, settings: dict[str, Any]
) -> None:
    """Trees and none; a long prompt in chunks would start with frequencies of short texts."""
    model = new_model(family, head_dim=8, **settings)
    for length in (133, 141):
        prompt = prompt_for(family, length)
        options = {"custom_generate": ladecli.lookahead, "use_cache": True}
        assert transformers_ids(model, prompt, 20, **options) == transformers_ids(model, prompt, 20)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_an_interrupted_answer_leaves_a_valid_cache(count: int) -> None:
    decoder, prompt = chained("llama4_text"), prompt_for("llama4_text")
    expected = ids_of(run(decoder, prompt, limits=Limits(20)))
    stop = Mock(side_effect=[*[False] * (count - 1), KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        run(decoder, prompt, limits=Limits(20, should_stop=stop))
    assert ids_of(decode(decoder, prompt, 20)) == expected


@pytest.mark.parametrize("family", ["recurrent_gemma", "jamba"])
@pytest.mark.parametrize("length", [1, 24])
def test_others_may_use_the_model_between_turns(family: str, length: int) -> None:
    """A text of one token starts without a state, even if the model's modules keep one."""
    model, prompt = new_model(family, **NO_TREES[family][2]), prompt_for(family, length)
    expected, decoder = transformers_ids(model, prompt, 20), load_decoder(model, join=False)
    for _ in range(2):
        begun = ids_of(run(decoder, prompt, limits=Limits(9)))
        transformers_ids(model, prompt_for(family)[::-1], 5)
        assert begun + ids_of(run(decoder, [*prompt, *begun], limits=Limits(11))) == expected
        decoder.forget()


def test_layers_that_share_keys_verify_trees() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    shared = {"num_hidden_layers": 4, "layer_types": kinds, "num_kv_shared_layers": 2}
    model, prompt = new_model("gemma4", **shared), prompt_for("gemma4", 150)
    decoder = load_decoder(model, join=False)
    assert decoder.executor.model.drafts == "trees"
    assert ids_of(run(decoder, prompt, limits=Limits(24))) == transformers_ids(model, prompt, 24)


@pytest.mark.parametrize("family", CHAINS)
@pytest.mark.parametrize("call", [1, 2, 3, 6])
def test_memory_that_runs_out_after_a_forward_changes_nothing(family: str, call: int) -> None:
    """By then the model's own cache contains the step, which is fed again."""
    decoder, prompt, calls = chained(family), prompt_for(family), itertools.count(1)
    expected = ids_of(decode(decoder, prompt, 20))
    decoder.forget()

    def run_out(_ids: Tensor, scores: Tensor) -> Tensor:
        if next(calls) == call:
            raise torch.OutOfMemoryError
        return scores

    config, limits = LookaheadConfig(4, 3, 4, 20), Limits(20)
    events = run(decoder, prompt, "lookahead", config, limits=limits, processors=[run_out])
    assert next(calls) > call
    assert ids_of(events) == expected


def test_ranks_cannot_share_a_model_without_trees() -> None:
    with pytest.raises(ConfigError, match="'bloom' verify one continuation at a time"):
        LookaheadParallel(chained("bloom").executor, DistributedTransport(0, 2))


def test_every_row_has_a_test() -> None:
    small = [every.new_config(name) for name in every.ROWS]
    wrapped = {config.get_text_config(decoder=True).model_type for config in small} & {*FAMILIES}
    own, stock = ({kind for kind, _ in x.values()} for x in (models.OWN, models.STOCK))
    assert own | wrapped == {*FAMILIES} - models.LACKING
    assert stock < known_families()
    assert {*models.HYBRIDS} == {*facts.HYBRIDS.split()} - models.LACKING
    assert not any(refusal(model_of(family).config) for family in models.FAMILIES)


def test_two_threads_leave_a_model_as_it_was() -> None:
    model = new_model("gpt2")
    before, inside = model.config._attn_implementation, threading.Barrier(2)

    def meet(*_: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(0.2)  # one waits during its step; the other's step must not begin

    decoders = [load_decoder(model) for _ in range(2)]
    assert all(isinstance(decoder.executor.model, StockModel) for decoder in decoders)
    model.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda x: ids_of(run(x, [1, 2], limits=Limits(3))), decoders)
    assert first == second
    assert model.config._attn_implementation == before


def test_an_unknown_family_that_hides_its_sliding_window_gets_no_trees() -> None:
    """It would pass a trial that is shorter than its window, and fail later."""
    decoder = load_decoder(new_model("phimoe", sliding_window=20, num_local_experts=2))
    assert "never asked for its sliding window of 20" in decoder.executor.notices[0]


def test_an_unknown_family_that_differs_gets_no_trees() -> None:
    """Its attention ignores the cache."""
    model = new_model("olmo")
    attention = type(model.model.layers[0].self_attn)

    # The base class is known only when this runs.
    class Forgetful(attention):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs | dict.fromkeys(kwargs.keys() & CACHE_NAMES))

    for layer in model.model.layers:
        layer.self_attn.__class__ = Forgetful
    before = model.config._attn_implementation
    decoder = load_decoder(model)
    assert "without drafts: a trial step" in decoder.executor.notices[0]
    assert model.config._attn_implementation == before, "the model is left as it was"
    prompt = prompt_for("olmo")
    expected = transformers_ids(model, prompt, 9, use_cache=False)
    assert ids_of(run(decoder, prompt, "lookahead", limits=Limits(9))) == expected


def stretched(kind: str, **more: Any) -> dict[str, Any]:
    """Return a configuration of 64 positions, scaled by 4."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more}
    return {"max_position_embeddings": 64, "rope_parameters": rope}


@pytest.mark.parametrize(
    ("family", "settings", "limits"),
    [
        ("gemma3", {}, (256, 256, SLIDING, None)),
        ("llama3", {}, (512, 512, None, None)),
        ("phi3_long", {}, (160, 160, None, 40)),
        ("llama_dynamic", {}, (160, 160, None, 40)),
        ("llama", stretched("dynamic", original_max_position_embeddings=40), (256, 256, None, 64)),
        ("llama", stretched("yarn", original_max_position_embeddings=64), (256, 256, None, None)),
        ("llama", stretched("linear"), (64, 256, None, None)),
    ],
)
def test_facts(family: str, settings: dict[str, Any], limits: tuple[int | None, ...]) -> None:
    """The default and the longest context, the sliding window, and the rotary boundary."""
    facts = model_facts(new_model(family, **settings).config)
    assert (facts.layers, facts.vocabulary) == (2, VOCABULARY)
    window = facts.sliding_window, facts.rope_boundary
    assert (facts.context, facts.most_context, *window) == limits


def test_a_damaged_configuration_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="0 layers: it is damaged"):
        model_facts(CONFIG_MAPPING["llama"](num_hidden_layers=0))
