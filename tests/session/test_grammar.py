"""Answers with a schema or grammar equal those of plain decoding with a mask at every token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from llguidance.hf import from_tokenizer

import ladecli
from ladecli.api import Model
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.events import Ended, TextStep
from ladecli.session.grammar import Grammar
from ladecli.session.session import Settings
from tests.session.test_chat_template import CASES
from tests.support.decoding import PAPER, ids_of, run, text_ids
from tests.support.models import saved
from tests.support.processes import Result

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 12},
        "paid": {"type": "boolean"},
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "colour": {"enum": ["red", "green", "black"]},
                    "count": {"type": "integer", "minimum": 1, "maximum": 20},
                },
                "required": ["colour", "count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["customer", "paid", "items"],
    "additionalProperties": False,
}
GREEDY = SamplingConfig()
SAMPLED = SamplingConfig(temperature=1.2, top_k=40, top_p=0.9, seed=3)
PENALIZED = SamplingConfig(temperature=0.9, min_p=0.02, repetition_penalty=1.3, seed=4)
PROMPT = "An order as JSON:\n"


@pytest.fixture(scope="module")
def demo() -> Model:
    return ladecli.load("demo")


def by_masks(tokenizer: Any, grammar: Grammar, prompt: int) -> Callable[..., torch.Tensor]:
    """A logits processor in transformers' form, which reads the whole text again at every token."""
    known = from_tokenizer(tokenizer)

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = llguidance.LLMatcher(known, grammar.text)
        assert matcher.consume_tokens(ids[0, prompt:].tolist()) or matcher.is_stopped()
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=scores.shape[-1], bitorder="little").astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), float("-inf"))

    return process


def answer(model: Model, ids: Sequence[int], **settings: Any) -> tuple[list[int], Ended]:
    """Return the tokens of an answer, and its end."""
    events = [*model.session.stream(ids, Settings(max_new_tokens=120, **settings))]
    assert isinstance(events[-1], Ended)
    return text_ids(events), events[-1]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALIZED])
def test_every_strategy_gives_the_answer_of_plain_masked_decoding(
    demo: Model, sampling: SamplingConfig
) -> None:
    session, grammar = demo.session, Grammar.from_schema(ORDER)
    ids = session.encode(PROMPT)
    process = by_masks(session.loaded.tokenizer, grammar, len(ids))
    limits = ladecli.decoder.config.Limits(120, session.loaded.defaults.stop_ids)
    plain = ids_of(
        run(session.decoder, ids, sampling=sampling, limits=limits, processors=[process])
    )
    for strategy, config in (
        ("autoregressive", PAPER),
        ("jacobi", PAPER),
        ("prompt-lookup", PAPER),
        ("lookahead", PAPER),
        ("lookahead", LookaheadConfig(5, 4, 5)),
        ("lookahead", LookaheadConfig(sources=("context", "recycled"), budget=16)),
    ):
        session.start_over()
        settings = {"strategy": strategy, "lookahead": config, "sampling": sampling}
        for logprobs in (None, 2):
            ours, _ = answer(demo, ids, grammar=grammar, logprobs=logprobs, **settings)
            assert [*ours, *plain[len(ours) : len(ours) + 1]] == plain, (strategy, config)


def test_tokens_forced_by_the_schema_are_drafted_and_accepted(demo: Model) -> None:
    session, grammar = demo.session, Grammar.from_schema(ORDER)
    session.start_over()
    settings = Settings(max_new_tokens=120, grammar=grammar)
    steps = [
        event
        for event in session.stream(session.encode(PROMPT), settings, detailed=True)
        if isinstance(event, TextStep)
    ]
    tried = [step.detail for step in steps if step.detail is not None]
    forced = sum(detail.sources.count("forced") for detail in tried)
    accepted = [detail.sources[node] for detail in tried for node in detail.accepted]
    assert accepted.count("forced") > len(text_ids(steps)) / 4
    # A token after a wrong guess is verified in vain; all tokens of the text are verified.
    at_root = [detail for detail in tried if detail.sources[:1] == ("forced",)]
    assert at_root
    assert all(detail.accepted[:1] == (0,) for detail in at_root)
    assert forced >= accepted.count("forced")


