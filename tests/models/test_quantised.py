"""bitsandbytes on a CPU: models load, generate, and say the same under every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ladecli.decoder.backends import int8
from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.model.transformer import Transformer
from ladecli.errors import LoadError, UsageError
from ladecli.models.load import LoadedModel, load
from ladecli.options.model import ModelOptions, PlacementOptions
from ladecli.session.session import Session
from tests.support.decoding import ids_of, run, transformers_ids
from tests.support.hub import DEMO, copied, plan, stating
from tests.support.models import saved

ON_CPU = PlacementOptions(device="cpu")

pytestmark = pytest.mark.slow

NEAR_TIE = 0.05
"""Quantised products round rows of one step and of several differently.  Where the best two
logits are closer than this share of their spread, either may win."""
PROMPTS = ("def largest(items):\n", "What is lookahead decoding?")
PAPER = LookaheadConfig(7, 4, 7, sources=("trajectory",))
LIMITS = Limits(24)


@pytest.fixture(scope="module", params=["4bit", "8bit"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patch:
        # Else 8 bits on a CPU are ours (`test_int8`).
        patch.setattr(int8, "available", lambda: False)
        return load(plan("demo", ModelOptions(quantize=request.param), ON_CPU))


def answer(
    session: Session, prompt: str, config: LookaheadConfig | None = None, **options: Any
) -> list[int]:
    """The ids of an answer, plain without a config."""
    strategy = "lookahead" if config else "autoregressive"
    ids = session.encode(prompt)
    events = run(session.decoder, ids, strategy, config or PAPER, limits=LIMITS, **options)
    return ids_of(events)


@pytest.fixture(scope="module")
def session(loaded: LoadedModel) -> Session:
    return Session(loaded)


@pytest.fixture(scope="module")
def plain(session: Session) -> dict[str, tuple[list[int], list[float]]]:
    """By prompt, the ids of a plain answer, and the lead of each over the next best token, as a
    share of the logits' spread."""
    leads: list[float] = []

    def lead(_ids: Any, logits: Any) -> Any:
        first, second = logits[0].float().topk(2).values.tolist()
        leads.append((first - second) / float(logits.float().std()))
        return logits

    found = {}
    for prompt in PROMPTS:
        leads.clear()
        found[prompt] = answer(session, prompt, processors=[lead]), [*leads]
    return found


def test_lookahead_gives_the_text_of_plain_decoding_but_for_near_ties(
    session: Session, plain: dict[str, Any]
) -> None:
    for prompt, (wanted, leads) in plain.items():
        for config in (LookaheadConfig(5, 3, 5, 60), PAPER):
            ids = answer(session, prompt, config)
            assert len(ids) == len(wanted) == len(leads) == LIMITS.max_new_tokens
            apart = next((i for i, token in enumerate(ids) if token != wanted[i]), None)
            # How many texts meet a near-tie depends on the kernels of the machine.
            assert apart is None or leads[apart] < NEAR_TIE


def test_plain_decoding_equals_transformers(session: Session, plain: dict[str, Any]) -> None:
    """Our own forward calls the modules of packed weights."""
    assert isinstance(session.decoder.executor.model, Transformer)
    wanted, _ = plain[PROMPTS[0]]
    ids = session.encode(PROMPTS[0])
    assert transformers_ids(session.loaded.model, ids, len(wanted)) == wanted


def test_the_plan_knows_the_size_of_packed_weights(loaded: LoadedModel) -> None:
    assert loaded.spec.weights in ("nf4", "int8")
    held = loaded.model.get_memory_footprint()
    # Scales are not in what transformers counts.
    assert held <= loaded.spec.weight_bytes * 1.001
    assert held > loaded.spec.weight_bytes * 0.95


def test_shapes_that_its_kernels_refuse_give_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    sizes = {"hidden_size": 60, "intermediate_size": 100, "num_attention_heads": 2}
    folder = saved(tmp_path, "llama", vocab_size=300, **sizes)

    # Which shapes they refuse depends on the processor, so one is refused for all of them.
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("N must be divisible by block_n\nand more")

    monkeypatch.setattr("bitsandbytes.nn.Linear4bit.forward", refuse)
    line = r"cannot be computed in nf4 on .*: N must be divisible by block_n; try another --"
    with pytest.raises(LoadError, match=line):
        load(plan(folder, ModelOptions(quantize="4bit"), ON_CPU))


def test_a_checkpoint_is_not_quantised_twice(tmp_path: Path) -> None:
    change = stating("config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    packed = copied(DEMO, tmp_path / "packed", change)
    line = r"is quantised already \(gptq\); leave --quantize out"
    with pytest.raises(UsageError, match=line):
        load(plan(packed, ModelOptions(quantize="4bit"), ON_CPU))


def test_a_quantised_checkpoint_loads_as_it_is(loaded: LoadedModel, tmp_path: Path) -> None:
    # That may change it: with AVX-512 in bfloat16 bitsandbytes packs weights, and rounds scales.
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    again = load(plan(str(tmp_path), place=ON_CPU))
    assert again.spec.weights == loaded.spec.weights
    assert answer(Session(again), PROMPTS[0]) == answer(Session(loaded), PROMPTS[0])
