"""The Python API on the bundled demo model, and requirements for the demo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

import ladecli
from ladecli.api import Model
from ladecli.profiles import user

pytestmark = pytest.mark.slow

HI = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def demo() -> Model:
    return ladecli.load("demo")


def test_the_readme_example(demo: Model) -> None:
    text = demo.generate("def ", max_new_tokens=40)
    assert len(text) > 40
    *events, end = demo.stream("def ", max_new_tokens=40)
    steps = [event for event in events if isinstance(event, ladecli.TextStep)]
    assert end.figures["steps"] > 0
    assert end.figures["seconds"].keys() == {"prefill", "decode"}
    assert end.reason in ("length", "eos")
    assert "".join(piece.text for step in steps for piece in step.pieces) + end.rest == text


def test_drawn_tokens_follow_the_models_distribution(model_folder: str) -> None:
    """The first two tokens of many answers, against the probabilities of transformers."""
    ours, theirs = ladecli.load(model_folder), AutoModelForCausalLM.from_pretrained(model_folder)
    prompt, draws, counts = "abcabcabcab", 250, Counter[tuple[int, ...]]()
    for seed in range(draws):
        options = {"temperature": 0.7, "top_k": 3, "seed": seed, "ignore_eos": True}
        events = ours.stream(prompt, max_new_tokens=2, **options)
        counts[tuple(i for e in events for i in getattr(e, "token_ids", ()))] += 1
    ids = ours.session.encode(prompt)

    def probabilities(text: Sequence[int]) -> dict[int, float]:
        logits = theirs(torch.tensor([[*ids, *text]])).logits[0, -1] / 0.7
        best = logits.topk(3)
        return dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))

    expected = {
        (first, second): draws * p * q
        for first, p in probabilities([]).items()
        for second, q in probabilities([first]).items()
    }
    assert counts.keys() <= expected.keys()
    statistic = sum((counts[pair] - n) ** 2 / n for pair, n in expected.items())
    assert stats.chi2.sf(statistic, len(expected) - 1) > 1e-3


def test_conversations_go_through_the_template(demo: Model) -> None:
    answer = demo.generate([{"role": "user", "content": "What is lade?"}], max_new_tokens=60)
    assert "lookahead" in answer
    assert "<|" not in answer


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "message"),
    [
        ("", {}, ladecli.PromptError, "the prompt is empty"),
        ("def " * 5000, {}, ladecli.PromptError, "leaves no room"),
        ("def ", {"strategy": "x"}, ladecli.ConfigError, "unknown strategy 'x'"),
        ("def ", {"top_p": 2.0}, ladecli.ConfigError, r"top-p must be in \(0, 1\], not 2.0"),
        ("def ", {"max_new_tokens": 0}, ladecli.UsageError, "max-new-tokens must be at least 1"),
        ("def ", {"max_new_tokens": "3"}, TypeError, "max_new_tokens must be a whole number"),
        ("def ", {"temperature": "hot"}, TypeError, "temperature must be a number, not 'hot'"),
        ("def ", {"foo": 1}, TypeError, r"stream\(\) has no option 'foo'"),
        ("def ", {"draft_text": 5}, TypeError, "draft_text must be a text"),
        ("def ", {"lookahead": {"window": 2}}, TypeError, "lookahead must be a LookaheadConfig"),
        ([HI], {"chat_template": 5}, TypeError, "chat_template must be a name, not 5"),
        ([HI], {"template_args": {1: 2}}, TypeError, "the names in template_args must be a text"),
        (
            [HI | {"content": [{"type": "text"}]}],
            {},
            TypeError,
            "; 1 content 1 text: ",
        ),
        (3, {}, TypeError, "a prompt is a text, or a list of messages"),
        ([1, 2], {}, TypeError, "; 1: "),
        ([HI, {"content": "a"}], {}, TypeError, "; 2 role: it is missing"),
    ],
)
def test_invalid_generate_arguments(
    demo: Model, prompt: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        demo.generate(prompt, **options)
    assert isinstance(caught.value, ladecli.Error)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"name": "./nowhere"}, ladecli.LoadError, "there is no model folder"),
        ({"name": None}, TypeError, "name must be a hub id, a folder or demo, not None"),
        ({"profile": "x"}, ladecli.UsageError, "unknown profile"),
        ({"attention": "x"}, ladecli.UsageError, "unknown attention 'x'; use one of auto,"),
        ({"budget": 0}, ladecli.ConfigError, "budget"),
        ({"sources": 5}, TypeError, "sources must be a text, not "),
        ({"adapter": 3}, TypeError, "adapter must be a list of texts, not 3"),
        ({"temperature": 1.0}, TypeError, r"load\(\) has no option 'temperature'"),
    ],
)
def test_invalid_load_arguments(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        ladecli.load(**options)
    assert isinstance(caught.value, ladecli.Error)


def test_numbers_of_numpy(demo: Model) -> None:
    plain = demo.generate("def ", max_new_tokens=9, temperature=1, seed=3)
    numbers = {"temperature": np.float32(1), "seed": np.int64(3)}
    assert demo.generate("def ", max_new_tokens=np.int32(9), **numbers) == plain


def test_a_template_has_the_variables_of_each_call(demo: Model, tmp_path: Path) -> None:
    path, variables = tmp_path / "a.jinja", {"on": {"really": True}}
    path.write_text("<|bos|>{{ messages[0].content }} {{ on.really is true }} {{ on.really }}")
    message = {"role": "user", "content": ({"type": "text", "text": "So?"},)}
    options = {"chat_template": path, "template_args": variables, "max_new_tokens": 3}
    for value in (True, False, 0, True, 1):
        variables["on"]["really"] = value
        plain = demo.generate(f"So? {value is True} {value}", max_new_tokens=3)
        assert demo.generate([message], **options) == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_context": 10**8}, r"--max-context 100,000,000 is more than demo has: .* 2,048"),
        ({"guesses": 9}, "guesses does nothing with sources context"),
    ],
)
def test_options_without_effect_are_warnings(options: dict[str, int], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        ladecli.load("demo", **options)


def test_notices_are_warnings_and_stay_with_the_model(demo: Model) -> None:
    assert demo.notices == ()
    user.folder().mkdir(parents=True)
    user.path_of("cpu").write_text("[", encoding="utf-8")
    with pytest.warns(UserWarning, match="profile cpu is not valid TOML.*; left out") as caught:
        model = ladecli.load("demo")
    assert model.notices == (str(caught[0].message),)
    assert caught[0].filename == __file__, "they point at the call"


def test_a_session_keeps_learned_drafts_and_draft_texts(demo: Model) -> None:
    def decode(**options: object) -> tuple[str, int]:
        events = demo.stream("class Stack:\n", max_new_tokens=60, **options)
        steps = [event for event in events if isinstance(event, ladecli.TextStep)]
        return "".join(piece.text for step in steps for piece in step.pieces), len(steps)

    demo.session.start_over()
    text, steps = decode()
    again = decode()
    assert (again[0], again[1] < steps) == (text, True)
    demo.session.start_over()
    known = decode(draft_text=text)
    assert (known[0], known[1] < steps) == (text, True)
    # Forgotten texts are learned again.
    demo.session.start_over()
    other = range(300, 2300)
    for first in range(70):
        demo.session.drafts.learn_text([*other[first:], *other[:first]])
    assert decode(draft_text=text)[1] <= known[1]
    # An editor sends version after version: the newest are known, even after `start_over`.
    for version in range(12):
        decode(draft_text=f"{text * 150}# {version}")
    demo.session.start_over()
    assert len(demo.session.drafts.context.corpus) < 1 << 17
    assert decode()[1] < steps
    half_updated = demo.session.drafts
    half_updated.broken = True  # Ctrl-C in the middle of an update
    assert decode()[1] < steps
    assert demo.session.drafts is not half_updated