@pytest.mark.parametrize("family", ["stablelm", "mamba"])
def test_models_that_verify_chains_or_nothing(family: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="drafts"):
        model = ladecli.load(saved(tmp_path, family, vocab_size=300, eos_token_id=0))
    texts = {
        model.generate("def ", schema=ORDER, max_new_tokens=90, strategy=strategy, **sampling)
        for strategy in ("autoregressive", "lookahead")
        for sampling in ({}, {"temperature": 1.0, "seed": 1})
    }
    assert len(texts) == 2


def test_a_grammar_ends_the_text(demo: Model) -> None:
    ids = demo.session.encode("1, 2, ")
    ours, end = answer(demo, ids, grammar=Grammar.from_lark('start: "yes" | "no"'))
    assert demo.session.loaded.tokenizer.decode(ours) in ("yes", "no")
    assert end.reason == "stop"
    # If the grammar can go on, the model decides, even if its end token is ignored.
    for ignore_eos in (False, True):
        number = Grammar.from_lark(r"start: /a?/")
        ours, end = answer(demo, ids, grammar=number, ignore_eos=ignore_eos)
        assert demo.session.loaded.tokenizer.decode(ours, skip_special_tokens=True) in ("", "a")
        assert end.reason in ("stop", "stop" if ignore_eos else "eos")
    ours, end = answer(demo, ids, grammar=Grammar.from_schema(ORDER), stop=('": ',))
    assert end.reason == "stop"
    assert "customer" in demo.session.loaded.tokenizer.decode(ours)


def test_a_schema_in_python(demo: Model) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    said = demo.generate("Someone: ", schema=Person, max_new_tokens=60, temperature=0.7, seed=1)
    assert Person.model_validate_json(said).name is not None
    assert said.startswith('{"name": "')
    assert demo.generate("x", grammar='root ::= "on" | "off"') in ("on", "off")
    with pytest.raises(ladecli.Error, match="schema and grammar"):
        demo.generate("x", schema={}, grammar="start: /a/")
    with pytest.raises(ladecli.Error, match="grammar must be a text"):
        demo.generate("x", grammar=b"start: /a/")


@pytest.mark.parametrize(
    ("name", "ends", "words"),
    [("qwen3", "</think>", "Rome"), ("deepseek-r1", "</think>", "Rome"), ("gpt-oss", "", "Rome")],
)
def test_a_grammar_begins_after_the_reasoning(
    name: str, ends: str, words: str, tmp_path: Path, lade: Callable[..., Result]
) -> None:
    folder, grammar = CASES[name].folder.write(tmp_path / "model"), tmp_path / "grammar"
    grammar.write_text(f'start: "{words}"')
    said = lade("generate", folder, "-p", "Where?", "--json", "--grammar", str(grammar), "-n", "30")
    row = json.loads(said.out)
    assert row["reasoning"] == "Hm,"
    assert row["text"] == words
    assert row["finish_reason"] == "stop"


def test_the_command(tmp_path: Path, lade: Callable[..., Result]) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text(json.dumps({"enum": [{"a": 1}, {"a": 2}]}))
    grammar.write_text('root ::= "yes" | "no"')

    def generate(*options: str) -> Result:
        return lade("generate", "demo", "-p", "x", "-n", "20", *options)

    for value in (str(schema), schema.read_text()):
        assert isinstance(json.loads(generate("--json-schema", value).out)["a"], int)
    assert generate("--grammar", str(grammar)).out in ("yes\n", "no\n")
    for wrong, noun in {
        '{"type": "thing"}': "thing",
        '{"type": ': "is not JSON",
        str(tmp_path / "none"): "none",
        str(grammar): "is not JSON",
        '{"type": "string", "pattern": "(?=a)"}': "look-ahead",
    }.items():
        assert noun in generate("--json-schema", wrong).refused()
    assert "cannot be used" in generate("--grammar", str(schema)).refused()
    assert "leave one out" in generate("--grammar", str(grammar), "--json-schema", "{}").refused()
    assert "same file" in generate("--json-schema", str(schema), "--trace", str(schema)).refused()


def test_llguidance_is_missing(
    lade: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    said = lade("generate", "no-such-model", "-p", "x", "--json-schema", "{}").refused()
    assert "pip install 'ladecli[schema]'" in said
